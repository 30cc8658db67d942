"""The rebalance of a classic group: members agree on a leader, and the leader assigns.

          first join                     all have joined,             leader's SyncGroup
                                         or the time is up            is in the log
    Empty ─────────▶ PreparingRebalance ───────────────▶ CompletingRebalance ─────────▶ Stable
      ▲                │    ▲    ▲                             │                          │
      └────────────────┘    │    └─────────────────────────────┘                          │
        no member is left   └─────────────────────────────────────────────────────────────┘
                                 a member comes, goes, times out or changes its metadata

    Dead: being deleted. Every request is answered with a retriable error.

A rebalance, step by step:
1. A member joins; all others learn it from their heartbeat (REBALANCE_IN_PROGRESS) and join too.
   JoinGroup requests are parked in their members.
2. When all have joined, or the longest rebalance timeout is over, the next generation begins:
   members that did not come are removed, a protocol that all speak is chosen by vote, every parked
   JoinGroup is answered, the leader's with the metadata of all.
3. SyncGroup requests are parked until the leader's brings the assignments. They are written to
   the log, and when they are durable every member gets its own.

Who is in the group before step 3 lives in memory only, as in Kafka: after a crash in the middle
of a rebalance the last stable generation is there again, and its members join once more.
"""

import contextlib
import enum
import logging
from collections.abc import Awaitable, Mapping
from typing import Any

from headwater.broker.groups.classic.roster import Member, Protocols, Roster
from headwater.broker.groups.deadline import Deadline
from headwater.broker.groups.settings import GroupSettings
from headwater.broker.internal_topics.journal import Journal
from headwater.broker.internal_topics.records import Record
from headwater.clock import Clock
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.internal import (
    GroupMetadataKey,
    GroupMetadataValue,
    GroupMetadataValueMemberMetadata,
)
from headwater.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headwater.protocol.messages.sync_group import SyncGroupResponse

logger = logging.getLogger(__name__)

CONSUMER_PROTOCOL_TYPE = "consumer"


class State(enum.Enum):
    """As clients see it in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Rebalance:
    """The members, the state and the timers of one classic group, and how they move on.

    All of it runs on the event loop and none of it waits; what has to wait is a future in a
    member. `ClassicGroup` says which request moves what.
    """

    def __init__(
        self, group_id: str, *, clock: Clock, settings: GroupSettings, journal: Journal
    ) -> None:
        self.group_id = group_id
        # Changes take effect on the event loop at once; none has to wait for another.
        self.changing: contextlib.AbstractAsyncContextManager[Any, Any] = contextlib.nullcontext()
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.roster = Roster()
        # When it came into its state; None for a group of an old Kafka that did not store it.
        self.since_ms: int | None = clock.now_ms()
        # The topics of a "consumer" group's members; None while they are not decoded.
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

    # Steps 1 and 2: join

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
        """Step 2: the members that have joined are the next generation."""
        self._join_deadline.cancel()
        # A static member may be restarting; its session decides how long it is missed.
        for member in [m for m in self.roster if m.join is None and m.instance_id is None]:
            logger.info("group %s: %s did not rejoin in time", self.group_id, member.member_id)
            self.roster.remove(member)
        if len(self.roster) and not self.roster.elect_joined_leader():
            # No member can lead: wait until sessions end or a member joins.
            self._join_deadline.push(self.roster.rebalance_timeout_ms())
            return
        self.generation += 1
        if not len(self.roster):
            self._become_empty()
            return
        self.protocol_name = self.roster.select_protocol()
        self._update_subscribed_topics()
        self._enter(State.COMPLETING_REBALANCE)
        logger.info(
            "group %s: generation %d, members: %d",
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
        self._update_subscribed_topics()
        self._enter(State.EMPTY)
        logger.info("group %s: generation %d is empty", self.group_id, self.generation)
        # If this write fails and the broker stops before another one, the members of the last
        # generation are there again after the restart, and their sessions end.
        self._emptied = self._journal.write(self.group_id, [self._record({})], lambda: None)

    def _sync_time_is_up(self) -> None:
        """Removes members that got the generation and did not ask for their assignment."""
        late = [m for m in self.roster if m.member_id in self._pending_sync]
        for member in late:
            self._drop(member)
        if late:
            self._prepare_rebalance(f"{len(late)} members did not send SyncGroup in time")

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
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    metadata=member.metadata(self.protocol_name),
                )
                for member in (self.roster if leads else ())
            ],
        )

    # Step 3: sync

    def _store(self, assignments: Mapping[str, bytes]) -> None:
        """Step 3: members get the assignments when the log has them."""
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

    # Members that come and go

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

    def _session_expired(self, member: Member) -> None:
        if not member.is_new and (member.join is not None or member.sync is not None):
            return  # it waits for the coordinator; the answer begins a new session
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

    # Small parts

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

    def _enter(self, state: State) -> None:
        self._previous, self.state = self.state, state
        self.since_ms = self._clock.now_ms()

    def _update_subscribed_topics(self) -> None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            self.subscribed_topics = None
        elif not len(self.roster):
            self.subscribed_topics = frozenset()
        else:
            self.subscribed_topics = self.roster.subscribed_topics(self.protocol_name)
