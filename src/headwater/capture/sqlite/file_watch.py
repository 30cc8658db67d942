"""Watching the database file: when there may be new rows in the log."""

import os
import sqlite3
import time
from typing import Final

from headwater.capture.sqlite.connection import is_busy
from headwater.errors import SourceUnreachable


class Watch:
    """Whether another connection has committed since the last look.

    In rollback-journal mode the files are looked at first, which no writer notices. Only if they
    were touched SQLite is asked, for that takes a lock for a moment, and a writer without a busy
    timeout fails on it. While a writer holds the lock, the answer is that it is busy.

    In WAL mode SQLite is always asked: no writer notices that, and the time of a file says nothing.
    A transaction is written to the log, synced and visible to others only then, which can be any
    time later.
    """

    # File times move in steps of some milliseconds: a file touched just now may be touched again
    # without a trace.
    _SETTLED_S: Final = 0.05

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._inode = os.stat(path).st_ino
        self._touched: tuple[int, ...] = ()
        self._is_wal = False
        self._data_version = -1

    def look_again(self) -> None:
        self._data_version = -1

    def is_changed(self) -> bool:
        touched = self._stamps()
        is_settled = time.time() - touched[0] / 1e9 > self._SETTLED_S
        if touched == self._touched and is_settled and self._data_version >= 0 and not self._is_wal:
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
        """When the file was written to last, and what else shows that it was."""
        try:
            database = os.stat(self._path)
        except FileNotFoundError:
            raise SourceUnreachable(
                "the SQLite database does not exist any more", detail=self._path
            ) from None
        if database.st_ino != self._inode:
            raise SourceUnreachable("the SQLite database was replaced", detail=self._path)
        # It is there as long as a connection is open in this mode, as ours is.
        self._is_wal = os.path.exists(self._path + "-wal")
        return database.st_mtime_ns, database.st_size
