"""State of consumer groups: members, offsets, lag; and moving the offsets of an empty group."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from headwater.errors import NotReady, RequestRefused
from headwater.inspect.kafka_cluster import (
    KafkaCluster,
    Partition,
    address_of,
    all_partitions,
    refused,
    settled,
)
from headwater.inspect.positions import Position, Range, resolve
from headwater.inspect.share_groups import share_groups
from headwater.terminal.output import plural


class Commit(NamedTuple):
    """How far a group is in one partition. `end` and `lag` are None if it has no leader."""

    partition: Partition
    offset: int | None
    end: int | None

    @property
    def lag(self) -> int | None:
        if self.offset is None or self.end is None:
            return None
        return max(0, self.end - self.offset)


def committed(cluster: KafkaCluster, groups: Iterable[str]) -> dict[str, list[Commit]]:
    """What each group has committed, beside the ends of those partitions."""
    requests = {
        group: cluster.admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=15
        )[group]
        for group in groups
    }
    offsets = {
        group: {
            Partition(committed.topic, committed.partition): committed.offset
            for committed in answer.topic_partitions
            if committed.offset >= 0
        }
        for group, answer in settled(requests, "read the offsets of").items()
    }
    bounds = cluster.bounds(
        {partition for partitions in offsets.values() for partition in partitions}
    )
    return {
        group: [
            Commit(partition, offset, bounds.get(partition, (None, None))[1])
            for partition, offset in sorted(partitions.items())
        ]
        for group, partitions in offsets.items()
    }


def total_lag(commits: Iterable[Commit]) -> int:
    return sum(commit.lag or 0 for commit in commits)


def listed(cluster: KafkaCluster) -> list[dict[str, Any]]:
    """Every consumer and share group with its state, members and lag, in the order of their names.

    The lag of a share group is its backlog: what is with its consumers is part of it.
    """
    try:
        answer = cluster.admin.list_consumer_groups(request_timeout=15).result()
    except KafkaException as error:
        raise refused(error, "cannot list groups") from error
    if answer.errors:
        raise refused(answer.errors[0], "cannot list groups")
    shared = share_groups(cluster)
    names = sorted({group.group_id for group in answer.valid} - {group.name for group in shared})
    kinds = {group.group_id: name_of(group.type) for group in answer.valid}
    details = described(cluster, names)
    commits = committed(cluster, names)
    rows = [
        {
            "group": name,
            "state": name_of(details[name].state),
            "type": kinds[name],
            "members": len(details[name].members),
            "topics": len({commit.partition.topic for commit in commits[name]}),
            "lag": total_lag(commits[name]),
        }
        for name in names
    ]
    rows += [
        {
            "group": group.name,
            "state": group.state,
            "type": "share",
            "members": len(group.members),
            "topics": len(group.topics),
            "lag": group.total("backlog") or 0,
        }
        for group in shared
    ]
    return sorted(rows, key=lambda row: str(row["group"]))


def group_as_json(
    cluster: KafkaCluster, name: str, group: Any, commits: list[Commit]
) -> dict[str, Any]:
    owners = {
        Partition(assigned.topic, assigned.partition): member.member_id
        for member in group.members
        for assigned in member.assignment.topic_partitions
    }
    by_partition = {commit.partition: commit for commit in commits}
    for partition, (_, end) in cluster.bounds(owners.keys() - by_partition.keys()).items():
        by_partition[partition] = Commit(partition, None, end)
    partitions = [by_partition[partition] for partition in sorted(by_partition)]
    topics: dict[str, int] = {}
    for commit in partitions:
        topics[commit.partition.topic] = topics.get(commit.partition.topic, 0) + (commit.lag or 0)
    return {
        "group": name,
        "state": name_of(group.state),
        "type": name_of(group.type),
        "assignor": group.partition_assignor,
        "coordinator": address_of(group.coordinator),
        "lag": total_lag(partitions),
        "topics": [{"topic": topic, "lag": lag} for topic, lag in topics.items()],
        "partitions": [
            {
                "topic": commit.partition.topic,
                "partition": commit.partition.number,
                "committed": commit.offset,
                "end_offset": commit.end,
                "lag": commit.lag,
                "member": owners.get(commit.partition),
            }
            for commit in partitions
        ],
        "members": [
            {
                "member": member.member_id,
                "client": member.client_id,
                "host": member.host,
                "static_id": member.group_instance_id,
                "partitions": len(member.assignment.topic_partitions),
            }
            for member in group.members
        ],
    }


@dataclass(frozen=True, slots=True)
class Seek:
    """What moving a group would do: (before, after) of each partition."""

    group: str
    state: str
    members: int
    changes: dict[Partition, tuple[int | None, int]]

    def require_idle(self) -> None:
        """Raises RequestRefused while the group has members."""
        if self.members:
            raise RequestRefused(
                f"group {self.group} is active",
                detail=f"it is {self.state} with {plural(self.members, 'member')},"
                " which would overwrite the offsets",
                hint="stop its members first; --dry-run shows what would change",
            )

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "topic": partition.topic,
                "partition": partition.number,
                "before": before,
                "after": after,
            }
            for partition, (before, after) in self.changes.items()
        ]


def planned_seek(
    cluster: KafkaCluster, group: str, to: Position, topics: Iterable[str] = ()
) -> Seek:
    """To `to` in TOPIC or TOPIC:PARTITION (default: wherever the group has committed)."""
    found = described(cluster, [group])[group]
    before = {commit.partition: commit.offset for commit in committed(cluster, [group])[group]}
    partitions = _wanted_partitions(cluster, group, topics, list(before))
    after = _targets(to, cluster, partitions, before)
    return Seek(
        group,
        name_of(found.state),
        len(found.members),
        {partition: (before.get(partition), after[partition]) for partition in partitions},
    )


def _wanted_partitions(
    cluster: KafkaCluster, group: str, topics: Iterable[str], present: list[Partition]
) -> list[Partition]:
    if not topics:
        if not present:
            raise RequestRefused(
                f"group {group} has committed nothing", hint="name a topic with --topic"
            )
        return present
    partitions: list[Partition] = []
    for text in topics:
        topic, _, number = text.partition(":")  # a topic's name has no colon
        of_topic = all_partitions(cluster.existing([topic]))
        if number:
            of_topic = [partition for partition in of_topic if str(partition.number) == number]
            if not of_topic:
                raise RequestRefused(
                    f"there is no partition {text}",
                    hint=f"`headwater topic describe {topic}` lists the partitions",
                )
        partitions += of_topic
    return sorted(set(partitions))


def _targets(
    position: Position,
    cluster: KafkaCluster,
    partitions: list[Partition],
    before: Mapping[Partition, int | None],
) -> dict[Partition, int]:
    """The new offset of each partition, within the bounds that it has now."""
    relative = {"plus": 1, "minus": -1}.get(position.kind)
    spans = resolve(Range(position), cluster, partitions)
    targets = {}
    for partition in partitions:
        if partition not in spans:
            raise NotReady(f"{partition} cannot be read", detail="it has no leader at the moment")
        span = spans[partition]
        target = span.first
        if relative is not None:
            present = before.get(partition)
            if present is None:
                raise RequestRefused(
                    f"the group has committed nothing in {partition}",
                    hint="+n and -n are relative to a commit; use start, end, N or @TIME",
                )
            target = present + relative * position.number
        targets[partition] = min(max(target, span.low), span.high)
    return targets


def alter_offsets(cluster: KafkaCluster, group: str, offsets: dict[Partition, int]) -> None:
    wanted = [TopicPartition(offset.topic, offset.number, at) for offset, at in offsets.items()]
    request = ConsumerGroupTopicPartitions(group, wanted)
    futures = cluster.admin.alter_consumer_group_offsets([request], request_timeout=15)
    answer = settled(futures, "move group")[group]
    for partition in answer.topic_partitions:
        if partition.error:
            raise refused(
                partition.error,
                f"cannot move group {group} in {partition.topic}:{partition.partition}",
            )


def delete_group(cluster: KafkaCluster, group: str) -> None:
    """With its offsets. Raises RequestRefused: of a group that has members, for example."""
    futures = cluster.admin.delete_consumer_groups([group], request_timeout=15)
    settled(futures, "delete group")


def described(cluster: KafkaCluster, groups: list[str]) -> dict[str, Any]:
    if not groups:
        return {}
    futures = cluster.admin.describe_consumer_groups(groups, request_timeout=15)
    return settled(futures, "describe group")


def name_of(enumerated: Any) -> str:
    """Of a ConsumerGroupState or ConsumerGroupType: "preparing rebalance"."""
    return str(enumerated.name).lower().replace("_", " ")
