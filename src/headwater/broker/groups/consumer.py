"""The state of a KIP-848 group, as its records make it (see `modern`)."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from headwater.broker.groups import consumer_records as stored
from headwater.broker.groups.assignors import DEFAULT_ASSIGNOR, TopicPartition
from headwater.broker.groups.consumer_records import Subscription
from headwater.broker.groups.modern import Member, ModernGroup, State
from headwater.broker.groups.offsets import CommittedOffset
from headwater.broker.groups.reconciliation import NO_PROGRESS, Progress
from headwater.broker.groups.records import Record
from headwater.broker.groups.subscriptions import Sees
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages import internal as m

_FIRST_COMMIT_VERSION_WITH_EPOCHS = 9


class ConsumerGroup(ModernGroup):
    """The members, their targets, and who owns which partition."""

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self._static: dict[str, str] = {}
        # Assigned, or being given up: no partition is ever in here twice.
        self._owners: dict[TopicPartition, str] = {}
        # By pattern, what the member may see that last reported of those who subscribe by it.
        # As in Kafka they share it. Not kept: until one reports after a restart, all topics.
        self.sees: dict[str, Sees] = {}

    def reported(self, pattern: str, sees: Sees) -> bool:
        """Notes what a subscriber by `pattern` may see; whether that was not known before."""
        is_new = pattern not in self.sees
        if is_new:
            used = {each.subscription.topic_regex for each in self.members.values()}
            self.sees = {each: known for each, known in self.sees.items() if each in used}
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
        if all(each.progress.is_at(self.target_epoch) for each in self.members.values()):
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
            each.subscription.assignor
            for each in (self.members.values() if members is None else members)
            if each.subscription.assignor
        )
        # Ties go by name, so that the choice does not depend on the order of members.
        return min(votes, key=lambda name: (-votes[name], name), default=DEFAULT_ASSIGNOR)

    # Offsets

    def verify_commit(self, member_id: str, epoch: int, api_version: int) -> None:
        self.refuse_if_dead()
        if epoch < 0 and not self.members:
            return
        member = self._member(member_id)
        if api_version < _FIRST_COMMIT_VERSION_WITH_EPOCHS:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        if epoch != member.progress.epoch:
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

    def verify_transactional_commit(
        self, member_id: str, instance_id: str | None, epoch: int
    ) -> None:
        """A producer from before KIP-447 names no member; else it must be a current one."""
        if self.is_dead:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if epoch < 0 and not member_id and instance_id is None:
            return
        if epoch != self._member(member_id).progress.epoch:
            # Producers know this code, but none of KIP-848's.
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)

    def verify_fetch(self, member_id: str | None, epoch: int) -> None:
        """A fetch that names no member (an administrator) is always served."""
        if not member_id and epoch < 0:
            return
        if epoch != self._member(member_id or "").progress.epoch:
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

    def is_subscribed_to(self, topic: str, matches: Callable[[str, str], bool]) -> bool:
        """`matches(pattern, topic)` decides for members that subscribe by pattern."""
        return any(
            topic in each.subscription.topic_names
            or (each.subscription.topic_regex and matches(each.subscription.topic_regex, topic))
            for each in self.members.values()
        )

    @staticmethod
    def offsets_age_from() -> Callable[[CommittedOffset], int]:
        return lambda committed: committed.committed_at_ms

    def _member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    # Records

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
                    self.targets[key.member_id] = stored.read_assignment(value.topic_partitions)
                else:
                    self.targets.pop(key.member_id, None)
            case m.ConsumerGroupMemberMetadataKey():
                if isinstance(value, m.ConsumerGroupMemberMetadataValue):
                    self._subscribe(key.member_id, stored.read_subscription(value))
                else:
                    self._remove(key.member_id)
            case m.ConsumerGroupCurrentMemberAssignmentKey():
                if isinstance(value, m.ConsumerGroupCurrentMemberAssignmentValue):
                    self._progress(key.member_id, stored.read_progress(value))
                elif key.member_id in self.members:
                    self._progress(key.member_id, NO_PROGRESS)

    def _subscribe(self, member_id: str, subscription: Subscription) -> None:
        member = self.members.get(member_id, Member(member_id))
        self.members[member_id] = replace(member, subscription=subscription)
        if subscription.instance_id is not None:
            self._static[subscription.instance_id] = member_id

    def _progress(self, member_id: str, progress: Progress) -> None:
        member = self.members.get(member_id, Member(member_id))
        for partition in member.progress.assigned | member.progress.revoking:
            if self._owners.get(partition) == member_id:
                del self._owners[partition]
        for partition in progress.assigned | progress.revoking:
            self._owners[partition] = member_id
        self.members[member_id] = replace(member, progress=progress)

    def _remove(self, member_id: str) -> None:
        if member_id not in self.members:
            return
        self._progress(member_id, NO_PROGRESS)
        instance_id = self.members.pop(member_id).subscription.instance_id
        if instance_id is not None and self._static.get(instance_id) == member_id:
            del self._static[instance_id]
