"""One client of a topic: it gets every record from its position on, once and in order.

    log ───────── read for this client (backlog) ─────────▶│◀── shared (feed) ──▶ end

The client reads the log up to where the feed stands, and then takes the feed's entries from that
number on. If the feed has dropped them meanwhile, or breaks, it reads the log again from where it
is. So a client that is slow loses nothing, and costs others nothing.
"""

import time
from dataclasses import dataclass
from typing import Any, Final

from headwater.gateway.access import Access
from headwater.gateway.budget import Budget
from headwater.gateway.callers import READ
from headwater.gateway.reading import positions
from headwater.gateway.reading.backlog import PIECE_BUDGET_BYTES, read_stretch, readers_of
from headwater.gateway.reading.entries import Entry
from headwater.gateway.reading.feeds import Chunk, Feed, Feeds, feeds_of
from headwater.gateway.reading.filters import Filter
from headwater.gateway.reading.schemas import Schemas, schema_id
from headwater.inspect.positions import Position
from headwater.web.live import StreamLimit

_LOOK_S: Final = 5.0  # how often the number of partitions is looked up
_BACKLOG_BYTES: Final = 128 << 20
_MOST_FEEDS: Final = 128
_FEED_LIMIT_S: Final = 10.0  # in which a feed has to reach a client that is ahead of it


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets that retention had deleted before the client read them."""

    partition: int
    start: int
    end: int

    def as_json(self) -> dict[str, Any]:
        return {"partition": self.partition, "from": self.start, "to": self.end}


class Shared:
    """What all subscriptions share."""

    def __init__(self) -> None:
        # Pieces of the log that clients have not taken yet.
        self.backlog = Budget(_BACKLOG_BYTES)
        self.feeds = StreamLimit(_MOST_FEEDS, _MOST_FEEDS, "topics with readers")


class Subscription:
    """To be closed."""

    def __init__(
        self,
        access: Access,
        shared: Shared,
        topic: str,
        filter_: Filter,
        schemas: Schemas,
        max_piece_bytes: int = 1 << 20,
    ) -> None:
        self._max_piece_bytes = max_piece_bytes  # that is read from the log at once
        self._access = access
        self._shared = shared
        self._has_budget = False  # for a piece that the client has not taken yet
        self._topic = topic
        self._filter = filter_
        self._schemas = schemas
        self._feed: Feed | None = None
        self._number = 0  # of the next entry, in the feed
        self._has_joined = False
        self._looked_s = time.monotonic()
        self._turn = 0
        self._at: dict[int, int] = {}
        self.id = b""

    def close(self) -> None:
        self._leave()
        self._give_budget()

    @property
    def _feeds(self) -> Feeds:
        return feeds_of(self._access, self._shared.feeds)

    def _give_budget(self) -> None:
        if self._has_budget:
            self._has_budget = False
            self._shared.backlog.give(PIECE_BUDGET_BYTES)

    async def begin(self, wanted: Position | dict[int, int]) -> None:
        """Raises Refusal, HeadwaterError."""
        topic = await self._access.topic(self._topic, READ)
        if isinstance(wanted, Position) and wanted.kind == "end":
            feed = self._feed = await self._joined(topic.partitions)
            self._at = dict(feed.positions)
            self._number, self._has_joined = feed.end, True
        else:
            self._at = await readers_of(self._access).use(
                lambda fetcher: positions.resolve(fetcher, self._topic, topic.partitions, wanted)
            )
        self.id = positions.identity_of(self._at)

    async def ends(self) -> dict[int, int]:
        """Where the log ends now."""
        topic = await self._access.topic(self._topic, READ)
        return await readers_of(self._access).use(
            lambda fetcher: positions.resolve(
                fetcher, self._topic, topic.partitions, Position("end")
            )
        )

    def has_reached(self, ends: dict[int, int]) -> bool:
        at = self._feed.positions if self._has_joined and self._feed is not None else self._at
        if self._has_joined and self._feed is not None and self._number < self._feed.end:
            return False
        return all(at.get(partition, 0) >= end for partition, end in ends.items())

    async def next(self, timeout_s: float) -> Chunk | Lost | None:
        """What comes next, perhaps nothing that passes the filter; None: nothing came in time.
        Raises HeadwaterError.
        """
        self._give_budget()
        until_s = time.monotonic() + timeout_s
        while True:
            await self._look()
            if not self._has_joined:
                found = await self._from_log()
                if found is not None:
                    return found
                continue
            feed = self._feed
            assert feed is not None
            if not feed.has(self._number):
                self._leave()
                continue
            if self._number < feed.end:
                chunk = feed.take(self._number, self._filter)
                self._number = chunk.behind
                self._advance(chunk)
                return chunk
            left_s = until_s - time.monotonic()
            if left_s <= 0 or self._feeds.is_stopping:
                return None
            await feed.wait(min(left_s, _LOOK_S))

    def _advance(self, chunk: Chunk) -> None:
        """The id is all that is needed of the position while the feed goes on."""
        self.id = chunk.id

    def _leave(self) -> None:
        if self._feed is not None:
            self._feeds.leave(self._feed)
            if self._has_joined:
                self._at = _parsed(self.id)
        self._feed, self._has_joined = None, False

    async def _look(self) -> None:
        """Partitions that were added are read from their start."""
        if time.monotonic() - self._looked_s < _LOOK_S and self._at:
            return
        self._looked_s = time.monotonic()
        topic = await self._access.topic(self._topic, READ)
        if topic.partitions > len(self._at):
            self._leave()
            self._at |= {number: 0 for number in range(topic.partitions) if number not in self._at}

    async def _joined(self, partitions: int) -> Feed:
        return await self._feeds.join(self._topic, partitions, self._schemas)

    async def _from_log(self) -> Chunk | Lost | None:
        """A piece of what lies before the feed; None if there is none left, or the feed was not
        there yet.
        """
        if self._feed is None or self._feed.is_broken:
            self._leave()
            await self._access.topic(self._topic, READ)  # it may have been deleted, or forbidden
            self._feed = await self._joined(len(self._at))
            await self._wait_for_feed(self._feed)
        feed = self._feed
        number, goal = feed.end, dict(feed.positions)
        behind = [partition for partition in sorted(goal) if self._at[partition] < goal[partition]]
        if not behind:
            self._number, self._has_joined = number, True
            return None
        self._turn += 1
        return await self._read(behind[self._turn % len(behind)], goal)

    async def _wait_for_feed(self, feed: Feed) -> None:
        """A feed may stand a moment behind what its clients have seen already."""
        until_s = time.monotonic() + _FEED_LIMIT_S
        while not feed.is_broken and any(
            offset > feed.positions[partition] for partition, offset in self._at.items()
        ):
            if time.monotonic() > until_s:
                await readers_of(self._access).use(  # raises if the log does not reach us
                    lambda fetcher: positions.resolve(fetcher, self._topic, len(self._at), self._at)
                )
                until_s = time.monotonic() + _FEED_LIMIT_S
            await feed.wait(_FEED_LIMIT_S / 10)

    async def _read(self, partition: int, goal: dict[int, int]) -> Chunk | Lost:
        start = self._at[partition]
        if not self._has_budget:
            await self._shared.backlog.take(PIECE_BUDGET_BYTES)
            self._has_budget = True
        stretch = await readers_of(self._access).use(
            lambda fetcher: read_stretch(
                fetcher, self._topic, partition, start, goal[partition], self._max_piece_bytes
            )
        )
        if stretch.lost_from >= 0:
            self._at[partition] = stretch.behind
            self.id = positions.identity_of(self._at)
            return Lost(partition, stretch.lost_from, stretch.behind)
        ids = {schema_id(record.value) for record in stretch.records} - {None}
        if ids:  # what is looked up now is remembered, so that nothing waits below
            await self._access.call(self._schemas.look_up, ids)
        chunk = Chunk()
        for record in stretch.records:
            self._at[partition] = record.offset + 1
            entry = Entry(
                self._topic, partition, record, positions.identity_of(self._at), self._schemas
            )
            if self._filter.passes(entry):
                chunk.entries.append(entry)
        self._at[partition] = stretch.behind
        self.id = chunk.id = positions.identity_of(self._at)
        return chunk


def _parsed(identity: bytes) -> dict[int, int]:
    found = positions.parse(identity.decode())
    assert isinstance(found, dict)
    return found
