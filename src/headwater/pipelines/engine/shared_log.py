"""What all writes of a process share of the log: its tail, decoded once, and its partitions."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby
from typing import Final

import pyarrow as pa

from headwater.client.reading.arrow import to_arrow
from headwater.client.reading.tailing import Chunk, Tail
from headwater.client.writing.sending import TopicPartition
from headwater.pipelines.engine.cuts import FollowedCuts
from headwater.pipelines.source.log_ends import LogEnds, Offsets
from headwater.pipelines.source.options import SourceOptions
from headwater.pipelines.source.reading import Decoding, RawRows

_TOPICS_EVERY_S: Final = 1.0  # how soon a new topic is found
_PARTITIONS_EVERY_S: Final = 5.0  # and new partitions of one
_LARGE_BYTES: Final = 64 << 10
_MOST_COMPRESSED: Final = 50  # times; more is rare, and found by a look at larger chunks

_shared: dict[tuple[object, ...], "SharedLog"] = {}
_sharing = threading.Lock()


class SharedLog:
    """The tail of one cluster's log, for all writes of this process. Thread-safe."""

    def __init__(self, options: SourceOptions) -> None:
        self.tail = Tail(options.bootstrap, options.client, isolation=options.isolation)
        is_committed = options.isolation == "read_committed"
        self.cuts = FollowedCuts(options, self.tail) if is_committed else None
        self.users = 0
        self._looking = threading.Lock()
        self._partitions: dict[tuple[object, ...], tuple[float, list[TopicPartition] | None]] = {}

    def partitions(self, options: SourceOptions) -> list[TopicPartition]:
        """Those of the source, asked for every few seconds."""
        wanted = options.topic, options.pattern
        with self._looking:
            until_s, found = self._partitions.get(wanted, (0.0, None))
            if found is not None:
                if time.monotonic() < until_s:
                    return found
                # The others do not wait while this thread asks.
                self._partitions[wanted] = time.monotonic() + _TOPICS_EVERY_S, found
        found = LogEnds(options).partitions()
        is_complete = options.pattern is None and {topic for topic, _ in found} >= {*options.topic}
        every_s = _PARTITIONS_EVERY_S if is_complete else _TOPICS_EVERY_S
        with self._looking:
            self._partitions[wanted] = time.monotonic() + every_s, found
        return found


@contextmanager
def shared_log(options: SourceOptions) -> Iterator[SharedLog]:
    """That of the source's cluster. It is closed with its last user."""
    key = options.bootstrap, options.client, options.isolation
    with _sharing:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = SharedLog(options)
        found.users += 1
    try:
        yield found
    finally:
        with _sharing:
            found.users -= 1
            is_last = not found.users
            if is_last:
                del _shared[key]
        if is_last:
            found.tail.close()


class TailedEnds(LogEnds):
    """Ends of partitions as far as their records have arrived, without a request."""

    def __init__(self, options: SourceOptions, log: SharedLog) -> None:
        super().__init__(options)
        self._log = log
        self.log_ends: Offsets = {}  # where the log itself ended, with the last `latest`
        self.limits: Offsets = {}  # a partition's end is not behind its limit

    def partitions(self) -> list[TopicPartition]:
        return self._log.partitions(self._options)

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        wanted = list(partitions)
        found = self._log.tail.ends(wanted)
        if missing := [one for one in wanted if one not in found]:
            asked = super().latest(missing)
            self._log.tail.follow(asked)
            found |= {one: (end, end) for one, end in asked.items()}
        self.log_ends = {one: end for one, (_, end) in found.items()}
        return {
            one: min(arrived, self.limits.get(one, arrived)) for one, (arrived, _) in found.items()
        }


def decoded(
    tail: Tail, chunks: Sequence[Chunk], start: int, end: int, rows: Decoding | RawRows, how: str
) -> Iterator[pa.RecordBatch]:
    """The rows of consecutive chunks of a partition from `start` to `end`. A large chunk is decoded
    once for all writes that decode it in the same way (`how`). Small ones are decoded together:
    a call costs as much as some hundred records.
    """
    for is_shared, group in groupby(chunks, lambda chunk: _is_shared(chunk, start, end)):
        if not is_shared:
            yield from _rows(list(group), start, end, rows)
            continue
        for chunk in group:
            with chunk.lock:
                if how not in chunk.decoded:
                    made = list(_rows([chunk], chunk.start, chunk.end, rows))
                    chunk.decoded[how] = made
                    tail.hold(chunk, sum(batch.nbytes for batch in made))
            yield from chunk.decoded[how]


def most_bytes(chunk: Chunk) -> int:
    """In memory, of all of its records, without a look at them."""
    return chunk.fetched_bytes * (_MOST_COMPRESSED if chunk.is_compressed else 1)


def bytes_per_offset(chunks: Sequence[Chunk]) -> float:
    """In memory. Compressed chunks are larger than they were fetched: as much as the largest is."""
    largest = max(chunks, key=lambda chunk: chunk.fetched_bytes * chunk.is_compressed)
    growth = 1.0
    if largest.is_compressed:
        columns = ("key", "value")
        whole = largest.data, largest.batches, largest.start, largest.end
        size_bytes = sum(batch.nbytes for batch in to_arrow(*whole, columns))
        growth = max(size_bytes / largest.fetched_bytes, 1.0)
    total_bytes = sum(
        chunk.fetched_bytes * (growth if chunk.is_compressed else 1.0) for chunk in chunks
    )
    return total_bytes / sum(chunk.end - chunk.start for chunk in chunks)


def _is_shared(chunk: Chunk, start: int, end: int) -> bool:
    return chunk.fetched_bytes >= _LARGE_BYTES and start <= chunk.start and chunk.end <= end


def _rows(
    chunks: Sequence[Chunk], start: int, end: int, rows: Decoding | RawRows
) -> Iterator[pa.RecordBatch]:
    data, batches = chunks[0].data, chunks[0].batches
    if len(chunks) > 1:
        data = memoryview(b"".join(chunk.data for chunk in chunks))
        starts = accumulate((chunk.fetched_bytes for chunk in chunks), initial=0)
        batches = [
            (header, at + shift)
            for chunk, shift in zip(chunks, starts, strict=False)
            for header, at in chunk.batches
        ]
    for batch in to_arrow(data, batches, start, end, rows.columns):
        yield rows.rows(batch, chunks[0].topic, chunks[0].partition)
