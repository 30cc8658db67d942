"""Watching the database file: when there may be new rows in the log."""

import os
import sqlite3
import time
from typing import Final

from headwater.capture.sqlite.connection import is_busy
from headwater.errors import SourceUnreachable


class Watch:
    """Whether another connection has committed since the last look.

    The files are looked at first, which no writer notices. Only if they were touched SQLite is
    asked, for in rollback-journal mode that takes a lock for a moment, and a writer without a busy
    timeout fails on it.
    """

    # File times move in steps of some milliseconds: a file touched just now may be touched again
    # without a trace.
    _SETTLED_S: Final = 0.05

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._inode = os.stat(path).st_ino
        self._touched: tuple[int, ...] = ()
        self._data_version = -1

    def look_again(self) -> None:
        self._data_version = -1

    def is_changed(self) -> bool:
        touched = self._stamps()
        is_settled = time.time() - touched[0] / 1e9 > self._SETTLED_S
        if touched == self._touched and is_settled and self._data_version >= 0:
            return False
        try:
            (data_version,) = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return False
            raise
        self._touched = touched
        is_changed = bool(data_version != self._data_version)
        self._data_version = data_version
        return is_changed

    def _stamps(self) -> tuple[int, ...]:
        """When the files were written to last, and what else shows that they were."""
        try:
            database = os.stat(self._path)
        except FileNotFoundError:
            raise SourceUnreachable(
                "the SQLite database does not exist any more", detail=self._path
            ) from None
        if database.st_ino != self._inode:
            raise SourceUnreachable("the SQLite database was replaced", detail=self._path)
        try:
            wal = os.stat(self._path + "-wal")
        except FileNotFoundError:
            wal = database
        latest_ns = max(database.st_mtime_ns, wal.st_mtime_ns)
        return latest_ns, database.st_mtime_ns, database.st_size, wal.st_size
