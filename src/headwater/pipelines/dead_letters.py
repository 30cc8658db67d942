"""Records that could not be decoded go to `<topic>.dlq`, each once, with what they were and why.

A task may be run again, a batch replayed, a query started twice over the same records, a store
rebuilt from the start: whoever meets a record that cannot be read comes here, and only the first
one writes it. What is written, and a note of which offsets are, are one Kafka transaction
(sinks/noted_transactions.py):

    transactional id    <pipeline>.dlq.<topic>.<partition>
    key of the note     /dlq/<pipeline>/<topic>/<partition>
    the note            {"count": letters written, "offsets": of which records (offset_runs.py)}

A second process that comes for the same partition fences the first, and reads its note; so what one
process remembers of its note is true for as long as it is not fenced.

Headers that are added to the record's own, named as broker/queues/dead_letters.py names them:
`headwater.dlq.cause`, `.topic`, `.partition`, `.offset`, `.timestamp`, and `.pipeline`.
"""

import random
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

from headwater.client.batches import BatchBuilder
from headwater.client.cluster import Cluster
from headwater.client.sending import TopicPartition
from headwater.client.topics import NewTopic, ensure_topics, topic_configs
from headwater.errors import Fenced, PipelineError
from headwater.pipelines.decoding.contract import Rejected
from headwater.pipelines.offset_runs import OffsetRuns
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log
from headwater.sinks.noted_transactions import NotedTransactions, as_sink_errors, read_notes

SUFFIX: Final = ".dlq"
PREFIX: Final = "headwater.dlq."
_CONFIGS: Final = {"retention.ms": "-1"}  # they wait for a person
_HEADERS_BYTES: Final = 64 << 10  # room for what is added to a record
_WRITERS: Final = 16  # partitions whose writers are kept open
_PIECE_BYTES: Final = 4 << 20  # of one transaction
# Against another process that writes the same partition's: tasks may share one.
_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.05


class DeadLetters:
    """Of one pipeline, in one process. Safe in threads."""

    def __init__(self, bootstrap: str, login: ClientSettings, name: str) -> None:
        self._log = Log(bootstrap, login)
        self._name = name
        self._writers: OrderedDict[TopicPartition, _Writer] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            while self._writers:
                self._writers.popitem()[1].close()

    def write(self, topic: str, partition: int, rejected: Sequence[Rejected]) -> int:
        """Writes those that are not written yet; how many they were. When this returns, all are
        durable. Raises StoreUnreachable, after which asking again writes what is missing, and
        StoreRefused.
        """
        written = 0
        with self._lock:
            for piece in _pieces(rejected):
                written += self._write(topic, partition, piece)
        return written

    def _write(self, topic: str, partition: int, rejected: list[Rejected]) -> int:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._writer(topic, partition).write(rejected)
            except Fenced:
                self._drop((topic, partition))
                if attempt == _ATTEMPTS:
                    raise
                time.sleep(random.uniform(0, _PAUSE_S * attempt))  # noqa: S311 (no secret)
            except BaseException:
                self._drop((topic, partition))
                raise
        raise AssertionError

    def _drop(self, at: TopicPartition) -> None:
        writer = self._writers.pop(at, None)
        if writer is not None:
            writer.close()

    def _writer(self, topic: str, partition: int) -> "_Writer":
        at = topic, partition
        writer = self._writers.get(at)
        if writer is None:
            if len(self._writers) >= _WRITERS:
                self._writers.popitem(last=False)[1].close()
            writer = self._writers[at] = _Writer(self._log, self._name, topic, partition)
        self._writers.move_to_end(at)
        return writer


