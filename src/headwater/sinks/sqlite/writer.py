"""Writes batches into a table of a SQLite database."""

import re
import sqlite3
from operator import length_hint
from typing import Any, Final

import pyarrow as pa

from headwater.errors import RowRefused
from headwater.sinks import sql_positions
from headwater.sinks.contract import Batch, Refuse, Writer, is_applied
from headwater.sinks.rows.last_by_key import reduce
from headwater.sinks.rows.row_validation import shown
from headwater.sinks.rows.schema_evolution import fitted
from headwater.sinks.sql_positions import StoredVersion, names, quoted
from headwater.sinks.sqlite.database import Database
from headwater.sinks.sqlite.tables import Tables
from headwater.sinks.sqlite.values import checked, to_stored

_PIECE_ROWS: Final = 20_000  # as Python objects at a time
_A_ROW: Final = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError)


class SqliteWriter(Writer):
    def __init__(
        self,
        database: Database,
        tables: Tables,
        connection: sqlite3.Connection,
        stored: StoredVersion,
    ) -> None:
        self._database = database
        self._tables = tables
        self._target = tables.target
        self._connection = connection
        self._version = stored.version
        self._epoch = stored.epoch
        self.position = stored.position

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        refused: list[RowRefused] | None = None if refuse is None else []
        with self._database.transaction(self._connection):
            stored = self._tables.all_stored(self._connection).get(self._version)
            if stored is None or stored.epoch != self._epoch:
                raise sql_positions.fenced(self._target, self._version)
            position = stored.position
            if not is_applied(position, batch):
                position = batch.position()
                fields = self._write(batch, stored, refused)
                if refuse is not None and refused:
                    refuse(refused)
                self._tables.save(
                    self._connection,
                    StoredVersion(self._version, stored.is_live, self._epoch, position, fields),
                )
        self.position = position

    def _write(
        self, batch: Batch, stored: StoredVersion, refused: list[RowRefused] | None
    ) -> pa.Schema:
        table = stored.table(self._target)
        reduced = reduce(batch.rows, self._target.key, refused)
        fields = self._tables.evolve(self._connection, stored, reduced.upserts.schema)
        if reduced.clears:
            self._connection.execute(f"DELETE FROM {quoted(table)}")
        if len(reduced.deletes):
            self._delete(table, reduced.deletes, fields, refused)
        self._upsert(table, fitted(reduced.upserts, fields), refused)
        return fields

    def _delete(
        self, table: str, keys: pa.Table, fields: pa.Schema, refused: list[RowRefused] | None
    ) -> None:
        keys = fitted(keys, pa.schema([fields.field(column) for column in self._target.key]))
        where = " AND ".join(f"{quoted(column)} = ?" for column in self._target.key)
        statement = f"DELETE FROM {quoted(table)} WHERE {where}"
        self._run_rows(statement, checked(keys, refused), table, refused)

    def _upsert(self, table: str, rows: pa.Table, refused: list[RowRefused] | None) -> None:
        columns, key = rows.column_names, self._target.key
        values = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {quoted(table)} ({names(columns)}) VALUES ({values})"
        if key:
            others = [column for column in columns if column not in key]
            sets = ", ".join(f"{quoted(column)} = excluded.{quoted(column)}" for column in others)
            # Only our key: a row that conflicts in another unique index is refused.
            statement += f" ON CONFLICT ({names(key)}) DO "
            statement += f"UPDATE SET {sets}" if others else "NOTHING"
        self._run_rows(statement, checked(rows, refused), table, refused)

    def _run_rows(
        self, statement: str, rows: pa.Table, table: str, refused: list[RowRefused] | None
    ) -> None:
        if self._target.key:  # the order in which the table's pages lie
            rows = rows.sort_by([(column, "ascending") for column in self._target.key])
        for piece in rows.to_batches(max_chunksize=_PIECE_ROWS):
            columns = [to_stored(column) for column in piece.columns]
            begin = 0
            while begin < len(piece):
                first = iter(columns[0][begin:] if begin else columns[0])
                others = [column[begin:] if begin else column for column in columns[1:]]
                try:
                    self._connection.executemany(statement, zip(first, *others, strict=False))
                    break
                except _A_ROW as error:
                    if not self._connection.in_transaction:  # by RAISE(ROLLBACK) of a trigger
                        raise
                    # Rows are taken one by one, and those before the bad one are in.
                    bad = len(piece) - length_hint(first) - 1
                    row = shown(piece.slice(bad, 1))[0]
                    refusal = _refusal(error, row, table, self._target.key)
                    if refused is None:
                        raise refusal from error
                    refused.append(refusal)
                    begin = bad + 1

    def close(self) -> None:
        self._connection.close()


def _refusal(error: Exception, row: dict[str, Any], table: str, key: tuple[str, ...]) -> RowRefused:
    # "UNIQUE constraint failed: orders.email", "NOT NULL constraint failed: orders.name", …
    columns = re.findall(rf"{re.escape(table)}\.([^,]+)", str(error))
    column = next((name for name in columns if name not in key), columns[0] if columns else "")
    return sql_positions.refusal(row, column, f"table {table} does not take a row", str(error))
