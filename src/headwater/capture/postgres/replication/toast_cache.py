"""Cache of large values (TOAST) of rows, for updates that do not send them.

PostgreSQL stores large values outside of the row (TOAST). An UPDATE that does not touch such a
value does not log it. What was streamed before is remembered here by key, least recently used
first out, bounded by bytes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from headwater.capture.contract import UNAVAILABLE, Row

# PostgreSQL moves values out when a row is larger than 2 KB; text can be shorter than what it
# stands for (arrays of numbers), so we remember from half of it on.
LARGE_ROW_BYTES: Final = 1000
_LARGE_VALUE_CHARACTERS: Final = 200
_ENTRY_BYTES: Final = 300  # keys, dict and list node


class ToastCache:
    def __init__(self, limit_bytes: int = 32 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._rows: OrderedDict[tuple[bytes, str], tuple[Row, int]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._rows)

    def fill(self, relation: bytes, key: Sequence[str], old_key: Row | None, row: Row) -> None:
        """Puts remembered values into the columns that are UNAVAILABLE."""
        found = self._rows.get(_row_id(relation, key, old_key or row))
        if found is not None:
            for name, value in found[0].items():
                if row.get(name) == UNAVAILABLE:
                    row[name] = value

    def remember(self, relation: bytes, key: Sequence[str], row: Row) -> None:
        self._put(_row_id(relation, key, row), row)

    def add(self, relation: bytes, key: Sequence[str], row: Row, read: Row) -> None:
        """Columns of that row that were read from the table. The stream may be further than the row
        by now, so what it brought since stays.
        """
        row_id = _row_id(relation, key, row)
        remembered, _ = self._rows.get(row_id, ({}, 0))
        self._put(row_id, {**read, **remembered})

    def _put(self, row_id: tuple[bytes, str], row: Row) -> None:
        self._forget(row_id)
        large = {
            name: value
            for name, value in row.items()
            if _size(value) > _LARGE_VALUE_CHARACTERS and value != UNAVAILABLE
        }
        if not large:
            return
        # A str of non-Latin text has 2 to 4 bytes per character; count 2.
        size_bytes = _ENTRY_BYTES + 2 * sum(map(_size, large.values()))
        if size_bytes > self._limit_bytes:
            return
        self._rows[row_id] = (large, size_bytes)
        self._size_bytes += size_bytes
        while self._size_bytes > self._limit_bytes:
            _, (_, freed_bytes) = self._rows.popitem(last=False)
            self._size_bytes -= freed_bytes

    def forget(self, relation: bytes, key: Sequence[str], row: Row) -> None:
        self._forget(_row_id(relation, key, row))

    def forget_table(self, relation: bytes) -> None:
        for row_id in [row_id for row_id in self._rows if row_id[0] == relation]:
            self._forget(row_id)

    def _forget(self, row_id: tuple[bytes, str]) -> None:
        found = self._rows.pop(row_id, None)
        if found is not None:
            self._size_bytes -= found[1]


def _row_id(relation: bytes, key: Sequence[str], row: Row) -> tuple[bytes, str]:
    return relation, repr([row[name] for name in key])


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    return 40 * len(value) if isinstance(value, list) else 0
