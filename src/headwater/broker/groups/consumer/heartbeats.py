"""Heartbeats of KIP-848 groups: they become durable changes; members that fall silent are removed.

A heartbeat that changes nothing takes no lock and is answered at once.
"""

import logging
import uuid
from collections.abc import Awaitable
from functools import partial

from headwater.broker.groups.configs import GroupConfigs
from headwater.broker.groups.consumer.group import ConsumerGroup
from headwater.broker.groups.consumer.planner import LEAVING_FOR_A_WHILE_EPOCH, ChangePlanner
from headwater.broker.groups.consumer_protocol.assignment import by_topic
from headwater.broker.groups.consumer_protocol.assignors import ASSIGNORS
from headwater.broker.groups.consumer_protocol.changes import ConsumerProtocol, Spawn
from headwater.broker.groups.consumer_protocol.group import JOINING_EPOCH, LEAVING_EPOCH, Change
from headwater.broker.groups.consumer_protocol.member import Member, MemberState
from headwater.broker.groups.consumer_protocol.subscriptions import Sees, Subscriptions
from headwater.broker.groups.deadline import Deadline
from headwater.broker.groups.settings import GroupSettings
from headwater.broker.internal_topics.journal import Journal
from headwater.broker.internal_topics.records import Record
from headwater.clock import Clock
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

logger = logging.getLogger(__name__)

_FIRST_VERSION_WITH_CLIENT_IDS = 1

Answer = ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]


