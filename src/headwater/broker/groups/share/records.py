"""The records of a share group (KIP-932), to and from what the rest works with."""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from headwater.broker.groups.consumer_protocol.assignment import Assignment, by_topic
from headwater.broker.groups.consumer_protocol.member import CurrentAssignment, Subscription
from headwater.broker.internal_topics.records import Record
from headwater.protocol.messages import internal as m


class StateTopic(NamedTuple):
    """A topic of which the group has queue state, and the partitions that have it."""

    name: str
    partitions: frozenset[int]


StateTopics = Mapping[UUID, StateTopic]


def epoch_record(group_id: str, epoch: int, topics_hash: int) -> Record:
    return Record(
        m.ShareGroupMetadataKey(group_id=group_id),
        m.ShareGroupMetadataValue(epoch=epoch, metadata_hash=topics_hash),
    )


def subscription_record(group_id: str, member_id: str, subscription: Subscription) -> Record:
    return Record(
        m.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
        m.ShareGroupMemberMetadataValue(
            rack_id=subscription.rack_id,
            client_id=subscription.client_id,
            client_host=subscription.client_host,
            subscribed_topic_names=sorted(subscription.topic_names),
        ),
    )


def read_subscription(value: m.ShareGroupMemberMetadataValue) -> Subscription:
    return Subscription(
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
    )


def target_record(group_id: str, member_id: str, target: Assignment) -> Record:
    return Record(
        m.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        m.ShareGroupTargetAssignmentMemberValue(
            topic_partitions=[
                m.ShareGroupTargetAssignmentMemberValueTopicPartition(
                    topic_id=topic_id, partitions=partitions
                )
                for topic_id, partitions in by_topic(target).items()
            ]
        ),
    )


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> Record:
    return Record(
        m.ShareGroupTargetAssignmentMetadataKey(group_id=group_id),
        m.ShareGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=now_ms
        ),
    )


def current_assignment_record(group_id: str, member_id: str, current: CurrentAssignment) -> Record:
    return Record(
        m.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
        m.ShareGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            assigned_partitions=[
                m.ShareGroupCurrentMemberAssignmentValueTopicPartitions(
                    topic_id=topic_id, partitions=partitions
                )
                for topic_id, partitions in by_topic(current.assigned).items()
            ],
        ),
    )


def state_record(group_id: str, topics: StateTopics) -> Record:
    """Which partitions have queue state. None of them is ever on its way there: see `group`."""
    return Record(
        m.ShareGroupStatePartitionMetadataKey(group_id=group_id),
        m.ShareGroupStatePartitionMetadataValue(
            initialized_topics=[
                m.ShareGroupStatePartitionMetadataValueTopicPartitionsInfo(
                    topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions)
                )
                for topic_id, topic in topics.items()
            ]
        ),
    )


def read_state_topics(value: m.ShareGroupStatePartitionMetadataValue) -> dict[UUID, StateTopic]:
    return {
        initialized_topic.topic_id: StateTopic(
            initialized_topic.topic_name, frozenset(initialized_topic.partitions)
        )
        for initialized_topic in value.initialized_topics
    }


def removal_records(group_id: str, member_id: str) -> list[Record]:
    return [
        Record(key(group_id=group_id, member_id=member_id), None)
        for key in (
            m.ShareGroupCurrentMemberAssignmentKey,
            m.ShareGroupTargetAssignmentMemberKey,
            m.ShareGroupMemberMetadataKey,
        )
    ]


def group_tombstones(group_id: str) -> list[Record]:
    """What is left of a group without members."""
    return [
        Record(m.ShareGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        Record(m.ShareGroupStatePartitionMetadataKey(group_id=group_id), None),
        Record(m.ShareGroupMetadataKey(group_id=group_id), None),
    ]
