"""A member of a KIP-848 or share group: its subscription and its current assignment."""

import enum
from dataclasses import dataclass, replace
from typing import Final

from headwater.broker.groups.consumer_protocol.assignment import NOTHING, Assignment


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member reports about itself: ConsumerGroupMemberMetadata in the log."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None


NO_SUBSCRIPTION: Final = Subscription()


class MemberState(enum.IntEnum):
    """As stored in ConsumerGroupCurrentMemberAssignmentValue."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """What a member owns on the way to its target: ConsumerGroupCurrentMemberAssignment."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING

    def is_at(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def at_epoch(self, epoch: int) -> "CurrentAssignment":
        if epoch == self.epoch:
            return self
        return replace(self, epoch=epoch, previous_epoch=self.epoch)


UNASSIGNED: Final = CurrentAssignment()


@dataclass(frozen=True, slots=True)
class Member:
    """A member: what it subscribes to, and what it has of its target assignment."""

    member_id: str
    subscription: Subscription = NO_SUBSCRIPTION
    current: CurrentAssignment = UNASSIGNED