class ConsumerGroupHeartbeats(ConsumerProtocol[ConsumerGroup, Change]):
    """Serves ConsumerGroupHeartbeat for groups that the coordinator hands in."""

    def __init__(
        self,
        *,
        journal: Journal,
        subscriptions: Subscriptions,
        clock: Clock,
        settings: GroupSettings,
        configs: GroupConfigs,
        spawn: Spawn,
    ) -> None:
        super().__init__(journal=journal, clock=clock, spawn=spawn)
        self._subscriptions = subscriptions
        self._planner = ChangePlanner(subscriptions)
        self._settings = settings
        self._configs = configs
        self._rebalances: dict[tuple[str, str], Deadline] = {}

    def verify(self, request: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
        """Whether the request makes sense in itself; completes a missing member id (version 0)."""
        _verify(request, api_version)
        if request.subscribed_topic_regex:
            self._subscriptions.verify(request.subscribed_topic_regex)
        if not request.member_id:
            request.member_id = str(uuid.uuid4())

    def heartbeat(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        *,
        client_id: str,
        client_host: str,
        sees: Sees | None = None,
        before: tuple[Record, ...] = (),
    ) -> Answer:
        """The answer, or what to wait for while the change is being stored.

        `before` are records that make room for a group that is not in the log yet. `sees` limits
        the topics that the member's pattern, if it has one, matches.
        """
        if sees is not None:
            member = group.members.get(request.member_id)
            pattern = request.subscribed_topic_regex
            if pattern is None and member is not None:
                pattern = member.subscription.topic_regex
            if pattern and group.reported(pattern, sees):
                group.seen_topics_version = -1  # its topics are resolved again

        def plan() -> Change:
            self._refuse_if_full(group, request)
            return self._planner.heartbeat(
                group,
                request,
                client_id=client_id,
                client_host=client_host,
                topics_may_have_changed=group.seen_topics_version != self._topics_version,
                now_ms=self._clock.now_ms(),
            )

        if request.member_epoch != JOINING_EPOCH:  # who joins nearly always changes something
            group.refuse_if_dead()
            change = plan()
            if not change.records:
                group.seen_topics_version = self._topics_version
                self._touch(group, change.member_id)
                return self._response(group, change)
        return self._heartbeat(group, self._change(group, plan, before))

    async def _heartbeat(
        self, group: ConsumerGroup, change: Awaitable[Change]
    ) -> ConsumerGroupHeartbeatResponse:
        return self._response(group, await change)

    async def leave(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        def plan() -> Change:
            member = group.members.get(request.member_id)
            if request.instance_id is not None:
                member = group.static_member(request.instance_id)
                if member is not None and member.member_id != request.member_id:
                    raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
            if member is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if request.member_epoch == LEAVING_FOR_A_WHILE_EPOCH:
                return self._planner.leave_for_a_while(group, member)
            logger.info("group %s: member %s leaves", group.group_id, member.member_id)
            return self._planner.removal(group, member)

        await self._change(group, plan)
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )

    def watch(self, group: ConsumerGroup) -> None:
        super().watch(group)
        for member in group.members.values():
            self._watch_revocation(group, member)

    def close(self) -> None:
        super().close()
        for deadline in self._rebalances.values():
            deadline.cancel()

    # Changes

    def _removal(self, group: ConsumerGroup, member: Member) -> Change:
        return self._planner.removal(group, member)

    def _session_timeout_ms(self, group: ConsumerGroup) -> int:
        return self._configs.consumer(group.group_id).session_timeout_ms

    def _after(self, group: ConsumerGroup, change: Change) -> None:
        super()._after(group, change)
        if change.removed_id is not None:
            deadline = self._rebalances.pop((group.group_id, change.removed_id), None)
            if deadline is not None:
                deadline.cancel()
        member = group.members.get(change.member_id)
        if member is not None:
            self._watch_revocation(group, member)

    def _refuse_if_full(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> None:
        if (
            len(group.members) >= self._settings.consumer_max_size
            and request.member_id not in group.members
            and group.static_member(request.instance_id) is None
        ):
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the group has its {self._settings.consumer_max_size} members",
            )

    def _response(self, group: ConsumerGroup, change: Change) -> ConsumerGroupHeartbeatResponse:
        response = ConsumerGroupHeartbeatResponse(
            member_id=change.member_id,
            member_epoch=change.current.epoch,
            heartbeat_interval_ms=self._configs.consumer(group.group_id).heartbeat_interval_ms,
        )
        if change.includes_assignment:
            response.assignment = ConsumerGroupHeartbeatResponseAssignment(
                topic_partitions=[
                    ConsumerGroupHeartbeatResponseTopicPartitions(
                        topic_id=topic_id, partitions=partitions
                    )
                    for topic_id, partitions in by_topic(change.current.assigned).items()
                ]
            )
        return response

    # Members that do not give up what they should

    def _watch_revocation(self, group: ConsumerGroup, member: Member) -> None:
        key = (group.group_id, member.member_id)
        if member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            if key in self._rebalances:
                self._rebalances.pop(key).cancel()
        elif key not in self._rebalances:
            epoch = member.current.epoch
            expired = partial(self._revocation_expired, group, member.member_id, epoch)
            deadline = self._rebalances[key] = Deadline(self._clock, expired)
            deadline.push(member.subscription.rebalance_timeout_ms)

    def _revocation_expired(self, group: ConsumerGroup, member_id: str, epoch: int) -> None:
        self._rebalances.pop((group.group_id, member_id), None)
        member = group.members.get(member_id)
        if member is not None and member.current.epoch == epoch:
            self._spawn(self._fence(group, member_id, "it did not give up partitions in time"))


def _verify(request: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
    epoch = request.member_epoch
    if not request.group_id:
        raise _nonsense("GroupId can't be empty")
    if request.instance_id == "":
        raise _nonsense("InstanceId can't be empty")
    if request.rack_id == "":
        raise _nonsense("RackId can't be empty")
    if not request.member_id and (
        api_version >= _FIRST_VERSION_WITH_CLIENT_IDS or epoch != JOINING_EPOCH
    ):
        raise _nonsense("MemberId can't be empty")
    if epoch < LEAVING_FOR_A_WHILE_EPOCH:
        raise _nonsense("MemberEpoch is invalid")
    if epoch == LEAVING_FOR_A_WHILE_EPOCH and request.instance_id is None:
        raise _nonsense("InstanceId can't be null")
    if epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms < 0:
            raise _nonsense("RebalanceTimeoutMs must be provided in first request")
        if request.topic_partitions is None or request.topic_partitions:
            raise _nonsense("TopicPartitions must be empty when (re-)joining")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _nonsense("SubscribedTopicNames or SubscribedTopicRegex must be set when joining")
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"assignor {request.server_assignor} is not one of {', '.join(sorted(ASSIGNORS))}",
        )


def _nonsense(what: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, what)


def is_leaving(request: ConsumerGroupHeartbeatRequest) -> bool:
    return request.member_epoch in (LEAVING_EPOCH, LEAVING_FOR_A_WHILE_EPOCH)
