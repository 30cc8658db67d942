"""Tables of a SQLite database.

One transaction has a batch's rows and its position. The file is in WAL mode: readers see the state
of the last batch and neither wait nor keep the writer waiting; a batch is on disk (synchronous =
FULL) before `apply` returns. Tables are STRICT. What SQLite has no type for is text that sorts and
compares as the values do: dates and times in ISO 8601, UTC with a Z; exact numbers with all their
digits; lists, structs and maps as JSON.
"""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from operator import length_hint
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa

from headwater.errors import (
    ConfigError,
    HeadwaterError,
    RowRefused,
    SinkError,
    StoreRefused,
    StoreUnreachable,
)
from headwater.sinks import sql
from headwater.sinks.contract import (
    Batch,
    Contents,
    Log,
    Refuse,
    Store,
    Target,
    Version,
    Writer,
    fields_to_text,
    is_applied,
    name_of,
)
from headwater.sinks.evolving import Evolved, evolved, fitted, plain
from headwater.sinks.nested import is_nested
from headwater.sinks.reducing import reduce
from headwater.sinks.settings import SinkSettings
from headwater.sinks.sql import POSITIONS, Stored, names, quoted
from headwater.sinks.sqlite_types import checked, column_type, from_stored, to_stored

OPTIONS: Final = ("synchronous",)
TARGET_OPTIONS: Final = ()

_OLDEST: Final = (3, 37, 0)  # STRICT tables
_BUSY_TIMEOUT_S: Final = 5.0
_PIECE_ROWS: Final = 20_000  # as Python objects at a time
_WAL_BYTES: Final = 64 << 20  # that a large batch may leave behind
_A_ROW: Final = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError)


