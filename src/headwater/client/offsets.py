"""Offsets of partitions by time: where a log begins, ends, or stood at a moment."""

from collections.abc import Iterable
from typing import Final

from headwater.client.cluster import LOST, RETRIABLE, Cluster
from headwater.client.reading.fetched import refuse
from headwater.client.refusals import error_name, reason_of
from headwater.client.writing.sending import TopicPartition
from headwater.errors import RequestRefused
from headwater.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
    ListOffsetsResponse,
)

EARLIEST: Final = -2
LATEST: Final = -1
UNCOMMITTED, COMMITTED = 0, 1
NONE_THEN: Final = -1  # no record has that time, or a later one
_CONSUMER: Final = -1


def list_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], at: int, isolation: int
) -> dict[TopicPartition, int]:
    """The offset at EARLIEST, at LATEST, or of the first record from a time on (NONE_THEN if there
    is none). One request to each leader; RequestRefused if a topic or partition does not exist.
    """
    wanted = set(partitions)
    found: dict[TopicPartition, int] = {}
    patience = cluster.patience("the offsets of partitions cannot be read")
    reason = ""
    while wanted:
        _know_leaders(cluster, wanted)
        for address, group in _by_leader(cluster, wanted).items():
            connection = None
            try:
                connection = cluster.connection(address)
                answer = connection.ask(
                    _request(group, at, isolation), ListOffsetsResponse, first=2, last=6
                )
            except LOST as error:
                reason = f"{address}: {reason_of(error)}"
                if connection is not None:
                    cluster.lose(connection)
                continue
            for topic in answer.topics:
                for partition in topic.partitions:
                    if partition.error_code in RETRIABLE:
                        reason = f"{topic.name}: {error_name(partition.error_code)}"
                    elif (topic.name, partition.partition_index) in wanted:
                        refuse(partition.error_code, topic.name)
                        found[topic.name, partition.partition_index] = partition.offset
        if wanted & found.keys():
            patience.progressed()
        wanted -= found.keys()
        if wanted:
            patience.wait(reason or "a partition has no leader")
            cluster.refresh({topic for topic, _ in wanted})
    return found


def _know_leaders(cluster: Cluster, partitions: Iterable[TopicPartition]) -> None:
    unknown = {topic for topic, partition in partitions if cluster.leader(topic, partition) is None}
    if unknown:
        cluster.refresh(unknown)
    for topic, partition in partitions:
        check_partition(cluster, topic, partition)


def check_partition(cluster: Cluster, topic: str, partition: int) -> None:
    """RequestRefused if there is none such, nor has been added since we last asked."""
    if partition >= cluster.partitions(topic):
        cluster.refresh([topic])
    count = cluster.partitions(topic)
    if not 0 <= partition < count:
        raise RequestRefused(
            f"topic {topic} has no partition {partition}", detail=f"it has {count} partitions"
        )


def _by_leader(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[str, list[TopicPartition]]:
    groups: dict[str, list[TopicPartition]] = {}
    for topic, partition in partitions:
        address = cluster.leader(topic, partition)
        if address is not None:
            groups.setdefault(address, []).append((topic, partition))
    return groups


def _request(group: Iterable[TopicPartition], at: int, isolation: int) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsRequestListOffsetsTopic] = {}
    for name, partition in sorted(group):
        if name not in topics:
            topics[name] = ListOffsetsRequestListOffsetsTopic(name=name, partitions=[])
        topics[name].partitions.append(
            ListOffsetsRequestListOffsetsPartition(partition_index=partition, timestamp=at)
        )
    return ListOffsetsRequest(
        replica_id=_CONSUMER, isolation_level=isolation, topics=list(topics.values())
    )
