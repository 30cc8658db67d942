"""Log rows as events; when there may be new ones; and taking away those that are in the topics."""

import os
import sqlite3
import time
from collections.abc import Iterator
from typing import Any, Final

from headwater.capture.contract import (
    Begin,
    Change,
    Commit,
    Event,
    Place,
    Progress,
    SchemaChange,
    TableFailed,
)
from headwater.capture.sqlite.changelog import ChangeLog, Version
from headwater.capture.sqlite.connection import is_busy
from headwater.capture.sqlite.values import (
    is_undecodable,
    json_row,
    json_value,
    lenient_text,
    row_maker,
)
from headwater.errors import CaptureError, SourceUnreachable

_MARKS: Final = frozenset("sxfo")
_CELLS: Final = 3  # where they begin: behind id, t, op

# How many log rows one read takes: as many as keep it this short, so that in rollback-journal mode
# writers hardly wait, and large blobs do not fill the memory.
_READ_SHORTEST_S: Final = 0.003
_READ_LONGEST_S: Final = 0.012
_MOST_ROWS: Final = 4_096

_JULIAN_DAY_OF_EPOCH: Final = 2440587.5
_DAY_MS: Final = 86_400_000


class LogReader:
    def __init__(self, connection: sqlite3.Connection, log: ChangeLog) -> None:
        self._connection = connection
        self._log = log
        self._read_rows = 64

    def transaction(self, at: Place, sent: int) -> Iterator[Event]:
        """What the log has from at["first"] to at["id"], without the first `sent` changes. Marks
        alone are no transaction. None stands for a database that is locked.
        """
        ordinal = 0
        is_begun = False
        version = _NO_VERSION
        names: tuple[str, ...] = ()
        cut = width = 0
        for committed_ms, rows in self._batches(at["first"], at["id"]):
            if not rows:
                yield None
            make_row = row_maker(rows)
            for row in rows:
                op = row[2]
                if op in _MARKS:
                    if ordinal >= sent and op != "o":
                        yield self._marked(row)
                    continue
                if ordinal < sent:
                    ordinal += 1
                    continue
                if not is_begun:
                    is_begun = True
                    yield _begin(at, committed_ms)
                if row[1] != version.number:
                    version = self._log.version(self._connection, row[1])
                    names, width = version.names, version.width
                    cut = _CELLS + width
                source = {"id": row[0]}
                if op == "u":
                    before = make_row(names, row[_CELLS:cut])
                    after = make_row(names, row[cut : cut + width])
                    yield Change(version.table, "u", before, after, ordinal, source)
                elif op == "c":
                    after = make_row(names, row[_CELLS:cut])
                    yield Change(version.table, "c", None, after, ordinal, source)
                elif op == "d":
                    before = make_row(names, row[_CELLS:cut])
                    yield Change(version.table, "d", before, None, ordinal, source)
                else:
                    yield _refreshed(version, op, row, ordinal, source)
                ordinal += 1
        if is_begun or sent:
            if not is_begun:
                yield _begin(at, committed_ms)
            yield Commit(ordinal)
        else:
            yield Progress(at)

    def _batches(self, first_id: int, end_id: int) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
        """Each with the time of the last row, in milliseconds. Empty: the database was locked."""
        cells = "".join(f", c{i}" for i in range(self._log.width))
        log = self._log.names.log
        last_sql = f"SELECT at FROM {log} WHERE id = ?"
        sql = f"SELECT id, t, op{cells} FROM {log} WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
        committed_ms: int | None = None
        while first_id <= end_id:
            started_s = time.perf_counter()
            try:
                if committed_ms is None:
                    (day,) = self._connection.execute(last_sql, (end_id,)).fetchone()
                    committed_ms = round((day - _JULIAN_DAY_OF_EPOCH) * _DAY_MS)
                rows = self._fetch(sql, (first_id, end_id, self._read_rows))
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                yield 0, []
                continue
            took_s = time.perf_counter() - started_s
            if took_s > _READ_LONGEST_S:
                self._read_rows = max(self._read_rows // 2, 1)
            elif took_s < _READ_SHORTEST_S:
                self._read_rows = min(self._read_rows * 2, _MOST_ROWS)
            if not rows:
                raise CaptureError("rows are missing in the change log", detail=f"from {first_id}")
            first_id = rows[-1][0] + 1
            yield committed_ms, rows

    def _fetch(self, sql: str, arguments: tuple[int, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, arguments).fetchall()
        except sqlite3.OperationalError as error:
            if not is_undecodable(error):
                raise
        self._connection.text_factory = lenient_text
        try:
            return self._connection.execute(sql, arguments).fetchall()
        finally:
            self._connection.text_factory = str

    def _marked(self, row: tuple[Any, ...]) -> Event:
        table = self._log.version(self._connection, row[1]).table
        if row[2] == "f":
            hint = f"headwater capture snapshot {self._log.capture} --table {table.id}"
            error = CaptureError(
                f"table {table.id} must be read anew", detail=row[_CELLS], hint=hint
            )
            return TableFailed(table.id, error)
        return SchemaChange(table.id, table if row[2] == "s" else None)


_NO_VERSION: Final = Version(-1, None, (), 0, ())  # type: ignore[arg-type]


def _begin(at: Place, committed_ms: int) -> Begin:
    return Begin(at, str(at["id"]), committed_ms, {"txId": at["id"]})


def _refreshed(
    version: Version, op: str, row: tuple[Any, ...], ordinal: int, source: dict[str, Any]
) -> Change:
    if op == "r":
        after = json_row(version.names, row[_CELLS : _CELLS + version.width])
        return Change(version.table, "u", None, after, ordinal, source)
    key = {
        name: json_value(value)
        for name, value in zip(version.table.key, row[_CELLS:], strict=False)
    }
    return Change(version.table, "d", key, None, ordinal, source)


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
            raise SourceUnreachable("the SQLite database is gone", detail=self._path) from None
        if database.st_ino != self._inode:
            raise SourceUnreachable("the SQLite database was replaced", detail=self._path)
        try:
            wal = os.stat(self._path + "-wal")
        except FileNotFoundError:
            wal = database
        latest_ns = max(database.st_mtime_ns, wal.st_mtime_ns)
        return latest_ns, database.st_mtime_ns, database.st_size, wal.st_size


class Forgetting:
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
