"""Assignments: sets of partitions, and how records and answers list them by topic."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from headwater.protocol.messages import internal as m


class TopicPartition(NamedTuple):
    """A partition of a topic, by the topic's id."""

    topic_id: UUID
    partition: int


Assignment = frozenset[TopicPartition]
NOTHING: Final[Assignment] = frozenset()


def by_topic(assignment: Assignment) -> Mapping[UUID, list[int]]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(assignment):
        topics.setdefault(topic_id, []).append(partition)
    return topics


def read_assignment(
    topic_partitions: Iterable[
        m.ConsumerGroupTargetAssignmentMemberValueTopicPartition
        | m.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions
        | m.ShareGroupTargetAssignmentMemberValueTopicPartition
        | m.ShareGroupCurrentMemberAssignmentValueTopicPartitions
    ],
) -> Assignment:
    return frozenset(
        TopicPartition(topic_partition.topic_id, partition)
        for topic_partition in topic_partitions
        for partition in topic_partition.partitions
    )
