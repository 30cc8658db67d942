"""Order by key, as a group may ask for it (`headwater.share.order = key`).

Of one key at most one record is with consumers at a time, and none is delivered before those in
front of it are settled. Records without a key are free of it.

For that the keys of the records in the window have to be read; there are never more of those than
the group may have locked (`share.partition.max.record.locks`). A key that many records share in a
row therefore holds up the others behind them, until the window moves on.
"""

import contextlib
from collections import deque
from hashlib import blake2b
from typing import NamedTuple

from headwater.broker.queues.read_ahead import ReadAhead, read_batch
from headwater.broker.queues.window import Window
from headwater.errors import MalformedMessage
from headwater.log.partitions.partition import PartitionLog
from headwater.protocol import records

_LONGEST_KEY_BYTES = 32
_READ_BYTES = 1 << 20
_FEW_KEYS = 10_000


class Keys(NamedTuple):
    """The keys of [first, until), and the ranges of it that hold no record."""

    first: int
    until: int
    keys: dict[int, bytes]
    absent: list[tuple[int, int]]


class KeyOrder:
    """The keys of a share partition's window."""

    __slots__ = ("_absent", "_keys", "_most_keys", "read_until")

    def __init__(self, start_offset: int) -> None:
        self.read_until = start_offset  # keys are read up to here
        self._keys: dict[int, bytes] = {}
        self._most_keys = _FEW_KEYS  # before those that are not needed go
        self._absent: deque[tuple[int, int]] = deque()

    @property
    def key_count(self) -> int:
        """How many are in memory."""
        return len(self._keys)

    def learn(self, found: Keys) -> None:
        if found.first <= self.read_until < found.until:
            self._keys.update(found.keys)
            self._absent += (gap for gap in found.absent if gap[1] >= self.read_until)
            self.read_until = found.until

    def needs_more(self, window: Window, end_offset: int, max_locks: int) -> bool:
        """Whether keys have to be read before all can be chosen from that may be delivered."""
        self.read_until = max(self.read_until, window.start_offset)
        if self.read_until < window.next_offset:
            return True
        room = max_locks - window.in_flight
        return self.read_until < end_offset and room > self.read_until - window.next_offset

    def offer(self, window: Window, end_offset: int, max_locks: int) -> None:
        """Takes records whose keys are read into the window, as far as there is room."""
        until = min(self.read_until, end_offset)
        while window.next_offset < until:
            while self._absent and self._absent[0][1] < window.next_offset:
                self._absent.popleft()
            if self._absent and self._absent[0][0] <= window.next_offset:
                window.drop(window.next_offset, min(self._absent.popleft()[1], until - 1))
                continue
            room = max_locks - window.in_flight
            if room <= 0:
                break
            stop = min(until, self._absent[0][0]) if self._absent else until
            window.offer(min(stop, window.next_offset + room) - 1)
        if len(self._keys) > self._most_keys:
            self._forget_settled(window)
            self._most_keys = max(2 * len(self._keys), _FEW_KEYS)

    def _forget_settled(self, window: Window) -> None:
        """A million settled records behind a slow one may be in the window: not their keys."""
        retained = {at: key for at, key in self._keys.items() if at >= window.next_offset}
        for first, last, _ in window.open_runs(0.0):
            for offset in range(first, last + 1):
                key = self._keys.get(offset)
                if key is not None:
                    retained[offset] = key
        self._keys = retained

    def free(self, window: Window, now_s: float, limit: int) -> list[int]:
        """Up to `limit` offsets, in order, that may be delivered now: none whose key is unknown,
        as all are after a start until they are read.
        """
        free: list[int] = []
        taken: set[bytes] = set()
        for first, last, is_due in window.open_runs(now_s):
            for offset in range(first, min(last + 1, self.read_until)):
                key = self._keys.get(offset)
                if is_due and (key is None or key not in taken):
                    free.append(offset)
                    if len(free) >= limit:
                        return free
                if key is not None:
                    taken.add(key)
        return free


def read_keys(log: PartitionLog, ahead: ReadAhead, offset: int, count: int) -> Keys:
    """(worker) The keys of `count` records from `offset` on, or of somewhat more or fewer.

    `ahead` covers `offset`. Raises CorruptLog if they cannot be read.
    """
    keys: dict[int, bytes] = {}
    absent: list[tuple[int, int]] = []
    until, read_bytes = offset, 0
    for located in ahead.batches[ahead.index_of(offset) :]:
        if until - offset >= count or read_bytes >= _READ_BYTES:
            break
        if located.base_offset > until:
            absent.append((until, located.base_offset - 1))
        if located.is_hidden:
            absent.append((located.base_offset, located.last_offset))
        else:
            batch = read_batch(log, ahead, located)
            read_bytes += located.size_bytes
            with contextlib.suppress(MalformedMessage):  # no consumer can read it either
                for record in records.records_of(batch):
                    if record.key is not None and record.offset >= offset:
                        keys[record.offset] = _short(record.key)
        until = located.last_offset + 1
    return Keys(offset, until, keys, absent)


def _short(key: bytes) -> bytes:
    if len(key) <= _LONGEST_KEY_BYTES:
        return key
    return blake2b(key, digest_size=_LONGEST_KEY_BYTES + 1).digest()
