"""The lag of every group, from a handful of requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.client.cluster import Cluster
from headwater.client.groups import SHARE, ListedGroup, committed_offsets, list_groups
from headwater.client.offsets import LATEST, UNCOMMITTED, list_offsets
from headwater.client.writing.sending import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One group. `lag` is None for a share group (its page shows its backlog)."""

    name: str
    state: str
    kind: str
    topics: tuple[str, ...]
    lag: int | None

    def as_json(self) -> dict[str, Any]:
        return {
            "group": self.name,
            "state": self.state,
            "type": self.kind,
            "topics": list(self.topics),
            "lag": self.lag,
        }


def read_groups(cluster: Cluster) -> list[GroupLag]:
    """All groups by name. Ends are asked for after the offsets: a lag is never reported too small.
    Raises BrokerUnreachable, RequestRefused.
    """
    listed = list_groups(cluster)
    committed = committed_offsets(cluster, listed)
    ends = _ends(cluster, {partition for offsets in committed.values() for partition in offsets})
    return [_group(group, committed.get(group.name, {}), ends) for group in listed]


def _ends(cluster: Cluster, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
    """Of those that are there and have a leader: a group may outlive its topics."""
    if not partitions:
        return {}
    counts = cluster.find_all_partitions(sorted({topic for topic, _ in partitions}))
    led = [
        (topic, number)
        for topic, number in partitions
        if number < counts.get(topic, 0) and cluster.leader(topic, number) is not None
    ]
    return list_offsets(cluster, led, LATEST, UNCOMMITTED)


def _group(
    listed: ListedGroup, offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> GroupLag:
    lags = [
        max(0, ends[partition] - offset)
        for partition, offset in offsets.items()
        if partition in ends
    ]
    return GroupLag(
        listed.name,
        listed.state or "?",
        listed.kind or "classic",
        tuple(sorted({topic for topic, _ in offsets})),
        None if listed.kind == SHARE else sum(lags),
    )
