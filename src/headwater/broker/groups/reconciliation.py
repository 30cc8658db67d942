"""How a member of a KIP-848 group gets from what it owns to what it should own.

                     ┌──────── nothing to give up, all it should get is free ────────┐
                     │                                                               ▼
    new target ──▶ something to give up ──▶ UNREVOKED ──acknowledged──▶ ┬──────▶ STABLE
                     │                      (epoch stays)               │            ▲
                     └──────── something is still owned by others ──────┴▶ UNRELEASED┘
                                               (new epoch, gets it when it is free)

The rule that makes it safe: a partition is given to a member only when no member has it among its
assigned partitions or among those that it is still giving up. Who owns what is looked up, not
remembered here; this is a pure function.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from headwater.broker.groups.assignors import NOTHING, Assignment, TopicPartition


class MemberState(enum.IntEnum):
    """As stored in ConsumerGroupCurrentMemberAssignmentValue."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a member is on its way to the target: what ConsumerGroupCurrentMemberAssignment has."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING

    def is_at(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def at_epoch(self, epoch: int) -> "Progress":
        if epoch == self.epoch:
            return self
        return replace(self, epoch=epoch, previous_epoch=self.epoch)


NO_PROGRESS: Final = Progress()


def reconcile(
    progress: Progress,
    *,
    target: Assignment,
    target_epoch: int,
    reported: Assignment | None,
    is_taken: Callable[[TopicPartition], bool],
) -> Progress:
    """The member's next step towards the target; equal to `progress` when there is none now.

    `reported` is what the member says it owns, None when the heartbeat did not say.
    `is_taken` tells whether another member owns or is still giving up a partition.
    """
    if progress.is_at(target_epoch):
        return progress
    epoch = progress.epoch
    if progress.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_owns(progress.revoking, reported):
            return progress
        # Everything is given up: it has reached the epoch that asked for it.
        epoch += 1
    keeps = progress.assigned & target
    gives_up = progress.assigned - keeps
    if gives_up and _still_owns(gives_up, reported):
        return replace(
            progress.at_epoch(epoch),
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=keeps,
            revoking=gives_up,
        )
    wanted = target - keeps
    gets = frozenset(partition for partition in wanted if not is_taken(partition))
    return replace(
        progress.at_epoch(target_epoch),
        state=MemberState.STABLE if gets == wanted else MemberState.UNRELEASED_PARTITIONS,
        assigned=keeps | gets,
        revoking=NOTHING,
    )


def _still_owns(partitions: Assignment, reported: Assignment | None) -> bool:
    # A heartbeat without partitions says "as before": no acknowledgement.
    return reported is None or bool(partitions & reported)
