"""Measurement of every derived store of the demo: rows, lag, and the latency of changes.

A captured change has the time of the database's commit. Each write's consumer group has the offsets
of its store: the runner commits them right behind the store's own transaction. So the time between
the two is that from the database's commit to the derived row, for every change and every store.

Both are read from the log, the second from `__consumer_offsets`: its records have the time of the
offset commit. Asking for the offsets of every group would find them later, and cost the broker a
request for each store and look.
"""

import sqlite3
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import psycopg2
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from headwater import config
from headwater.broker.internal_topics import records
from headwater.demo.load import CAPTURE
from headwater.errors import HeadwaterError
from headwater.inspect.kafka_cluster import KafkaCluster
from headwater.pipelines.running import status
from headwater.protocol.messages.internal import OffsetCommitKey, OffsetCommitValue
from headwater.sinks.settings import SinkSettings, with_password

LOOK_S: Final = 0.1
_COUNT_EVERY_S: Final = 2.0
_RATE_OVER_S: Final = 5
_MOST_LATENCIES: Final = 100_000
_MOST_CHANGES: Final = 100_000  # whose time is remembered, in each partition
_TIMEOUT_S: Final = 2.0
_RENEW_S: Final = 10.0
_CONSUME_S: Final = 0.02
_FETCH_S: Final = 0.2  # how long the broker gathers records for a response
_FETCH_BYTES: Final = 1 << 20
_OFFSETS_TOPIC: Final = "__consumer_offsets"
_MOST_AT_ONCE: Final = 10_000
_SQLITE: Final = "sqlite:///"
_STOPPED: Final = "stopped"

PartitionKey = tuple[str, int]  # topic, partition


@dataclass(slots=True)
class Store:
    """One write of a pipeline."""

    pipeline: str
    sink: str
    table: str
    kind: str
    topics: tuple[str, ...]
    state: str = status.STARTING
    rows: int | None = None
    reached: dict[PartitionKey, int] = field(default_factory=dict)
    lag: int | None = None  # records of the log
    behind_s: float = 0.0  # how old the oldest change is that it does not have
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_LATENCIES))

    @property
    def name(self) -> str:
        return f"{self.sink}/{self.table}"

    @property
    def group(self) -> str:
        return f"headwater.{self.pipeline}.{self.sink}.{self.table}"


class OffsetCommit(NamedTuple):
    """Of one partition, by a consumer group."""

    at_ms: int
    group: str
    partition: PartitionKey
    offset: int


def offset_commit(key: bytes | None, value: bytes | None) -> OffsetCommit | None:
    """That of a record of `__consumer_offsets`; None if it is about something else."""
    record = records.decode(key, value) if key and value else None
    if record is None:
        return None
    about, commit = record
    if not (isinstance(about, OffsetCommitKey) and isinstance(commit, OffsetCommitValue)):
        return None
    partition = about.topic, about.partition
    return OffsetCommit(commit.commit_timestamp, about.group, partition, commit.offset)