class _Writer:
    """The dead letters of one partition."""

    def __init__(self, log: Log, name: str, topic: str, partition: int) -> None:
        self._name, self._topic, self._partition = name, topic, partition
        self._noted = NotedTransactions(
            log, f"{name}{SUFFIX}.{topic}.{partition}", _key(name, topic, partition)
        )
        try:
            self._letters = topic + SUFFIX, partition % _ensured(log, topic)
            self._count, self._runs = _read(self._noted.note, name)
        except BaseException:
            self._noted.close()
            raise

    def close(self) -> None:
        self._noted.close()

    def write(self, rejected: list[Rejected]) -> int:
        is_written = self._runs.has([each.offset for each in rejected])
        new = [each for each, known in zip(rejected, is_written, strict=True) if not known]
        if not new:
            return 0
        builders = [BatchBuilder()]
        for each in new:
            letter = each.key, each.value, self._headers(each), each.timestamp_ms
            if not builders[-1].append(*letter):
                builders.append(BatchBuilder())
                builders[-1].append(*letter)
        runs = self._runs.with_offsets([each.offset for each in new])
        count = self._count + len(new)
        note = orjson.dumps({"count": count, "offsets": runs.to_text()})
        self._noted.commit({self._letters: builders}, lambda _: note)
        self._count, self._runs = count, runs
        return len(new)

    def _headers(self, rejected: Rejected) -> list[tuple[str, bytes | None]]:
        about = {
            "cause": rejected.cause,
            "topic": self._topic,
            "partition": str(self._partition),
            "offset": str(rejected.offset),
            "pipeline": self._name,
            "timestamp": str(rejected.timestamp_ms),
        }
        added = [(PREFIX + name, value.encode()) for name, value in about.items()]
        return [*rejected.headers, *added]


def counts(bootstrap: str, login: ClientSettings, name: str) -> dict[TopicPartition, int]:
    """How many dead letters the pipeline has written, by topic and partition."""
    return counts_in(read_notes(Log(bootstrap, login)), name)


def counts_in(notes: Mapping[bytes, bytes], name: str) -> dict[TopicPartition, int]:
    prefix = _key(name)
    found: dict[TopicPartition, int] = {}
    for key, note in notes.items():
        if key.startswith(prefix):
            topic, _, partition = key.removeprefix(prefix).decode().rpartition("/")
            found[topic, int(partition)] = _read(note, name)[0]
    return found


@lru_cache(maxsize=64)
def of_process(bootstrap: str, login: ClientSettings, name: str) -> DeadLetters:
    """The pipeline's dead letters in this process, which serves one task after the other: what they
    have in common is opened and read once.
    """
    return DeadLetters(bootstrap, login, name)


def _key(name: str, topic: str = "", partition: int | None = None) -> bytes:
    return f"/dlq/{name}/{topic}/{partition}".encode() if topic else f"/dlq/{name}/".encode()


def _read(note: bytes | None, name: str) -> tuple[int, OffsetRuns]:
    if note is None:
        return 0, OffsetRuns()
    try:
        read: dict[str, Any] = orjson.loads(note)
        return int(read["count"]), OffsetRuns.from_text(read["offsets"])
    except (ValueError, TypeError, LookupError, zlib.error) as error:
        raise PipelineError(
            f"the note of {name}'s dead letters cannot be read",
            detail=f"{type(error).__name__}: {error}",
            hint="was it written by another version, or by somebody else?",
        ) from error


def _ensured(log: Log, topic: str) -> int:
    """How many partitions the topic of the dead letters has. It is made with as many as its topic
    has, and with room for the largest of its records.
    """
    letters = topic + SUFFIX
    cluster = Cluster(log.bootstrap, log.login)
    try:
        with as_sink_errors():
            found = cluster.find_partitions(letters)
            if found is not None:
                return found
            configs = dict(_CONFIGS)
            largest = topic_configs(cluster, topic).get("max.message.bytes")
            if largest is not None:
                configs["max.message.bytes"] = str(int(largest) + _HEADERS_BYTES)
            new = NewTopic(letters, cluster.partitions(topic), configs)
            ensure_topics(log.bootstrap, log.login, [new])
            return cluster.partitions(letters)
    finally:
        cluster.close()


def _pieces(rejected: Sequence[Rejected]) -> Iterator[list[Rejected]]:
    piece: list[Rejected] = []
    size_bytes = 0
    for each in rejected:
        piece.append(each)
        size_bytes += len(each.key or b"") + len(each.value or b"") + len(each.cause) + 200
        if size_bytes >= _PIECE_BYTES:
            yield piece
            piece, size_bytes = [], 0
    if piece:
        yield piece
