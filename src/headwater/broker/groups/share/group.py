"""The state of a share group (KIP-932), as its records make it (see `consumer_protocol`).

A member has what the target assigns to it at once: no other has to give up a partition first,
because several may read one. Before a partition is assigned it has queue state: where the group
begins to read it is durable, and `state_topics` says so.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NoReturn
from uuid import UUID

from headwater.broker.groups.consumer_protocol.assignment import read_assignment
from headwater.broker.groups.consumer_protocol.group import ConsumerProtocolGroup, State
from headwater.broker.groups.consumer_protocol.member import UNASSIGNED, CurrentAssignment, Member
from headwater.broker.groups.consumer_protocol.subscriptions import Topic
from headwater.broker.groups.group import MatchesPattern
from headwater.broker.groups.share import records as stored
from headwater.broker.groups.share.records import StateTopic
from headwater.broker.internal_topics.records import Record
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages import internal as m

# Where a share partition begins to be read.
BY_SETTING: Final = -1  # as `share.auto.offset.reset` says, at the first fetch
FROM_THE_BEGINNING: Final = 0


class ShareGroup(ConsumerProtocolGroup):
    """The members, what they read, and which partitions have queue state."""

    kind = "share"
    listed_protocol_type = "share"
    is_convertible = False
    has_queues = True

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.state_topics: Mapping[UUID, StateTopic] = {}
        # When the last member left, if there is none; 0 if the log does not have it.
        self.assigned_at_ms = 0

    @property
    def state(self) -> State:
        if self.is_dead:
            return State.DEAD
        return State.STABLE if self.members else State.EMPTY

    # Offsets: a share group has no committed ones

    def verify_commit(
        self, member_id: str, instance_id: str | None, generation_or_epoch: int, api_version: int
    ) -> None:
        self._refuse_offsets()

    def verify_transactional_commit(
        self, member_id: str, instance_id: str | None, generation_or_epoch: int
    ) -> None:
        self._refuse_offsets()

    def verify_fetch(self, member_id: str | None, epoch: int) -> None:
        self._refuse_offsets()

    def verify_offset_delete(self) -> None:
        self._refuse_offsets()

    def is_subscribed_to(self, topic: str, matches: MatchesPattern) -> bool:
        return any(topic in member.subscription.topic_names for member in self.members.values())

    def offsets_age_from(self) -> None:
        return None

    def _refuse_offsets(self) -> NoReturn:
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"group {self.group_id} is not a consumer group"
        )

    # Queue state

    def without_state(self, topics: Iterable[Topic]) -> dict[tuple[UUID, int], int]:
        """The partitions that have no queue state yet, and where each is to begin.

        A partition that is added to a topic which the group reads already begins at 0: whatever
        is in it came after the group did.
        """
        missing: dict[tuple[UUID, int], int] = {}
        for topic in topics:
            existing = self.state_topics.get(topic.topic_id)
            for partition in range(topic.partition_count):
                if existing is None or partition not in existing.partitions:
                    missing[topic.topic_id, partition] = (
                        BY_SETTING if existing is None else FROM_THE_BEGINNING
                    )
        return missing

    def with_state(
        self, partitions: Iterable[tuple[UUID, int]], names: Mapping[UUID, str]
    ) -> dict[UUID, StateTopic]:
        """`state_topics` once these partitions have state, too."""
        added: dict[UUID, list[int]] = defaultdict(list)
        for topic_id, partition in partitions:
            added[topic_id].append(partition)
        topics = dict(self.state_topics)
        for topic_id, some in added.items():
            existing = topics.get(topic_id, StateTopic(names[topic_id], frozenset()))
            topics[topic_id] = StateTopic(existing.name, existing.partitions.union(some))
        return topics

    # Records

    def tombstones(self) -> list[Record]:
        return stored.group_tombstones(self.group_id)

    def replay(self, record: Record) -> None:
        key, value = record
        match key:
            case m.ShareGroupMetadataKey():
                assert value is None or isinstance(value, m.ShareGroupMetadataValue)
                self.epoch = value.epoch if value else 0
                self.topics_hash = value.metadata_hash if value else 0
            case m.ShareGroupTargetAssignmentMetadataKey():
                assert value is None or isinstance(value, m.ShareGroupTargetAssignmentMetadataValue)
                self.target_epoch = value.assignment_epoch if value else 0
                self.assigned_at_ms = value.assignment_timestamp if value else 0
            case m.ShareGroupTargetAssignmentMemberKey():
                if isinstance(value, m.ShareGroupTargetAssignmentMemberValue):
                    self.targets[key.member_id] = read_assignment(value.topic_partitions)
                else:
                    self.targets.pop(key.member_id, None)
            case m.ShareGroupMemberMetadataKey():
                if isinstance(value, m.ShareGroupMemberMetadataValue):
                    member = self.members.get(key.member_id, Member(key.member_id))
                    subscription = stored.read_subscription(value)
                    self.members[key.member_id] = replace(member, subscription=subscription)
                else:
                    self.members.pop(key.member_id, None)
            case m.ShareGroupCurrentMemberAssignmentKey():
                member = self.members.get(key.member_id, Member(key.member_id))
                if isinstance(value, m.ShareGroupCurrentMemberAssignmentValue):
                    current = CurrentAssignment(
                        epoch=value.member_epoch,
                        previous_epoch=value.previous_member_epoch,
                        assigned=read_assignment(value.assigned_partitions),
                    )
                    self.members[key.member_id] = replace(member, current=current)
                elif key.member_id in self.members:
                    self.members[key.member_id] = replace(member, current=UNASSIGNED)
            case m.ShareGroupStatePartitionMetadataKey():
                self.state_topics = (
                    stored.read_state_topics(value)
                    if isinstance(value, m.ShareGroupStatePartitionMetadataValue)
                    else {}
                )
