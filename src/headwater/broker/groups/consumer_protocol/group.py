"""The state that KIP-848 and share groups have in common: members, epochs, a target assignment.

A group changes only by `replay`: an operation computes records, the journal stores them, and then
they are replayed, exactly as they are when the broker starts. So what is in memory is what a
restart would bring back.

    group epoch       goes up when members, subscriptions or the subscribed topics change
    target epoch      the group epoch for which the target assignment was computed
    member epoch      the target epoch that a member has reached
"""

import asyncio
import enum
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headwater.broker.groups.consumer_protocol.member import (
    CurrentAssignment,
    Member,
)
from headwater.broker.groups.group import Group
from headwater.broker.internal_topics.records import Record
from headwater.protocol.error_codes import ApiError, ErrorCode

if TYPE_CHECKING:
    from headwater.broker.groups.consumer_protocol.assignment import Assignment

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1


class State(enum.Enum):
    """As clients see it in ListGroups, ConsumerGroupDescribe and ShareGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class Change:
    """What is to be stored, and what the member is answered once it is."""

    member_id: str
    current: CurrentAssignment
    includes_assignment: bool = False
    # The member that is no longer in the group once this is stored.
    removed_id: str | None = None
    records: list[Record] = field(default_factory=list)
    # Whether it takes the topics into account as they are now.
    has_seen_topics: bool = True


class ConsumerProtocolGroup(Group):
    """The members and their targets."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        # Of the subscribed topics as they were at the group epoch; 0: there were none.
        self.topics_hash = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Assignment] = {}
        # One change at a time: computed, stored, replayed.
        self.changing = asyncio.Lock()
        # The version of the topics that `topics_hash` was last compared with.
        self.seen_topics_version = -1
        self._is_dead = False

    @property
    @abstractmethod
    def state(self) -> State: ...

    @abstractmethod
    def replay(self, record: Record) -> None: ...

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_dead(self) -> bool:
        return self._is_dead

    def begin_deletion(self) -> None:
        self._is_dead = True

    def survive(self) -> None:
        self._is_dead = False

    def close(self) -> None:
        """Its timers are those of the protocol (see `changes`)."""

    def refuse_if_dead(self) -> None:
        if self._is_dead:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
