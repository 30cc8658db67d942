"""SQLite as a source of changes.

A trigger cannot see where a transaction begins or ends, and SQLite has no log that would show it.
But it has one writer at a time, and a reader sees whole transactions only: so the log rows between
two looks are one or more whole transactions, in the order of their commits. What one look finds is
sent as one transaction. Its position is {"id": last log id, "first": first, "log": incarnation}:
with the first id it can be read again exactly as it was, however much has been written since.

A chunk's read is a look too: the stream ends a transaction where a chunk's read saw the log end. So
a chunk contains a transaction wholly or not at all.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from headwater.capture.contract import (
    IDLE_S,
    Event,
    Lag,
    LogPosition,
    PositionAdvanced,
    Source,
    SourcePosition,
    Table,
    TableFailed,
)
from headwater.capture.settings import CaptureSettings
from headwater.capture.sqlite.catalog import quoted, read_definition, table_names
from headwater.capture.sqlite.changelog import MOST_COLUMNS, ChangeLog
from headwater.capture.sqlite.chunks import SqliteChunk, read_rows
from headwater.capture.sqlite.connection import (
    OLDEST_VERSION,
    connect,
    database_path,
    is_busy,
    read_transaction,
    translated,
    write_transaction,
)
from headwater.capture.sqlite.file_watch import Watch
from headwater.capture.sqlite.log_cleaner import LogCleaner, log_extent
from headwater.capture.sqlite.log_reader import LogReader
from headwater.capture.sqlite.values import is_undecodable, lenient_text
from headwater.errors import (
    CaptureError,
    HeadwaterError,
    PositionLost,
    SourceRefused,
    TableRefused,
)

_SHORTEST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.02
_BUSY_TIMEOUT_MS: Final = 50  # then the stream gives sign of life and tries again


class SqliteSource(Source):
    connector = "sqlite"

    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = settings
        self._path = database_path(settings.source.reveal())
        self.database = os.path.splitext(os.path.basename(self._path))[0]
        self._log = ChangeLog(
            settings.name, settings.tables, settings.exclude, settings.snapshot != "never"
        )
        self._connection: sqlite3.Connection | None = None
        # Where the log ended for chunks that the stream has not passed. Looks are made under the
        # lock, so that a transaction never spans such an end.
        self._looking = threading.Lock()
        self._chunk_ends: list[int] = []
        self._cleaner = LogCleaner(self._log)

    def check(self) -> list[HeadwaterError]:
        if sqlite3.sqlite_version_info < OLDEST_VERSION:
            return [
                SourceRefused(
                    f"SQLite {sqlite3.sqlite_version} is too old",
                    detail="Python was built with it; capture needs 3.37",
                    hint="use a Python with a newer SQLite",
                )
            ]
        try:
            connection = connect(self._path, busy_timeout_s=1)
            with closing(connection), translated(self._path):
                found = self._check_tables(connection)
                # Whether the write lock can be had; nothing is written.
                with write_transaction(connection):
                    pass
                return found
        except HeadwaterError as error:
            return [error]

    def _check_tables(self, connection: sqlite3.Connection) -> list[HeadwaterError]:
        found: list[HeadwaterError] = []
        names = table_names(connection, self._settings.tables, self._settings.exclude)
        if not names:
            patterns = ", ".join(self._settings.tables)
            found.append(
                SourceRefused(
                    "no table has such a name",
                    detail=f"tables = {patterns}",
                    hint='all tables of a SQLite database are in the schema main: "main.*"',
                )
            )
        for name in names:
            definition = read_definition(connection, name)
            if definition is not None and len(definition.columns) > MOST_COLUMNS:
                found.append(_too_wide(definition.as_table().id, len(definition.columns)))
        return found

    def open(self, after: SourcePosition | None, stored: Mapping[str, Table]) -> LogPosition:
        self.close()
        self._connection = connection = connect(self._path)
        with translated(self._path):
            if after is not None:
                self._refuse_lost_position(connection, after)
            self._log.open(connection, _sent_id(after) if after is not None else None)
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
            if after is not None:
                self._refuse_other_log(after)
                return after.at
            return self._position(self._log.clean_id)

    def check_position(self, after: SourcePosition) -> bool:
        with closing(connect(self._path)) as connection, translated(self._path):
            self._refuse_lost_position(connection, after)
        return True

    def _position(self, last_id: int, first_id: int | None = None) -> dict[str, Any]:
        first_id = last_id + 1 if first_id is None else first_id
        return {"id": last_id, "first": first_id, "log": self._log.incarnation}

    def _refuse_lost_position(self, connection: sqlite3.Connection, after: SourcePosition) -> None:
        if not self._log.exists(connection):
            raise self._lost("the change log is not in the database any more")
        first, last = connection.execute(
            f"SELECT min(id), max(id) FROM {self._log.names.log}"
        ).fetchone()
        if last is None or last < after.at["id"] or first > _sent_id(after) + 1:
            raise self._lost(
                f"the log has {first} to {last}, the capture stands at {after.at['id']}"
            )

    def _refuse_other_log(self, after: SourcePosition) -> None:
        if after.at["log"] != self._log.incarnation:
            raise self._lost("the change log was removed and made again")

    def _lost(self, detail: str) -> PositionLost:
        return PositionLost(
            "the log no longer goes back to where the capture stands",
            detail=f"{self._path}: {detail}",
            hint=f"was the file restored? headwater capture reset {self._settings.name}",
        )

    def tables(self) -> list[Table]:
        with closing(connect(self._path)) as connection, translated(self._path):
            if self._connection is not None:
                return self._log.tables(connection)
            names = table_names(connection, self._settings.tables, self._settings.exclude)
            found = [read_definition(connection, name) for name in names]
            return [definition.as_table() for definition in found if definition is not None]

    def changes(self, after: SourcePosition) -> Iterator[Event]:
        with translated(self._path):
            yield from self._changes(after)

    def _changes(self, after: SourcePosition) -> Iterator[Event]:
        connection = self._open_connection()
        reader = LogReader(connection, self._log)
        last_id: int = after.at["id"]
        if after.changes is not None:
            yield from reader.transaction(after.at, after.changes)
        watch = Watch(self._path, connection)
        pause_s = _SHORTEST_PAUSE_S
        told_at_s = time.monotonic()
        refused: set[str] = set()
        while True:
            end_id = self._look(last_id) if watch.is_changed() else last_id
            for table_id in self._log.too_wide.keys() - refused:
                refused.add(table_id)
                yield TableFailed(table_id, _too_wide(table_id, self._log.too_wide[table_id]))
            if end_id is None:
                watch.look_again()
            elif end_id > last_id:
                yield from reader.transaction(self._position(end_id, last_id + 1), 0)
                last_id, pause_s, told_at_s = end_id, _SHORTEST_PAUSE_S, time.monotonic()
                watch.look_again()  # a chunk's end may have cut it short
                continue
            if self.is_awaited:
                pause_s = _SHORTEST_PAUSE_S
                yield PositionAdvanced(self._position(last_id))
            elif time.monotonic() - told_at_s > IDLE_S - _LONGEST_PAUSE_S:
                told_at_s = time.monotonic()
                yield None
            self._cleaner.go_on(connection)
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def _look(self, last_id: int) -> int | None:
        """Where the next transaction ends: at `last_id` if there is none. None: a writer has locked
        the database.
        """
        connection = self._open_connection()
        if not self._looking.acquire(timeout=IDLE_S / 2):  # a chunk's read waits for a writer
            return None
        try:
            schema_version, end_id = connection.execute(
                f"SELECT schema_version, (SELECT max(id) FROM {self._log.names.log})"
                " FROM pragma_schema_version"
            ).fetchone()
            if schema_version != self._log.schema_version:
                self._log.follow(connection)
                end_id = self._log.last_id(connection)
            else:
                self._log.clean_id = end_id
            self._chunk_ends = [end for end in self._chunk_ends if end > last_id]
            end_id = min([end_id, *self._chunk_ends])
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return None
            if not self._log.exists(connection):
                raise self._lost("the change log is not in the database any more") from error
            raise
        finally:
            self._looking.release()
        if end_id < last_id:
            raise self._lost(f"the log ends at {end_id}, the capture stands at {last_id}")
        return int(end_id)

    def acknowledge(self, position: LogPosition) -> None:
        with translated(self._path):
            self._cleaner.up_to(position["id"])
            self._cleaner.go_on(self._open_connection())

    def read_chunk(self, table: Table, after: Any, limit_rows: int) -> SqliteChunk:
        with (
            closing(connect(self._path)) as connection,
            translated(self._path),
            read_transaction(connection),
        ):
            with self._looking:
                last_id = self._log.last_id(connection)
                self._chunk_ends.append(last_id)
            definition = read_definition(connection, table.name)
            if definition is None:  # the stream reports that it was dropped
                return SqliteChunk(table, [], None, last_id)
            now = definition.as_table()
            if not table.key:
                definition = replace(definition, key=())
            try:
                rows, next_after = read_rows(connection, definition, after, limit_rows)
            except sqlite3.OperationalError as error:
                if not is_undecodable(error):
                    raise
                connection.text_factory = lenient_text
                rows, next_after = read_rows(connection, definition, after, limit_rows)
        return SqliteChunk(table if now == table else now, rows, next_after, last_id)

    def bounded(self, table: Table, bounds: int) -> SqliteChunk:
        with self._looking:
            self._chunk_ends.append(bounds)
        return SqliteChunk(table, [], None, bounds)

    def estimate_rows(self, table: Table) -> int | None:
        """By the range of rowids: counting would read the whole table."""
        with closing(connect(self._path)) as connection, translated(self._path):
            definition = read_definition(connection, table.name)
            if definition is None or definition.rowid is None:
                return None
            rowid, name = definition.rowid, quoted(definition.name)
            first, last = connection.execute(
                f"SELECT (SELECT min({rowid}) FROM {name}), (SELECT max({rowid}) FROM {name})"
            ).fetchone()
            return 0 if first is None else last - first + 1

    def lag(self, acknowledged: LogPosition) -> Lag:
        """Sizes are estimated from the log's last rows."""
        with closing(connect(self._path)) as connection, translated(self._path):
            first, last, row_bytes = log_extent(connection, self._log)
            return Lag(
                max(last - acknowledged["id"], 0) * row_bytes, (last - first + 1) * row_bytes
            )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def remove(self) -> None:
        self.close()
        with closing(connect(self._path)) as connection, translated(self._path):
            self._log.remove(connection)

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise CaptureError("the source is closed", detail=self._path)
        return self._connection


def _sent_id(after: SourcePosition) -> int:
    """Up to which id the log is surely in the topics."""
    return int(after.at["id"] if after.changes is None else after.at["first"] - 1)


def _too_wide(table_id: str, columns: int) -> TableRefused:
    return TableRefused(
        f"table {table_id} cannot be followed",
        detail=f"{columns} columns; at most {MOST_COLUMNS}",
        hint=f'exclude = ["{table_id}"]',
    )
