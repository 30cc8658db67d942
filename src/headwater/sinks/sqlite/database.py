"""The file of a SQLite database: connections, transactions, and the mapping of its errors."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final
from urllib.parse import quote

from headwater.databases.sqlite_errors import SqliteFault, fault_of
from headwater.errors import HeadwaterError, SinkError, StoreRefused, StoreUnreachable

_BUSY_TIMEOUT_S: Final = 5.0


class Database:
    def __init__(self, path: str) -> None:
        self.path = path

    def exists(self) -> bool:
        return os.path.exists(self.path)

    def check(self) -> None:
        """Whether it can be written to. Raises StoreRefused."""
        folder = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            raise StoreRefused(
                "the directory of the SQLite database does not exist",
                detail=folder,
                hint=f"mkdir -p {folder}",
            )
        if not os.access(folder, os.W_OK):
            raise StoreRefused(
                "the directory of the SQLite database cannot be written to",
                detail=folder,
                hint="SQLite makes files beside the database while it writes",
            )
        if self.exists() and not os.access(self.path, os.W_OK):
            raise StoreRefused("the SQLite database cannot be written to", detail=self.path)

    @contextmanager
    def transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Holds the write lock of the database from its beginning (BEGIN IMMEDIATE)."""
        with self.translated():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def connected(self, mode: str) -> Iterator[sqlite3.Connection]:
        with closing(self.connect(mode)) as connection, self.translated():
            yield connection

    def connect(self, mode: str) -> sqlite3.Connection:
        uri = f"file:{quote(os.path.abspath(self.path))}?mode={mode}"
        with self.translated():
            connection = sqlite3.connect(
                uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S,
                check_same_thread=False,
            )  # fmt: skip
            # Otherwise views of users would follow a renamed table.
            connection.execute("PRAGMA legacy_alter_table = ON")
            # Rows and tables that are deleted are overwritten, so that a person can be forgotten.
            connection.execute("PRAGMA secure_delete = ON")
            return connection

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except HeadwaterError:
            raise
        except sqlite3.Error as error:
            raise _sink_error(error, self.path) from error


def _sink_error(error: sqlite3.Error, path: str) -> SinkError:
    detail = f"{path}: {error}"
    match fault_of(error):
        case SqliteFault.LOCKED:
            return StoreUnreachable(
                "the SQLite database is locked",
                detail=detail,
                hint="another process holds a write transaction open",
            )
        case SqliteFault.DISK:
            return StoreUnreachable(
                "the disk of the SQLite database does not answer", detail=detail
            )
        case SqliteFault.NO_DATABASE:
            return StoreRefused("this file is no SQLite database", detail=detail)
        case SqliteFault.NOT_WRITABLE | SqliteFault.CANNOT_OPEN:
            return StoreRefused(
                "the SQLite database cannot be opened for writing",
                detail=detail,
                hint="its user needs to write to the file and to its directory",
            )
    return StoreRefused("SQLite refuses a request", detail=detail)
