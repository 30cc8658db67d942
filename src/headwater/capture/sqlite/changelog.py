"""The log table in the database: created, updated with the tables, and removed.

`follow` compares the tables with their triggers, in one write transaction, and does what is needed:

    a table that the settings name has no triggers yet    they are made; mark "s"
    its columns, unique indexes or other triggers changed  they are recreated; what was logged since
                                                          the last look is read again from the table
    its triggers are missing (it was rebuilt)              they are recreated; marks "x" and "s": a
                                                          new table with the old one's name
    the table is dropped, renamed, or no longer named      its triggers too; mark "x"
"""

import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.capture.contract import Table
from headwater.capture.sqlite.catalog import Definition, quoted, read_definition, table_names
from headwater.capture.sqlite.connection import read_transaction, write_transaction
from headwater.capture.sqlite.triggers import (
    KINDS,
    MARKS,
    NOW,
    PREFIX,
    Names,
    log_tables,
    names_of,
    triggers,
)

# A log row has the old and the new row; SQLite allows 2,000 columns.
MOST_COLUMNS: Final = 990
# How many changes are read again after an ALTER. Above it the table needs a new snapshot.
MOST_REFRESHED: Final = 200_000


@dataclass(frozen=True, slots=True)
class Version:
    """A table as the triggers of one version saw it."""

    number: int
    table: Table
    names: tuple[str, ...]
    width: int
    key_at: tuple[int, ...]  # where in the row the key's columns are


