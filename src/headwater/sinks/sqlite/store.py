"""The versions of a target in a SQLite database."""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from headwater.errors import ConfigError, StoreRefused
from headwater.sinks import sql_positions
from headwater.sinks.contract import Contents, Log, Target, Version, Writer, name_of
from headwater.sinks.rows.schema_evolution import plain
from headwater.sinks.selection import SelectableStore, Selection, clause
from headwater.sinks.settings import SinkSettings
from headwater.sinks.sql_positions import POSITIONS, StoredVersion, names, quoted
from headwater.sinks.sqlite.database import Database
from headwater.sinks.sqlite.tables import Tables, exists
from headwater.sinks.sqlite.values import DIALECT, from_stored
from headwater.sinks.sqlite.writer import SqliteWriter

OPTIONS: Final = ("synchronous",)
TARGET_OPTIONS: Final = ()

_OLDEST: Final = (3, 37, 0)  # STRICT tables
_READ_ROWS: Final = 10_000
_WAL_BYTES: Final = 64 << 20  # that a large batch may leave behind


class SqliteStore(SelectableStore):
    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise StoreRefused(
                "this SQLite is too old", detail=f"{sqlite3.sqlite_version}, needed is 3.37"
            )
        self._database = Database(_path(settings))
        self._tables = Tables(target)
        self._target = target
        self._synchronous = settings.options.get("synchronous", "full").upper()
        if self._synchronous not in ("FULL", "NORMAL"):
            raise ConfigError(
                f"sink {settings.name}: options.synchronous is full or normal",
                detail=self._synchronous.lower(),
            )

    def check(self) -> None:
        self._database.check()
        if self._database.exists():
            with self._database.connected("rw") as connection:
                if not self._tables.all_stored(connection) and exists(
                    connection, self._target.name
                ):
                    raise sql_positions.not_ours(self._target.name, self._target)

    def versions(self) -> list[Version]:
        if not self._database.exists():
            return []
        with self._database.connected("rw") as connection:
            return [stored.described() for stored in self._tables.all_stored(connection).values()]

    def writer(self, version: int, fields: pa.Schema) -> Writer:
        connection = self._database.connect("rwc")
        try:
            with self._database.translated():
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            with self._database.transaction(connection):
                stored = self._begin(connection, version, plain(fields))
        except BaseException:
            connection.close()
            raise
        return SqliteWriter(self._database, self._tables, connection, stored)

    def _begin(
        self, connection: sqlite3.Connection, version: int, fields: pa.Schema
    ) -> StoredVersion:
        self._tables.make_positions(connection)
        sql_positions.check_names(fields)
        found = self._tables.all_stored(connection)
        if version in found:
            old = found[version]
            self._tables.check(connection, old)
            fields = self._tables.evolve(connection, old, fields)
            stored = StoredVersion(version, old.is_live, old.epoch + 1, old.position, fields)
        else:
            is_live = version == 1 and not any(stored.is_live for stored in found.values())
            stored = StoredVersion(version, is_live, sql_positions.first_epoch(), None, fields)
            self._tables.create(connection, stored)
        self._tables.save(connection, stored)
        return stored

    def promote(self, version: int) -> None:
        with self._changing() as (connection, found):
            if version not in found:
                raise sql_positions.unknown_version(self._target, version)
            if found[version].is_live:
                return
            carried = []
            for stored in found.values():
                if stored.is_live:
                    carried = _take_off(connection, stored.table(self._target))
                    self._rename(connection, stored, is_live=False)
            self._rename(connection, found[version], is_live=True)
            for statement in carried:  # which name the live table
                connection.execute(statement)

    def drop(self, version: int) -> None:
        with self._changing() as (connection, found):
            if version not in found:
                raise sql_positions.unknown_version(self._target, version)
            if found[version].is_live:
                raise sql_positions.still_live(self._target, version)
            table = found[version].table(self._target)
            connection.execute(f"DROP TABLE IF EXISTS {quoted(table)}")
            connection.execute(
                f"DELETE FROM {POSITIONS} WHERE owner = ? AND target = ? AND version = ?",
                (self._target.owner, self._target.name, version),
            )
        with self._database.connected("rw") as connection:
            # Out of the WAL, too, unless somebody reads it just now.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def read(self, version: int) -> AbstractContextManager[Contents]:
        return self._reading(version, None)

    def select(self, version: int, selection: Selection) -> AbstractContextManager[Contents]:
        return self._reading(version, selection)

    @contextmanager
    def _reading(self, version: int, selection: Selection | None) -> Iterator[Contents]:
        if not self._database.exists():
            raise sql_positions.unknown_version(self._target, version)
        with self._database.connected("rw") as connection:
            connection.execute("BEGIN")  # one snapshot for all that follows
            found = self._tables.all_stored(connection).get(version)
            if found is None:
                raise sql_positions.unknown_version(self._target, version)
            table = found.table(self._target)
            some, parameters = "", list[Any]()
            if selection is not None:
                some, parameters = clause(selection, found.fields, self._target.key, DIALECT)
            cursor = connection.execute(
                f"SELECT {names(found.fields.names)} FROM {quoted(table)}{some}", parameters
            )
            yield Contents(found.position, self._batches(cursor, found.fields))

    def _batches(self, cursor: sqlite3.Cursor, fields: pa.Schema) -> Iterator[pa.RecordBatch]:
        while True:
            with self._database.translated():
                rows = cursor.fetchmany(_READ_ROWS)
            if not rows:
                return
            columns = [
                from_stored(column, field.type)
                for column, field in zip(zip(*rows, strict=True), fields, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=fields)

    def _rename(
        self, connection: sqlite3.Connection, stored: StoredVersion, *, is_live: bool
    ) -> None:
        old = stored.table(self._target)
        new = name_of(self._target, stored.version, is_live=is_live)
        if exists(connection, new):
            raise sql_positions.not_ours(new, self._target)
        connection.execute(f"ALTER TABLE {quoted(old)} RENAME TO {quoted(new)}")
        self._tables.save(connection, replace(stored, is_live=is_live))

    @contextmanager
    def _changing(self) -> Iterator[tuple[sqlite3.Connection, dict[int, StoredVersion]]]:
        if not self._database.exists():
            raise StoreRefused("there is no such SQLite database", detail=self._database.path)
        with (
            closing(self._database.connect("rw")) as connection,
            self._database.transaction(connection),
        ):
            yield connection, self._tables.all_stored(connection)


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


def _take_off(connection: sqlite3.Connection, table: str) -> list[str]:
    """Drops the indexes and triggers that users added to a table; the statements that add them."""
    rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = ? COLLATE NOCASE"
        " AND type IN ('index', 'trigger') AND sql IS NOT NULL",
        (table,),
    ).fetchall()
    for kind, name, _ in rows:
        connection.execute(f"DROP {kind} {quoted(name)}")
    return [statement for _, _, statement in rows]
