"""A classic group: its members agree on a leader, and the leader assigns the partitions.

          first join                     all have joined,             leader's SyncGroup
                                         or the time is up            is in the log
    Empty ─────────▶ PreparingRebalance ───────────────▶ CompletingRebalance ─────────▶ Stable
      ▲                │    ▲    ▲                             │                          │
      └────────────────┘    │    └─────────────────────────────┘                          │
        nobody is left      └─────────────────────────────────────────────────────────────┘
                                 a member comes, goes, times out or changes its metadata

    Dead: being deleted. Whoever asks is told to ask again.

A rebalance, step by step:
1. A member joins; all others learn it from their heartbeat (REBALANCE_IN_PROGRESS) and join too.
   JoinGroup requests are parked in their members.
2. When all have joined, or the longest rebalance timeout is over, the next generation begins:
   members that did not come are gone, a protocol that all speak is chosen by vote, every parked
   JoinGroup is answered, the leader's with the metadata of all.
3. SyncGroup requests are parked until the leader's brings the assignments. They are written to
   the log, and when they are durable every member gets its own.

Who is in the group before step 3 lives in memory only, as in Kafka: after a crash in the middle
of a rebalance the last stable generation is there again, and its members join once more.
"""

import asyncio
import enum
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from headwater.broker.groups.deadline import Deadline
from headwater.broker.groups.journal import Journal
from headwater.broker.groups.offsets import CommittedOffset
from headwater.broker.groups.records import Record
from headwater.broker.groups.roster import Member, Protocols, Roster
from headwater.broker.groups.settings import GroupSettings
from headwater.clock import Clock
from headwater.errors import ApiError
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.internal import (
    GroupMetadataKey,
    GroupMetadataValue,
    GroupMetadataValueMemberMetadata,
)
from headwater.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from headwater.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

logger = logging.getLogger(__name__)

CONSUMER_PROTOCOL_TYPE = "consumer"
_FIRST_JOIN_VERSION_WITH_KNOWN_ID = 4
_FIRST_JOIN_VERSION_WITH_SKIP_ASSIGNMENT = 9

JoinAnswer = JoinGroupResponse | asyncio.Future[JoinGroupResponse]
SyncAnswer = SyncGroupResponse | asyncio.Future[SyncGroupResponse]


