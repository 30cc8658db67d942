"""Connections to the database file, and SQLite's errors as ours."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote, unquote

from headwater.errors import CaptureError, HeadwaterError, SourceRefused, SourceUnreachable

# PRAGMA table_list, which separates shadow tables from a user's, came with 3.37.
OLDEST_VERSION: Final = (3, 37, 0)
_SCHEME: Final = "sqlite:///"
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


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
    # The low byte is the primary code; the rest is which lock it was.
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in _BUSY


@contextmanager
def translated(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: str) -> HeadwaterError:
    detail = f"{path}: {error}"
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    if is_busy(error):
        return SourceUnreachable(
            "the SQLite database is locked",
            detail=detail,
            hint="another process holds a write transaction open; end it, or use WAL mode",
        )
    if code == sqlite3.SQLITE_NOTADB:
        return SourceRefused("this file is no SQLite database", detail=detail)
    if code == sqlite3.SQLITE_READONLY:
        return SourceRefused(
            "the SQLite database cannot be written to",
            detail=detail,
            hint="capture adds triggers and a log table: give its user write access to the file"
            " and to its directory",
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return SourceRefused(
            "the SQLite database is damaged", detail=detail, hint="PRAGMA integrity_check"
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
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
