"""Feeds: one reading of the end of a topic, for all clients of a login.

A thread follows the topic (following.py) and encodes what is new, once. A feed holds
the last entries, bounded by bytes, with numbers that count on. A client takes all entries from its
number on; one whose number is no longer there has fallen behind, and reads from the log itself.
A feed that cannot go on (the topic was deleted, the login lost its right, too much came at once) is
broken: its clients find out why by reading the log, and a new feed is made.
"""

import asyncio
import time
from collections import OrderedDict, deque
from contextlib import suppress
from itertools import islice
from typing import Final

from headwater.client.reading.fetching import LATEST
from headwater.gateway.access import Access
from headwater.gateway.reading.backlog import readers_of
from headwater.gateway.reading.entries import Entry
from headwater.gateway.reading.filters import Filter
from headwater.gateway.reading.following import TopicFollower
from headwater.gateway.reading.positions import Positions, identity_of
from headwater.gateway.reading.schemas import Schemas
from headwater.gateway.turns import in_turn
from headwater.protocol.records import Record
from headwater.web.live import StreamLimit

_HELD_BYTES: Final = 8 << 20  # of one feed
_FETCHED_BYTES: Final = 16 << 20  # of one topic, until they are encoded
_CHUNK_BYTES: Final = 64 << 10  # that a client gets at once
_CHUNK_ENTRIES: Final = 2000
_CACHED_CHUNKS: Final = 16
_IDLE_S: Final = 10.0  # a feed without clients ends


class Chunk:
    """Some entries, shared by the clients that get the same ones."""

    __slots__ = ("behind", "encoded", "entries", "id")

    def __init__(self, number: int = 0, entries: list[Entry] | None = None) -> None:
        self.entries = entries or []
        self.behind = number  # number of the next entry
        self.id = b""  # of the last entry, whether it passes the filter or not
        self.encoded: dict[tuple[str, str], bytes] = {}  # by form and decoding


class Feed:
    """The end of one topic. Its methods are called on the event loop, but for `entry`."""

    def __init__(self, topic: str, positions: Positions, schemas: Schemas) -> None:
        self.topic = topic
        self.clients = 0
        self.idle_since_s = time.monotonic()
        self.is_broken = False
        self.first = 0  # number of the first entry that is held
        self.positions = dict(positions)  # behind the last entry
        self._schemas = schemas
        self._entries: deque[Entry] = deque()
        self._held_bytes = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._chunks: OrderedDict[tuple[int, int, Filter], Chunk] = OrderedDict()

    @property
    def end(self) -> int:
        """The number of the next entry."""
        return self.first + len(self._entries)

    def has(self, number: int) -> bool:
        return not self.is_broken and self.first <= number <= self.end

    def take(self, number: int, filter_: Filter) -> "Chunk":
        """The entries from this number on that pass, as many as a client gets at once."""
        key = (number, self.end, filter_)
        chunk = self._chunks.get(key)
        if chunk is None:
            chunk = self._chunks[key] = self._cut(number, filter_)
            while len(self._chunks) > _CACHED_CHUNKS:
                self._chunks.popitem(last=False)
        return chunk

    def _cut(self, number: int, filter_: Filter) -> "Chunk":
        start = number - self.first
        size_bytes = 0
        chunk = Chunk(number)
        for entry in islice(self._entries, start, start + _CHUNK_ENTRIES):
            chunk.behind += 1
            chunk.id = entry.id
            size_bytes += len(entry.json)
            if filter_.passes(entry):
                chunk.entries.append(entry)
            if size_bytes >= _CHUNK_BYTES:
                break
        return chunk

    async def wait(self, timeout_s: float) -> None:
        """Until something is new, or the time is over."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        try:
            await asyncio.wait((news,), timeout=timeout_s)
        finally:
            self._waiting.discard(news)

    def extend(self, entries: list[Entry], positions: Positions) -> None:
        if not entries:  # nothing but markers of transactions
            return
        self._entries.extend(entries)
        self._held_bytes += sum(entry.size_bytes for entry in entries)
        self.positions = dict(positions)
        while self._held_bytes > _HELD_BYTES and self._entries:
            self._held_bytes -= self._entries.popleft().size_bytes
            self.first += 1
        self.wake()

    def break_off(self) -> None:
        self.is_broken = True
        self._entries.clear()
        self._chunks.clear()
        self._held_bytes = 0
        self.wake()

    def wake(self) -> None:
        for news in self._waiting:
            if not news.done():
                news.set_result(None)

    def entry(self, partition: int, record: Record, at: Positions) -> Entry:
        """Of a record; `at` is behind it. In any thread."""
        return Entry(self.topic, partition, record, identity_of(at), self._schemas)


class Feeds:
    """All feeds of one login. `limit` is that of all logins: a feed holds up to 24 MiB."""

    def __init__(self, access: Access, limit: StreamLimit) -> None:
        self._access = access
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._feeds: dict[tuple[str, int], Feed] = {}  # by topic and its partitions
        self._followers: dict[Feed, TopicFollower[Entry]] = {}
        self._opening = asyncio.Lock()
        self.is_stopping = False

    def stop(self) -> None:
        self.is_stopping = True
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for feed in self._feeds.values():
            feed.wake()

    def close(self) -> None:
        for follower in list(self._followers.values()):
            follower.close()

    async def join(self, topic: str, partitions: int, schemas: Schemas) -> Feed:
        """The feed of the topic, which is to be left. Raises HeadwaterError."""
        key = (topic, partitions)

        async def opened() -> Feed:
            found = self._feeds.get(key)
            if found is None or found.is_broken:
                found = await self._opened(key, schemas)
            return found

        feed = await in_turn(self._opening, opened)
        feed.clients += 1
        return feed

    def leave(self, feed: Feed) -> None:
        feed.clients -= 1
        feed.idle_since_s = time.monotonic()

    async def _opened(self, key: tuple[str, int], schemas: Schemas) -> Feed:
        topic, partitions = key
        everything = [(topic, number) for number in range(partitions)]
        ends = await readers_of(self._access).use(
            lambda fetcher: fetcher.offsets(everything, LATEST)
        )
        feed = Feed(topic, {number: end for (_, number), end in ends.items()}, schemas)
        self._limit.acquire("")
        self._feeds[key] = feed
        self._followers[feed] = TopicFollower(
            self._access,
            feed,
            feed.positions,
            self._loop,
            decode=feed.entry,
            apply=feed.extend,
            ended=lambda: self._ended(key, feed),
            held_bytes=_FETCHED_BYTES,
            idle_s=_IDLE_S,
            reads_log=False,  # its clients read the log by themselves
        )
        return feed

    def _ended(self, key: tuple[str, int], feed: Feed) -> None:
        self._limit.release("")
        self._followers.pop(feed, None)
        if self._feeds.get(key) is feed:
            del self._feeds[key]


def feeds_of(access: Access, limit: StreamLimit) -> Feeds:
    return access.part(Feeds, lambda: Feeds(access, limit))
