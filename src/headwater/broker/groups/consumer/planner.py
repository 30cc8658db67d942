"""The planner of KIP-848 changes: from a heartbeat and the state to records and an answer.

Nothing here changes the group; `heartbeats` stores the records and replays them. A
heartbeat that brings nothing new costs O(1) and has no records.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from headwater.broker.groups.consumer import records as stored
from headwater.broker.groups.consumer.group import ConsumerGroup
from headwater.broker.groups.consumer.reconciliation import reconcile
from headwater.broker.groups.consumer_protocol.assignment import NOTHING, Assignment, TopicPartition
from headwater.broker.groups.consumer_protocol.assignors import ASSIGNORS, Subscriber
from headwater.broker.groups.consumer_protocol.group import JOINING_EPOCH, Change
from headwater.broker.groups.consumer_protocol.member import CurrentAssignment, Member, Subscription
from headwater.broker.groups.consumer_protocol.subscriptions import (
    Subscriptions,
    Topic,
    topics_hash,
)
from headwater.broker.internal_topics.records import Record
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

LEAVING_FOR_A_WHILE_EPOCH: Final = -2  # a static member that will be back


class ChangePlanner:
    """Plans changes of groups against the topics of this moment."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    def heartbeat(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        *,
        client_id: str,
        client_host: str,
        topics_may_have_changed: bool,
        now_ms: int,
    ) -> Change:
        """A member joins, or reports what it owns and wants.

        1. Its subscription is updated; a change of what the group reads is a new group epoch.
        2. A new group epoch has a new target assignment.
        3. The member takes its next step towards its target.
        """
        reported = _reported(request)
        member, replaced_id = _find(group, request, reported)
        change = Change(member.member_id, member.current)
        if replaced_id is not None:
            change.removed_id = replaced_id
            change.records += _takeover_records(group, replaced_id, member)

        # 1. Subscription and group epoch.
        subscription = _updated(member.subscription, request, client_id, client_host)
        updated = replace(member, subscription=subscription)
        if subscription != member.subscription:
            change.records.append(
                stored.subscription_record(group.group_id, member.member_id, subscription)
            )
        is_new = replaced_id is None and member.member_id not in group.members
        reads_otherwise = (
            is_new
            or subscription.topic_names != member.subscription.topic_names
            or subscription.topic_regex != member.subscription.topic_regex
        )
        epoch = group.epoch
        if reads_otherwise or topics_may_have_changed:
            members = _with(group, updated, replaced_id)
            hashed = self._topics_hash(group, members)
            if reads_otherwise or hashed != group.topics_hash:
                epoch += 1
                change.records.append(stored.epoch_record(group.group_id, epoch, hashed))

        # 2. Target assignment.
        target = group.targets.get(replaced_id or member.member_id, NOTHING)
        if epoch > group.target_epoch:
            members = _with(group, updated, replaced_id)
            targets = self._assign(group, members, replaced_id)
            for member_id, assignment in targets.items():
                if assignment != group.targets.get(member_id):
                    change.records.append(
                        stored.target_record(group.group_id, member_id, assignment)
                    )
            change.records.append(stored.target_epoch_record(group.group_id, epoch, now_ms))
            target = targets[member.member_id]

        # 3. Reconciliation.
        own_ids = (None, member.member_id, replaced_id)
        change.current = reconcile(
            member.current,
            target=target,
            target_epoch=epoch,
            reported=reported,
            is_taken=lambda partition: group.owner(partition) not in own_ids,
        )
        if change.current != member.current:
            change.records.append(
                stored.current_assignment_record(group.group_id, member.member_id, change.current)
            )
        change.includes_assignment = (
            request.member_epoch == JOINING_EPOCH
            or _is_full(request)
            or change.current.assigned != member.current.assigned
        )
        return change

    def removal(self, group: ConsumerGroup, member: Member) -> Change:
        """A member leaves for good, or is fenced: the others share what it had."""
        remaining = [other for other in group.members.values() if other is not member]
        return Change(
            member.member_id,
            member.current,
            removed_id=member.member_id,
            records=[
                *stored.removal_records(group.group_id, member.member_id),
                stored.epoch_record(
                    group.group_id, group.epoch + 1, self._topics_hash(group, remaining)
                ),
            ],
        )

    @staticmethod
    def leave_for_a_while(group: ConsumerGroup, member: Member) -> Change:
        """A static member stops and retains its partitions until its session is over (KIP-848)."""
        away = replace(member.current, epoch=LEAVING_FOR_A_WHILE_EPOCH, revoking=NOTHING)
        return Change(
            member.member_id,
            away,
            records=[stored.current_assignment_record(group.group_id, member.member_id, away)],
        )

    def _topics_hash(self, group: ConsumerGroup, members: Iterable[Member]) -> int:
        resolved = self._subscriptions.resolve(
            (member.subscription for member in members), group.sees
        )
        return topics_hash(topic for topics in resolved for topic in topics)

    def _assign(
        self, group: ConsumerGroup, members: list[Member], replaced_id: str | None
    ) -> dict[str, Assignment]:
        resolved = self._subscriptions.resolve(
            (member.subscription for member in members), group.sees
        )
        distinct: set[Topic] = {topic for topics in resolved for topic in topics}
        partition_counts = {topic.topic_id: topic.partition_count for topic in sorted(distinct)}
        replaced_target = group.targets.get(replaced_id or "", NOTHING)
        subscribers = {
            member.member_id: Subscriber(
                instance_id=member.subscription.instance_id,
                topic_ids=frozenset(topic.topic_id for topic in topics),
                target=group.targets.get(member.member_id, replaced_target),
            )
            for member, topics in zip(members, resolved, strict=True)
        }
        return ASSIGNORS[group.preferred_assignor(members)](subscribers, partition_counts)


