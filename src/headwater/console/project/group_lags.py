"""The lag of every group, from a handful of requests, and its history for some of them."""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.client.cluster import Cluster
from headwater.client.groups import SHARE, ListedGroup, committed_offsets, list_groups
from headwater.client.offsets import LATEST, UNCOMMITTED, list_offsets
from headwater.client.writing.sending import TopicPartition

_SAMPLES: Final = 360  # of each group
_TRACKED: Final = 100  # groups with a history
_WATCHED_S: Final = 900.0  # for how long a group stays watched after its page was last shown
_MOST: Final = 25  # of those that lag most have a history, too


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


@dataclass(slots=True)
class LagHistory:
    """Lags over time, of the groups that were looked at lately and of those that lag most. Of a
    bounded number of groups, so many samples of each.
    """

    _samples: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    _watched: dict[str, float] = field(default_factory=dict)  # when last looked at, monotonic

    def watch(self, name: str) -> None:
        self._watched.pop(name, None)
        self._watched[name] = time.monotonic()

    def add(self, groups: Iterable[GroupLag], at: float) -> None:
        """`at` is of time.time()."""
        lagging = {group.name: group.lag for group in groups if group.lag is not None}
        since_s = time.monotonic() - _WATCHED_S
        self._watched = {
            name: seen_s
            for name, seen_s in list(self._watched.items())[-_TRACKED:]
            if seen_s >= since_s
        }
        most = sorted((n for n, lag in lagging.items() if lag), key=lambda n: -lagging[n])[:_MOST]
        tracked = list(dict.fromkeys([*self._watched, *most]))
        # One that no longer lags most retains its history, as long as there is room.
        tracked += [name for name in self._samples if name not in tracked]
        retained = tracked[:_TRACKED]
        self._samples = {
            name: self._samples.get(name, deque(maxlen=_SAMPLES))
            for name in retained
            if name in lagging or name in self._samples
        }
        for name, samples in self._samples.items():
            if name in lagging and (not samples or samples[-1][0] < at):
                samples.append((at, lagging[name]))

    def of(self, name: str) -> list[tuple[float, int]]:
        return list(self._samples.get(name, ()))
