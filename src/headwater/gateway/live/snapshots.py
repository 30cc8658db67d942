"""A snapshot: all rows of a table at one number, shared by the clients that begin there.

It is encoded piece by piece, when a client has taken the last one. Rows are never changed, so the
list of them is all that a snapshot holds.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from headwater.gateway.live.events import event, row_data
from headwater.gateway.live.queries import LiveQuery
from headwater.inspect.table_rows import Row

_PIECE_ROWS: Final = 1000
_PIECE_BYTES: Final = 256 << 10
_CACHED_PIECES: Final = 64


class Snapshot:
    """To be released by each client that has got it."""

    def __init__(self, rows: list[Row], number: int, positions: str) -> None:
        self.number = number
        self.positions = positions
        self.taken_s = time.monotonic()
        self.users = 0
        self._rows = rows
        self._starts: list[int] | None = None
        self._cutting = asyncio.Lock()
        self._pieces: OrderedDict[tuple[LiveQuery, int], tuple[bytes, int]] = OrderedDict()

    async def prepared(self) -> "Snapshot":
        self.users += 1
        try:
            async with self._cutting:
                if self._starts is None:
                    self._starts = await asyncio.to_thread(lambda: list(_starts(self._rows)))
        except BaseException:
            self.users -= 1
            raise
        return self

    def release(self) -> None:
        self.users -= 1

    @property
    def pieces(self) -> int:
        assert self._starts is not None
        return len(self._starts)

    def piece(self, query: LiveQuery, number: int) -> tuple[bytes, int]:
        """The events of the rows that pass, and how many there are."""
        found = self._pieces.get((query, number))
        if found is None:
            found = self._pieces[query, number] = self._encoded(query, number)
            while len(self._pieces) > _CACHED_PIECES:
                self._pieces.popitem(last=False)
        return found

    def _encoded(self, query: LiveQuery, number: int) -> tuple[bytes, int]:
        assert self._starts is not None
        start = self._starts[number]
        end = self._starts[number + 1] if number + 1 < len(self._starts) else len(self._rows)
        parts = [
            event("snapshot", row_data(row.key, query.shaped(row)))
            for row in self._rows[start:end]
            if query.passes(row)
        ]
        return b"".join(parts), len(parts)


def _starts(rows: list[Row]) -> Iterator[int]:
    """Where the pieces begin."""
    count = size_bytes = 0
    for number, row in enumerate(rows):
        if number == 0 or count >= _PIECE_ROWS or size_bytes >= _PIECE_BYTES:
            yield number
            count = size_bytes = 0
        count += 1
        size_bytes += row.size_bytes
