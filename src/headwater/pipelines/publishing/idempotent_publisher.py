"""An idempotent publisher: records derived from records of the log are written exactly once.

A task may run again, a batch be replayed, a query be started twice over the same records, a store
be rebuilt from the start: only the first attempt writes. The records, and a position with the
offsets that they were derived from, are one Kafka transaction
(sinks/topic/transactional_positions.py):

    position    {"count": records written, "offsets": of which records (offset_runs.py)}

A second process with the same stream fences the first, and reads its position; so the position that
a process has cached is valid as long as it is not fenced.
"""

import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from headwater.client.cluster import Cluster
from headwater.client.topics import NewTopic, ensure_topics, topic_configs
from headwater.client.writing.batches import BatchBuilder
from headwater.errors import Fenced, PipelineError
from headwater.jitter import pause_between
from headwater.pipelines.offset_runs import OffsetRuns
from headwater.sinks.contract import Log
from headwater.sinks.topic.transactional_positions import TransactionalPositions, as_sink_errors

_CONFIGS: Final = {"retention.ms": "-1"}  # until a person handles them
_HEADERS_BYTES: Final = 64 << 10  # room for added headers
_WRITERS: Final = 16  # streams with an open writer
_PIECE_BYTES: Final = 4 << 20  # of one transaction
# Against another process that writes the same stream: tasks may share one.
_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Stream:
    """Records derived from one partition, which go to one topic."""

    transactional_id: str
    key: bytes  # of the position
    topic: str
    partition: int
    to: str  # a topic, created if missing with as many partitions as `topic` has


class Record(NamedTuple):
    offset: int  # of the record that it is derived from; several may share one
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


class IdempotentPublisher:
    """Writes records of many streams once. Thread-safe."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._writers: OrderedDict[Stream, _Writer] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            while self._writers:
                self._writers.popitem()[1].close()

    def write(self, stream: Stream, records: Sequence[Record]) -> int:
        """Writes those that are not written yet, and returns their number. All that are derived
        from the same record have to be in one call. When this returns, all are durable. Raises
        StoreUnreachable, after which a retry writes the missing ones, and StoreRefused.
        """
        written = 0
        with self._lock:
            for piece in _pieces(records):
                written += self._write(stream, piece)
        return written

    def _write(self, stream: Stream, records: list[Record]) -> int:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._writer(stream).write(records)
            except Fenced:
                self._drop(stream)
                if attempt == _ATTEMPTS:
                    raise
                time.sleep(pause_between(0, _PAUSE_S * attempt))
            except BaseException:
                self._drop(stream)
                raise
        raise AssertionError

    def _drop(self, stream: Stream) -> None:
        writer = self._writers.pop(stream, None)
        if writer is not None:
            writer.close()

    def _writer(self, stream: Stream) -> "_Writer":
        writer = self._writers.get(stream)
        if writer is None:
            if len(self._writers) >= _WRITERS:
                self._writers.popitem(last=False)[1].close()
            writer = self._writers[stream] = _Writer(self._log, stream)
        self._writers.move_to_end(stream)
        return writer


class _Writer:
    def __init__(self, log: Log, stream: Stream) -> None:
        self._positions = TransactionalPositions(log, stream.transactional_id, stream.key)
        try:
            self._partition = stream.to, stream.partition % _ensured(log, stream)
            self._count, self._runs = _read(self._positions.position, stream.key)
        except BaseException:
            self._positions.close()
            raise

    def close(self) -> None:
        self._positions.close()

    def write(self, records: list[Record]) -> int:
        is_written = self._runs.has([record.offset for record in records])
        new = [record for record, is_old in zip(records, is_written, strict=True) if not is_old]
        if not new:
            return 0
        builders = [BatchBuilder()]
        for record in new:
            content = record.key, record.value, record.headers, record.timestamp_ms
            if not builders[-1].append(*content):
                builders.append(BatchBuilder())
                builders[-1].append(*content)
        runs = self._runs.with_offsets([record.offset for record in new])
        count = self._count + len(new)
        position = orjson.dumps({"count": count, "offsets": runs.to_text()})
        self._positions.commit({self._partition: builders}, lambda _: position)
        self._count, self._runs = count, runs
        return len(new)


def count_in(position: bytes, key: bytes) -> int:
    """How many records were written up to a position."""
    return _read(position, key)[0]


def _read(position: bytes | None, key: bytes) -> tuple[int, OffsetRuns]:
    if position is None:
        return 0, OffsetRuns()
    try:
        read: dict[str, Any] = orjson.loads(position)
        return int(read["count"]), OffsetRuns.from_text(read["offsets"])
    except (ValueError, TypeError, LookupError, zlib.error) as error:
        raise PipelineError(
            f"the position {key.decode()} cannot be read",
            detail=f"{type(error).__name__}: {error}",
            hint="was it written by another version of Headwater, or by another program?",
        ) from error


def _ensured(log: Log, stream: Stream) -> int:
    """The number of partitions of the target topic. It is created with as many as the source topic,
    and with room for the largest of its records.
    """
    cluster = Cluster(log.bootstrap, log.login)
    try:
        with as_sink_errors():
            found = cluster.find_partitions(stream.to)
            if found is not None:
                return found
            configs = dict(_CONFIGS)
            largest = topic_configs(cluster, stream.topic).get("max.message.bytes")
            if largest is not None:
                configs["max.message.bytes"] = str(int(largest) + _HEADERS_BYTES)
            new = NewTopic(stream.to, cluster.partitions(stream.topic), configs)
            ensure_topics(log.bootstrap, log.login, [new])
            return cluster.partitions(stream.to)
    finally:
        cluster.close()


def _pieces(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Records of the same offset stay together: the position has offsets only."""
    piece: list[Record] = []
    size_bytes = 0
    for record in records:
        if size_bytes >= _PIECE_BYTES and record.offset != piece[-1].offset:
            yield piece
            piece, size_bytes = [], 0
        piece.append(record)
        size_bytes += len(record.key or b"") + len(record.value or b"") + 400  # and headers
    if piece:
        yield piece
