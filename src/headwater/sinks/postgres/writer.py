"""Writes batches into a table of PostgreSQL, each in one transaction.

Few rows go as literals in one statement, with the commit behind them: two round trips in all. Many
rows go by COPY: straight into the table if it is empty or has no key, otherwise into a temporary
one and from there as one INSERT … ON CONFLICT. If a row does not fit, the transaction is rolled
back; the batch is written again with a savepoint for every part of it (refusing.py). Rows of a
large batch can come from tasks, through tables of theirs (staging.py).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import pyarrow as pa

from headwater.errors import RowRefused, StoreUnreachable
from headwater.settings import Secret
from headwater.sinks import sql_positions
from headwater.sinks.contract import OP, Batch, Position, Refuse, StagingWriter, is_applied
from headwater.sinks.postgres import refusing
from headwater.sinks.postgres.connection import Session, ValuesRefused
from headwater.sinks.postgres.staging import (
    PostgresStaging,
    StagedRows,
    StagedTables,
    drop_staged,
)
from headwater.sinks.postgres.statements import (
    delete_rows_in,
    is_above,
    lowest_key,
    on_conflict,
    upsert_rows_of,
)
from headwater.sinks.postgres.tables import Tables, stored_from
from headwater.sinks.postgres.values import checked, column_type, to_csv, to_literals
from headwater.sinks.rows.last_by_key import LastByKey, reduce
from headwater.sinks.rows.schema_evolution import evolved, fitted
from headwater.sinks.sql_positions import StoredVersion, names, quoted

_FEW_ROWS: Final = 50


class PostgresWriter(StagingWriter):
    def __init__(
        self, session: Session, tables: Tables, stored: StoredVersion, url: Secret, application: str
    ) -> None:
        self._session = session
        self._tables = tables
        self._version = stored.version
        self._epoch = stored.epoch
        self._fields = stored.fields
        self._url, self._application = url, application  # for tasks
        self._has_staged = False  # tables may be left over
        self._temporary = _TemporaryTables(session)
        self.position: Position | None = stored.position

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        with self._applying(batch):
            try:
                self._apply(batch, refuse, is_careful=False)
            except ValuesRefused:
                self._session.roll_back()
                self._apply(batch, refuse, is_careful=True)

    @contextmanager
    def _applying(self, batch: Batch) -> Iterator[None]:
        try:
            yield
        except StoreUnreachable:
            self._session.close()
            raise
        except BaseException:
            self._session.roll_back()
            raise
        if self.position is None or batch.id > self.position.batch:  # else it was applied before
            self.position = batch.position()
            self._has_staged = False

    def staging(self, batch: Batch) -> PostgresStaging:
        fields = evolved(self._fields, _without_op(batch.rows.schema)).fields
        self._tables.check_names(fields, self._version)
        for field in fields:
            column_type(field)
        self._has_staged = True
        return PostgresStaging(
            self._url,
            self._application,
            self._tables,
            self._version,
            self._epoch,
            batch.id,
            fields,
        )

    def commit(self, batch: Batch, tokens: Sequence[bytes]) -> None:
        with self._applying(batch):
            stored = self._begin(batch)
            if stored is None:
                return
            session, tables = self._session, self._tables
            stored = self._follow(stored, batch.rows.schema)
            rows = StagedRows(session, tables, [StagedTables.from_bytes(token) for token in tokens])
            rows.move(tables.table(stored), is_empty=stored.position is None)
            update = tables.position_update(self._version, batch.position())
            session.run(f"SET CONSTRAINTS ALL IMMEDIATE; {update}")
            drop_staged(session, tables, self._version)
            session.run("COMMIT")

    def _apply(self, batch: Batch, refuse: Refuse | None, *, is_careful: bool) -> None:
        tables, session = self._tables, self._session
        stored = self._begin(batch)
        if stored is None:
            return
        if self._has_staged:
            drop_staged(session, tables, self._version)
        refused: list[RowRefused] | None = None if refuse is None else []
        stored = self._follow(stored, batch.rows.schema)
        change = self._change(stored, batch.rows, refused)
        update = tables.position_update(self._version, batch.position())
        if is_careful:
            self._write_carefully(stored, change, refused)
        elif change.is_small:
            if not refused:
                session.run("; ".join([*change.statements(), update, "COMMIT"]))
                return
            session.run("; ".join([*change.statements(), "SELECT 1"]))
        else:
            change.copy(self._temporary)
        session.run(f"SET CONSTRAINTS ALL IMMEDIATE; {update}")
        if refuse is not None and refused:
            refuse(refused)
        session.run("COMMIT")

    def _begin(self, batch: Batch) -> StoredVersion | None:
        """Begins the transaction; None if the batch was applied before."""
        found = self._session.run(f"BEGIN; {self._tables.locked(self._version)}")
        stored = stored_from(found)
        if stored is None or stored.epoch != self._epoch:
            raise sql_positions.fenced(self._tables.target, self._version)
        self._fields = stored.fields
        if is_applied(stored.position, batch):
            self.position = stored.position
            self._session.roll_back()
            return None
        return stored

    def _follow(self, stored: StoredVersion, schema: pa.Schema) -> StoredVersion:
        """Adds the columns that are new in the rows."""
        given = _without_op(schema)
        if given.equals(stored.fields):
            return stored
        changed = evolved(stored.fields, given)
        self._tables.check_names(given, self._version)
        self._tables.change_columns(self._session, stored, changed)
        return StoredVersion(
            stored.version, stored.is_live, stored.epoch, stored.position, changed.fields
        )

    def _change(
        self, stored: StoredVersion, rows: pa.Table, refused: list[RowRefused] | None
    ) -> "Change":
        reduced = reduce(rows, self._tables.target.key, refused)
        upserts = checked(fitted(reduced.upserts, stored.fields), refused)
        key_fields = pa.schema([stored.fields.field(name) for name in self._tables.target.key])
        deletes = checked(
            fitted(reduced.deletes, key_fields), []
        )  # the table cannot have such keys
        is_empty = stored.position is None or reduced.clears
        return Change(
            self._tables.table(stored),
            self._tables.target.key,
            LastByKey(reduced.clears, deletes, upserts),
            is_empty=is_empty,
        )

    def _write_carefully(
        self, stored: StoredVersion, change: "Change", refused: list[RowRefused] | None
    ) -> None:
        if change.reduced.clears:
            self._session.run(change.clear())
        for part, rows in change.parts():
            write = partial(change.copy_part, self._temporary, part)
            refusing.write_parts(self._session, rows, write, refused, self._tables.table(stored))

    def close(self) -> None:
        self._session.close()


class Change:
    """The change that a batch makes to its table."""

    def __init__(
        self, table: str, key: tuple[str, ...], reduced: LastByKey, *, is_empty: bool
    ) -> None:
        self.table = table
        self.reduced = reduced
        self._key = key
        self._is_empty = is_empty

    @property
    def is_small(self) -> bool:
        return len(self.reduced.deletes) + len(self.reduced.upserts) <= _FEW_ROWS

    def clear(self) -> str:
        """Not TRUNCATE, which would make readers wait, and show them an empty table too early."""
        return f"DELETE FROM {self.table}"

    def statements(self) -> Iterator[str]:
        if self.reduced.clears:
            yield self.clear()
        if len(self.reduced.deletes):
            keys = ", ".join(to_literals(self.reduced.deletes))
            yield f"DELETE FROM {self.table} WHERE ({names(self._key)}) IN ({keys})"
        if len(self.reduced.upserts):
            columns = self.reduced.upserts.column_names
            values = ", ".join(to_literals(self.reduced.upserts))
            yield (
                f"INSERT INTO {self.table} ({names(columns)}) VALUES {values}"
                f" {on_conflict(columns, self._key)}"
            )

    def parts(self) -> Iterator[tuple[str, pa.Table]]:
        """In their order."""
        if len(self.reduced.deletes) and not self._is_empty:
            yield "deletes", self.reduced.deletes
        if len(self.reduced.upserts):
            yield "upserts", self.reduced.upserts

    def copy(self, temporary: "_TemporaryTables") -> None:
        if self.reduced.clears:
            temporary.session.run(self.clear())
        for part, rows in self.parts():
            self.copy_part(temporary, part, rows)

    def copy_part(self, temporary: "_TemporaryTables", part: str, rows: pa.Table) -> None:
        if part == "upserts" and self._are_new(temporary.session, rows):
            temporary.copy(f"{self.table} ({names(rows.column_names)})", rows)
            return
        with_rows = temporary.filled(rows)
        if part == "deletes":
            temporary.session.run(delete_rows_in(with_rows, self.table, self._key))
        else:
            temporary.session.run(
                upsert_rows_of(with_rows, self.table, rows.column_names, self._key)
            )

    def _are_new(self, session: Session, rows: pa.Table) -> bool:
        """Whether the table certainly has none of the rows: then COPY goes straight into it, at
        twice the speed. Growing keys are common, in new rows as in a first copy.
        """
        if self._is_empty or not self._key:
            return True
        lowest = lowest_key(rows, self._key)
        return lowest is not None and is_above(session, self.table, self._key, lowest)


class _TemporaryTables:
    """Temporary tables of the session, one for each set of columns; empty between batches."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._names: dict[str, str] = {}

    def filled(self, rows: pa.Table) -> str:
        columns = ", ".join(f"{quoted(field.name)} {column_type(field)}" for field in rows.schema)
        name = self._names.setdefault(columns, f"pg_temp.headwater_{len(self._names)}")
        self.session.run(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {name.removeprefix('pg_temp.')} ({columns})"
            f" ON COMMIT DELETE ROWS; DELETE FROM {name}"
        )
        self.copy(f"{name} ({names(rows.column_names)})", rows)
        return name

    def copy(self, into: str, rows: pa.Table) -> None:
        self.session.copy_in(f"COPY {into} FROM STDIN (FORMAT csv)", to_csv(rows))


def _without_op(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name != OP])
