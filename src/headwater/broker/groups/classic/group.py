"""A classic group, as its requests change it; `rebalance` has its state machine.

A group without a protocol type is a simple one: no member ever joined, it only has offsets.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from headwater.broker.groups.classic.rebalance import CONSUMER_PROTOCOL_TYPE, Rebalance, State
from headwater.broker.groups.classic.roster import Member, Protocols
from headwater.broker.groups.deadline import Deadline
from headwater.broker.groups.group import Group, MatchesPattern
from headwater.broker.groups.offsets.store import CommittedOffset
from headwater.broker.internal_topics.records import Record
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.internal import GroupMetadataKey, GroupMetadataValue
from headwater.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headwater.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

logger = logging.getLogger(__name__)

_FIRST_JOIN_VERSION_WITH_KNOWN_ID = 4
_FIRST_JOIN_VERSION_WITH_SKIP_ASSIGNMENT = 9

JoinAnswer = JoinGroupResponse | asyncio.Future[JoinGroupResponse]
SyncAnswer = SyncGroupResponse | asyncio.Future[SyncGroupResponse]


class ClassicGroup(Rebalance, Group):
    """A classic group as its members and administrators use it. A refusal is an ApiError."""

    kind = "classic"

    # JoinGroup

    def join(
        self,
        request: JoinGroupRequest,
        *,
        api_version: int,
        client_id: str,
        client_host: str,
    ) -> JoinAnswer:
        """The answer, or the future of it when it has to wait for the others."""
        self._refuse_if_dead()
        if not self._accepts_another(request.member_id):
            self.roster.forget_pending(request.member_id)
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        protocols = [(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols]
        self._verify_protocols(request.protocol_type, protocols)

        if not request.member_id:
            new_id = f"{request.group_instance_id or client_id}-{uuid.uuid4()}"
            holder = self.roster.static_member(request.group_instance_id)
            if holder is not None:
                return self._replace_static(holder, new_id, request, protocols, api_version)
            if request.group_instance_id is None and (
                api_version >= _FIRST_JOIN_VERSION_WITH_KNOWN_ID
            ):
                return self._require_member_id(new_id, request.session_timeout_ms)
            return self._add(new_id, request, protocols, client_id, client_host)
        if request.member_id in self.roster.pending and request.group_instance_id is None:
            return self._add(request.member_id, request, protocols, client_id, client_host)
        member = self.roster.verify(request.member_id, request.group_instance_id)
        return self._rejoin(member, request, protocols)

    def _accepts_another(self, member_id: str) -> bool:
        member = self.roster.get(member_id)
        if self.state is State.PREPARING_REBALANCE:
            # Those who have joined are counted, not the members: when the limit was lowered, the
            # last to rejoin are the ones to go.
            already_in = member is not None and member.join is not None
            return already_in or self.roster.joined < self._settings.max_size
        return (
            self.state is State.EMPTY
            or member is not None
            or len(self.roster) < self._settings.max_size
        )

    def _verify_protocols(self, protocol_type: str, protocols: Protocols) -> None:
        if self.state is State.EMPTY:
            fits = bool(protocol_type and protocols)
        else:
            fits = protocol_type == self.protocol_type and self.roster.supports_one_of(
                [name for name, _ in protocols]
            )
        if not fits:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _require_member_id(self, member_id: str, session_timeout_ms: int) -> JoinGroupResponse:
        """Has the client come back with the id it is given.

        So a client that gives up waiting and joins again does not leave a dead member behind
        each time (KIP-394).
        """
        deadline = Deadline(self._clock, partial(self._pending_expired, member_id))
        deadline.push(session_timeout_ms)
        self.roster.pending[member_id] = deadline
        return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)

    def _add(
        self,
        member_id: str,
        request: JoinGroupRequest,
        protocols: Protocols,
        client_id: str,
        client_host: str,
    ) -> JoinAnswer:
        member = self._new_member(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=client_id,
            client_host=client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=protocols,
        )
        member.is_new = True
        join = member.join = asyncio.get_running_loop().create_future()
        if not len(self.roster):
            self.protocol_type = request.protocol_type
        self._came_during_delay = True
        self.roster.add(member)
        # It knows its id only from the answer, so it cannot heartbeat while it waits for it.
        member.session.push(self._settings.new_member_join_timeout_ms)
        self._rebalance_or_complete(f"member {member_id} joins")
        return join

    def _rejoin(
        self, member: Member, request: JoinGroupRequest, protocols: Protocols
    ) -> JoinAnswer:
        # The leader joins a stable group to have it rebalanced: it may have seen what shows in no
        # metadata (a topic got more partitions).
        wants_rebalance = self.state is State.STABLE and member.member_id == self.roster.leader
        unchanged = list(member.protocols) == list(protocols)
        if self.state is not State.PREPARING_REBALANCE and unchanged and not wants_rebalance:
            # The answer may have got lost on the way: the same one again.
            member.touch()
            return self._join_response(member)
        join = self._park(member, request, protocols)
        self._rebalance_or_complete(f"member {member.member_id} joins again")
        return join

    def _park(
        self, member: Member, request: JoinGroupRequest, protocols: Protocols
    ) -> asyncio.Future[JoinGroupResponse]:
        self.roster.change_protocols(member, protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.touch()
        join: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
        self.roster.park_join(member, join)
        return join

    def _replace_static(
        self,
        holder: Member,
        new_id: str,
        request: JoinGroupRequest,
        protocols: Protocols,
        api_version: int,
    ) -> JoinAnswer:
        """A static member was restarted: it takes over its own assignment (KIP-345)."""
        if self.state is not State.STABLE or self._would_change_protocol(holder, protocols):
            self._rename(holder, new_id)
            join = self._park(holder, request, protocols)
            self._rebalance_or_complete(f"static member {request.group_instance_id} restarted")
            return join

        # Nothing changes for the others, so there is no rebalance. But the new id must be in
        # the log before any client sees it, or after a crash the old one would count again.
        waiting: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
        old_id, generation, old_leader = holder.member_id, self.generation, self.roster.leader

        def take_over() -> None:
            if (
                self.state is not State.STABLE
                or self.generation != generation
                or self.roster.static_member(request.group_instance_id) is not holder
                or holder.member_id != old_id
            ):
                # The group has moved on meanwhile; let the client begin again.
                _resolve(waiting, JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
                return
            self._rename(holder, new_id)
            self.roster.change_protocols(holder, protocols)
            holder.session_timeout_ms = request.session_timeout_ms
            holder.rebalance_timeout_ms = request.rebalance_timeout_ms
            holder.touch()
            response = self._join_response(holder)
            if api_version >= _FIRST_JOIN_VERSION_WITH_SKIP_ASSIGNMENT:
                # The restarted leader knows who it leads, and that nothing is to be assigned
                # (KIP-814).
                response.skip_assignment = self.roster.leader == new_id
            else:
                # A response that names it leader would make it assign again, and no member would
                # ask.
                response.leader, response.members = old_leader or "", []
            _resolve(waiting, response)

        def give_up() -> None:
            failed = ErrorCode.COORDINATOR_NOT_AVAILABLE
            _resolve(waiting, JoinGroupResponse(error_code=failed))

        record = self._record({member.member_id: member.assignment for member in self.roster})
        assert isinstance(record.value, GroupMetadataValue)
        stored = next(member for member in record.value.members if member.member_id == old_id)
        stored.member_id = new_id
        stored.session_timeout = request.session_timeout_ms
        stored.rebalance_timeout = request.rebalance_timeout_ms
        stored.subscription = dict(protocols)[self.protocol_name or ""]
        if record.value.leader == old_id:
            record.value.leader = new_id
        self._journal.write(self.group_id, [record], take_over, give_up)
        return waiting

    def _rename(self, member: Member, new_id: str) -> None:
        if member.member_id in self._pending_sync:
            self._pending_sync.remove(member.member_id)
            self._pending_sync.add(new_id)
        self.roster.rename(member, new_id)

    def _would_change_protocol(self, member: Member, protocols: Protocols) -> bool:
        before = member.protocols
        self.roster.change_protocols(member, protocols)
        selected = self.roster.select_protocol()
        self.roster.change_protocols(member, before)
        return selected != self.protocol_name

    # SyncGroup, Heartbeat, LeaveGroup

    def sync(self, request: SyncGroupRequest) -> SyncAnswer:
        """The member's assignment, or the future of it while the leader's is awaited."""
        member = self._verify(request.member_id, request.group_instance_id, request.generation_id)
        for asked, ours in (
            (request.protocol_type, self.protocol_type),
            (request.protocol_name, self.protocol_name),
        ):
            if asked is not None and ours is not None and asked != ours:
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is State.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        member.touch()
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync:
            self._sync_deadline.cancel()
        if self.state is State.STABLE:
            return self._sync_response(member)
        member.answer_sync(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync = asyncio.get_running_loop().create_future()
        if member.member_id == self.roster.leader:
            self._store(
                {
                    assignment.member_id: bytes(assignment.assignment)
                    for assignment in request.assignments
                }
            )
        return member.sync

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> None:
        member = self._verify(member_id, instance_id, generation)
        member.touch()
        if self.state is State.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(
        self, leaving: Sequence[tuple[str, str | None]]
    ) -> tuple[list[ErrorCode], Awaitable[None] | None]:
        """Takes the (member id, instance id) out, with one rebalance for all of them.

        Returns an error code for each and, if no member is left, what to wait for until that is in
        the log.
        """
        self._refuse_if_dead()
        self._emptied = None
        errors = []
        any_left = False
        for member_id, instance_id in leaving:
            if self.roster.forget_pending(member_id):
                errors.append(ErrorCode.NONE)
                continue
            try:
                self._drop(self._leaver(member_id, instance_id))
            except ApiError as error:
                errors.append(error.code)
            else:
                errors.append(ErrorCode.NONE)
                any_left = True
        if any_left and self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self._prepare_rebalance("members left")
        else:
            self._complete_join_if_all_joined()
        return errors, self._emptied

    def _leaver(self, member_id: str, instance_id: str | None) -> Member:
        if member_id or instance_id is None:
            return self.roster.verify(member_id, instance_id)
        # An administrator removes a static member by its instance id alone (KIP-345).
        member = self.roster.static_member(instance_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    # Offsets

    def verify_commit(
        self, member_id: str, instance_id: str | None, generation_or_epoch: int, api_version: int
    ) -> None:
        """A commit renews the member's session.

        Without member and generation (a simple consumer, an administrator) only an empty group
        can be committed to: otherwise two clients would move one position.
        """
        generation = generation_or_epoch
        self._refuse_if_dead()
        if generation < 0 and self.state is State.EMPTY:
            return
        if generation < 0 and not member_id and instance_id is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self._verify(member_id, instance_id, generation)
        if self.state is State.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        member.touch()

    def verify_transactional_commit(
        self, member_id: str, instance_id: str | None, generation_or_epoch: int
    ) -> None:
        """As `verify_commit`; but a producer from before KIP-447 names no member, and one that is
        about to get its assignment may still end the transaction that it has begun.
        """
        self._refuse_if_dead()
        generation = generation_or_epoch
        if generation >= 0 or member_id or instance_id is not None:
            self._verify(member_id, instance_id, generation).touch()

    def verify_fetch(self, member_id: str | None, epoch: int) -> None:
        """All clients may fetch: OffsetFetch has no generation of classic groups."""

    def verify_offset_delete(self) -> None:
        """Topics can be distinguished only in a "consumer" group; any other must be empty."""
        self._refuse_if_dead()
        if self.state is not State.EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str, matches: MatchesPattern) -> bool:
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE  # unknown: rather yes
        return topic in self.subscribed_topics

    def offsets_age_from(self) -> Callable[[CommittedOffset], int] | None:
        if self.protocol_type is not None and self.state is State.EMPTY:
            since_ms = self.since_ms
            if since_ms is not None:
                return lambda _: since_ms
        elif self.protocol_type is not None and not (
            self.state is State.STABLE and self.subscribed_topics is not None
        ):
            return None
        return lambda committed: committed.committed_at_ms

    # Life and death

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def listed_protocol_type(self) -> str:
        return self.protocol_type or ""

    @property
    def member_count(self) -> int:
        return len(self.roster)

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def is_dead(self) -> bool:
        return self.state is State.DEAD

    def begin_deletion(self) -> None:
        assert self.state is State.EMPTY
        self.state = State.DEAD

    def survive(self) -> None:
        self.state = State.EMPTY

    def close(self) -> None:
        """Cancels all timers and answers pending requests: the broker stops."""
        self.state = State.DEAD
        self._join_deadline.cancel()
        self._sync_deadline.cancel()
        for member_id in list(self.roster.pending):
            self.roster.forget_pending(member_id)
        closing = ErrorCode.COORDINATOR_NOT_AVAILABLE
        for member in self.roster:
            member.session.cancel()
            self.roster.answer_join(member, JoinGroupResponse(error_code=closing))
            member.answer_sync(SyncGroupResponse(error_code=closing))

    def restore(self, value: GroupMetadataValue) -> None:
        """The group as the log has it; its members get a new session to come back in."""
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        for stored in value.members:
            rebalance_timeout_ms = stored.rebalance_timeout
            member = self._new_member(
                member_id=stored.member_id,
                instance_id=stored.group_instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                session_timeout_ms=stored.session_timeout,
                rebalance_timeout_ms=(
                    stored.session_timeout if rebalance_timeout_ms < 0 else rebalance_timeout_ms
                ),
                protocols=[(value.protocol or "", bytes(stored.subscription))],
            )
            member.assignment = bytes(stored.assignment)
            self.roster.add(member)
            member.touch()
        self.roster.leader = value.leader
        self.state = State.STABLE if len(self.roster) else State.EMPTY
        since_ms = value.current_state_timestamp
        self.since_ms = None if since_ms < 0 else since_ms
        self._update_subscribed_topics()

    def tombstones(self) -> list[Record]:
        return [Record(GroupMetadataKey(group=self.group_id), None)]

    def _verify(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        self._refuse_if_dead()
        member = self.roster.verify(member_id, instance_id)
        if generation != self.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _refuse_if_dead(self) -> None:
        if self.state is State.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _resolve(waiting: asyncio.Future[JoinGroupResponse], response: JoinGroupResponse) -> None:
    if not waiting.done():
        waiting.set_result(response)
