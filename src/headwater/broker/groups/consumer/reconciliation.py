"""The reconciliation of a KIP-848 member: from the partitions it owns to its target assignment.

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

from collections.abc import Callable
from dataclasses import replace

from headwater.broker.groups.consumer_protocol.assignment import NOTHING, Assignment, TopicPartition
from headwater.broker.groups.consumer_protocol.member import CurrentAssignment, MemberState


def reconcile(
    current: CurrentAssignment,
    *,
    target: Assignment,
    target_epoch: int,
    reported: Assignment | None,
    is_taken: Callable[[TopicPartition], bool],
) -> CurrentAssignment:
    """The member's next step towards the target; equal to `current` when there is none now.

    `reported` is what the member reports to own, None when the heartbeat has no such field.
    `is_taken`: whether another member owns or is still giving up a partition.
    """
    if current.is_at(target_epoch):
        return current
    epoch = current.epoch
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_owns(current.revoking, reported):
            return current
        # Everything is given up: it has reached the epoch that asked for it.
        epoch += 1
    retained = current.assigned & target
    revoked = current.assigned - retained
    if revoked and _still_owns(revoked, reported):
        return replace(
            current.at_epoch(epoch),
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=retained,
            revoking=revoked,
        )
    wanted = target - retained
    granted = frozenset(partition for partition in wanted if not is_taken(partition))
    return replace(
        current.at_epoch(target_epoch),
        state=MemberState.STABLE if granted == wanted else MemberState.UNRELEASED_PARTITIONS,
        assigned=retained | granted,
        revoking=NOTHING,
    )


def _still_owns(partitions: Assignment, reported: Assignment | None) -> bool:
    # A heartbeat without partitions means "as before": no acknowledgement.
    return reported is None or bool(partitions & reported)
