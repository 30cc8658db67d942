"""What lies between a client and the end of the log, read from the log some records at a time.

The readers of a login are few, and shared: a client has one only while a piece is read, so slow
clients do not keep others waiting.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from headwater.client.reading.fetching import Fetcher
from headwater.errors import DataLost
from headwater.gateway.access import Access
from headwater.gateway.turns import in_turn
from headwater.protocol.records import Record
from headwater.web.login_access import PATIENCE_S

_T = TypeVar("_T")

_READERS: Final = 4  # of one login
_PIECE_RECORDS: Final = 1000
_PIECE_BYTES: Final = 256 << 10
PIECE_BUDGET_BYTES: Final = 1 << 20  # of a piece and its encoding, about


class Stretch(NamedTuple):
    """Some records of a partition, and the offset behind the last one that was looked at."""

    records: list[Record]
    behind: int
    lost_from: int = -1  # offsets that retention has deleted before they were read; -1: none


class Readers:
    """The readers of one login. For the event loop; they read in threads."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._turns = asyncio.Semaphore(_READERS)
        self._all: list[Fetcher] = []
        self._idle: deque[Fetcher] = deque()

    def stop(self) -> None:
        """Pieces are short: nothing to wait for."""

    def close(self) -> None:
        for fetcher in self._all:
            fetcher.close()  # ends a read that is under way, too

    async def use(self, read: Callable[[Fetcher], _T]) -> _T:
        """`read(fetcher)` in a thread."""

        async def reading() -> _T:
            fetcher = self._idle.pop() if self._idle else self._opened()
            try:
                return await self._access.call(read, fetcher)
            finally:
                self._idle.append(fetcher)

        return await in_turn(self._turns, reading)

    def _opened(self) -> Fetcher:
        fetcher = Fetcher(self._access.bootstrap, self._access.login, patience_s=PATIENCE_S)
        self._all.append(fetcher)
        return fetcher


def readers_of(access: Access) -> Readers:
    return access.part(Readers, lambda: Readers(access))


def read_stretch(
    fetcher: Fetcher,
    topic: str,
    partition: int,
    start: int,
    end: int,
    max_bytes: int = _PIECE_BYTES,
) -> Stretch:
    """From `start` on, up to `end` at most, and as much as fits. Blocks."""
    end = min(end, start + _PIECE_RECORDS)
    records: list[Record] = []
    size_bytes = 0
    try:
        for record in fetcher.records(topic, partition, start, end):
            records.append(record)
            size_bytes += len(record.key or b"") + len(record.value or b"")
            if size_bytes > max_bytes:
                return Stretch(records, record.offset + 1)
    except DataLost as lost:
        if records or lost.first <= start:
            if records:  # what was read is valid; the next stretch finds the gap
                return Stretch(records, records[-1].offset + 1)
            raise
        return Stretch([], lost.first, start)
    return Stretch(records, end)
