"""The state of a KIP-848 group, as its records make it (see `consumer_protocol`)."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from headwater.broker.groups.consumer import records as stored
from headwater.broker.groups.consumer_protocol.assignment import TopicPartition, read_assignment
from headwater.broker.groups.consumer_protocol.assignors import DEFAULT_ASSIGNOR
from headwater.broker.groups.consumer_protocol.group import ConsumerProtocolGroup, State
from headwater.broker.groups.consumer_protocol.member import (
    UNASSIGNED,
    CurrentAssignment,
    Member,
    Subscription,
)
from headwater.broker.groups.consumer_protocol.subscriptions import Sees
from headwater.broker.groups.group import MatchesPattern
from headwater.broker.groups.offsets.store import CommittedOffset
from headwater.broker.internal_topics.records import Record
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages import internal as m

_FIRST_COMMIT_VERSION_WITH_EPOCHS = 9


class ConsumerGroup(ConsumerProtocolGroup):
    """The members, their targets, and who owns which partition."""

    kind = "consumer"
    listed_protocol_type = "consumer"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self._static: dict[str, str] = {}
        # Assigned, or being given up: no partition is ever in here twice.
        self._owners: dict[TopicPartition, str] = {}
        # By pattern, what the member may see that last reported of those who subscribe by it.
        # As in Kafka they share it. Not stored: until one reports after a restart, all topics.
        self.sees: dict[str, Sees] = {}

    def reported(self, pattern: str, sees: Sees) -> bool:
        """Records what a subscriber by `pattern` may see; True if nothing was recorded before."""
        is_new = pattern not in self.sees
        if is_new:
            used = {member.subscription.topic_regex for member in self.members.values()}
            self.sees = {
                subscribed: visible
                for subscribed, visible in self.sees.items()
                if subscribed in used
            }
        self.sees[pattern] = sees
        return is_new

    @property
    def state(self) -> State:
        if self.is_dead:
            return State.DEAD
        if not self.members:
            return State.EMPTY
        if self.epoch > self.target_epoch:
            return State.ASSIGNING
        if all(member.current.is_at(self.target_epoch) for member in self.members.values()):
            return State.STABLE
        return State.RECONCILING

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = self._static.get(instance_id) if instance_id is not None else None
        return self.members.get(member_id) if member_id is not None else None

    def owner(self, partition: TopicPartition) -> str | None:
        return self._owners.get(partition)

    def preferred_assignor(self, members: Iterable[Member] | None = None) -> str:
        """The one that most members ask for."""
        votes = Counter(
            member.subscription.assignor
            for member in (self.members.values() if members is None else members)
            if member.subscription.assignor
        )
        # Ties go by name, so that the choice does not depend on the order of members.
        return min(votes, key=lambda name: (-votes[name], name), default=DEFAULT_ASSIGNOR)

    # Offsets

    def verify_commit(
        self, member_id: str, instance_id: str | None, generation_or_epoch: int, api_version: int
    ) -> None:
        self.refuse_if_dead()
        epoch = generation_or_epoch
        if epoch < 0 and not self.members:
            return
        member = self._member(member_id)
        if api_version < _FIRST_COMMIT_VERSION_WITH_EPOCHS:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        if epoch != member.current.epoch:
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

    def verify_transactional_commit(
        self, member_id: str, instance_id: str | None, generation_or_epoch: int
    ) -> None:
        """A producer from before KIP-447 names no member; any other names a current one."""
        self.refuse_if_dead()
        epoch = generation_or_epoch
        if epoch < 0 and not member_id and instance_id is None:
            return
        if epoch != self._member(member_id).current.epoch:
            # Producers know this code, but none of KIP-848's.
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)

    def verify_fetch(self, member_id: str | None, epoch: int) -> None:
        """A fetch that names no member (an administrator) is always served."""
        if not member_id and epoch < 0:
            return
        if epoch != self._member(member_id or "").current.epoch:
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

    def verify_offset_delete(self) -> None:
        """Always allowed: the topics that members subscribe to are checked one by one."""

    def is_subscribed_to(self, topic: str, matches: MatchesPattern) -> bool:
        return any(
            topic in member.subscription.topic_names
            or (member.subscription.topic_regex and matches(member.subscription.topic_regex, topic))
            for member in self.members.values()
        )

    def offsets_age_from(self) -> Callable[[CommittedOffset], int]:
        return lambda committed: committed.committed_at_ms

    def _member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    # Records

    def tombstones(self) -> list[Record]:
        return stored.group_tombstones(self.group_id)

    def replay(self, record: Record) -> None:
        key, value = record
        match key:
            case m.ConsumerGroupMetadataKey():
                assert value is None or isinstance(value, m.ConsumerGroupMetadataValue)
                self.epoch = value.epoch if value else 0
                self.topics_hash = value.metadata_hash if value else 0
            case m.ConsumerGroupTargetAssignmentMetadataKey():
                assert value is None or isinstance(
                    value, m.ConsumerGroupTargetAssignmentMetadataValue
                )
                self.target_epoch = value.assignment_epoch if value else 0
            case m.ConsumerGroupTargetAssignmentMemberKey():
                if isinstance(value, m.ConsumerGroupTargetAssignmentMemberValue):
                    self.targets[key.member_id] = read_assignment(value.topic_partitions)
                else:
                    self.targets.pop(key.member_id, None)
            case m.ConsumerGroupMemberMetadataKey():
                if isinstance(value, m.ConsumerGroupMemberMetadataValue):
                    self._subscribe(key.member_id, stored.read_subscription(value))
                else:
                    self._remove(key.member_id)
            case m.ConsumerGroupCurrentMemberAssignmentKey():
                if isinstance(value, m.ConsumerGroupCurrentMemberAssignmentValue):
                    self._set_current(key.member_id, stored.read_current_assignment(value))
                elif key.member_id in self.members:
                    self._set_current(key.member_id, UNASSIGNED)

    def _subscribe(self, member_id: str, subscription: Subscription) -> None:
        member = self.members.get(member_id, Member(member_id))
        self.members[member_id] = replace(member, subscription=subscription)
        if subscription.instance_id is not None:
            self._static[subscription.instance_id] = member_id

    def _set_current(self, member_id: str, current: CurrentAssignment) -> None:
        member = self.members.get(member_id, Member(member_id))
        for partition in member.current.assigned | member.current.revoking:
            if self._owners.get(partition) == member_id:
                del self._owners[partition]
        for partition in current.assigned | current.revoking:
            self._owners[partition] = member_id
        self.members[member_id] = replace(member, current=current)

    def _remove(self, member_id: str) -> None:
        if member_id not in self.members:
            return
        self._set_current(member_id, UNASSIGNED)
        instance_id = self.members.pop(member_id).subscription.instance_id
        if instance_id is not None and self._static.get(instance_id) == member_id:
            del self._static[instance_id]
