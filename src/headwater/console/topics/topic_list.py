"""All topics with their partitions, offsets, sizes and rates, in a fixed number of requests.

A part that cannot be read (a partition without a leader, a broker that does not answer, sizes that
a user may not see) is left out of the reading: a page shows the rest.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headwater.client.cluster import LOST, Cluster, Patience
from headwater.client.offsets import EARLIEST, LATEST
from headwater.errors import RequestRefused
from headwater.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headwater.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
    ListOffsetsResponse,
)
from headwater.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headwater.settings import join_address

_CONSUMER: Final = -1
_RATE_OVER_S: Final = 30.0


class Partition(NamedTuple):
    """A partition; None: not reported by the broker."""

    number: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    start_offset: int | None
    end_offset: int | None
    size_bytes: int | None

    @property
    def records(self) -> int | None:
        """How many offsets there are, which is as many as records unless compaction made holes."""
        if self.start_offset is None or self.end_offset is None:
            return None
        return self.end_offset - self.start_offset

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "records": self.records}


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    is_internal: bool
    partitions: tuple[Partition, ...]
    records: int
    end_offsets: int  # of all partitions together: the rate is its growth
    size_bytes: int | None
    records_per_s: float | None = None  # None: too few samples yet

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.name,
            "is_internal": self.is_internal,
            "partitions": len(self.partitions),
            "replicas": max((len(partition.replicas) for partition in self.partitions), default=0),
            "records": self.records,
            "size_bytes": self.size_bytes,
            "records_per_s": self.records_per_s,
            "without_leader": sum(partition.leader is None for partition in self.partitions),
        }


@dataclass(frozen=True, slots=True)
class Reading:
    """One moment of a cluster."""

    at_s: float  # wall clock
    cluster_id: str | None
    brokers: Mapping[int, str]  # address by id
    topics: Mapping[str, Topic]  # in the order of names


class Rates:
    """Records per second of each topic, over the readings of the last half minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, int]]] = deque()

    def add(self, at_s: float, ends: dict[str, int]) -> dict[str, float]:
        while len(self._samples) > 1 and at_s - self._samples[1][0] > _RATE_OVER_S:
            self._samples.popleft()
        first = self._samples[0] if self._samples else None
        self._samples.append((at_s, ends))
        if first is None or at_s - first[0] < 0.2:
            return {}
        since_s, before = first
        # Fewer than before: deleted and created again.
        return {
            name: (end - before[name]) / (at_s - since_s)
            for name, end in ends.items()
            if before.get(name, end + 1) <= end
        }


def read_topics(cluster: Cluster, rates: Rates) -> Reading:
    """Raises BrokerUnreachable if no broker lists the topics."""
    patience = cluster.patience("the broker does not answer")
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    metadata = cluster.ask_any(request, MetadataResponse, patience, first=4, last=12)
    brokers = {
        broker.node_id: join_address(broker.host, broker.port) for broker in metadata.brokers
    }
    led: dict[str, dict[str, list[int]]] = {}  # address: topic: partitions
    for topic in metadata.topics:
        for partition in topic.partitions:
            address = brokers.get(partition.leader_id)
            if address is not None and topic.name:
                led.setdefault(address, {}).setdefault(topic.name, []).append(
                    partition.partition_index
                )
    starts = _offsets(cluster, led, EARLIEST)
    ends = _offsets(cluster, led, LATEST)
    sizes = _sizes(cluster, brokers.values())
    now_s = time.time()
    topics = {
        topic.name: _topic(topic, starts, ends, sizes)
        for topic in sorted(metadata.topics, key=lambda topic: topic.name or "")
        if topic.name and not topic.error_code
    }
    per_s = rates.add(now_s, {name: topic.end_offsets for name, topic in topics.items()})
    return Reading(
        now_s,
        metadata.cluster_id,
        brokers,
        {name: _with_rate(topic, per_s.get(name)) for name, topic in topics.items()},
    )


def _with_rate(topic: Topic, per_s: float | None) -> Topic:
    return Topic(
        topic.name,
        topic.is_internal,
        topic.partitions,
        topic.records,
        topic.end_offsets,
        topic.size_bytes,
        per_s,
    )


def _topic(
    topic: Any,
    starts: Mapping[tuple[str, int], int],
    ends: Mapping[tuple[str, int], int],
    sizes: Mapping[tuple[str, int], int],
) -> Topic:
    name = topic.name
    partitions = tuple(
        Partition(
            partition.partition_index,
            partition.leader_id if partition.leader_id >= 0 else None,
            tuple(partition.replica_nodes),
            tuple(partition.isr_nodes),
            starts.get((name, partition.partition_index)),
            ends.get((name, partition.partition_index)),
            sizes.get((name, partition.partition_index)),
        )
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
    )
    sizes_bytes = [
        partition.size_bytes for partition in partitions if partition.size_bytes is not None
    ]
    return Topic(
        name,
        topic.is_internal or name.startswith("__"),
        partitions,
        sum(partition.records or 0 for partition in partitions),
        sum(partition.end_offset or 0 for partition in partitions),
        sum(sizes_bytes) if sizes_bytes else None,
    )


def _offsets(
    cluster: Cluster, led: Mapping[str, Mapping[str, list[int]]], at: int
) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for address, topics in led.items():
        request = ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=0,
            topics=[
                ListOffsetsRequestListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsRequestListOffsetsPartition(
                            partition_index=partition, timestamp=at
                        )
                        for partition in partitions
                    ],
                )
                for name, partitions in topics.items()
            ],
        )
        answer = _asked(cluster, address, request, ListOffsetsResponse, 2, 6)
        for topic in answer.topics if answer is not None else ():
            for partition in topic.partitions:
                if not partition.error_code and partition.offset >= 0:
                    found[topic.name, partition.partition_index] = partition.offset
    return found


def _sizes(cluster: Cluster, addresses: Iterable[str]) -> dict[tuple[str, int], int]:
    """Of the first replica that a broker reports."""
    sizes: dict[tuple[str, int], int] = {}
    for address in addresses:
        request = DescribeLogDirsRequest(topics=None)
        answer = _asked(cluster, address, request, DescribeLogDirsResponse, 1, 4)
        for directory in answer.results if answer is not None else ():
            for topic in directory.topics:
                for partition in topic.partitions:
                    sizes.setdefault(
                        (topic.name, partition.partition_index), partition.partition_size
                    )
    return sizes


def _asked(
    cluster: Cluster, address: str, request: Any, response: Any, first: int, last: int
) -> Any:
    """The answer of one broker; None if it gives none. A connection that had ended meanwhile, as
    idle ones do, is opened again once.
    """
    for attempt in range(2):
        connection = None
        try:
            connection = cluster.connection(address)
            return connection.ask(request, response, first=first, last=last)
        except RequestRefused:
            return None
        except LOST:
            if connection is None or attempt:
                return None
            cluster.lose(connection)
    return None


__all__ = ["Partition", "Patience", "Rates", "Reading", "Topic", "read_topics"]