class State(enum.Enum):
    """As clients see it in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroup:
    """The state machine of one group. All methods run on the event loop; none of them waits.

    A group without a protocol type is a simple one: nobody ever joined, it only has offsets.
    """

    def __init__(
        self, group_id: str, *, clock: Clock, settings: GroupSettings, journal: Journal
    ) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.roster = Roster()
        # When it came into its state; None for a group of an old Kafka that did not store it.
        self.since_ms: int | None = clock.now_ms()
        # The topics of a "consumer" group's members; None while they are not known.
        self.subscribed_topics: frozenset[str] | None = None
        self._clock = clock
        self._settings = settings
        self._journal = journal
        self._previous = State.EMPTY
        self._pending_sync: set[str] = set()
        self._join_deadline = Deadline(clock, self._join_time_is_up)
        self._sync_deadline = Deadline(clock, self._sync_time_is_up)
        # While the first rebalance waits for more members: what is left of the longest wait.
        self._initial_delay_left_ms = 0
        self._came_during_delay = False
        self._emptied: Awaitable[None] | None = None

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
        protocols = [(each.name, bytes(each.metadata)) for each in request.protocols]
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

    def _new_member(
        self,
        *,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
    ) -> Member:
        member = Member(
            member_id=member_id,
            instance_id=instance_id,
            client_id=client_id,
            client_host=client_host,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocols=protocols,
            session=Deadline(self._clock, lambda: self._session_expired(member)),
        )
        return member

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

        # Nothing changes for the others, so there is no rebalance. But the log must know the new
        # id before anyone is told of it, or after a crash the old one would count again.
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
                # Were it told that it leads, it would assign anew and nobody would listen.
                response.leader, response.members = old_leader or "", []
            _resolve(waiting, response)

        def give_up() -> None:
            failed = ErrorCode.COORDINATOR_NOT_AVAILABLE
            _resolve(waiting, JoinGroupResponse(error_code=failed))

        record = self._record({member.member_id: member.assignment for member in self.roster})
        assert isinstance(record.value, GroupMetadataValue)
        stored = next(each for each in record.value.members if each.member_id == old_id)
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

    def _join_response(self, member: Member) -> JoinGroupResponse:
        leads = member.member_id == self.roster.leader
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.roster.leader or "",
            member_id=member.member_id,
            members=[
                JoinGroupResponseMember(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    metadata=each.metadata(self.protocol_name),
                )
                for each in (self.roster if leads else ())
            ],
        )

    # The rebalance

    def _rebalance_or_complete(self, reason: str) -> None:
        if self.state is State.PREPARING_REBALANCE:
            self._complete_join_if_all_joined()
        else:
            self._prepare_rebalance(reason)

    def _prepare_rebalance(self, reason: str) -> None:
        if self.state is State.COMPLETING_REBALANCE:
            for member in self.roster:
                member.assignment = b""
            self._answer_syncs(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        self._pending_sync.clear()
        self._sync_deadline.cancel()
        is_first = self.state is State.EMPTY
        self._enter(State.PREPARING_REBALANCE)
        logger.info(
            "group %s: rebalance from generation %d: %s", self.group_id, self.generation, reason
        )
        delay_ms = self._settings.initial_rebalance_delay_ms
        if is_first and delay_ms:
            self._came_during_delay = False
            self._initial_delay_left_ms = self.roster.rebalance_timeout_ms() - delay_ms
            self._join_deadline.push(delay_ms)
        elif is_first or self.roster.all_joined():
            self._begin_generation()
        else:
            self._join_deadline.push(self.roster.rebalance_timeout_ms())

    def _complete_join_if_all_joined(self) -> None:
        if (
            self.state is State.PREPARING_REBALANCE
            and self._previous is not State.EMPTY  # else the delay for more members is running
            and self.roster.all_joined()
        ):
            self._begin_generation()

    def _join_time_is_up(self) -> None:
        delay_left_ms = self._initial_delay_left_ms
        if self._previous is State.EMPTY and self._came_during_delay and delay_left_ms > 0:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, delay_left_ms)
            self._came_during_delay = False
            self._initial_delay_left_ms -= delay_ms
            self._join_deadline.push(delay_ms)
        else:
            self._begin_generation()

    def _begin_generation(self) -> None:
        """Step 2: whoever has joined is the next generation."""
        self._join_deadline.cancel()
        # A static member may be restarting; its session decides how long it is missed.
        for member in [m for m in self.roster if m.join is None and m.instance_id is None]:
            logger.info("group %s: %s did not rejoin in time", self.group_id, member.member_id)
            self.roster.remove(member)
        if len(self.roster) and not self.roster.elect_joined_leader():
            # Nobody is there to lead: wait until sessions end or someone comes.
            self._join_deadline.push(self.roster.rebalance_timeout_ms())
            return
        self.generation += 1
        if not len(self.roster):
            self._become_empty()
            return
        self.protocol_name = self.roster.select_protocol()
        self._note_subscribed_topics()
        self._enter(State.COMPLETING_REBALANCE)
        logger.info(
            "group %s: generation %d has %d members",
            self.group_id,
            self.generation,
            len(self.roster),
        )
        for member in self.roster:
            member.is_new = False
            member.touch()
            self._pending_sync.add(member.member_id)
            self.roster.answer_join(member, self._join_response(member))
        self._sync_deadline.push(self.roster.rebalance_timeout_ms())

    def _become_empty(self) -> None:
        self.protocol_name = None
        self._note_subscribed_topics()
        self._enter(State.EMPTY)
        logger.info("group %s: generation %d is empty", self.group_id, self.generation)
        # If this write fails and the broker stops before another one, the members of the last
        # generation are there again after the restart, and their sessions end.
        self._emptied = self._journal.write(self.group_id, [self._record({})], lambda: None)

    def _sync_time_is_up(self) -> None:
        """Members that got the generation and did not ask for their assignment are gone."""
        for member in [m for m in self.roster if m.member_id in self._pending_sync]:
            self._drop(member)
        self._prepare_rebalance("members did not send SyncGroup in time")

    # SyncGroup

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
            self._store({each.member_id: bytes(each.assignment) for each in request.assignments})
        return member.sync

    def _store(self, assignments: Mapping[str, bytes]) -> None:
        """Step 3: the assignments are told when the log has them."""
        generation = self.generation

        def is_current() -> bool:
            # Someone may have joined while the log was writing.
            return self.state is State.COMPLETING_REBALANCE and self.generation == generation

        def stored() -> None:
            if not is_current():
                return
            for member in self.roster:
                member.assignment = assignments.get(member.member_id, b"")
            self._enter(State.STABLE)
            for member in self.roster:
                if member.sync is not None:
                    member.touch()
                    member.answer_sync(self._sync_response(member))

        def failed() -> None:
            if is_current():
                error = SyncGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
                self._answer_syncs(error)
                self._prepare_rebalance("the assignment could not be stored")

        self._journal.write(self.group_id, [self._record(assignments)], stored, failed)

    def _sync_response(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def _answer_syncs(self, response: SyncGroupResponse) -> None:
        for member in self.roster:
            if member.sync is not None:
                member.touch()
                member.answer_sync(response)

    # Heartbeat, LeaveGroup, sessions

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> None:
        member = self._verify(member_id, instance_id, generation)
        member.touch()
        if self.state is State.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(
        self, leaving: Sequence[tuple[str, str | None]]
    ) -> tuple[list[ErrorCode], Awaitable[None] | None]:
        """Takes the (member id, instance id) out, with one rebalance for all of them.

        Returns an error code for each and, if nobody is left, what to wait for until that is in
        the log.
        """
        self._refuse_if_dead()
        self._emptied = None
        errors = []
        somebody_left = False
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
                somebody_left = True
        if somebody_left and self.state in (State.STABLE, State.COMPLETING_REBALANCE):
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

    def _session_expired(self, member: Member) -> None:
        if not member.is_new and (member.join is not None or member.sync is not None):
            return  # it waits for us, not we for it; the answer begins a new session
        logger.info("group %s: session of %s is over", self.group_id, member.member_id)
        self._drop(member)
        if self.state is State.PREPARING_REBALANCE:
            self._complete_join_if_all_joined()
        else:
            self._prepare_rebalance(f"member {member.member_id} failed")

    def _pending_expired(self, member_id: str) -> None:
        self.roster.forget_pending(member_id)
        self._complete_join_if_all_joined()

    def _drop(self, member: Member) -> None:
        self._pending_sync.discard(member.member_id)
        self.roster.remove(member)

    # Offsets

    def verify_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """Whether these may commit offsets; a commit counts as a sign of life.

        Without member and generation (a simple consumer, an administrator) only an empty group
        can be committed to: else two would move one position.
        """
        self._refuse_if_dead()
        if generation < 0 and self.state is State.EMPTY:
            return
        if generation < 0 and not member_id and instance_id is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self._verify(member_id, instance_id, generation)
        if self.state is State.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        member.touch()

    def verify_offset_delete(self) -> None:
        """Topics can be told apart only in a "consumer" group; any other must be empty."""
        self._refuse_if_dead()
        if self.state is not State.EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE  # unknown: rather yes
        return topic in self.subscribed_topics

    def offsets_age_from(self) -> Callable[[CommittedOffset], int] | None:
        """From when on the retention of an offset counts; None: none of them expires now."""
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
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def is_dead(self) -> bool:
        return self.state is State.DEAD

    def begin_deletion(self) -> None:
        """Refuses everyone until the tombstones are in the log, or `survive` is called."""
        assert self.state is State.EMPTY
        self.state = State.DEAD

    def survive(self) -> None:
        """The deletion failed."""
        self.state = State.EMPTY

    def close(self) -> None:
        """Ends all timers and answers whoever waits: the broker stops."""
        self.state = State.DEAD
        self._join_deadline.cancel()
        self._sync_deadline.cancel()
        for member_id in list(self.roster.pending):
            self.roster.forget_pending(member_id)
        gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
        for member in self.roster:
            member.session.cancel()
            self.roster.answer_join(member, JoinGroupResponse(error_code=gone))
            member.answer_sync(SyncGroupResponse(error_code=gone))

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
        self._note_subscribed_topics()

    def tombstone(self) -> Record:
        return Record(GroupMetadataKey(group=self.group_id), None)

    def _record(self, assignments: Mapping[str, bytes]) -> Record:
        return Record(
            GroupMetadataKey(group=self.group_id),
            GroupMetadataValue(
                protocol_type=self.protocol_type or "",
                generation=self.generation,
                protocol=self.protocol_name,
                leader=self.roster.leader,
                current_state_timestamp=self._clock.now_ms(),
                members=[
                    GroupMetadataValueMemberMetadata(
                        member_id=member.member_id,
                        group_instance_id=member.instance_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        rebalance_timeout=member.rebalance_timeout_ms,
                        session_timeout=member.session_timeout_ms,
                        subscription=member.metadata(self.protocol_name),
                        assignment=assignments.get(member.member_id, b""),
                    )
                    for member in self.roster
                ],
            ),
        )

    # Small parts

    def _verify(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        self._refuse_if_dead()
        member = self.roster.verify(member_id, instance_id)
        if generation != self.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _refuse_if_dead(self) -> None:
        if self.state is State.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _enter(self, state: State) -> None:
        self._previous, self.state = self.state, state
        self.since_ms = self._clock.now_ms()

    def _note_subscribed_topics(self) -> None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            self.subscribed_topics = None
        elif not len(self.roster):
            self.subscribed_topics = frozenset()
        else:
            self.subscribed_topics = self.roster.subscribed_topics(self.protocol_name)


def _resolve(waiting: asyncio.Future[JoinGroupResponse], response: JoinGroupResponse) -> None:
    if not waiting.done():
        waiting.set_result(response)
