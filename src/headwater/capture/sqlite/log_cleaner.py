"""Deletion of log rows that are in the topics, and how many rows there are."""

import sqlite3
import time
from typing import Final

from headwater.capture.sqlite.changelog import ChangeLog
from headwater.capture.sqlite.connection import is_busy


class LogCleaner:
    """Deletes log rows that are in the topics: a few at a time, so that a writer waits for
    milliseconds at most, and now and then, for each time takes the write lock once.
    """

    _ROWS: Final = 2_000
    _PAUSE_S: Final = 0.5
    _PAUSE_BEHIND_S: Final = 0.05
    _FOR_S: Final = 0.05

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._to_id = 0
        self._first_id: int | None = None
        self._next_s = 0.0

    def up_to(self, last_id: int) -> None:
        self._to_id = max(self._to_id, last_id)

    def go_on(self, connection: sqlite3.Connection) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s or (self._first_id or 0) >= self._to_id:
            return
        log = self._log.names.log
        try:
            if self._first_id is None:
                (first,) = connection.execute(f"SELECT min(id) FROM {log}").fetchone()
                self._first_id = int(first)
            while self._first_id < self._to_id and time.monotonic() - now_s < self._FOR_S:
                # Up to, and without, the last that may go: the highest row of the log must stay, or
                # its id would be given again.
                end_id = min(self._first_id + self._ROWS, self._to_id)
                connection.execute(f"DELETE FROM {log} WHERE id < ?", (end_id,))
                self._first_id = end_id
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        is_behind = self._to_id - (self._first_id or 0) > self._ROWS
        self._next_s = time.monotonic() + (self._PAUSE_BEHIND_S if is_behind else self._PAUSE_S)


def log_extent(connection: sqlite3.Connection, log: ChangeLog) -> tuple[int, int, int]:
    """First and last id, and about how many bytes a row takes."""
    rows = connection.execute(
        f"SELECT * FROM {log.names.log} ORDER BY id DESC LIMIT 100"
    ).fetchall()
    (first,) = connection.execute(f"SELECT min(id) FROM {log.names.log}").fetchone()
    size = sum(
        len(value) if isinstance(value, bytes | str) else 8
        for row in rows
        for value in row
        if value is not None
    )
    return int(first), int(rows[0][0]), size // len(rows)
