"""Lines into a topic, with the position in the file in the same Kafka transaction.

    lines    ──▶ their topic ────────────────────────┐
    bad ones ──▶ <topic>.dlq (if asked for)          ├─ one transaction
    position ──▶ __headwater_positions (compacted) ──┘

A process that starts fences the earlier one of the same name, and then reads the position: exactly
the lines in front of it are in the topic. Keys of positions begin with "/", which no capture's name
does.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, Self

from headwater.client.cluster import DEFAULT_PATIENCE_S, Cluster
from headwater.client.positions_topic import POSITIONS_CONFIG, POSITIONS_TOPIC
from headwater.client.reading.compacted import read_committed_latest
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import Batch, BatchBuilder, partition_of
from headwater.client.writing.sending import TopicPartition
from headwater.client.writing.transactions import TransactionalProducer
from headwater.direct.files.following import FollowedFile, Line, Lines
from headwater.direct.files.position import FilePosition, decode, encode
from headwater.errors import HeadwaterError, RequestRefused
from headwater.settings import ClientSettings

Headers = Sequence[tuple[str, bytes | None]]
_POSITIONS: Final = (POSITIONS_TOPIC, 0)
_MAX_ID_BYTES: Final = 200


class LineRecord(Protocol):
    """What a line becomes; None where nothing is said about it."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def partition(self) -> int | None: ...
    @property
    def timestamp_ms(self) -> int | None: ...


class BadLine(NamedTuple):
    """A line that is no record, and why."""

    line: Line
    error: HeadwaterError


class LineWriter:
    """The only writer of `name` into `topic` until another one begins. To be used by one thread;
    after an error it can only be closed.
    """

    def __init__(
        self,
        bootstrap: str,
        login: ClientSettings,
        topic: str,
        name: str,
        *,
        parse: Callable[[bytes], LineRecord],
        max_line_bytes: int,
        partition: int | None = None,
        headers: Headers = (),
        compression: str = "none",
        dead_letters: bool = False,
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> None:
        self._topic = topic
        self._key = f"/follow/{topic}/{name}".encode(errors="surrogateescape")
        self._parse = parse
        self._max_line_bytes = max_line_bytes
        self._partition = partition
        self._headers = tuple(headers)
        self._dead_letters = f"{topic}.dlq" if dead_letters else None
        self.records = self.bad = 0
        topics = [NewTopic(POSITIONS_TOPIC, 1, POSITIONS_CONFIG)]
        if self._dead_letters:
            topics.append(NewTopic(self._dead_letters, 1, {"retention.ms": "-1"}))
        ensure_topics(bootstrap, login, topics, patience_s=patience_s)
        _ensure_exists(bootstrap, login, topic, patience_s)
        digest = hashlib.blake2b(self._key, digest_size=8).hexdigest()
        self._producer = TransactionalProducer(
            bootstrap,
            f"headwater-follow-{topic}"[:_MAX_ID_BYTES] + f"-{digest}",
            login=login,
            compression=compression,
            patience_s=patience_s,
        )
        try:
            self._producer.fence()
            stored = read_committed_latest(bootstrap, login, POSITIONS_TOPIC, patience_s=patience_s)
            self.position = self._decoded(stored.get(self._key))
        except BaseException:
            self._producer.close()
            raise

    def close(self) -> None:
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, found: Lines, followed: FollowedFile) -> BadLine | None:
        """Returns when lines and position are committed. Without dead letters it stops at a line
        that is no record, which it returns: what stands in front of that line is written.
        """
        batches: dict[TopicPartition, list[BatchBuilder]] = {}
        now_ms = time.time_ns() // 1_000_000
        written = dead = 0
        stopped: BadLine | None = None
        for line in found.lines:
            try:
                self._add(batches, line, now_ms)
                written += 1
            except HeadwaterError as error:
                if self._dead_letters is None:
                    stopped = BadLine(line, error)
                    break
                dead += 1
                _append(
                    batches.setdefault((self._dead_letters, 0), []),
                    None, line.data, _dead_headers(line, error, followed), now_ms,
                )  # fmt: skip
        end = found.end if stopped is None else followed.position_at(stopped.line)
        self._commit(batches, end, str(followed.path), now_ms)
        self.records += written
        self.bad += dead
        return stopped

    def _add(
        self, batches: dict[TopicPartition, list[BatchBuilder]], line: Line, now_ms: int
    ) -> None:
        if line.is_too_long:
            raise RequestRefused(
                f"it has {line.size_bytes:,} bytes",
                detail=f"{self._max_line_bytes:,} are allowed",
                hint="--max-line allows more; the topic's max.message.bytes has to, too",
            )
        record = self._parse(line.data)
        partition = self._partition if record.partition is None else record.partition
        if partition is None:
            partition = partition_of(record.key, self._producer.partitions(self._topic))
        timestamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
        headers = (*self._headers, *record.headers)
        builders = batches.setdefault((self._topic, partition), [])
        _append(builders, record.key, record.value, headers, timestamp_ms)

    def _commit(
        self,
        batches: dict[TopicPartition, list[BatchBuilder]],
        end: FilePosition,
        path: str,
        now_ms: int,
    ) -> None:
        sent: dict[TopicPartition, list[Batch]] = {at: [*given] for at, given in batches.items()}
        self._producer.send(sent)
        # Last, so that the positions' partition is part of an open transaction for a moment only.
        position = BatchBuilder()
        position.append(self._key, encode(end, path, now_ms), (), now_ms)
        self._producer.send({_POSITIONS: [position]})
        self._producer.commit()
        self.position = end

    def _decoded(self, stored: bytes | None) -> FilePosition | None:
        try:
            return None if stored is None else decode(stored)
        except ValueError as error:
            raise HeadwaterError(
                "the stored position of the file cannot be read",
                detail=f"{self._key.decode(errors='replace')} in {POSITIONS_TOPIC}: {error}",
                hint="was it written by another version? --name chooses another position",
            ) from error


def _ensure_exists(bootstrap: str, login: ClientSettings, topic: str, patience_s: float) -> None:
    """Who may write to a topic may not be allowed to create it; so it is looked for first."""
    cluster = Cluster(bootstrap, login, patience_s=patience_s)
    try:
        is_there = cluster.find_partitions(topic) is not None
    finally:
        cluster.close()
    if not is_there:
        ensure_topics(bootstrap, login, [NewTopic(topic)], patience_s=patience_s)


def _append(
    builders: list[BatchBuilder],
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    timestamp_ms: int,
) -> None:
    if not builders or not builders[-1].append(key, value, headers, timestamp_ms):
        builders.append(BatchBuilder())
        builders[-1].append(key, value, headers, timestamp_ms)


def _dead_headers(line: Line, error: HeadwaterError, followed: FollowedFile) -> Headers:
    return (
        ("headwater.dlq.cause", b"malformed"),
        ("headwater.dlq.error", str(error).encode(errors="replace")),
        ("headwater.dlq.file", str(followed.path).encode(errors="replace")),
        ("headwater.dlq.offset", str(line.offset).encode()),
        ("headwater.dlq.bytes", str(line.size_bytes).encode()),
    )
