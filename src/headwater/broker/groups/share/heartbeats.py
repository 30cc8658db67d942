"""Heartbeats of share groups (KIP-932): members join, report and leave; queue state follows.

A heartbeat that changes nothing takes no lock and is answered at once.
"""

import logging
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from headwater.broker.groups.configs import GroupConfigs
from headwater.broker.groups.consumer_protocol.assignment import NOTHING, Assignment, by_topic
from headwater.broker.groups.consumer_protocol.assignors import Subscriber, simple
from headwater.broker.groups.consumer_protocol.changes import ConsumerProtocol, Spawn
from headwater.broker.groups.consumer_protocol.group import JOINING_EPOCH, LEAVING_EPOCH, Change
from headwater.broker.groups.consumer_protocol.member import CurrentAssignment, Member, Subscription
from headwater.broker.groups.consumer_protocol.subscriptions import (
    Subscriptions,
    Topic,
    topics_hash,
)
from headwater.broker.groups.ports import Queues, StartOffsets
from headwater.broker.groups.settings import GroupSettings
from headwater.broker.groups.share import records as stored
from headwater.broker.groups.share.group import ShareGroup
from headwater.broker.internal_topics.journal import Journal
from headwater.clock import Clock
from headwater.errors import StorageFailed
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupHeartbeatResponseTopicPartitions,
)

logger = logging.getLogger(__name__)

Answer = ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse]


@dataclass(slots=True)
class ShareChange(Change):
    """A change of a share group; what it does to queue state is done before it is stored."""

    initialize: StartOffsets = field(default_factory=dict)
    alter: StartOffsets = field(default_factory=dict)
    forget: Collection[UUID] = ()


