"""Event stores in a SQLite file: WAL mode, several processes, every commit synced.

The append lock is SQLite's write lock (BEGIN IMMEDIATE). Triggers refuse changes of events and
positions that are not the next one, also those that INSERT OR REPLACE would make.
"""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote, unquote

from headwater.databases.sqlite_errors import SqliteFault, fault_of
from headwater.errors import (
    EventStoreError,
    EventStoreRefused,
    EventStoreUnreachable,
    HeadwaterError,
)
from headwater.events.databases.schema import IMMUTABLE, PARTS, REFUSAL, SCHEMA_VERSION, TABLES
from headwater.events.databases.session import (
    EVENT_COLUMNS,
    INSERT_COMMAND,
    PAYLOAD,
    PageStatement,
    Row,
)

SCHEME: Final = "sqlite:///"
_BUSY_TIMEOUT_S: Final = 60.0  # 16 writers on a slow disk; SQLite's waiters are not in a queue
_POLL_S: Final = 0.02
_INSERT: Final = (
    f"INSERT INTO headwater_events ({', '.join(EVENT_COLUMNS)})"
    f" VALUES ({', '.join('?' * len(EVENT_COLUMNS))})"
)
_TRIGGERS: Final = [
    f"CREATE TRIGGER IF NOT EXISTS {table}_no_{operation.lower()}"
    f" BEFORE {operation} ON {table} BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
    for table in IMMUTABLE
    for operation in ("UPDATE", "DELETE")
] + [
    # INSERT OR REPLACE deletes without delete triggers. An id or version that exists is refused
    # here, so that there is nothing to replace.
    (
        "CREATE TRIGGER IF NOT EXISTS headwater_events_next BEFORE INSERT ON headwater_events"
        " WHEN NEW.position IS NOT (SELECT coalesce(max(position), 0) + 1 FROM headwater_events)"
        " OR EXISTS (SELECT 1 FROM headwater_events WHERE id = NEW.id)"
        " OR EXISTS (SELECT 1 FROM headwater_events"
        " WHERE aggregateid = NEW.aggregateid AND version = NEW.version)"
        " BEGIN SELECT RAISE(ABORT, 'an event has the next position, a new id and a new version');"
        " END"
    ),
]

_PARTS: Final = (*PARTS, *(statement.split()[5] for statement in _TRIGGERS))


def path_of(url: str) -> str:
    """sqlite:///bank.db is relative to the working directory, sqlite:////data/bank.db is not."""
    return unquote(url.removeprefix(SCHEME).partition("?")[0])


class SqliteDatabase:
    unlocking = ("DROP TRIGGER headwater_events_no_update",)
    locking = tuple(text for text in _TRIGGERS if " headwater_events_no_update " in text)

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.shown = SCHEME + path

    def exists(self) -> bool:
        if not os.path.exists(self.path):
            return False
        session = self._session("rw")
        try:
            return bool(
                session.run("SELECT 1 FROM sqlite_master WHERE name = 'headwater_event_store'")
            )
        finally:
            session.close()

    def create(self) -> None:
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise EventStoreRefused(
                "the directory of the event store does not exist",
                detail=folder,
                hint=f"mkdir -p {folder}",
            )
        session = self._session("rwc")
        try:
            # One that is complete is opened without the write lock, which others may hold.
            if not _is_complete(session):
                _create_parts(session)
            ((version,),) = session.run(
                "SELECT value FROM headwater_event_store WHERE name = 'schema'"
            )
        finally:
            session.close()
        if int(version) > SCHEMA_VERSION:
            raise EventStoreRefused(
                "the event store was made by a newer version of Headwater",
                detail=f"schema {version}, this version has {SCHEMA_VERSION}",
            )

    def rewrite(self) -> None:
        """Raises EventStoreUnreachable if somebody reads all the time: the file is rewritten then,
        but older pages are still in the WAL.
        """
        session = self._session("rw")
        try:
            session.run("VACUUM")
            deadline_s = time.monotonic() + _BUSY_TIMEOUT_S
            while session.run("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]:
                if time.monotonic() > deadline_s:
                    raise EventStoreUnreachable(
                        "the WAL of the event store cannot be emptied",
                        detail=f"{self.path}-wal",
                        hint="another process holds a read transaction open",
                    )
                time.sleep(_POLL_S)
        finally:
            session.close()

    def connect(self) -> "SqliteSession":
        return self._session("rw")

    connect_waiting = connect

    def _session(self, mode: str) -> "SqliteSession":
        with _translated(self.path):
            return SqliteSession(self.path, mode)


def _is_complete(session: "SqliteSession") -> bool:
    ((mode,),) = session.run("PRAGMA journal_mode")
    ((found,),) = session.run(
        f"SELECT count(*) FROM sqlite_master WHERE name IN ({', '.join('?' * len(_PARTS))})", _PARTS
    )
    return bool(mode == "wal" and found == len(_PARTS))


def _create_parts(session: "SqliteSession") -> None:
    session.use_wal()
    session.begin_write()
    tables = TABLES.format(bigint="INTEGER", without_rowid="WITHOUT ROWID")
    for statement in (*tables.split(";"), *_TRIGGERS):
        session.run(statement)
    session.run(
        "INSERT OR IGNORE INTO headwater_event_store VALUES ('schema', ?)", (str(SCHEMA_VERSION),)
    )
    session.commit()


class SqliteSession:
    now_sql = "NULL"

    def __init__(self, path: str, mode: str) -> None:
        self.is_usable = True
        self._path = path
        self._version_seen: int | None = None
        self._connection = sqlite3.connect(
            f"file:{quote(path)}?mode={mode}", uri=True, isolation_level=None,
            timeout=_BUSY_TIMEOUT_S, check_same_thread=False, cached_statements=256,
        )  # fmt: skip
        try:
            # In WAL mode only FULL makes a commit survive a power cut.
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        except BaseException:
            self._connection.close()
            raise

    def use_wal(self) -> None:
        """Another process that opens the same new file at the same time holds a lock that SQLite
        does not wait for here.
        """
        deadline_s = time.monotonic() + _BUSY_TIMEOUT_S
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if fault_of(error) is not SqliteFault.LOCKED or time.monotonic() > deadline_s:
                    raise _explained(error, self._path) from error
                time.sleep(0.01)
            else:
                return

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        with _translated(self._path):
            return self._connection.execute(statement, values).fetchall()

    run_users = run
    run_often = run  # the module caches statements

    def run_page(self, page: PageStatement, max_bytes: int) -> tuple[list[Row], bool]:
        rows: list[Row] = []
        size_bytes = 0
        with _translated(self._path):
            cursor = self._connection.execute(page.text, page.values)
            try:
                for row in cursor:
                    rows.append(row)
                    size_bytes += len(row[PAYLOAD])
                    if size_bytes >= max_bytes:
                        return rows, True
            finally:
                cursor.close()
        return rows, False

    def begin_write(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def insert_events(self, rows: Sequence[Row], tags: Sequence[tuple[str, int]]) -> None:
        with _translated(self._path):
            self._connection.executemany(_INSERT, rows)
            if tags:
                self._connection.executemany("INSERT INTO headwater_event_tags VALUES (?, ?)", tags)

    def insert_command(self, row: Row) -> None:
        self.run(INSERT_COMMAND, row)

    def commit(self) -> None:
        self.run("COMMIT")

    def roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def wait(self, timeout_s: float) -> None:
        """`data_version` changes when another connection has committed: a read of shared memory,
        without a read of the file.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            ((version,),) = self.run("PRAGMA data_version")
            if self._version_seen is None:
                self._version_seen = version
                return  # something may have been committed before the first look
            if version != self._version_seen:
                self._version_seen = version
                return
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(_POLL_S, left_s))

    def close(self) -> None:
        self.is_usable = False
        self._connection.close()


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except HeadwaterError:
        raise
    except sqlite3.Error as error:
        raise _explained(error, path) from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise EventStoreRefused("SQLite does not take a value", detail=str(error)) from error


def _explained(error: sqlite3.Error, path: str) -> EventStoreError:
    detail = f"{path}: {error}"
    match fault_of(error):
        case SqliteFault.LOCKED:
            return EventStoreUnreachable(
                "the event store is locked",
                detail=detail,
                hint="another process holds a write transaction open",
            )
        case SqliteFault.DISK:
            return EventStoreUnreachable(
                "the disk of the event store does not answer", detail=detail
            )
        case SqliteFault.NO_DATABASE:
            return EventStoreRefused("this file is no SQLite database", detail=path)
        case SqliteFault.NOT_WRITABLE | SqliteFault.CANNOT_OPEN:
            return EventStoreRefused(
                "the file of the event store cannot be opened for writing",
                detail=detail,
                hint="its user needs to write to the file and to its directory",
            )
    return EventStoreRefused("SQLite refuses a statement", detail=detail)
