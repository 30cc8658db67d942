"""The schema history: which columns a table had at a position in the log.

With binlog_row_metadata=FULL the log itself has them. Otherwise it has columns by number only, and
their names must come from information_schema, which shows the tables of now: maybe later than the
position where the log is read. So a definition is used for the log only while it is certain:

- It was read at a position (or was stored there), and is followed from one DDL statement to the
  next.
- Behind a DDL statement the catalog is read again; the log from there up to now is searched for
  further DDL on the same table. If there is any, the catalog may be ahead of the log.
- Before rows are decoded, the definition must agree with the table map in number, types and nulls.

Otherwise the table fails, with the fix; other tables go on.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from headwater.capture.contract import LogPosition, Table
from headwater.capture.mysql import ddl
from headwater.capture.mysql.binlog import events as binlog
from headwater.capture.mysql.binlog import positions, table_map
from headwater.capture.mysql.binlog.dump import Dump
from headwater.capture.mysql.binlog.table_map import TableMap
from headwater.capture.mysql.catalog import Choice, is_sequence, is_versioned, read_tables
from headwater.capture.mysql.charsets import Charsets
from headwater.capture.mysql.checks import versioned
from headwater.capture.mysql.columns import ColumnDef, TableDef
from headwater.capture.mysql.server import Server, log_end
from headwater.capture.settings import CaptureSettings
from headwater.errors import CaptureError, HeadwaterError

_READ_AGAIN: Final = 5  # times, while DDL keeps coming
_WAIT_S: Final = 10.0
_FAR_BYTES: Final = 64 * 1024 * 1024
_REMEMBERED: Final = 10_000  # tables that are not ours


class SchemaHistory:
    """The tables of one capture, as of the position where its stream stands."""

    def __init__(
        self,
        settings: CaptureSettings,
        choice: Choice,
        connection: Any,
        server: Server,
        charsets: Charsets,
        open_dump: Callable[[str, int], Dump],
    ) -> None:
        self._settings = settings
        self._choice = choice
        self._connection = connection
        self._server = server
        self.charsets = charsets
        self._open_dump = open_dump
        self._certain: dict[str, TableDef] = {}
        self._last: dict[str, TableDef] = {}  # as it once was: for types, not for names
        # Altered, and not yet resolved how. Positions have them, so that one who resumes there does
        # not take the tables that were stored last for certain.
        self.uncertain: set[str] = set()
        self._tables: dict[str, Table] = {}
        self._searched: LogPosition | None = None  # up to here the log was searched for DDL
        self._ahead: dict[str, tuple[int, int]] = {}  # where DDL on a table was found last
        self._chosen: dict[str, bool] = {}

    def is_chosen(self, table_id: str) -> bool:
        chosen = self._chosen.get(table_id)
        if chosen is None:
            if len(self._chosen) >= _REMEMBERED:
                self._chosen.clear()
            chosen = self._chosen[table_id] = table_id in self._choice
        return chosen

    def begin_now(self) -> dict[str, Any]:
        """Reads all tables, and returns a position in the log at which they looked like this."""
        for _ in range(_READ_AGAIN):
            position = log_end(self._connection, self._server)
            tables = read_tables(self._connection, self._choice)
            end = log_end(self._connection, self._server)
            altered = self._touched(position, end)
            if not altered:
                break
        self._certain = {id_: table for id_, table in tables.items() if id_ not in altered}
        return position

    def begin_with(self, stored: Mapping[str, Table], position: LogPosition) -> None:
        """The tables as they were at `position`."""
        self.uncertain = set(position.get("uncertain", ()))
        last: dict[str, TableDef] = {}
        certain: dict[str, TableDef] = {}
        definitions = {
            table_id: TableDef.of(table)
            for table_id, table in stored.items()
            if table.columns and table_id in self._choice
        }
        for definition in definitions.values():
            is_uncertain = definition.id in self.uncertain
            (last if is_uncertain else certain)[definition.id] = definition
        self._last, self._certain = last, certain

    def last_certain(self, table_id: str) -> Table | None:
        """The table as it is, or was when it was last certain."""
        definition = self._certain.get(table_id) or self._last.get(table_id)
        return self._handed_out(definition) if definition else None

    def is_certain(self, table: Table) -> bool:
        """Whether the table looks like this where the stream stands."""
        return self._certain.get(table.id) == TableDef.of(table)

    def of_map(
        self, found: TableMap, position: LogPosition
    ) -> tuple[Table, tuple[ColumnDef, ...]] | None:
        """The table that a table map at `position` is about; None if it is no table at all, but a
        sequence of MariaDB. Raises CaptureError if its columns cannot be resolved.
        """
        is_full = found.is_full
        if self._certain.get(found.id) is None and self._is_sequence(found):
            return None
        definition = self._from_map(found) if is_full else self._from_catalog(found, position)
        self._certain[found.id] = definition
        self.uncertain.discard(found.id)
        return self._handed_out(definition), definition.columns

    def changed(self, statement: ddl.Ddl, position: LogPosition) -> list[tuple[str, Table | None]]:
        """The tables behind a DDL statement that ends at `position`; None: dropped."""
        if statement.kind == "drop database":
            schema = statement.tables[0][0]
            dropped = [table_id for table_id in self._certain if table_id.startswith(f"{schema}.")]
            for table_id in dropped:
                self._certain.pop(table_id, None)
            return [(table_id, None) for table_id in dropped]
        touched = [pair for pair in statement.tables if self.is_chosen(f"{pair[0]}.{pair[1]}")]
        if not touched:
            return []
        dropped = [
            f"{schema}.{name}"
            for schema, name in statement.dropped
            if self.is_chosen(f"{schema}.{name}")
        ]
        for schema, name in touched:
            if old := self._certain.pop(f"{schema}.{name}", None):
                self._last[old.id] = old
            self.uncertain.discard(f"{schema}.{name}")
        for table_id in dropped:
            self._last.pop(table_id, None)
        changes: list[tuple[str, Table | None]] = [(table_id, None) for table_id in dropped]
        rest = [pair for pair in touched if pair in statement.made or pair not in statement.dropped]
        if not rest:
            return changes
        current, ahead = self._read(rest, position, is_urgent=False)
        for schema, name in rest:
            table_id = f"{schema}.{name}"
            if table_id in ahead:
                self.uncertain.add(table_id)
                if before := self._last.get(table_id):  # its rows will show what it is now
                    changes.append((table_id, self._handed_out(before)))
                continue
            definition = current.get(table_id)
            if definition is not None:
                self._certain[table_id] = definition
            changes.append((table_id, self._handed_out(definition) if definition else None))
        return changes

    def parse(self, query: binlog.Query) -> ddl.Ddl | None:
        """What a statement in the log does to tables, by the names that they are captured by."""
        statement = ddl.parse(query.text, query.database)
        return statement.lower() if statement and self._server.lowers_names else statement

    def _from_map(self, found: TableMap) -> TableDef:
        """A table map with names. In it uuid and inet6 look like binary(16): where the last
        definition fits, its types are used.
        """
        mapped = table_map.definition(found, self.charsets)
        last = self._certain.get(found.id) or self._last.get(found.id)
        if last is None or not self._covers(last, mapped):
            current = self._current([(found.schema, found.name)])
            last = current.get(found.id, last)
        if last is None:
            self._refuse_history(found)
            return mapped
        declared = {column.name: column for column in last.columns}
        columns: list[ColumnDef] = []
        for at, column in enumerate(mapped.columns):
            other = declared.get(column.name)
            if (
                other is not None
                and table_map.agrees(other.declared, found, at, self.charsets)
                and column.declared.values == other.declared.values
            ):
                columns.append(ColumnDef(column.name, other.type, column.optional))
            else:
                columns.append(column)
        key = mapped.key if found.key is not None else ()
        return TableDef(mapped.schema, mapped.name, tuple(columns), key)

    def _covers(self, last: TableDef, mapped: TableDef) -> bool:
        return {c.name for c in mapped.columns} <= {c.name for c in last.columns}

    def _from_catalog(self, found: TableMap, position: LogPosition) -> TableDef:
        certain = self._certain.get(found.id)
        if certain is not None and self._fits(certain, found):
            return certain
        current, ahead = self._read([(found.schema, found.name)], position)
        definition = current.get(found.id)
        if definition is not None and found.id not in ahead and self._fits(definition, found):
            return definition
        if definition is None:
            self._refuse_history(found)
        why = (
            "it was altered again since, and the log does not contain which columns it had"
            if found.id in ahead
            else "it was dropped, and the log does not contain which columns it had"
            if definition is None
            else "its columns in the log are not those that the catalog has"
        )
        raise unknown_columns(found.id, why, self._settings.name)

    def _fits(self, definition: TableDef, found: TableMap) -> bool:
        return len(definition.columns) == len(found.types) and all(
            column.optional == found.nullable[at]
            and table_map.agrees(column.declared, found, at, self.charsets)
            for at, column in enumerate(definition.columns)
        )

    def _read(
        self, pairs: Sequence[tuple[str, str]], position: LogPosition, *, is_urgent: bool = True
    ) -> tuple[dict[str, TableDef], set[str]]:
        """The catalog's definitions, and which of them may be later than `position`. If it is not
        urgent, a long range of the log is not searched: all of them may be later.
        """
        current = self._current(pairs)
        # Information_schema waits for DDL that is in progress, and that is in the log when it ends.
        end = log_end(self._connection, self._server)
        if not is_urgent and _is_far(position, end):
            return current, {f"{schema}.{name}" for schema, name in pairs}
        return current, self._touched(position, end)

    def _is_sequence(self, found: TableMap) -> bool:
        if found.names is not None:
            return found.names[0] == "next_not_cached_value"
        return is_sequence(self._connection, found.schema, found.name)

    def _refuse_history(self, found: TableMap) -> None:
        if is_versioned(self._connection, found.schema, found.name):
            raise versioned(found.id)

    def _current(self, pairs: Iterable[tuple[str, str]]) -> dict[str, TableDef]:
        return read_tables(self._connection, self._choice, pairs)

    def _touched(self, position: LogPosition, end: LogPosition) -> set[str]:
        """The tables on which there is DDL between two positions. No range of the log is searched
        twice: what was found further ahead is cached until the stream is there.
        """
        here = positions.order(position)
        if self._searched is None or positions.order(self._searched) < here:
            self._searched, self._ahead = position, {}
        self._ahead = {table: at for table, at in self._ahead.items() if at > here}
        if positions.order(self._searched) < positions.order(end):
            self._search(self._searched, end)
            self._searched = end
        return set(self._ahead)

    def _search(self, position: LogPosition, end: LogPosition) -> None:
        dump = self._open_dump(
            position["file"], int(position.get("pos", position.get("begins", 4)))
        )
        try:
            while (at := positions.order(dump.log_position())) < positions.order(end):
                event = dump.event(_WAIT_S)
                if event is None:
                    raise CaptureError("the binlog does not come to its end", detail=f"{at}")
                if event.type in (binlog.QUERY, binlog.QUERY_COMPRESSED):
                    query = binlog.read_query(event)
                    statement = self.parse(query)
                    if statement and statement.kind not in ("data", "truncate"):
                        for table_id in self._tables_of(statement):
                            self._ahead[table_id] = positions.order(dump.log_position())
        except (LookupError, ValueError, struct.error) as error:
            where = f"{dump.framing.file}:{dump.position}"
            raise binlog.malformed(where, str(error)) from error
        finally:
            dump.close()

    def _tables_of(self, statement: ddl.Ddl) -> list[str]:
        if statement.kind == "drop database":
            dropped = f"{statement.tables[0][0]}."
            return [table_id for table_id in self._tables if table_id.startswith(dropped)]
        found = [f"{schema}.{name}" for schema, name in statement.tables]
        return [table_id for table_id in found if self.is_chosen(table_id)]

    def _handed_out(self, definition: TableDef) -> Table:
        """The same object for the same definition."""
        table = definition.table(self._settings)
        old = self._tables.get(table.id)
        if old == table:
            return old
        self._tables[table.id] = table
        return table


def _is_far(position: LogPosition, end: LogPosition) -> bool:
    here, there = positions.order(position), positions.order(end)
    return there[0] > here[0] + 1 or (there[0] == here[0] and there[1] - here[1] > _FAR_BYTES)


def unknown_columns(table_id: str, why: str, capture: str) -> HeadwaterError:
    return CaptureError(
        f"the columns of {table_id} cannot be resolved",
        detail=why,
        hint="SET GLOBAL binlog_row_metadata = FULL; then take a new snapshot of the table: "
        f"headwater capture snapshot {capture} --table {table_id}",
    )