class Changes:
    """The captured changes since the demo began to look, and when each was committed."""

    def __init__(self) -> None:
        self.count = 0
        self.copied = 0  # rows that were there before: of a snapshot
        self._offsets: dict[PartitionKey, list[int]] = {}
        self._committed_ms: dict[PartitionKey, list[int]] = {}  # of each offset
        self._seconds: deque[tuple[int, int]] = deque(maxlen=_RATE_OVER_S + 1)  # second, count

    def add(self, partition: PartitionKey, offset: int, value: bytes | None, now_s: float) -> None:
        if value is None:
            return  # the tombstone behind a delete
        change = orjson.loads(value)
        if change["op"] == "r":
            self.copied += 1
            return
        self.count += 1
        second, before = self._seconds.pop() if self._seconds else (int(now_s), 0)
        if second != int(now_s):
            self._seconds.append((second, before))
            before = 0
        self._seconds.append((int(now_s), before + 1))
        self.add_event(partition, offset, change["source"]["ts_ms"])

    def add_event(self, partition: PartitionKey, offset: int, written_ms: int) -> None:
        """Of no database: it does not count, but a store may be behind it."""
        self._offsets.setdefault(partition, []).append(offset)
        self._committed_ms.setdefault(partition, []).append(written_ms)
        if len(self._offsets[partition]) > _MOST_CHANGES:
            self._drop(partition, _MOST_CHANGES // 2)

    def per_s(self, now_s: float) -> float:
        """Over the last whole seconds."""
        this = int(now_s)
        return sum(n for at, n in self._seconds if 0 < this - at <= _RATE_OVER_S) / _RATE_OVER_S

    def between(self, partition: PartitionKey, start: int, end: int) -> list[int]:
        """When those at these offsets were committed."""
        offsets = self._offsets.get(partition, [])
        first, last = bisect_left(offsets, start), bisect_left(offsets, end)
        return self._committed_ms[partition][first:last] if first < last else []

    def next_ms(self, partition: PartitionKey, offset: int) -> int | None:
        """When the first one from that offset on was committed."""
        offsets = self._offsets.get(partition, [])
        index = bisect_left(offsets, offset)
        return self._committed_ms[partition][index] if index < len(offsets) else None

    def forget(self, reached: Mapping[PartitionKey, int]) -> None:
        """What every store has."""
        for partition, offsets in self._offsets.items():
            self._drop(partition, bisect_left(offsets, reached.get(partition, 0)))

    def _drop(self, partition: PartitionKey, count: int) -> None:
        del self._offsets[partition][:count]
        del self._committed_ms[partition][:count]


def measure(
    store: Store,
    reached: Mapping[PartitionKey, int],
    changes: Changes,
    ends: Mapping[PartitionKey, int],
    now_s: float,
) -> None:
    """The store was seen to have come to `reached`, and the log to `ends`."""
    waiting_ms = []
    lag = 0
    for partition, end in ends.items():
        if partition[0] not in store.topics:
            continue
        until = reached.get(partition, 0)
        for committed_ms in changes.between(partition, store.reached.get(partition, 0), until):
            store.latencies_ms.append(max(0.0, now_s * 1000 - committed_ms))
        next_ms = changes.next_ms(partition, until)
        waiting_ms += [next_ms] if next_ms is not None else []
        lag += max(0, end - until)
    store.behind_s = max(0.0, now_s - min(waiting_ms) / 1000) if waiting_ms else 0.0
    store.lag = lag
    store.reached = dict(reached)


class Watch:
    """To be used by one thread. While the broker does not answer, the last values stay."""

    def __init__(self, loaded: config.Config) -> None:
        self._loaded = loaded
        self._state_dir = loaded.state_dir()
        self._cluster = KafkaCluster(loaded.bootstrap())
        self._consumer: Any = self._cluster.consumer(
            {
                "group.id": "headwater-demo",
                "enable.auto.commit": False,
                # Records have their times, so they may arrive later, in fewer responses.
                "fetch.min.bytes": _FETCH_BYTES,
                "fetch.wait.max.ms": round(_FETCH_S * 1000),
            }
        )
        self._commits: list[OffsetCommit] = []  # not yet measured
        self._asked_ms: dict[str, float] = {}  # when a group was asked for its offsets
        self._assigned: dict[PartitionKey, int] = {}
        self._old = {topic for topic in self._cluster.topics() if topic.startswith(f"{CAPTURE}.")}
        self._counted_s = 0.0
        self._seen_s = time.monotonic()  # all of it, or since when there is a new client
        self._counters: dict[str, RowCounter] = {}
        self.stores: dict[str, Store] = {}
        self.changes = Changes()

    @property
    def is_fed(self) -> bool:
        """Whether there is something that the stores are to have."""
        return bool(self._old or self.changes.copied or self.changes.count)

    def look(self, *, is_last: bool = False) -> None:
        """At what is new. The last look asks the groups: their commits may not have arrived yet."""
        self._read_status()
        try:
            self._follow_topics()
            self._follow_groups()
            before, self._commits = self._commits, []
            self._read_log()
            # Those of the last look: by now the changes before them have arrived, too.
            self._measure(before)
            if is_last:
                self._ask_groups(self._groups())
        except (KafkaException, HeadwaterError, TimeoutError):
            self._renew()  # the broker does not answer, or restarts slowly
            return
        now_s = self._seen_s = time.monotonic()
        if now_s - self._counted_s > _COUNT_EVERY_S:
            self._counted_s = now_s
            self.count_rows()

    def _renew(self) -> None:
        """A client was seen that did not find its broker again, while a new one did at once."""
        if time.monotonic() - self._seen_s > _RENEW_S:
            self._seen_s = time.monotonic()
            self._cluster = KafkaCluster(self._loaded.bootstrap())

    def count_rows(self) -> None:
        for store in self.stores.values():
            if store.sink not in self._counters:
                self._counters[store.sink] = RowCounter(self._loaded.sinks[store.sink])
            store.rows = self._counters[store.sink].count(store.table)

    def close(self) -> None:
        self._consumer.close()
        for counter in self._counters.values():
            counter.close()

    def _read_status(self) -> None:
        for pipeline in self._loaded.pipelines:
            reported = status.read(self._state_dir, pipeline)
            for name, write in reported.writes.items():
                if "sink" not in write:
                    continue
                store = self.stores.setdefault(
                    f"{pipeline}/{name}",
                    Store(
                        pipeline,
                        write["sink"],
                        write["table"],
                        self._loaded.sinks[write["sink"]].kind,
                        tuple(write["topics"]),
                    ),
                )
                store.state = write["state"] if reported.is_running else _STOPPED

    def _ask_groups(self, groups: Iterable[str]) -> None:
        """For their current offsets."""
        stores = self._groups()
        asked = {
            group: self._cluster.admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)]
            )
            for group in groups
        }
        for group, futures in asked.items():
            (future,) = futures.values()
            reached = {
                (partition.topic, partition.partition): partition.offset
                for partition in future.result(_TIMEOUT_S).topic_partitions
                if partition.offset >= 0
            }
            now_s = time.time()
            self._asked_ms[group] = now_s * 1000
            measure(stores[group], reached, self.changes, self._ends(), now_s)

    def _groups(self) -> dict[str, Store]:
        return {store.group: store for store in self.stores.values()}

    def _ends(self) -> dict[PartitionKey, int]:
        return {
            partition: end
            for partition, end in self._assigned.items()
            if partition[0] != _OFFSETS_TOPIC
        }

    def _follow_topics(self) -> None:
        topics = {topic for store in self.stores.values() for topic in store.topics}
        if new := topics - {topic for topic, _ in self._assigned}:
            self._assign(
                (topic, partition)
                for topic, found in self._cluster.existing(new).items()
                for partition in found.partitions
            )

    def _follow_groups(self) -> None:
        """What they commit from now on is read; what they have committed is asked for, once."""
        new = [group for group in self._groups() if group not in self._asked_ms]
        found = self._cluster.topics().get(_OFFSETS_TOPIC) if new else None
        if found is None:
            return  # the broker creates the topic with the first commit
        partitions = {
            (_OFFSETS_TOPIC, records.partition_for(group, len(found.partitions))) for group in new
        }
        self._assign(partitions - self._assigned.keys())
        self._ask_groups(new)

    def _assign(self, partitions: Iterable[PartitionKey]) -> None:
        """One that was there before is read from its end on."""
        for partition in partitions:
            topic, _ = partition
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(*partition), timeout=_TIMEOUT_S
            )
            is_old = topic in self._old or topic == _OFFSETS_TOPIC
            self._assigned[partition] = high if is_old else low
        self._consumer.assign(
            [TopicPartition(*partition, offset) for partition, offset in self._assigned.items()]
        )

    def _read_log(self) -> None:
        if not self._assigned:
            return
        for message in self._consumer.consume(_MOST_AT_ONCE, timeout=_CONSUME_S):
            if message.error():
                continue
            partition = message.topic(), message.partition()
            self._assigned[partition] = message.offset() + 1
            if partition[0] == _OFFSETS_TOPIC:
                commit = offset_commit(message.key(), message.value())
                self._commits += [commit] if commit is not None else []
            elif partition[0].startswith(f"{CAPTURE}."):
                self.changes.add(partition, message.offset(), message.value(), time.monotonic())
            else:
                self.changes.add_event(partition, message.offset(), message.timestamp()[1])

    def _measure(self, commits: Iterable[OffsetCommit]) -> None:
        stores, ends = self._groups(), self._ends()
        for commit in commits:
            store = stores.get(commit.group)
            if store is not None and commit.at_ms >= self._asked_ms.get(commit.group, 0.0):
                reached = {**store.reached, commit.partition: commit.offset}
                measure(store, reached, self.changes, ends, commit.at_ms / 1000)
        for store in stores.values():
            measure(store, store.reached, self.changes, ends, time.time())
        self.changes.forget(self._reached_by_all())

    def _reached_by_all(self) -> dict[PartitionKey, int]:
        """What the last of the stores that read a partition has."""
        return {
            partition: min(
                store.reached.get(partition, 0)
                for store in self.stores.values()
                if partition[0] in store.topics
            )
            for partition in self._ends()
        }


class RowCounter:
    """How many rows the tables of a sink have, for as long as it is asked."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = with_password(settings)
        self._connection: Any = None

    def count(self, table: str) -> int | None:
        """None if it cannot be read now."""
        try:
            if self._settings.kind == "tantivy":
                return self._documents(table)
            return self._rows(table)
        except (psycopg2.Error, sqlite3.Error, HeadwaterError, OSError, ValueError):
            self.close()
            return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _rows(self, table: str) -> int:
        assert self._settings.url is not None
        url = self._settings.url.reveal()
        if self._connection is None and self._settings.kind == "sqlite":
            self._connection = sqlite3.connect(
                f"file:{url.removeprefix(_SQLITE)}?mode=ro", uri=True
            )
        elif self._connection is None:
            self._connection = psycopg2.connect(url)
            self._connection.autocommit = True
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(f'SELECT count(*) FROM "{table}"')  # noqa: S608 - a name of the shop's
            return int(cursor.fetchone()[0])

    def _documents(self, table: str) -> int:
        from headwater.sinks.tantivy.snapshot import Snapshot

        assert self._settings.url is not None
        found = Snapshot.of(Path(self._settings.url.reveal(), table))
        return found.searcher.num_docs - 1  # one of them is the position
