"""Assignors: who should read which partition (KIP-848: uniform, range; KIP-932: simple).

An assignor is a function of the members and the partition counts alone, and it is deterministic.
Every partition of a topic with subscribers goes to exactly one of its subscribers; in a
share group, to at least one.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from headwater.broker.groups.consumer_protocol.assignment import Assignment, TopicPartition


class Subscriber(NamedTuple):
    """A member as an assignor sees it: `target` is what it should have had so far."""

    instance_id: str | None
    topic_ids: frozenset[UUID]
    target: Assignment


Assignor = Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], dict[str, Assignment]]


def _in_order(members: Mapping[str, Subscriber]) -> list[str]:
    """Static members first, by instance id: a restart must not move anything."""

    def order(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return (instance_id is None, instance_id or member_id)

    return sorted(members, key=order)


def range_(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Assignment]:
    """Cuts every topic into contiguous ranges, in the same order of members for all topics.

    So topics with the same number of partitions and the same subscribers can be joined.
    """
    ordered = _in_order(members)
    assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
    for topic_id, partition_count in partition_counts.items():
        readers = [member_id for member_id in ordered if topic_id in members[member_id].topic_ids]
        start = 0
        for index, member_id in enumerate(readers):
            share, rest = divmod(partition_count, len(readers))
            end = start + share + (index < rest)
            assigned[member_id] += [TopicPartition(topic_id, p) for p in range(start, end)]
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def uniform(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Assignment]:
    """As many partitions for each as for the others, and as few of them moved as that allows."""
    retained: dict[str, list[TopicPartition]] = {}
    taken: set[TopicPartition] = set()
    for member_id, member in members.items():
        mine = [
            partition
            for partition in sorted(member.target - taken)
            if partition.topic_id in member.topic_ids
            and partition.partition < partition_counts.get(partition.topic_id, 0)
        ]
        taken.update(mine)
        retained[member_id] = mine
    free = [
        candidate
        for topic_id, partition_count in partition_counts.items()
        for p in range(partition_count)
        if (candidate := TopicPartition(topic_id, p)) not in taken
    ]
    if len({member.topic_ids for member in members.values()}) <= 1:
        _level_alike(retained, free)
    else:
        _level_different(members, retained, free)
    return {member_id: frozenset(partitions) for member_id, partitions in retained.items()}


def simple(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Assignment]:
    """For share groups, where a partition may have several readers.

    Everyone has something to read of what it subscribes to. With enough partitions each has one
    reader; with fewer than members, each member reads one, and they spread evenly. As little moves
    as that allows. Where subscriptions differ, this holds topic by topic.
    """
    assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
    if len({member.topic_ids for member in members.values()}) <= 1:
        _share(members, assigned, partition_counts)
    else:
        for topic_id, partition_count in partition_counts.items():
            readers = {k: member for k, member in members.items() if topic_id in member.topic_ids}
            _share(readers, assigned, {topic_id: partition_count})
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _share(
    readers: Mapping[str, Subscriber],
    assigned: dict[str, list[TopicPartition]],
    partition_counts: Mapping[UUID, int],
) -> None:
    """Gives the partitions to the readers, all of whom subscribe to all of these topics."""
    partitions = [
        TopicPartition(topic_id, p)
        for topic_id, count in partition_counts.items()
        for p in range(count)
    ]
    if len(partitions) >= len(readers):
        retained: dict[str, list[TopicPartition]] = {}
        free = set(partitions)
        for member_id in sorted(readers):
            retained[member_id] = sorted(readers[member_id].target & free)
            free.difference_update(retained[member_id])
        _level_alike(retained, sorted(free))
        for member_id, mine in retained.items():
            assigned[member_id] += mine
    elif partitions:
        # The other way round: to each partition some readers.
        shared: dict[TopicPartition, list[str]] = {partition: [] for partition in partitions}
        idle: list[str] = []
        for member_id in sorted(readers):
            had = min(
                (partition for partition in readers[member_id].target if partition in shared),
                default=None,
            )
            (idle if had is None else shared[had]).append(member_id)
        _level_alike(shared, idle)
        for partition, member_ids in shared.items():
            for member_id in member_ids:
                assigned[member_id].append(partition)


K = TypeVar("K", str, TopicPartition)
V = TypeVar("V", str, TopicPartition)


def _level_alike(retained: dict[K, list[V]], free: list[V]) -> None:
    """All subscribe to the same topics: every member has a quota. O(partitions + members·log)."""
    if not retained:
        return
    total = len(free) + sum(map(len, retained.values()))
    quota, extra = divmod(total, len(retained))
    # Those who have most get what cannot be divided, so that fewest partitions move.
    room: list[tuple[list[V], int]] = []
    for rank, member_id in enumerate(
        sorted(retained, key=lambda candidate: (-len(retained[candidate]), candidate))
    ):
        mine = retained[member_id]
        limit = quota + (rank < extra)
        free += mine[limit:]
        del mine[limit:]
        room.append((mine, limit - len(mine)))
    unassigned = iter(free)
    for mine, wanted in room:
        mine.extend(islice(unassigned, wanted))


def _level_different(
    members: Mapping[str, Subscriber],
    retained: dict[str, list[TopicPartition]],
    free: list[TopicPartition],
) -> None:
    """Subscriptions differ: fill from the emptiest, then move while that makes it more even."""
    readers: dict[UUID, list[str]] = defaultdict(list)
    for member_id in sorted(members):
        for topic_id in members[member_id].topic_ids:
            readers[topic_id].append(member_id)

    def load(member_id: str) -> int:
        return len(retained[member_id])

    # Topics with few readers first: they have the least choice.
    for partition in sorted(
        free, key=lambda candidate: (len(readers[candidate.topic_id]), candidate)
    ):
        if readers[partition.topic_id]:
            retained[min(readers[partition.topic_id], key=load)].append(partition)

    # Each move makes the sum of the squared loads smaller, so this ends.
    moved = True
    while moved:
        moved = False
        for member_id in sorted(members, key=load, reverse=True):
            for partition in list(retained[member_id]):
                emptiest = min(readers[partition.topic_id], key=load)
                if load(emptiest) + 1 < load(member_id):
                    retained[member_id].remove(partition)
                    retained[emptiest].append(partition)
                    moved = True


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_}
DEFAULT_ASSIGNOR: Final = "uniform"