class ShareGroupHeartbeats(ConsumerProtocol[ShareGroup, ShareChange]):
    """Serves ShareGroupHeartbeat for groups that the coordinator hands in."""

    def __init__(
        self,
        *,
        journal: Journal,
        subscriptions: Subscriptions,
        queues: Queues,
        clock: Clock,
        settings: GroupSettings,
        configs: GroupConfigs,
        spawn: Spawn,
    ) -> None:
        super().__init__(journal=journal, clock=clock, spawn=spawn)
        self._subscriptions = subscriptions
        self._queues = queues
        self._settings = settings
        self._configs = configs

    def heartbeat(
        self,
        group: ShareGroup,
        request: ShareGroupHeartbeatRequest,
        *,
        client_id: str,
        client_host: str,
    ) -> Answer:
        """The answer, or what to wait for while the change is being stored."""

        def plan() -> ShareChange:
            self._refuse_if_full(group, request.member_id)
            return self._plan(group, request, client_id, client_host)

        if request.member_epoch != JOINING_EPOCH:  # who joins nearly always changes something
            group.refuse_if_dead()
            change = plan()
            if not change.records:
                group.seen_topics_version = self._topics_version
                self._touch(group, change.member_id)
                return self._response(group, change)
        return self._heartbeat(group, self._change(group, plan))

    async def _heartbeat(
        self, group: ShareGroup, change: Awaitable[ShareChange]
    ) -> ShareGroupHeartbeatResponse:
        return self._response(group, await change)

    async def leave(
        self, group: ShareGroup, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatResponse:
        def plan() -> ShareChange:
            member = group.members.get(request.member_id)
            if member is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            logger.info("group %s: member %s leaves", group.group_id, member.member_id)
            return self._removal(group, member)

        await self._change(group, plan)
        return ShareGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )

    # What administrators do

    async def alter(
        self, group: ShareGroup, offsets: StartOffsets, names: Mapping[UUID, str]
    ) -> None:
        """Where the group reads on; durable when it returns. `names` are those of the topics.

        Other partitions of a topic that is new to the group begin where its settings say.
        """

        def plan() -> ShareChange:
            _refuse_if_not_empty(group)
            (topics,) = self._subscriptions.resolve(
                [Subscription(topic_names=frozenset(names.values()))]
            )
            others = {k: v for k, v in group.without_state(topics).items() if k not in offsets}
            change = _change_of_state(group, group.with_state([*offsets, *others], names))
            change.alter, change.initialize = offsets, others
            if group.epoch == 0:  # a new group, without members
                change.records[:0] = [
                    stored.epoch_record(group.group_id, 1, topics_hash(())),
                    stored.target_epoch_record(group.group_id, 1, self._clock.now_ms()),
                ]
            return change

        await self._change(group, plan)

    async def forget(
        self, group: ShareGroup, topic_ids: Collection[UUID], *, is_used: bool = False
    ) -> None:
        """Forgets what the group has read of these topics; only a deleted topic may be in use."""

        def plan() -> ShareChange:
            if not is_used:
                _refuse_if_not_empty(group)
            left = {k: topic for k, topic in group.state_topics.items() if k not in topic_ids}
            change = _change_of_state(group, left)
            change.forget = topic_ids
            return change

        await self._change(group, plan)

    # Changes

    def _plan(
        self, group: ShareGroup, request: ShareGroupHeartbeatRequest, client_id: str, host: str
    ) -> ShareChange:
        """1. Subscription and group epoch; 2. target assignment; 3. the member has its target."""
        member = _find(group, request)
        change = ShareChange(member.member_id, member.current)

        names = request.subscribed_topic_names
        subscription = Subscription(
            rack_id=member.subscription.rack_id if request.rack_id is None else request.rack_id,
            client_id=client_id,
            client_host=host,
            topic_names=member.subscription.topic_names if names is None else frozenset(names),
        )
        updated = replace(member, subscription=subscription)
        if subscription != member.subscription:
            change.records.append(
                stored.subscription_record(group.group_id, member.member_id, subscription)
            )
        reads_otherwise = (
            member.member_id not in group.members
            or subscription.topic_names != member.subscription.topic_names
        )
        epoch = group.epoch
        if reads_otherwise or group.seen_topics_version != self._topics_version:
            members = _with(group, updated)
            topics = self._topics(members)
            hashed = topics_hash(topics)
            if reads_otherwise or hashed != group.topics_hash:
                epoch += 1
                change.records.append(stored.epoch_record(group.group_id, epoch, hashed))
            change.initialize = group.without_state(topics)
            if change.initialize:
                state_topics = group.with_state(
                    change.initialize, {topic.topic_id: topic.name for topic in topics}
                )
                change.records.append(stored.state_record(group.group_id, state_topics))

        target = group.targets.get(member.member_id, NOTHING)
        if epoch > group.target_epoch:
            targets = self._assign(group, _with(group, updated))
            for member_id, assignment in targets.items():
                if assignment != group.targets.get(member_id):
                    change.records.append(
                        stored.target_record(group.group_id, member_id, assignment)
                    )
            now_ms = self._clock.now_ms()
            change.records.append(stored.target_epoch_record(group.group_id, epoch, now_ms))
            target = targets[member.member_id]

        change.current = replace(member.current.at_epoch(epoch), assigned=target)
        if change.current != member.current:
            change.records.append(
                stored.current_assignment_record(group.group_id, member.member_id, change.current)
            )
        change.includes_assignment = (
            request.member_epoch == JOINING_EPOCH
            or request.member_epoch != member.current.epoch  # it missed an answer
            or change.current.assigned != member.current.assigned
        )
        return change

    def _removal(self, group: ShareGroup, member: Member) -> ShareChange:
        """A member leaves, or is fenced: the next heartbeat shares out what it had."""
        remaining = [other for other in group.members.values() if other is not member]
        epoch = group.epoch + 1
        change = ShareChange(member.member_id, member.current, removed_id=member.member_id)
        change.records = [
            *stored.removal_records(group.group_id, member.member_id),
            stored.epoch_record(group.group_id, epoch, topics_hash(self._topics(remaining))),
        ]
        if not remaining:
            # No member has a partition: this is an assignment too, and dates since when the group
            # is empty.
            now_ms = self._clock.now_ms()
            change.records.append(stored.target_epoch_record(group.group_id, epoch, now_ms))
        return change

    def _session_timeout_ms(self, group: ShareGroup) -> int:
        return self._configs.share(group.group_id).session_timeout_ms

    async def _prepare(self, group: ShareGroup, change: ShareChange) -> None:
        """Queue state first: a crash in between leaves state that is made again, or not missed."""
        group_id = group.group_id
        try:
            if change.initialize:
                await self._queues.initialize(group_id, change.initialize)
            if change.alter:
                await self._queues.alter(group_id, change.alter)
            if change.forget:
                await self._queues.delete(group_id, change.forget)
        except StorageFailed as error:
            logger.warning("group %s: its queue state was not stored: %s", group_id, error)
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error

    def _after(self, group: ShareGroup, change: ShareChange) -> None:
        super()._after(group, change)
        if change.removed_id is not None:
            self._queues.member_left(group.group_id, change.removed_id)

    def _topics(self, members: Iterable[Member]) -> list[Topic]:
        """What the members subscribe to, as far as it exists."""
        resolved = self._subscriptions.resolve(member.subscription for member in members)
        return sorted({topic for topics in resolved for topic in topics})

    def _assign(self, group: ShareGroup, members: list[Member]) -> dict[str, Assignment]:
        resolved = self._subscriptions.resolve(member.subscription for member in members)
        distinct = {topic for topics in resolved for topic in topics}
        return simple(
            {
                member.member_id: Subscriber(
                    instance_id=None,
                    topic_ids=frozenset(topic.topic_id for topic in topics),
                    target=group.targets.get(member.member_id, NOTHING),
                )
                for member, topics in zip(members, resolved, strict=True)
            },
            {topic.topic_id: topic.partition_count for topic in sorted(distinct)},
        )

    def _refuse_if_full(self, group: ShareGroup, member_id: str) -> None:
        if len(group.members) >= self._settings.share_max_size and member_id not in group.members:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the group has its {self._settings.share_max_size} members",
            )

    def _response(self, group: ShareGroup, change: ShareChange) -> ShareGroupHeartbeatResponse:
        response = ShareGroupHeartbeatResponse(
            member_id=change.member_id,
            member_epoch=change.current.epoch,
            heartbeat_interval_ms=self._configs.share(group.group_id).heartbeat_interval_ms,
        )
        if change.includes_assignment:
            response.assignment = ShareGroupHeartbeatResponseAssignment(
                topic_partitions=[
                    ShareGroupHeartbeatResponseTopicPartitions(
                        topic_id=topic_id, partitions=partitions
                    )
                    for topic_id, partitions in by_topic(change.current.assigned).items()
                ]
            )
        return response


