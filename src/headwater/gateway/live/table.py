"""One table: the rows that a topic has now, and its last changes.

Changes are numbered, and held in a ring that is bounded by bytes. A client is a number: it has the
table as it was before the change of that number. Rows and number are only changed together, on the
event loop, so a snapshot belongs to exactly one number.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import orjson

from headwater.errors import HeadwaterError
from headwater.gateway.answers import Refusal
from headwater.gateway.live.events import event, row_data
from headwater.gateway.live.loading import Loaded
from headwater.gateway.live.marks import positions_text, text_of
from headwater.gateway.live.memory import Memory, too_large
from headwater.gateway.live.queries import LiveQuery
from headwater.gateway.live.snapshots import Snapshot
from headwater.gateway.tables.table_topics import unordered_truncate
from headwater.inspect.table_rows import Kind, Row, Step, completed

_RING_BYTES: Final = 8 << 20
_PIECE_CHANGES: Final = 1000
_PIECE_BYTES: Final = 256 << 10
_CACHED_PIECES: Final = 32
_SHARED_S: Final = 1.0  # how old a snapshot may be that a new client gets
_REACH_S: Final = 1.0
_MOST_SNAPSHOTS: Final = 4  # under way at the same time: each holds rows that may be old


class Change:
    """A row before and after one record; None: it was not there."""

    __slots__ = ("after", "before", "is_last", "key", "positions")

    def __init__(
        self, key: bytes, before: Row | None, after: Row | None, positions: str, is_last: bool
    ) -> None:
        self.key = key
        self.before = before
        self.after = after
        self.positions = positions  # behind the record
        self.is_last = is_last  # of its record: a truncate has many

    @property
    def size_bytes(self) -> int:
        rows = sum(row.size_bytes for row in (self.before, self.after) if row is not None)
        return rows + len(self.key) + len(self.positions) + 150


class Piece:
    """Some changes for one query, as they are sent."""

    __slots__ = ("behind", "count", "data", "positions")

    def __init__(self, behind: int) -> None:
        self.behind = behind  # number of the next change
        self.positions = ""  # behind the last record, whether it concerns the query or not
        self.data = b""
        self.count = 0


class Table:
    """Its methods are called on the event loop."""

    def __init__(self, topic: str, loaded: Loaded, memory: Memory) -> None:
        self.topic = topic
        self.topic_id = loaded.topic_id
        self.is_compacted = loaded.is_compacted
        self.tombstones_s = loaded.tombstones_s
        self.offsets = dict(loaded.offsets)
        self.without_key = loaded.without_key  # records that are no rows
        self.rows = loaded.rows
        self.clients = 0
        self.looking = asyncio.Lock()  # where the log ends
        self.looked_s = float("-inf")
        self.ends = dict(loaded.offsets)
        self.idle_since_s = time.monotonic()
        self.error: HeadwaterError | None = None  # why it cannot go on, where we know it
        self.is_broken = False
        self.first = 0  # number of the first change that is held
        self._memory = memory
        self._size_bytes = loaded.size_bytes
        self._counted_bytes = loaded.size_bytes  # rows and ring, as the memory has them
        self._ring: deque[Change] = deque()
        self._ring_bytes = 0
        self._start = positions_text(self.offsets)  # before the first change
        self._numbers: dict[str, int] = {}  # of the change behind a position
        self._pieces: OrderedDict[tuple[int, int, LiveQuery], Piece] = OrderedDict()
        self._snapshots: list[Snapshot] = []
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def end(self) -> int:
        """The number of the next change."""
        return self.first + len(self._ring)

    @property
    def positions(self) -> str:
        """Behind the last change."""
        return self._ring[-1].positions if self._ring else self._start

    def has(self, number: int) -> bool:
        return not self.is_broken and self.first <= number <= self.end

    def number_at(self, positions: str) -> int | None:
        """The number of the first change behind a position; None if it is not held."""
        if positions == self._start:
            return self.first
        return self._numbers.get(positions)

    async def reach(self, offsets: Mapping[int, int]) -> None:
        """Waits until all up to these offsets is in the table, or it is broken."""
        while not self.is_broken and any(
            self.offsets.get(partition, offset) < offset for partition, offset in offsets.items()
        ):
            await self.wait(_REACH_S)

    def changed_since(self, number: int) -> set[bytes]:
        return {change.key for change in islice(self._ring, number - self.first, None)}

    # Changes

    def apply(self, steps: Iterable[Step], offsets: Mapping[int, int]) -> None:
        """In their order; all up to these offsets is in the table then. It breaks if it becomes too
        large.
        """
        for step in steps:
            self.offsets[step.partition] = step.offset + 1
            match step.kind:
                case Kind.PUT:
                    before = self.rows.get(step.key)
                    json = completed(step.json, before)
                    row = Row(step.key, json, step.partition, step.offset)
                    self.rows[step.key] = row
                    self._add(step.key, before, row)
                case Kind.REMOVE:
                    removed = self.rows.pop(step.key, None)
                    if removed is not None:
                        self._add(step.key, removed, None)
                case Kind.CLEAR if len(self.offsets) > 1:
                    self.break_off(unordered_truncate(self.topic))
                    return
                case Kind.CLEAR:
                    left = len(self.rows)
                    for row in list(self.rows.values()):
                        del self.rows[row.key]
                        left -= 1
                        self._add(row.key, row, None, is_last=not left)
                case Kind.NO_ROW:
                    self.without_key += 1
        self._trim()
        held_bytes = self._size_bytes + self._ring_bytes
        new_bytes, self._counted_bytes = held_bytes - self._counted_bytes, held_bytes
        if not self._memory.change(new_bytes):
            self.break_off(too_large(self.topic, self._memory))
            return
        self.offsets.update(offsets)
        self.wake()

    def _add(
        self, key: bytes, before: Row | None, after: Row | None, *, is_last: bool = True
    ) -> None:
        self._size_bytes += after.size_bytes if after is not None else 0
        self._size_bytes -= before.size_bytes if before is not None else 0
        change = Change(key, before, after, positions_text(self.offsets), is_last)
        self._ring.append(change)
        self._ring_bytes += change.size_bytes
        if is_last:
            self._numbers[change.positions] = self.end

    def _trim(self) -> None:
        while self._ring and self._ring_bytes > _RING_BYTES:
            dropped = self._ring.popleft()
            self._ring_bytes -= dropped.size_bytes
            self._start = dropped.positions if dropped.is_last else ""
            self._numbers.pop(dropped.positions, None)
            self.first += 1

    def take(self, number: int, query: LiveQuery) -> Piece:
        """The changes from this number on that concern the query, as many as are sent at once."""
        key = (number, self.end, query)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._cut(number, query)
            while len(self._pieces) > _CACHED_PIECES:
                self._pieces.popitem(last=False)
        return piece

    def _cut(self, number: int, query: LiveQuery) -> Piece:
        start = number - self.first
        piece, parts, size_bytes = Piece(number), [], 0
        for change in islice(self._ring, start, start + _PIECE_CHANGES):
            piece.behind += 1
            if change.is_last:
                piece.positions = change.positions
            part = self._event(change, query)
            if part:
                parts.append(part)
                size_bytes += len(part)
                if size_bytes >= _PIECE_BYTES:
                    break
        piece.data, piece.count = b"".join(parts), len(parts)
        return piece

    def _event(self, change: Change, query: LiveQuery) -> bytes:
        """Nothing if the rows that the query has stay the same. Only the last change of a record
        has an id: who goes on from there has all of them.
        """
        before = change.before if change.before and query.passes(change.before) else None
        after = change.after if change.after and query.passes(change.after) else None
        if after is None:
            if before is None:
                return b""
            name, data = "removed", row_data(change.key, None)
        elif before is None:
            name, data = "added", row_data(change.key, query.shaped(after))
        else:
            shaped = query.shaped(after)
            if _are_equal(shaped, query.shaped(before)):
                return b""
            name, data = "changed", row_data(change.key, shaped)
        return event(name, data, self.mark(change.positions) if change.is_last else "")

    def mark(self, positions: str | None = None) -> str:
        return text_of(self.topic_id, self.positions if positions is None else positions)

    # Snapshots

    async def snapshot(self) -> Snapshot:
        """Of now, or of a moment ago; to be released. Raises Refusal."""
        self._snapshots = [one for one in self._snapshots if one.users or self._is_fresh(one)]
        for one in reversed(self._snapshots):
            if self.has(one.number) and (
                self._is_fresh(one) or len(self._snapshots) >= _MOST_SNAPSHOTS
            ):
                return await one.prepared()
        if len(self._snapshots) >= _MOST_SNAPSHOTS:
            raise Refusal(
                503,
                f"too many clients read table {self.topic} slowly",
                headers={"Retry-After": "1"},
            )
        new = Snapshot(list(self.rows.values()), self.end, self.positions)
        self._snapshots.append(new)
        return await new.prepared()

    def _is_fresh(self, snapshot: Snapshot) -> bool:
        return snapshot.number == self.end or time.monotonic() - snapshot.taken_s < _SHARED_S

    # Clients

    async def wait(self, timeout_s: float) -> None:
        """Until something is new, or the time is over."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        try:
            await asyncio.wait((news,), timeout=timeout_s)
        finally:
            self._waiting.discard(news)

    def wake(self) -> None:
        for news in self._waiting:
            if not news.done():
                news.set_result(None)

    def break_off(self, error: HeadwaterError | None = None) -> None:
        """Clients find out why, or begin again with a new table."""
        if self.is_broken:
            return
        self.is_broken = True
        self.error = error
        self._memory.change(-self._counted_bytes)
        self.rows = {}
        self._ring.clear()
        self._numbers.clear()
        self._pieces.clear()
        self._snapshots.clear()
        self.wake()


def _are_equal(one: bytes, other: bytes) -> bool:
    """As JSON: in whichever order their fields are. 1, 1.0 and true are not the same."""
    return one == other or _sorted(one) == _sorted(other)


def _sorted(json: bytes) -> bytes:
    return orjson.dumps(orjson.loads(json), option=orjson.OPT_SORT_KEYS)
