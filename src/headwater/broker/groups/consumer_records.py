"""The records of a KIP-848 group, to and from what the rest works with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headwater.broker.groups.assignors import Assignment, TopicPartition
from headwater.broker.groups.reconciliation import MemberState, Progress
from headwater.broker.groups.records import Record
from headwater.protocol.messages import internal as m


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member tells about itself: ConsumerGroupMemberMetadata in the log."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None


NO_SUBSCRIPTION: Final = Subscription()


def epoch_record(group_id: str, epoch: int, topics_hash: int) -> Record:
    return Record(
        m.ConsumerGroupMetadataKey(group_id=group_id),
        m.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=topics_hash),
    )


def subscription_record(group_id: str, member_id: str, subscription: Subscription) -> Record:
    return Record(
        m.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
        m.ConsumerGroupMemberMetadataValue(
            instance_id=subscription.instance_id,
            rack_id=subscription.rack_id,
            client_id=subscription.client_id,
            client_host=subscription.client_host,
            subscribed_topic_names=sorted(subscription.topic_names),
            subscribed_topic_regex=subscription.topic_regex or None,
            rebalance_timeout_ms=subscription.rebalance_timeout_ms,
            server_assignor=subscription.assignor,
        ),
    )


def read_subscription(value: m.ConsumerGroupMemberMetadataValue) -> Subscription:
    return Subscription(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
        topic_regex=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
    )


def target_record(group_id: str, member_id: str, target: Assignment) -> Record:
    return Record(
        m.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        m.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                m.ConsumerGroupTargetAssignmentMemberValueTopicPartition(
                    topic_id=topic_id, partitions=partitions
                )
                for topic_id, partitions in by_topic(target).items()
            ]
        ),
    )


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> Record:
    return Record(
        m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        m.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=now_ms
        ),
    )


def progress_record(group_id: str, member_id: str, progress: Progress) -> Record:
    return Record(
        m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
        m.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=progress.epoch,
            previous_member_epoch=progress.previous_epoch,
            state=progress.state,
            assigned_partitions=_topic_partitions(progress.assigned),
            partitions_pending_revocation=_topic_partitions(progress.revoking),
        ),
    )


def read_progress(value: m.ConsumerGroupCurrentMemberAssignmentValue) -> Progress:
    return Progress(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=read_assignment(value.assigned_partitions),
        revoking=read_assignment(value.partitions_pending_revocation),
    )


def removal_records(group_id: str, member_id: str) -> list[Record]:
    return [
        Record(
            m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None
        ),
        Record(
            m.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None
        ),
        Record(m.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group_id: str) -> list[Record]:
    """What is left of a group without members."""
    return [
        Record(m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        Record(m.ConsumerGroupMetadataKey(group_id=group_id), None),
    ]


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
        TopicPartition(each.topic_id, partition)
        for each in topic_partitions
        for partition in each.partitions
    )


def _topic_partitions(
    assignment: Assignment,
) -> list[m.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions]:
    return [
        m.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(
            topic_id=topic_id, partitions=partitions
        )
        for topic_id, partitions in by_topic(assignment).items()
    ]
