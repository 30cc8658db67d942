"""The members of a classic group: who they are, what they speak, who leads."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from headwater.broker.groups.deadline import Deadline
from headwater.errors import MalformedMessage
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.internal import ConsumerProtocolSubscription
from headwater.protocol.messages.join_group import JoinGroupResponse
from headwater.protocol.messages.sync_group import SyncGroupResponse

# (name, metadata), the one that the member likes best first.
Protocols = Sequence[tuple[str, bytes]]


@dataclass(slots=True, eq=False)
class Member:
    """One client in a classic group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    session: Deadline
    assignment: bytes = b""
    # It has not been given a generation yet, so it cannot heartbeat either.
    is_new: bool = False
    # Requests that are parked until the rebalance moves on.
    join: asyncio.Future[JoinGroupResponse] | None = field(default=None, repr=False)
    sync: asyncio.Future[SyncGroupResponse] | None = field(default=None, repr=False)

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    def touch(self) -> None:
        """The member has shown that it is alive."""
        self.session.push(self.session_timeout_ms)

    def answer_sync(self, response: SyncGroupResponse) -> None:
        if self.sync is not None:
            if not self.sync.done():
                self.sync.set_result(response)
            self.sync = None


class Roster:
    """The members by id and by instance id, and in counts what they have in common.

    Whatever runs once per request is O(1) in the number of members; what visits all of them runs
    once per rebalance.
    """

    def __init__(self) -> None:
        self.leader: str | None = None
        # Told their id with MEMBER_ID_REQUIRED and not back with it yet (KIP-394).
        self.pending: dict[str, Deadline] = {}
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self._speakers: Counter[str] = Counter()
        self._joined = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = self._static.get(instance_id) if instance_id is not None else None
        return self._members[member_id] if member_id is not None else None

    def verify(self, member_id: str, instance_id: str | None) -> Member:
        """The member that a request speaks for, or the reason why it may not.

        An instance id that has another member id by now fences the request: its sender was
        replaced and must stop (KIP-345).
        """
        if instance_id is not None:
            holder = self.static_member(instance_id)
            if holder is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if holder.member_id != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = self._members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    # Coming and going

    def add(self, member: Member) -> None:
        self._members[member.member_id] = member
        self._speakers.update(name for name, _ in member.protocols)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        if member.join is not None:
            self._joined += 1
        if self.leader is None:
            self.leader = member.member_id
        self.forget_pending(member.member_id)

    def remove(self, member: Member) -> None:
        """Takes the member out; whatever it waits for is answered with UNKNOWN_MEMBER_ID."""
        member.session.cancel()
        refusal = ErrorCode.UNKNOWN_MEMBER_ID
        self.answer_join(member, JoinGroupResponse(error_code=refusal))
        member.answer_sync(SyncGroupResponse(error_code=refusal))
        del self._members[member.member_id]
        self._speakers.subtract(name for name, _ in member.protocols)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Gives a static member the id of its new incarnation.

        A request that the old incarnation still waits on is answered with FENCED_INSTANCE_ID.
        """
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.answer_join(member, JoinGroupResponse(error_code=fenced, member_id=member.member_id))
        member.answer_sync(SyncGroupResponse(error_code=fenced))
        if self.leader == member.member_id:
            self.leader = member_id
        del self._members[member.member_id]
        member.member_id = member_id
        self._members[member_id] = member
        assert member.instance_id is not None
        self._static[member.instance_id] = member_id

    def forget_pending(self, member_id: str) -> bool:
        deadline = self.pending.pop(member_id, None)
        if deadline is not None:
            deadline.cancel()
        return deadline is not None

    # The join phase

    def park_join(self, member: Member, join: asyncio.Future[JoinGroupResponse]) -> None:
        if member.join is None:
            self._joined += 1
        elif not member.join.done():
            # The client sent it again; only the last one counts.
            member.join.set_result(JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.join = join

    def answer_join(self, member: Member, response: JoinGroupResponse) -> None:
        if member.join is not None:
            if not member.join.done():
                member.join.set_result(response)
            member.join = None
            self._joined -= 1

    @property
    def joined(self) -> int:
        return self._joined

    def all_joined(self) -> bool:
        return self._joined == len(self._members) and not self.pending

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader is a member who has joined; False if none has."""
        leader = self._members.get(self.leader or "")
        if leader is None or leader.join is None:
            joined = next((member for member in self if member.join is not None), None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self), default=0)

    # What they speak

    def change_protocols(self, member: Member, protocols: Protocols) -> None:
        self._speakers.subtract(name for name, _ in member.protocols)
        self._speakers.update(name for name, _ in protocols)
        member.protocols = protocols

    def supports_one_of(self, names: Collection[str]) -> bool:
        return any(self._speakers[name] == len(self._members) for name in names)

    def select_protocol(self) -> str:
        """The protocol that most members like best, among those that all of them speak."""
        candidates = {name for name, count in self._speakers.items() if count == len(self._members)}
        votes: Counter[str] = Counter()
        for member in self:
            votes[next(name for name, _ in member.protocols if name in candidates)] += 1
        return votes.most_common(1)[0][0]

    def subscribed_topics(self, protocol: str | None) -> frozenset[str] | None:
        """The topics in the metadata of "consumer" members; None if it cannot be read.

        Read as version 0, which every later version begins with.
        """
        topics: set[str] = set()
        try:
            for member in self:
                data = member.metadata(protocol)
                topics.update(ConsumerProtocolSubscription.decode(memoryview(data)[2:], 0).topics)
        except MalformedMessage:
            return None
        return frozenset(topics)