def verify(request: ShareGroupHeartbeatRequest) -> None:
    """Whether the request makes sense in itself."""
    if not request.group_id:
        raise _nonsense("GroupId can't be empty")
    if not request.member_id:
        raise _nonsense("MemberId can't be empty")
    if request.rack_id == "":
        raise _nonsense("RackId can't be empty")
    if request.member_epoch < LEAVING_EPOCH:
        raise _nonsense("MemberEpoch is invalid")
    if request.member_epoch == JOINING_EPOCH and not request.subscribed_topic_names:
        raise _nonsense("SubscribedTopicNames must be set in first request")


def _nonsense(what: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, what)


def _find(group: ShareGroup, request: ShareGroupHeartbeatRequest) -> Member:
    """The member that speaks, perhaps new."""
    member = group.members.get(request.member_id)
    if request.member_epoch == JOINING_EPOCH:
        return member or Member(request.member_id)
    if member is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    # The answer with the new epoch may have got lost.
    if request.member_epoch not in (member.current.epoch, member.current.previous_epoch):
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member epoch is {member.current.epoch}, not {request.member_epoch}: "
            "the member must abandon its partitions and rejoin",
        )
    return member


def _with(group: ShareGroup, updated: Member) -> list[Member]:
    return [*(m for k, m in group.members.items() if k != updated.member_id), updated]


def _refuse_if_not_empty(group: ShareGroup) -> None:
    if not group.is_empty:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP, "the group has members")


def _change_of_state(group: ShareGroup, topics: stored.StateTopics) -> ShareChange:
    return ShareChange(
        member_id="",
        current=CurrentAssignment(),
        records=[stored.state_record(group.group_id, topics)],
        has_seen_topics=False,
    )
