"""Follows partitions at the end of the log by long polling, for all readers of a process.

One Fetch request per broker waits for new records of all followed partitions. What arrives is held
for a while, bounded by bytes and time, so that several readers decode and use it without fetching
it again. A reader that is further behind fetches for itself (fetching.py).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headwater.client.cluster import LOST, RETRIABLE, Cluster
from headwater.client.offsets import COMMITTED, UNCOMMITTED
from headwater.client.reading.fetched import counting_batches
from headwater.client.refusals import reason_of
from headwater.client.writing.sending import TopicPartition
from headwater.errors import HeadwaterError, MalformedMessage
from headwater.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    FetchResponsePartitionData,
)
from headwater.protocol.records import BatchHeader
from headwater.settings import ClientSettings

if TYPE_CHECKING:
    from headwater.client.connection import Connection
    from headwater.client.reading.fetching import Isolation

_LOG = logging.getLogger(__name__)
_MAX_WAIT_MS: Final = 1_000
_STARTING_WAIT_MS: Final = 250  # how soon a partition is asked for that is followed meanwhile
_STARTING_S: Final = 30.0  # since the last one: more are likely to come
_GATHER_S: Final = 0.004
_RESPONSE_BYTES: Final = 8 << 20
_PARTITION_BYTES: Final = 1 << 20
_WAITED_FOR_BYTES: Final = 4 << 20
_HELD_BYTES: Final = 32 << 20
_HELD_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0


@dataclass
class Chunk:
    """The records of a partition from `start` to `end` (exclusive), as they were fetched."""

    topic: str
    partition: int
    start: int
    end: int
    data: memoryview
    batches: list[tuple[BatchHeader, int]]
    arrived_s: float
    decoded: dict[str, Any] = field(default_factory=dict)  # by how; `Tail.hold` counts its bytes
    decoded_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def fetched_bytes(self) -> int:
        return len(self.data)

    @property
    def size_bytes(self) -> int:
        return len(self.data) + self.decoded_bytes

    @property
    def is_compressed(self) -> bool:
        return any(header.codec for header, _ in self.batches)


@dataclass
class _Followed:
    position: int  # the next offset to be fetched
    complete: int  # up to where whole transactions have arrived
    end: int  # where the log ended with the last response
    leader: str | None = None
    chunks: deque[Chunk] = field(default_factory=deque)

    @property
    def size_bytes(self) -> int:
        """Of what has arrived behind `complete`."""
        return sum(chunk.size_bytes for chunk in self.chunks if chunk.start >= self.complete)


class Tail:
    """The end of the followed partitions of one cluster. Thread-safe.

    `version` grows with whatever arrives. A partition that cannot be followed (deleted, recreated,
    not permitted) is dropped: readers find out why when they ask the broker themselves.
    """

    def __init__(
        self,
        bootstrap: str,
        login: ClientSettings,
        *,
        isolation: "Isolation" = "read_committed",
        held_bytes: int | None = None,
    ) -> None:
        self._cluster = Cluster(bootstrap, login)
        self._isolation = COMMITTED if isolation == "read_committed" else UNCOMMITTED
        self._asking = threading.Lock()  # the cluster is for one thread at a time
        self._changed = threading.Condition()
        self._followed: dict[TopicPartition, _Followed] = {}
        self._held_bytes = 0
        self._max_held_bytes = held_bytes
        self._pollers: dict[str, threading.Thread] = {}
        self._connections: dict[str, Connection] = {}  # of pollers
        self._closed = threading.Event()
        self._turn = 0
        self._last_new_s = time.monotonic()  # when a partition was followed that was not before
        self._has_news = False  # whether the last response had records
        self.version = 0

    def close(self) -> None:
        """A request under way is given up."""
        self._closed.set()
        self._cluster.close()
        with self._changed:
            for connection in self._connections.values():
                connection.close()
        self.wake()

    def follow(self, positions: Mapping[TopicPartition, int]) -> None:
        """From these offsets on, which are the current ends of the partitions. Those that are
        followed already stay as they are.
        """
        with self._changed:
            new = {one: at for one, at in positions.items() if one not in self._followed}
            self._followed |= {one: _Followed(at, at, at) for one, at in new.items()}
            self._last_new_s = time.monotonic() if new else self._last_new_s
        if new:
            self._find_leaders({topic for topic, _ in new})

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Of those that are followed, all at the same moment: up to where records have arrived,
        and where the log ended with the last response. A transaction counts when all of it has
        arrived, unless it is too large to be waited for.
        """
        with self._changed:
            return {
                one: (found.complete, found.end)
                for one in partitions
                if (found := self._followed.get(one)) is not None
            }

    def chunks(self, topic: str, partition: int, start: int, end: int) -> list[Chunk] | None:
        """The chunks that have all of the range; None if not all of it is held."""
        with self._changed:
            followed = self._followed.get((topic, partition))
            if followed is None or followed.position < end:
                return None
            found = _overlapping(followed.chunks, start, end)
        if not found:
            return [] if start >= end else None
        return found if found[0].start <= start else None

    def wait(self, version: int, timeout_s: float) -> int:
        """Until `version` is no longer the current one; returns the current one."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != version, timeout_s)
            return self.version

    def hold(self, chunk: Chunk, size_bytes: int) -> None:
        """What was decoded of the chunk counts as much as the chunk itself."""
        with self._changed:
            chunk.decoded_bytes += size_bytes
            followed = self._followed.get((chunk.topic, chunk.partition))
            if followed is not None and chunk in followed.chunks:
                self._held_bytes += size_bytes
                self._forget()

    def wake(self) -> None:
        """Ends all waits."""
        with self._changed:
            self.version += 1
            self._changed.notify_all()

    # Polling

    def _find_leaders(self, topics: set[str]) -> None:
        with self._asking:
            try:
                # Asked once: all other topics would wait for one that was deleted.
                found = self._cluster.find_all_partitions(list(topics))
            except HeadwaterError as error:
                _LOG.debug("topics cannot be followed: %s", error)
                self._drop([one for one in list(self._followed) if one[0] in topics])
                return
            with self._changed:
                # Readers ask for their ends, and they are followed again when they exist.
                missing = topics - found.keys()
                self._drop([one for one in self._followed if one[0] in missing])
                for (topic, partition), followed in self._followed.items():
                    if topic in topics:
                        followed.leader = self._cluster.leader(topic, partition)
                lost = [
                    one
                    for one, followed in self._followed.items()
                    if one[0] in topics and followed.leader is None
                ]
                self._drop(lost)
                leaders = {one.leader for one in self._followed.values() if one.leader}
                for address in [one for one in leaders if one not in self._pollers]:
                    poller = threading.Thread(
                        target=self._poll, args=(address,), name="headwater-tail", daemon=True
                    )
                    self._pollers[address] = poller
                    poller.start()

    def _poll(self, address: str) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closed.is_set():
            with self._changed:
                wanted = {
                    one: followed.position
                    for one, followed in self._followed.items()
                    if followed.leader == address
                }
                if not wanted:
                    del self._pollers[address]
                    break
            try:
                moved = self._fetch(self._connection(address), wanted)
                self._gather()
            except (*LOST, HeadwaterError) as error:
                _LOG.debug("following the log at %s: %s", address, reason_of(error))
                self._disconnect(address)
                moved = {topic for topic, _ in wanted}
            except Exception:
                _LOG.warning("following the log at %s", address, exc_info=True)
                self._disconnect(address)
                moved = {topic for topic, _ in wanted}
            if not moved:
                pause_s = _FIRST_PAUSE_S
                continue
            if self._closed.wait(pause_s):
                break
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            self._find_leaders(moved)
        self._disconnect(address)

    def _gather(self) -> None:
        """Records that come one by one are fetched a few at a time: each response costs both sides
        about a millisecond.
        """
        with self._changed:
            has_news, self._has_news = self._has_news, False
        if has_news:
            self._closed.wait(_GATHER_S)

    def _connection(self, address: str) -> "Connection":
        found = self._connections.get(address)
        if found is None:
            found = self._cluster.new_connection(address)
            with self._changed:
                self._connections[address] = found
                if self._closed.is_set():
                    found.close()
        return found

    def _disconnect(self, address: str) -> None:
        with self._changed:
            connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def _fetch(self, connection: "Connection", wanted: Mapping[TopicPartition, int]) -> set[str]:
        """Topics that other brokers may lead now."""
        by_topic: dict[str, list[FetchRequestFetchPartition]] = {}
        # In turn, because a response is filled from the first one on.
        self._turn += 1
        first = self._turn % len(wanted)
        in_turn = [*wanted.items()][first:] + [*wanted.items()][:first]
        for (topic, partition), position in in_turn:
            by_topic.setdefault(topic, []).append(
                FetchRequestFetchPartition(
                    partition=partition,
                    fetch_offset=position,
                    partition_max_bytes=_PARTITION_BYTES,
                )
            )
        is_starting = time.monotonic() - self._last_new_s < _STARTING_S
        request = FetchRequest(
            max_wait_ms=_STARTING_WAIT_MS if is_starting else _MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=_RESPONSE_BYTES,
            isolation_level=self._isolation,
            topics=[
                FetchRequestFetchTopic(topic=topic, partitions=partitions)
                for topic, partitions in by_topic.items()
            ],
        )
        version = connection.version(FetchRequest, 4, 12)
        answer = connection.exchange(request, FetchResponse, version)
        if answer.error_code:
            return {topic for topic, _ in wanted}
        if answer.throttle_time_ms and not answer.responses:
            self._closed.wait(answer.throttle_time_ms / 1000)
        moved: set[str] = set()
        lost: list[TopicPartition] = []
        arrived: list[tuple[Chunk, int]] = []
        for of_topic in answer.responses:
            for data in of_topic.partitions:
                one = of_topic.topic, data.partition_index
                if one not in wanted:
                    continue
                if data.error_code in RETRIABLE:
                    moved.add(of_topic.topic)
                elif data.error_code:
                    lost.append(one)
                else:
                    try:
                        arrived.append(self._chunk(one, wanted[one], data))
                    except MalformedMessage as error:  # readers find it, too
                        _LOG.debug("%s", error)
                        lost.append(one)
        self._drop(lost)
        self._add(arrived)
        return moved

    def _chunk(
        self, partition: TopicPartition, position: int, data: FetchResponsePartitionData
    ) -> tuple[Chunk, int]:
        """And where the log ends."""
        is_committed = self._isolation == COMMITTED
        end = data.last_stable_offset if is_committed else data.high_watermark
        found, behind = counting_batches(
            data, position, end=None, committed=is_committed, name="-".join(map(str, partition))
        )
        chunk = Chunk(*partition, position, behind, found.data, found.batches, time.monotonic())
        return chunk, max(end, behind)

    def _add(self, arrived: list[tuple[Chunk, int]]) -> None:
        with self._changed:
            for chunk, end in arrived:
                followed = self._followed.get((chunk.topic, chunk.partition))
                if followed is None or followed.position != chunk.start:
                    continue
                followed.end = end
                if chunk.end > chunk.start:
                    followed.position = chunk.end
                    followed.chunks.append(chunk)
                    self._held_bytes += chunk.size_bytes
                    self._has_news = True
                    if followed.position >= end or followed.size_bytes > _WAITED_FOR_BYTES:
                        followed.complete = followed.position
                        self.version += 1
            self._forget()
            self._changed.notify_all()

    def _forget(self) -> None:
        """The oldest chunks: what is too old, and as much as is too much."""
        old_s = time.monotonic() - _HELD_S
        for followed in self._followed.values():
            while followed.chunks and followed.chunks[0].arrived_s < old_s:
                self._held_bytes -= followed.chunks.popleft().size_bytes
        while self._held_bytes > (self._max_held_bytes or _HELD_BYTES):
            oldest = min(
                (one for one in self._followed.values() if one.chunks),
                key=lambda one: one.chunks[0].arrived_s,
            )
            self._held_bytes -= oldest.chunks.popleft().size_bytes

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        with self._changed:
            for one in partitions:
                if (followed := self._followed.pop(one, None)) is not None:
                    self._held_bytes -= sum(chunk.size_bytes for chunk in followed.chunks)
                    self.version += 1
            self._changed.notify_all()


def _overlapping(chunks: deque[Chunk], start: int, end: int) -> list[Chunk]:
    """Those with records of the range, in order. Searched from the newest one: readers mostly want
    the last few of hundreds.
    """
    found = []
    for chunk in reversed(chunks):
        if chunk.end <= start:
            break
        if chunk.start < end:
            found.append(chunk)
    return found[::-1]
