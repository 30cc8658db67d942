"""The records of a KIP-848 group, to and from what the rest works with."""

from headwater.broker.groups.consumer_protocol.assignment import (
    Assignment,
    by_topic,
    read_assignment,
)
from headwater.broker.groups.consumer_protocol.member import (
    CurrentAssignment,
    MemberState,
    Subscription,
)
from headwater.broker.internal_topics.records import Record
from headwater.protocol.messages import internal as m


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


def current_assignment_record(group_id: str, member_id: str, current: CurrentAssignment) -> Record:
    return Record(
        m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
        m.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            state=current.state,
            assigned_partitions=_topic_partitions(current.assigned),
            partitions_pending_revocation=_topic_partitions(current.revoking),
        ),
    )


def read_current_assignment(
    value: m.ConsumerGroupCurrentMemberAssignmentValue,
) -> CurrentAssignment:
    return CurrentAssignment(
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


def _topic_partitions(
    assignment: Assignment,
) -> list[m.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions]:
    return [
        m.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(
            topic_id=topic_id, partitions=partitions
        )
        for topic_id, partitions in by_topic(assignment).items()
    ]
