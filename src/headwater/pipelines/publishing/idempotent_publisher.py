"""Records that are made of records of the log, and written once, whoever comes with them how often.

A task may be run again, a batch replayed, a query started twice over the same records, a store
rebuilt from the start: only the first one writes. What is written, and a note of which offsets it
was made of, are one Kafka transaction (sinks/topic/transactional_positions.py):

    the note    {"count": records written, "offsets": of which records (offset_runs.py)}

A second process that comes for the same stream fences the first, and reads its note; so what one
process remembers of its note is true for as long as it is not fenced.
"""

import random
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from headwater.client.batches import BatchBuilder
from headwater.client.cluster import Cluster
from headwater.client.topics import NewTopic, ensure_topics, topic_configs
from headwater.errors import Fenced, PipelineError
from headwater.pipelines.offset_runs import OffsetRuns
from headwater.sinks.contract import Log
from headwater.sinks.topic.transactional_positions import TransactionalPositions, as_sink_errors

_CONFIGS: Final = {"retention.ms": "-1"}  # they wait for a person
_HEADERS_BYTES: Final = 64 << 10  # room for what is added to a record
_WRITERS: Final = 16  # streams whose writers are kept open
_PIECE_BYTES: Final = 4 << 20  # of one transaction
# Against another process that writes the same stream: tasks may share one.
_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Stream:
    """Records that are made of one partition's, and go to one topic."""

    transactional_id: str
    key: bytes  # of the note
    topic: str
    partition: int
    to: str  # a topic that is made, if need be, with as many partitions as `topic` has


class Record(NamedTuple):
    offset: int  # of the record that it was made of; several may be of the same one
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


class IdempotentPublisher:
    """Safe in threads."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._writers: OrderedDict[Stream, _Writer] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            while self._writers:
                self._writers.popitem()[1].close()

    def write(self, stream: Stream, records: Sequence[Record]) -> int:
        """Writes those that are not written yet; how many they were. All that are made of the same
        record come in one call. When this returns, all are durable. Raises StoreUnreachable, after
        which asking again writes what is missing, and StoreRefused.
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
                time.sleep(random.uniform(0, _PAUSE_S * attempt))  # noqa: S311 (no secret)
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
            self._place = stream.to, stream.partition % _ensured(log, stream)
            self._count, self._runs = _read(self._positions.position, stream.key)
        except BaseException:
            self._positions.close()
            raise

    def close(self) -> None:
        self._positions.close()

    def write(self, records: list[Record]) -> int:
        is_written = self._runs.has([each.offset for each in records])
        new = [each for each, known in zip(records, is_written, strict=True) if not known]
        if not new:
            return 0
        builders = [BatchBuilder()]
        for each in new:
            content = each.key, each.value, each.headers, each.timestamp_ms
            if not builders[-1].append(*content):
                builders.append(BatchBuilder())
                builders[-1].append(*content)
        runs = self._runs.with_offsets([each.offset for each in new])
        count = self._count + len(new)
        note = orjson.dumps({"count": count, "offsets": runs.to_text()})
        self._positions.commit({self._place: builders}, lambda _: note)
        self._count, self._runs = count, runs
        return len(new)


def count_in(note: bytes, key: bytes) -> int:
    """How many records a note tells of."""
    return _read(note, key)[0]


def _read(note: bytes | None, key: bytes) -> tuple[int, OffsetRuns]:
    if note is None:
        return 0, OffsetRuns()
    try:
        read: dict[str, Any] = orjson.loads(note)
        return int(read["count"]), OffsetRuns.from_text(read["offsets"])
    except (ValueError, TypeError, LookupError, zlib.error) as error:
        raise PipelineError(
            f"the note {key.decode()} cannot be read",
            detail=f"{type(error).__name__}: {error}",
            hint="was it written by another version, or by somebody else?",
        ) from error


def _ensured(log: Log, stream: Stream) -> int:
    """How many partitions the topic has that they go to. It is made with as many as theirs has,
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
    """Records of the same offset stay together: the note knows offsets only."""
    piece: list[Record] = []
    size_bytes = 0
    for each in records:
        if size_bytes >= _PIECE_BYTES and each.offset != piece[-1].offset:
            yield piece
            piece, size_bytes = [], 0
        piece.append(each)
        size_bytes += len(each.key or b"") + len(each.value or b"") + 400  # and headers
    if piece:
        yield piece