class SqliteStore(Store):
    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise StoreRefused(
                "this SQLite is too old", detail=f"{sqlite3.sqlite_version}, needed is 3.37"
            )
        self._path = _path(settings)
        self._target = target
        self._synchronous = settings.options.get("synchronous", "full").upper()
        if self._synchronous not in ("FULL", "NORMAL"):
            raise ConfigError(
                f"sink {settings.name}: options.synchronous is full or normal",
                detail=self._synchronous.lower(),
            )

    def check(self) -> None:
        folder = os.path.dirname(os.path.abspath(self._path))
        if not os.access(folder, os.W_OK):
            raise StoreRefused(
                "the directory of the SQLite database is missing or cannot be written to",
                detail=folder,
                hint="SQLite makes files beside the database while it writes",
            )
        if os.path.exists(self._path):
            if not os.access(self._path, os.W_OK):
                raise StoreRefused("the SQLite database cannot be written to", detail=self._path)
            with self._connected("rw") as connection:
                if not self._stored(connection) and _exists(connection, self._target.name):
                    raise sql.not_ours(self._target.name, self._target)

    def versions(self) -> list[Version]:
        if not os.path.exists(self._path):
            return []
        with self._connected("rw") as connection:
            return [each.described() for each in self._stored(connection).values()]

    def writer(self, version: int, fields: pa.Schema) -> Writer:
        connection = self._connect("rwc")
        try:
            with self._translated():
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            with self.transaction(connection):
                stored = self._begin(connection, version, plain(fields))
        except BaseException:
            connection.close()
            raise
        return _SqliteWriter(self, self._target, connection, stored)

    def _begin(self, connection: sqlite3.Connection, version: int, fields: pa.Schema) -> Stored:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {POSITIONS} (owner TEXT NOT NULL, target TEXT NOT NULL,"
            " version INTEGER NOT NULL, is_live INTEGER NOT NULL, epoch INTEGER NOT NULL,"
            " position TEXT, fields TEXT NOT NULL, PRIMARY KEY (owner, target, version))"
            " STRICT, WITHOUT ROWID"
        )
        sql.check_names(fields)
        found = self._stored(connection)
        if version in found:
            old = found[version]
            _check_table(connection, old, self._target)
            changed = evolved(old.fields, fields)
            _evolve(connection, old.table(self._target), changed, self._target)
            stored = Stored(version, old.is_live, old.epoch + 1, old.position, changed.fields)
        else:
            is_live = version == 1 and not any(each.is_live for each in found.values())
            stored = Stored(version, is_live, 1, None, fields)
            _create(connection, stored.table(self._target), fields, self._target)
        self.save(connection, stored)
        return stored

    def promote(self, version: int) -> None:
        with self._changing() as (connection, found):
            if version not in found:
                raise sql.unknown_version(self._target, version)
            if found[version].is_live:
                return
            for each in found.values():
                if each.is_live:
                    self._rename(connection, each, is_live=False)
            self._rename(connection, found[version], is_live=True)

    def drop(self, version: int) -> None:
        with self._changing() as (connection, found):
            if version not in found:
                raise sql.unknown_version(self._target, version)
            if found[version].is_live:
                raise sql.still_live(self._target, version)
            table = found[version].table(self._target)
            connection.execute(f"DROP TABLE IF EXISTS {quoted(table)}")
            connection.execute(
                f"DELETE FROM {POSITIONS} WHERE owner = ? AND target = ? AND version = ?",
                (self._target.owner, self._target.name, version),
            )

    @contextmanager
    def read(self, version: int) -> Iterator[Contents]:
        if not os.path.exists(self._path):
            raise sql.unknown_version(self._target, version)
        with self._connected("rw") as connection:
            connection.execute("BEGIN")  # all that follows is of one state
            found = self._stored(connection).get(version)
            if found is None:
                raise sql.unknown_version(self._target, version)
            table = found.table(self._target)
            cursor = connection.execute(f"SELECT {names(found.fields.names)} FROM {quoted(table)}")
            yield Contents(found.position, self._batches(cursor, found.fields))

    def _batches(self, cursor: sqlite3.Cursor, fields: pa.Schema) -> Iterator[pa.RecordBatch]:
        while True:
            with self._translated():
                rows = cursor.fetchmany(_PIECE_ROWS)
            if not rows:
                return
            columns = [
                from_stored(column, field.type)
                for column, field in zip(zip(*rows, strict=True), fields, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=fields)

    def save(self, connection: sqlite3.Connection, stored: Stored) -> None:
        connection.execute(
            f"INSERT INTO {POSITIONS} VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET is_live = excluded.is_live, epoch = excluded.epoch,"
            " position = excluded.position, fields = excluded.fields",
            (
                self._target.owner,
                self._target.name,
                stored.version,
                stored.is_live,
                stored.epoch,
                stored.position and stored.position.to_json().decode(),
                fields_to_text(stored.fields),
            ),
        )

    def _stored(self, connection: sqlite3.Connection) -> dict[int, Stored]:
        if not _exists(connection, POSITIONS):
            return {}
        rows = connection.execute(
            f"SELECT version, is_live, epoch, position, fields FROM {POSITIONS}"
            " WHERE owner = ? AND target = ? ORDER BY version",
            (self._target.owner, self._target.name),
        )
        return {row[0]: Stored.from_row(*row) for row in rows}

    def stored(self, connection: sqlite3.Connection, version: int) -> Stored | None:
        return self._stored(connection).get(version)

    def _rename(self, connection: sqlite3.Connection, stored: Stored, *, is_live: bool) -> None:
        old, new = (name_of(self._target, stored.version, is_live=live) for live in
                    (stored.is_live, is_live))  # fmt: skip
        if _exists(connection, new):
            raise sql.not_ours(new, self._target)
        connection.execute(f"ALTER TABLE {quoted(old)} RENAME TO {quoted(new)}")
        self.save(
            connection,
            Stored(stored.version, is_live, stored.epoch, stored.position, stored.fields),
        )

    @contextmanager
    def _changing(self) -> Iterator[tuple[sqlite3.Connection, dict[int, Stored]]]:
        if not os.path.exists(self._path):
            raise StoreRefused("there is no such SQLite database", detail=self._path)
        with closing(self._connect("rw")) as connection, self.transaction(connection):
            # Views that readers have made over the table go on naming it, and so see the new one.
            yield connection, self._stored(connection)

    @contextmanager
    def transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Holds the one write lock of the database from its beginning on."""
        with self._translated():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _connected(self, mode: str) -> Iterator[sqlite3.Connection]:
        with closing(self._connect(mode)) as connection, self._translated():
            yield connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"file:{quote(os.path.abspath(self._path))}?mode={mode}"
        with self._translated():
            connection = sqlite3.connect(
                uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S,
                check_same_thread=False,
            )  # fmt: skip
            # Otherwise a renamed table takes along the views that readers have made over it.
            connection.execute("PRAGMA legacy_alter_table = ON")
            return connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except HeadwaterError:
            raise
        except sqlite3.Error as error:
            raise _in_our_words(error, self._path) from error


class _SqliteWriter(Writer):
    def __init__(
        self, store: SqliteStore, target: Target, connection: sqlite3.Connection, stored: Stored
    ) -> None:
        self._store = store
        self._target = target
        self._connection = connection
        self._version = stored.version
        self._epoch = stored.epoch
        self.position = stored.position

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        refused: list[RowRefused] | None = None if refuse is None else []
        with self._store.transaction(self._connection):
            stored = self._store.stored(self._connection, self._version)
            if stored is None or stored.epoch != self._epoch:
                raise sql.fenced(self._target, self._version)
            position = stored.position
            if not is_applied(position, batch):
                position = batch.position()
                fields = self._write(batch, stored, refused)
                if refuse is not None and refused:
                    refuse(refused)
                self._store.save(
                    self._connection,
                    Stored(self._version, stored.is_live, self._epoch, position, fields),
                )
        self.position = position

    def _write(self, batch: Batch, stored: Stored, refused: list[RowRefused] | None) -> pa.Schema:
        table = stored.table(self._target)
        reduced = reduce(batch.rows, self._target.key, refused)
        changed = evolved(stored.fields, reduced.upserts.schema)
        _evolve(self._connection, table, changed, self._target)
        if reduced.clears:
            self._connection.execute(f"DELETE FROM {quoted(table)}")
        if len(reduced.deletes):
            self._delete(table, reduced.deletes, changed.fields, refused)
        self._upsert(table, fitted(reduced.upserts, changed.fields), refused)
        return changed.fields

    def _delete(
        self, table: str, keys: pa.Table, fields: pa.Schema, refused: list[RowRefused] | None
    ) -> None:
        keys = fitted(keys, pa.schema([fields.field(column) for column in self._target.key]))
        where = " AND ".join(f"{quoted(column)} = ?" for column in self._target.key)
        statement = f"DELETE FROM {quoted(table)} WHERE {where}"
        self._each(statement, checked(keys, refused), table, refused)

    def _upsert(self, table: str, rows: pa.Table, refused: list[RowRefused] | None) -> None:
        columns, key = rows.column_names, self._target.key
        values = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {quoted(table)} ({names(columns)}) VALUES ({values})"
        if key:
            others = [column for column in columns if column not in key]
            sets = ", ".join(f"{quoted(each)} = excluded.{quoted(each)}" for each in others)
            # Only our key: a row that meets another one in a further unique index is refused.
            statement += f" ON CONFLICT ({names(key)}) DO "
            statement += f"UPDATE SET {sets}" if others else "NOTHING"
        self._each(statement, checked(rows, refused), table, refused)

    def _each(
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
                    row = piece.slice(bad, 1).to_pylist()[0]
                    told = _refusal(error, row, table, self._target.key)
                    if refused is None:
                        raise told from error
                    refused.append(told)
                    begin = bad + 1

    def close(self) -> None:
        self._connection.close()


def _path(settings: SinkSettings) -> str:
    """sqlite:///shop.db is relative to the working directory, sqlite:////data/shop.db is not."""
    url = settings.url.reveal() if settings.url else ""
    path = unquote(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite:///") or not path:
        raise ConfigError(
            f"sink {settings.name}: url is no address of a SQLite database",
            hint='url = "sqlite:///relative.db", or with four slashes "sqlite:////absolute.db"',
        )
    return path


def _exists(connection: sqlite3.Connection, table: str) -> bool:
    # Also views; names differ by more than case.
    query = "SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE"
    return connection.execute(query, (table,)).fetchone() is not None


def _create(connection: sqlite3.Connection, table: str, fields: pa.Schema, target: Target) -> None:
    if _exists(connection, table):
        raise sql.not_ours(table, target)
    columns = [f"{quoted(field.name)} {column_type(field)}" for field in fields]
    kind = "STRICT"
    if target.key:
        for column in target.key:
            if is_nested(fields.field(column).type):
                raise StoreRefused(f"{column} is {fields.field(column).type}: no part of a key")
        columns.append(f"PRIMARY KEY ({names(target.key)})")
        if len(target.key) > 1 or column_type(fields.field(target.key[0])) != "INTEGER":
            kind += ", WITHOUT ROWID"  # the rows lie in the key's own tree
    connection.execute(f"CREATE TABLE {quoted(table)} ({', '.join(columns)}) {kind}")


def _check_table(connection: sqlite3.Connection, stored: Stored, target: Target) -> None:
    table = stored.table(target)
    if not _exists(connection, table):
        raise sql.gone(table)
    rows = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    key = [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]
    sql.check_key(table, key, target)


def _evolve(connection: sqlite3.Connection, table: str, changed: Evolved, target: Target) -> None:
    sql.check_names(changed.fields)
    for field in changed.widened:
        # Integers of all sizes are one type here. Of other texts a key would have two forms.
        if field.name in target.key and column_type(field) != "INTEGER":
            raise StoreRefused(
                f"column {field.name} is part of the key and has become {field.type}",
                hint="rebuild into a new version",
            )
    for field in changed.added:
        connection.execute(
            f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(field.name)} {column_type(field)}"
        )


def _refusal(error: Exception, row: dict[str, Any], table: str, key: tuple[str, ...]) -> RowRefused:
    # "UNIQUE constraint failed: orders.email", "NOT NULL constraint failed: orders.name", …
    columns = re.findall(rf"{re.escape(table)}\.([^,]+)", str(error))
    column = next((each for each in columns if each not in key), columns[0] if columns else "")
    return sql.refusal(row, column, f"table {table} does not take a row", str(error))


def _in_our_words(error: sqlite3.Error, path: str) -> SinkError:
    detail = f"{path}: {error}"
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF  # the low byte is the kind
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnreachable(
            "the SQLite database is locked",
            detail=detail,
            hint="another process holds a write transaction open",
        )
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return StoreUnreachable("the disk of the SQLite database does not answer", detail=detail)
    if code == sqlite3.SQLITE_NOTADB:
        return StoreRefused("this file is no SQLite database", detail=detail)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreRefused(
            "the SQLite database cannot be opened for writing",
            detail=detail,
            hint="its user needs to write to the file and to its directory",
        )
    return StoreRefused("SQLite refuses a request", detail=detail)