def _reported(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    return frozenset(
        TopicPartition(topic_partition.topic_id, partition)
        for topic_partition in request.topic_partitions
        for partition in topic_partition.partitions
    )


def _find(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, reported: Assignment | None
) -> tuple[Member, str | None]:
    """The member that speaks, perhaps new; and the id of the static member it takes over from."""
    is_joining = request.member_epoch == JOINING_EPOCH
    member = group.members.get(request.member_id)
    if request.instance_id is not None:
        holder = group.static_member(request.instance_id)
        if holder is not None and holder.member_id != request.member_id:
            if not is_joining:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
            if holder.current.epoch != LEAVING_FOR_A_WHILE_EPOCH:
                raise ApiError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"instance id {request.instance_id} is owned by member {holder.member_id}",
                )
            rejoined = replace(holder.current, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
            return replace(holder, member_id=request.member_id, current=rejoined), holder.member_id
        member = holder
    if member is None:
        if not is_joining:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return Member(request.member_id), None
    if not is_joining:
        _verify_epoch(member.current, request.member_epoch, reported)
    return member, None


def _verify_epoch(
    current: CurrentAssignment, received_epoch: int, reported: Assignment | None
) -> None:
    if received_epoch == current.epoch:
        return
    # The answer with the new epoch may have got lost; what the member owns must then still be
    # its own.
    if (
        received_epoch == current.previous_epoch
        and reported is not None
        and reported <= current.assigned
    ):
        return
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"member epoch is {current.epoch}, not {received_epoch}: "
        "the member must abandon its partitions and rejoin",
    )


def _takeover_records(group: ConsumerGroup, replaced_id: str, member: Member) -> list[Record]:
    target = group.targets.get(replaced_id, NOTHING)
    return [
        *stored.removal_records(group.group_id, replaced_id),
        stored.subscription_record(group.group_id, member.member_id, member.subscription),
        stored.target_record(group.group_id, member.member_id, target),
        stored.current_assignment_record(group.group_id, member.member_id, member.current),
    ]


def _updated(
    before: Subscription,
    request: ConsumerGroupHeartbeatRequest,
    client_id: str,
    client_host: str,
) -> Subscription:
    """A field that the request leaves out stays as it was."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return Subscription(
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=client_id,
        client_host=client_host,
        topic_names=before.topic_names if names is None else frozenset(names),
        topic_regex=before.topic_regex if regex is None else regex,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout_ms < 0 else timeout_ms,
        assignor=before.assignor if request.server_assignor is None else request.server_assignor,
    )


def _with(group: ConsumerGroup, updated: Member, replaced_id: str | None) -> list[Member]:
    others = (updated.member_id, replaced_id)
    return [*(m for m in group.members.values() if m.member_id not in others), updated]


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """A member that is not sure of the broker's state sends all fields."""
    return (
        request.rebalance_timeout_ms >= 0
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )
