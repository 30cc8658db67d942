"""Connections to the database file, and SQLite's errors as ours."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote, unquote

from headwater.databases.sqlite_errors import SqliteFault, fault_of
from headwater.errors import CaptureError, HeadwaterError, SourceRefused, SourceUnreachable

# PRAGMA table_list, which separates shadow tables from a user's, came with 3.37.
OLDEST_VERSION: Final = (3, 37, 0)
_SCHEME: Final = "sqlite:///"


def database_path(url: str) -> str:
    """sqlite:///shop.db is relative to the working directory, sqlite:////data/shop.db is not."""
    return unquote(url.removeprefix(_SCHEME).partition("?")[0])


def connect(path: str, *, busy_timeout_s: float = 5.0) -> sqlite3.Connection:
    """A connection in autocommit mode. Never creates the file. Raises CaptureError's kinds."""
    if not os.path.exists(path):
        raise SourceUnreachable(
            "there is no such SQLite database",
            detail=path,
            hint="source = sqlite:///relative.db, or with four slashes: sqlite:////absolute.db",
        )
    uri = f"file:{quote(os.path.abspath(path))}?mode=rw"
    with translated(path):
        # Each connection is used by one thread at a time; which one may change with the run.
        connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=busy_timeout_s, check_same_thread=False
        )
        try:
            # A power cut may bring back log rows that were already taken away: they are taken away
            # again. So nothing that we write needs a sync of its own (in WAL mode).
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        except BaseException:
            connection.close()
            raise
    return connection


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds a lock that ends by itself."""
    return fault_of(error) is SqliteFault.LOCKED


@contextmanager
def translated(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: str) -> HeadwaterError:
    detail = f"{path}: {error}"
    match fault_of(error):
        case SqliteFault.LOCKED:
            return SourceUnreachable(
                "the SQLite database is locked",
                detail=detail,
                hint="another process holds a write transaction open; end it, or use WAL mode",
            )
        case SqliteFault.NO_DATABASE:
            return SourceRefused("this file is no SQLite database", detail=detail)
        case SqliteFault.NOT_WRITABLE:
            return SourceRefused(
                "the SQLite database cannot be written to",
                detail=detail,
                hint="capture adds triggers and a log table: give its user write access to the file"
                " and to its directory",
            )
        case SqliteFault.CORRUPT:
            return SourceRefused(
                "the SQLite database is damaged", detail=detail, hint="PRAGMA integrity_check"
            )
        case SqliteFault.CANNOT_OPEN | SqliteFault.DISK:
            return SourceUnreachable("the SQLite database cannot be used", detail=detail)
    return CaptureError("SQLite refused a statement of the capture", detail=detail)


@contextmanager
def write_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything or nothing. Takes the write lock first, so it cannot be busy half-way."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def read_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All reads inside see one state of the database."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
