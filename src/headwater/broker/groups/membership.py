"""Membership of all group kinds: joins, heartbeats, leaves, and conversions between kinds.

The heartbeat of its first member founds a KIP-848 or share group (see `founding`). An empty classic
group makes room for a KIP-848 group of its id, and an empty KIP-848 group continues as a classic
one when a classic member joins.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Collection, Mapping, Sequence
from uuid import UUID

from headwater.broker.background import Background
from headwater.broker.groups.classic.group import ClassicGroup
from headwater.broker.groups.consumer.group import ConsumerGroup
from headwater.broker.groups.consumer.heartbeats import Answer as ConsumerHeartbeatAnswer
from headwater.broker.groups.consumer.heartbeats import ConsumerGroupHeartbeats, is_leaving
from headwater.broker.groups.consumer_protocol.group import JOINING_EPOCH, LEAVING_EPOCH
from headwater.broker.groups.consumer_protocol.subscriptions import Sees
from headwater.broker.groups.founding import Founding, Foundings
from headwater.broker.groups.group import Group
from headwater.broker.groups.ports import StartOffsets
from headwater.broker.groups.registry import GroupRegistry
from headwater.broker.groups.settings import GroupSettings
from headwater.broker.groups.share.group import ShareGroup
from headwater.broker.groups.share.heartbeats import Answer as ShareHeartbeatAnswer
from headwater.broker.groups.share.heartbeats import ShareGroupHeartbeats
from headwater.broker.groups.share.heartbeats import verify as verify_share_heartbeat
from headwater.broker.internal_topics.journal import Journal
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from headwater.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headwater.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
)
from headwater.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class Membership:
    """Serves the requests of members, and the offsets of share groups, which can found a group."""

    def __init__(
        self,
        *,
        registry: GroupRegistry,
        journal: Journal,
        consumers: ConsumerGroupHeartbeats,
        shares: ShareGroupHeartbeats,
        settings: GroupSettings,
        background: Background,
    ) -> None:
        self._registry = registry
        self._journal = journal
        self._consumers = consumers
        self._shares = shares
        self._settings = settings
        self._background = background
        self._foundings = Foundings(registry, background)

    # Classic groups

    async def join(
        self, request: JoinGroupRequest, *, api_version: int, client_id: str, client_host: str
    ) -> JoinGroupResponse:
        self._registry.verify_ready(request.group_id)
        limits = self._settings
        timeout_ms = request.session_timeout_ms
        if not limits.min_session_timeout_ms <= timeout_ms <= limits.max_session_timeout_ms:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if self._foundings.get(request.group_id) is not None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        group = self._registry.find(ClassicGroup, request.group_id)
        other = self._registry.get(request.group_id) if group is None else None
        if other is not None:
            if not other.is_convertible:
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            group = await asyncio.shield(self._background.start(self._make_classic(other)))
        if group is None:
            if request.member_id:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._registry.new_classic(request.group_id)
        answer = group.join(
            request, api_version=api_version, client_id=client_id, client_host=client_host
        )
        self._registry.put(group)  # a new one only if it took the member
        return answer if isinstance(answer, JoinGroupResponse) else await answer

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        self._registry.verify_ready(request.group_id)
        answer = self._classic(request.group_id).sync(request)
        return answer if isinstance(answer, SyncGroupResponse) else await answer

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        if self._registry.refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return  # as Kafka: better than to have all members rejoin
        self._registry.verify_ready(group_id)
        self._classic(group_id).heartbeat(member_id, instance_id, generation)

    async def leave(
        self, group_id: str, leaving: Sequence[tuple[str, str | None]]
    ) -> list[ErrorCode]:
        """Removes the (member id, instance id) from the group; an error code for each."""
        self._registry.verify_ready(group_id)
        group = self._registry.find(ClassicGroup, group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        errors, emptied = group.leave(leaving)
        if emptied is not None:
            # Empty it is, stored or not: at worst its last members time out after a restart.
            with contextlib.suppress(ApiError):
                await emptied
        return errors

    def _classic(self, group_id: str) -> ClassicGroup:
        group = self._registry.find(ClassicGroup, group_id)
        if group is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    async def _make_classic(self, group: Group) -> ClassicGroup:
        """An empty KIP-848 group may continue as a classic one; a live one cannot."""
        async with group.changing:
            already_made = self._registry.find(ClassicGroup, group.group_id)
            if already_made is not None:
                return already_made  # another request was first
            if not group.is_empty:
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if self._registry.get(group.group_id) is not group:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            classic = self._registry.new_classic(group.group_id)

            def replace_it() -> None:
                group.begin_deletion()
                self._registry.put(classic)

            await self._journal.write(group.group_id, group.tombstones(), replace_it)
            return classic

    # KIP-848 groups

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        *,
        api_version: int,
        client_id: str,
        client_host: str,
        sees: Sees | None = None,
    ) -> ConsumerHeartbeatAnswer:
        """`sees`: which topics the member's pattern may match, if not all."""
        self._registry.verify_ready()
        self._consumers.verify(request, api_version)
        group_id = request.group_id
        consumer = self._registry.find(ConsumerGroup, group_id)
        if consumer is not None:
            if is_leaving(request):
                return self._consumers.leave(consumer, request)
            return self._consumers.heartbeat(
                consumer, request, client_id=client_id, client_host=client_host, sees=sees
            )
        founding = self._foundings.get(group_id)
        predecessor = self._registry.get(group_id) if founding is None else founding.predecessor
        if founding is None and predecessor is not None:
            if predecessor.is_dead:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if not (predecessor.is_convertible and predecessor.is_empty):
                raise _no_consumer_group(group_id)
        if request.member_epoch != JOINING_EPOCH:
            raise _no_consumer_group(group_id)
        if founding is None:
            founding = self._foundings.begin(ConsumerGroup(group_id), predecessor)
        founded = founding.group_of(ConsumerGroup)
        if founded is None:
            raise _no_consumer_group(group_id)
        return self._foundings.run(
            founding,
            lambda: self._consumers.heartbeat(
                founded,
                request,
                client_id=client_id,
                client_host=client_host,
                sees=sees,
                before=() if predecessor is None else tuple(predecessor.tombstones()),
            ),
        )

    # Share groups

    def share_heartbeat(
        self, request: ShareGroupHeartbeatRequest, *, client_id: str, client_host: str
    ) -> ShareHeartbeatAnswer:
        self._registry.verify_ready()
        verify_share_heartbeat(request)
        group = self._registry.find(ShareGroup, request.group_id)
        if group is not None:
            if request.member_epoch == LEAVING_EPOCH:
                return self._shares.leave(group, request)
            return self._shares.heartbeat(
                group, request, client_id=client_id, client_host=client_host
            )
        other = self._registry.get(request.group_id)
        if request.member_epoch != JOINING_EPOCH or other is not None:
            raise _no_share_group(request.group_id, other)
        founding, founded = self._share_founding(request.group_id)
        return self._foundings.run(
            founding,
            lambda: self._shares.heartbeat(
                founded, request, client_id=client_id, client_host=client_host
            ),
        )

    def share_group(self, group_id: str) -> ShareGroup:
        """Raises GROUP_ID_NOT_FOUND for any other."""
        self._registry.verify_ready(group_id)
        group = self._registry.find(ShareGroup, group_id)
        if group is None:
            raise _no_share_group(group_id, self._registry.get(group_id))
        return group

    async def alter_share_offsets(
        self, group_id: str, offsets: StartOffsets, names: Mapping[UUID, str]
    ) -> None:
        """Sets where an empty share group continues; `names` are those of the topics.

        A group that does not exist is created, as in Kafka: this sets where its first member
        begins.
        """
        self._registry.verify_ready(group_id)
        if self._registry.get(group_id) is not None or not offsets:
            await self._shares.alter(self.share_group(group_id), offsets, names)
            return
        founding, founded = self._share_founding(group_id)

        def alter() -> Awaitable[None] | None:
            return self._shares.alter(founded, offsets, names)

        await self._foundings.run(founding, alter)

    async def delete_share_offsets(self, group_id: str, topic_ids: Collection[UUID]) -> None:
        """Deletes the positions of an empty share group in these topics."""
        await self._shares.forget(self.share_group(group_id), topic_ids)

    def _share_founding(self, group_id: str) -> tuple[Founding, ShareGroup]:
        founding = self._foundings.get(group_id) or self._foundings.begin(ShareGroup(group_id))
        founded = founding.group_of(ShareGroup)
        if founded is None:
            raise _no_share_group(group_id, founding.group)
        return founding, founded


def _no_consumer_group(group_id: str) -> ApiError:
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} is no consumer group")


def _no_share_group(group_id: str, group: Group | None) -> ApiError:
    what = f"group {group_id} " + ("not found" if group is None else "is not a share group")
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, what)
