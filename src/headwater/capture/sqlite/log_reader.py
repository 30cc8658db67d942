"""Reader of the log table: its rows as events."""

import sqlite3
import time
from collections.abc import Iterator
from typing import Any, Final

from headwater.capture.contract import (
    Begin,
    Change,
    Commit,
    Event,
    LogPosition,
    PositionAdvanced,
    SchemaChange,
    TableFailed,
)
from headwater.capture.sqlite.changelog import ChangeLog, Version
from headwater.capture.sqlite.connection import is_busy
from headwater.capture.sqlite.triggers import MARKS
from headwater.capture.sqlite.values import (
    is_undecodable,
    json_row,
    json_value,
    lenient_text,
    row_maker,
)
from headwater.errors import CaptureError

_CELLS: Final = 3  # where they begin: behind id, t, op

# How many log rows one read takes: as many as make it this short, so that in rollback-journal mode
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

    def transaction(self, at: LogPosition, sent: int) -> Iterator[Event]:
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
                if op in MARKS:
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
            yield PositionAdvanced(at)

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
                f"table {table.id} must be copied again", detail=row[_CELLS], hint=hint
            )
            return TableFailed(table.id, error)
        return SchemaChange(table.id, table if row[2] == "s" else None)


_NO_VERSION: Final = Version(-1, None, (), 0, ())  # type: ignore[arg-type]


def _begin(at: LogPosition, committed_ms: int) -> Begin:
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