@dataclass(slots=True)
class ChangeLog:
    capture: str
    include: Sequence[str]
    exclude: Sequence[str]
    has_snapshots: bool
    names: Names = field(init=False)
    incarnation: str = ""  # distinguishes this log from one that was removed and made again
    schema_version: int = -1  # at the last look
    clean_id: int = 0  # up to here the log was written by triggers that fit their tables
    width: int = 0
    too_wide: dict[str, int] = field(default_factory=dict)  # tables, with their columns' number
    _versions: dict[int, Version] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = names_of(self.capture)

    def exists(self, connection: sqlite3.Connection) -> bool:
        sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return connection.execute(sql, (f"{self.names.prefix}log",)).fetchone() is not None

    def last_id(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute(f"SELECT max(id) FROM {self.names.log}").fetchone()[0])

    def open(self, connection: sqlite3.Connection, clean_id: int | None) -> None:
        """Makes log and triggers as needed. Behind `clean_id` nothing is in a topic yet."""
        with write_transaction(connection):
            if not self.exists(connection):
                for sql in log_tables(self.names, _widest(self._definitions(connection))):
                    connection.execute(sql)
                self._set_state(connection, "incarnation", secrets.token_hex(4))
                self._set_state(connection, "schema_version", -1)
                self._mark(connection, 0, "o")
            self.incarnation = str(self._state(connection, "incarnation"))
            self.clean_id = self.last_id(connection) if clean_id is None else clean_id
            if _schema_version(connection) == self._state(connection, "schema_version"):
                self.clean_id = self.last_id(connection)
            self._follow(connection)

    def follow(self, connection: sqlite3.Connection) -> None:
        """To be called when the schema's version is another than at the last look. Takes the write
        lock only if that concerns our tables (VACUUM and tables of no interest do not).
        """
        with read_transaction(connection):
            schema_version = _schema_version(connection)
            if self._is_in_step(connection):
                self.schema_version = schema_version
                self.clean_id = self.last_id(connection)
                return
        with write_transaction(connection):
            self._follow(connection)

    def _is_in_step(self, connection: sqlite3.Connection) -> bool:
        found, current = self._definitions(connection), self._current(connection)
        return found.keys() == current.keys() and all(
            self._inspect(connection, definition, current[name])[1]
            for name, definition in found.items()
        )

    def _follow(self, connection: sqlite3.Connection) -> None:
        found = self._definitions(connection)
        self._widen(connection, 2 * _widest(found))
        current = self._current(connection)
        for name, number in current.items():
            if name not in found:
                self._retire(connection, number)
                self._mark(connection, number, "x")
        for name, definition in found.items():
            self._follow_table(connection, definition, current.get(name))
        self._prune(connection)
        # Inside the transaction that changed it, this is the version it will have.
        self.schema_version = _schema_version(connection)
        self._set_state(connection, "schema_version", self.schema_version)
        self.clean_id = self.last_id(connection)

    def _current(self, connection: sqlite3.Connection) -> dict[str, int]:
        """The tables that have triggers, with the number of their version."""
        sql = f"SELECT name, t FROM {self.names.versions} WHERE is_current"
        return {str(name).lower(): int(number) for name, number in connection.execute(sql)}

    def _definitions(self, connection: sqlite3.Connection) -> dict[str, Definition]:
        found: dict[str, Definition] = {}
        for name in table_names(connection, self.include, self.exclude):
            definition = read_definition(connection, name)
            assert definition is not None, "it was listed in the same transaction"
            if len(definition.columns) <= MOST_COLUMNS:
                found[name.lower()] = definition
            else:
                self.too_wide[definition.as_table().id] = len(definition.columns)
        return found

    def _follow_table(
        self, connection: sqlite3.Connection, definition: Definition, number: int | None
    ) -> None:
        if number is None:
            self._mark(connection, self._install(connection, definition), "s")
            return
        is_whole, is_intact = self._inspect(connection, definition, number)
        if is_intact:
            return
        table = self.version(connection, number).table
        self._retire(connection, number)
        if table.name != definition.name:  # in case only: for SQLite it is the same
            self._mark(connection, number, "x")
        new = self._install(connection, definition)
        if not is_whole:
            why = "its triggers were dropped, as when a table is rebuilt: changes were not seen"
            self._begin_anew(connection, new, why)
            return
        if table != definition.as_table():
            self._mark(connection, new, "s")
        self._refresh(connection, definition, number, new)

    def _begin_anew(self, connection: sqlite3.Connection, number: int, why: str) -> None:
        """Has the table copied again from its start, or without copies: reports it as needed."""
        if self.has_snapshots:
            self._mark(connection, number, "x")
            self._mark(connection, number, "s")
        else:
            self._mark(connection, number, "f", why)

    def _inspect(
        self, connection: sqlite3.Connection, definition: Definition, number: int
    ) -> tuple[bool, bool]:
        """Whether all triggers of a version are on this table, and whether they also know it as it
        is, are as they would be made now, and younger than a user's.
        """
        wanted = triggers(self.names, definition, number)
        rows = connection.execute(
            "SELECT rowid, name, sql FROM sqlite_master WHERE type = 'trigger'"
            " AND tbl_name = ? COLLATE NOCASE ORDER BY rowid",
            (definition.name,),
        ).fetchall()
        own_names = {self.names.trigger(number, kind) for kind in KINDS}
        ours = {name: sql for _, name, sql in rows if name in own_names}
        is_whole = {self.names.trigger(number, kind) for kind in _AFTER} <= ours.keys()
        first = min((rowid for rowid, name, _ in rows if name in own_names), default=0)
        # Another capture's triggers change no rows of the user's, so their order does not matter.
        is_younger = all(rowid < first or name.startswith(PREFIX) for rowid, name, _ in rows)
        is_known = self.version(connection, number).table == definition.as_table()
        return is_whole, is_whole and is_known and ours == wanted and is_younger

    def _install(self, connection: sqlite3.Connection, definition: Definition) -> int:
        number = connection.execute(
            f"SELECT coalesce(max(t), 0) + 1 FROM {self.names.versions}"
        ).fetchone()[0]
        described = json.dumps([definition.columns, definition.key])
        connection.execute(
            f"INSERT INTO {self.names.versions} VALUES (?, ?, ?, 1)",
            (number, definition.name, described),
        )
        for sql in triggers(self.names, definition, number).values():
            connection.execute(sql)
        return int(number)

    def _retire(self, connection: sqlite3.Connection, number: int) -> None:
        for kind in KINDS:
            connection.execute(f"DROP TRIGGER IF EXISTS {quoted(self.names.trigger(number, kind))}")
        sql = f"UPDATE {self.names.versions} SET is_current = 0 WHERE t = ?"
        connection.execute(sql, (number,))

    def _refresh(
        self, connection: sqlite3.Connection, definition: Definition, old: int, new: int
    ) -> None:
        """Logs again, as they are now, the rows whose changes were logged since the last look:
        their triggers did not know all columns, or came after a user's that changed it again.
        """
        before = self.version(connection, old)
        cells = ", ".join(f"c{i}" for i in range(2 * before.width))
        rows = connection.execute(
            f"SELECT op, {cells} FROM {self.names.log} WHERE id > ? AND t = ? AND op NOT IN {MARKS}"
            " ORDER BY id LIMIT ?",
            (self.clean_id, old, MOST_REFRESHED + 1),
        ).fetchall()
        if not rows:
            return
        if not definition.key or len(rows) > MOST_REFRESHED:
            why = "its columns or triggers were changed, and without a key its rows cannot be found"
            if definition.key:
                why = f"its columns or triggers were changed {len(rows)} changes ago"
            self._begin_anew(connection, new, why)
            return
        last_op: dict[tuple[Any, ...], str] = {}
        for op, *values in rows:
            if op == "u":
                last_op[tuple(values[i] for i in before.key_at)] = "d"
                values = values[before.width :]  # noqa: PLW2901
            if op == "k":  # of an earlier refresh; only the key, and it was logged as deleted
                key = tuple(values[: len(before.key_at)])
            else:
                key = tuple(values[i] for i in before.key_at)
            last_op.pop(key, None)
            last_op[key] = op
        columns = ", ".join(quoted(name) for name, _, _ in definition.columns)
        is_it = " AND ".join(f"{quoted(name)} IS ?" for name in definition.key)
        select = f"SELECT {columns} FROM {quoted(definition.name)} WHERE {is_it}"
        for key, op in last_op.items():
            row = connection.execute(select, key).fetchone()
            if row is not None:
                self._mark(connection, new, "r", *row)
            elif op not in ("d", "k"):
                self._mark(connection, new, "k", *key)

    def _mark(self, connection: sqlite3.Connection, number: int, op: str, *cells: Any) -> None:
        names = "".join(f", c{i}" for i in range(len(cells)))
        marks = ", ?" * len(cells)
        sql = f"INSERT INTO {self.names.log}(t, op, at{names}) VALUES (?, ?, {NOW}{marks})"
        connection.execute(sql, (number, op, *cells))

    def _widen(self, connection: sqlite3.Connection, width: int) -> None:
        """Columns that old rows do not have cost them nothing. A narrow table's rows in a wide log
        cost one byte for each.
        """
        has = connection.execute(
            "SELECT count(*) FROM pragma_table_info(?)", (f"{self.names.prefix}log",)
        ).fetchone()[0]
        self.width = max(has - 4, width)
        for i in range(has - 4, width):
            connection.execute(f"ALTER TABLE {self.names.log} ADD COLUMN c{i}")
        for i in range((has - 4) // 2, width // 2):
            connection.execute(f"ALTER TABLE {self.names.replaced} ADD COLUMN c{i}")

    def _prune(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            f"DELETE FROM {self.names.versions} WHERE NOT is_current"
            f" AND t NOT IN (SELECT t FROM {self.names.log})"
            f" AND t < (SELECT max(t) FROM {self.names.versions})"
        )

    def version(self, connection: sqlite3.Connection, number: int) -> Version:
        version = self._versions.get(number)
        if version is None:
            name, described = connection.execute(
                f"SELECT name, definition FROM {self.names.versions} WHERE t = ?",
                (number,),
            ).fetchone()
            columns, key = json.loads(described)
            declared = tuple((c, d, n) for c, d, n in columns)
            definition = Definition(name, declared, tuple(key), None, (), False, False, False)
            names = tuple(column for column, _, _ in columns)
            version = self._versions[number] = Version(
                number,
                self._table_like(definition.as_table()),
                names,
                len(names),
                tuple(names.index(column) for column in key),
            )
        return version

    def _table_like(self, table: Table) -> Table:
        """The object that stands for an equal table already."""
        tables = (version.table for version in self._versions.values())
        return next((known for known in tables if known == table), table)

    def tables(self, connection: sqlite3.Connection) -> list[Table]:
        """Those that have their triggers. One without must not be copied yet: what changes between
        would be lost.
        """
        sql = f"SELECT t FROM {self.names.versions} WHERE is_current ORDER BY name"
        numbers = connection.execute(sql).fetchall()
        return [self.version(connection, number).table for (number,) in numbers]

    def remove(self, connection: sqlite3.Connection) -> None:
        """Leaves the schema as if this capture had never been here."""
        with write_transaction(connection):
            if not self.exists(connection):
                return
            for (number,) in connection.execute(f"SELECT t FROM {self.names.versions}").fetchall():
                self._retire(connection, number)
            for table in (
                self.names.log,
                self.names.replaced,
                self.names.versions,
                self.names.state,
            ):
                connection.execute(f"DROP TABLE {table}")

    def _state(self, connection: sqlite3.Connection, name: str) -> Any:
        sql = f"SELECT value FROM {self.names.state} WHERE name = ?"
        return connection.execute(sql, (name,)).fetchone()[0]

    def _set_state(self, connection: sqlite3.Connection, name: str, value: Any) -> None:
        connection.execute(f"DELETE FROM {self.names.state} WHERE name = ?", (name,))
        connection.execute(f"INSERT INTO {self.names.state} VALUES (?, ?)", (name, value))


_AFTER: Final = ("insert", "update", "delete")


def _widest(tables: Mapping[str, Definition]) -> int:
    return max((len(table.columns) for table in tables.values()), default=1)


def _schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA schema_version").fetchone()[0])
