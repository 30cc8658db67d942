"""State of share groups: members, offsets, backlog, records in flight, dead letters.

librdkafka cannot ask for any of it, so the brokers are asked over connections of our own
(`broker_request`). Only our broker reports records in flight; a Kafka broker leaves it out.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from headwater.client import broker_request
from headwater.errors import RequestRefused
from headwater.inspect.kafka_cluster import KafkaCluster, Partition, address_of, settled
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
)
from headwater.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headwater.protocol.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupDescribeResponseDescribedGroup,
)

DEAD_LETTERS_SUFFIX: Final = ".dlq"
REDRIVE_GROUP_PREFIX: Final = "headwater.redrive."
_LIST_VERSION: Final = 5  # the first that reports types
_DESCRIBE_VERSION: Final = 1


class PartitionProgress(NamedTuple):
    """How far a group is in one partition; None is what the broker does not report."""

    partition: Partition
    start: int | None  # everything in front of it is settled
    backlog: int | None  # records that are not settled, those in flight among them
    in_flight: int | None
    oldest_lock_s: float | None


class ShareGroup(NamedTuple):
    """A share group as its coordinator describes it."""

    name: str
    state: str
    members: list[dict[str, Any]]
    progress: list[PartitionProgress]

    @property
    def topics(self) -> list[str]:
        return sorted({progress.partition.topic for progress in self.progress})

    def total(self, what: str) -> int | None:
        """The sum over the partitions; None if no partition reports it."""
        reported = [
            value for progress in self.progress if (value := getattr(progress, what)) is not None
        ]
        return sum(reported) if reported else None


def share_groups(cluster: KafkaCluster, names: Iterable[str] | None = None) -> list[ShareGroup]:
    """All share groups, or those named; one that there is not is left out."""
    wanted = None if names is None else set(names)
    found: list[ShareGroup] = []
    for broker in cluster.metadata().brokers.values():
        address = address_of(broker)
        properties = cluster.properties
        supported = broker_request.supported_versions(address, properties=properties)
        _, last = supported.get(ListGroupsRequest.api_key, (0, -1))
        if last < _LIST_VERSION or ShareGroupDescribeRequest.api_key not in supported:
            continue  # an older Kafka: it has none
        asked = ListGroupsRequest(types_filter=["share"])
        listed = broker_request.ask(
            address, asked, ListGroupsResponse, _LIST_VERSION, properties=properties
        )
        _verify(listed.error_code, None, f"cannot list the groups of {address}")
        here = sorted(
            group.group_id for group in listed.groups if wanted is None or group.group_id in wanted
        )
        if here:
            offsets_version = supported[DescribeShareGroupOffsetsRequest.api_key][1]
            found += _described(address, here, min(offsets_version, 1), properties)
    return sorted(found)


def _described(
    address: str, names: list[str], offsets_version: int, properties: Mapping[str, Any]
) -> list[ShareGroup]:
    request = ShareGroupDescribeRequest(group_ids=names)
    groups = broker_request.ask(
        address, request, ShareGroupDescribeResponse, _DESCRIBE_VERSION, properties=properties
    ).groups
    progress = broker_request.ask(
        address,
        DescribeShareGroupOffsetsRequest(
            groups=[
                DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None) for name in names
            ]
        ),
        DescribeShareGroupOffsetsResponse,
        offsets_version,
        properties=properties,
    ).groups
    by_name = {group.group_id: group for group in progress}
    described = []
    for group in groups:
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            continue  # deleted a moment ago
        _verify(group.error_code, group.error_message, f"cannot describe queue {group.group_id}")
        described.append(
            ShareGroup(
                group.group_id,
                group.group_state.lower(),
                _members(group),
                _progress(by_name[group.group_id]),
            )
        )
    return described


def _members(group: ShareGroupDescribeResponseDescribedGroup) -> list[dict[str, Any]]:
    return [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.client_host,
            "topics": member.subscribed_topic_names,
            "partitions": sum(
                len(partition.partitions) for partition in member.assignment.topic_partitions
            ),
        }
        for member in group.members
    ]


def _progress(group: DescribeShareGroupOffsetsResponseGroup) -> list[PartitionProgress]:
    if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        what = f"cannot read the offsets of queue {group.group_id}"
        _verify(group.error_code, group.error_message, what)

    def reported(number: int) -> int | None:
        return None if number < 0 else number

    return sorted(
        PartitionProgress(
            Partition(topic.topic_name, partition.partition_index),
            reported(partition.start_offset),
            reported(partition.lag),
            reported(partition.in_flight),
            None if partition.oldest_lock_age_ms < 0 else partition.oldest_lock_age_ms / 1000,
        )
        for topic in group.topics
        for partition in topic.partitions
        if partition.error_code == ErrorCode.NONE
    )


def _verify(code: int, message: str | None, what: str) -> None:
    if code != ErrorCode.NONE:
        name = ErrorCode(code).name
        raise RequestRefused(what, detail=f"{message or 'the broker refuses'} ({name})")


def dead_letters(cluster: KafkaCluster, topics: Iterable[str]) -> dict[Partition, int]:
    """Letters that wait in each partition of the topics' dead-letter topics, by topic and number.

    They are counted by offsets: markers of transactions, which `redrive` leaves, count too.
    """
    topics_by_name = cluster.topics()
    lettered = {topic for topic in topics if topic + DEAD_LETTERS_SUFFIX in topics_by_name}
    partitions = {
        topic: [
            Partition(topic + DEAD_LETTERS_SUFFIX, number)
            for number in topics_by_name[topic + DEAD_LETTERS_SUFFIX].partitions
        ]
        for topic in lettered
    }
    bounds = cluster.bounds([partition for some in partitions.values() for partition in some])
    redriven = redriven_until(cluster, partitions)
    return {
        Partition(topic, partition.number): max(
            0, bounds[partition][1] - redriven.get(partition, bounds[partition][0])
        )
        for topic, some in partitions.items()
        for partition in some
        if partition in bounds
    }


def redriven_until(
    cluster: KafkaCluster, partitions: Mapping[str, list[Partition]]
) -> dict[Partition, int]:
    """Where the next redrive of each topic's dead letters begins, if there was one before."""
    futures: dict[str, Any] = {}
    for topic, some in partitions.items():
        group = REDRIVE_GROUP_PREFIX + topic
        wanted = [TopicPartition(partition.topic, partition.number) for partition in some]
        request = ConsumerGroupTopicPartitions(group, wanted)
        futures |= cluster.admin.list_consumer_group_offsets([request], request_timeout=15)
    return {
        Partition(partition.topic, partition.partition): partition.offset
        for answer in settled(futures, "read the offsets of").values()
        for partition in answer.topic_partitions
        if partition.offset >= 0
    }
