"""`headwater group list | describe | seek | delete`."""

import argparse
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from headwater.cli.cluster import (
    Cluster,
    Partition,
    address_of,
    all_partitions,
    refused,
    settled,
)
from headwater.cli.output import count, note, plural, print_json, say, styled, table
from headwater.cli.parser import Command, Parser, client_options
from headwater.cli.positions import Position, Range, parse_range, resolve
from headwater.cli.share_groups import share_groups
from headwater.cli.topic import confirmed
from headwater.errors import HeadwaterError, NotReady, RequestRefused, UsageError


class Commit(NamedTuple):
    """How far a group is in one partition. `end` and `lag` are None if it cannot be asked."""

    partition: Partition
    offset: int | None
    end: int | None

    @property
    def lag(self) -> int | None:
        if self.offset is None or self.end is None:
            return None
        return max(0, self.end - self.offset)


def committed(cluster: Cluster, groups: Iterable[str]) -> dict[str, list[Commit]]:
    """What each group has committed, beside the ends of those partitions."""
    requests = {
        group: cluster.admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=15
        )[group]
        for group in groups
    }
    offsets = {
        group: {
            Partition(each.topic, each.partition): each.offset
            for each in answer.topic_partitions
            if each.offset >= 0
        }
        for group, answer in settled(requests, "read the offsets of").items()
    }
    bounds = cluster.bounds({each for partitions in offsets.values() for each in partitions})
    return {
        group: [
            Commit(partition, offset, bounds.get(partition, (None, None))[1])
            for partition, offset in sorted(partitions.items())
        ]
        for group, partitions in offsets.items()
    }


def total_lag(commits: Iterable[Commit]) -> int:
    return sum(each.lag or 0 for each in commits)


def listed(cluster: Cluster) -> list[dict[str, Any]]:
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
    names = sorted({group.group_id for group in answer.valid} - {each.name for each in shared})
    kinds = {group.group_id: _name(group.type) for group in answer.valid}
    described = _described(cluster, names)
    commits = committed(cluster, names)
    rows = [
        {
            "group": name,
            "state": _name(described[name].state),
            "type": kinds[name],
            "members": len(described[name].members),
            "topics": len({each.partition.topic for each in commits[name]}),
            "lag": total_lag(commits[name]),
        }
        for name in names
    ]
    rows += [
        {
            "group": each.name,
            "state": each.state,
            "type": "share",
            "members": len(each.members),
            "topics": len(each.topics),
            "lag": each.total("backlog") or 0,
        }
        for each in shared
    ]
    return sorted(rows, key=lambda row: str(row["group"]))


def _configure_list(parser: Parser) -> None:
    client_options(parser)


def _list(args: argparse.Namespace) -> int:
    groups = listed(Cluster.of(args))
    if args.json:
        print_json(groups)
    elif groups:
        rows = [(*list(each.values())[:5], count(each["lag"])) for each in groups]
        say(table(("group", "state", "type", ">members", ">topics", ">lag"), rows))
    else:
        note("no groups yet; `headwater consume TOPIC -g NAME` makes one")
    return 0


def _configure_describe(parser: Parser) -> None:
    parser.add_argument("groups", metavar="GROUP", nargs="+", help="groups to describe")
    client_options(parser)


def _describe(args: argparse.Namespace) -> int:
    cluster = Cluster.of(args)
    for shared in share_groups(cluster, args.groups):
        raise RequestRefused(
            f"{shared.name} is a share group", hint=f"`headwater queue describe {shared.name}`"
        )
    described = _described(cluster, args.groups)
    commits = committed(cluster, args.groups)
    groups = []
    for name in args.groups:
        group = described[name]
        if not commits[name] and not group.members and _name(group.state) == "dead":
            raise RequestRefused(
                f"there is no group {name}", hint="`headwater group list` shows the groups"
            )
        groups.append(_group(cluster, name, group, commits[name]))
    if args.json:
        print_json(groups)
        return 0
    for position, each in enumerate(groups):
        if position:
            say()
        _show(each)
    return 0


def _group(cluster: Cluster, name: str, group: Any, commits: list[Commit]) -> dict[str, Any]:
    owners = {
        Partition(each.topic, each.partition): member.member_id
        for member in group.members
        for each in member.assignment.topic_partitions
    }
    known = {each.partition: each for each in commits}
    for partition, (_, end) in cluster.bounds(owners.keys() - known.keys()).items():
        known[partition] = Commit(partition, None, end)
    partitions = [known[partition] for partition in sorted(known)]
    topics: dict[str, int] = {}
    for each in partitions:
        topics[each.partition.topic] = topics.get(each.partition.topic, 0) + (each.lag or 0)
    return {
        "group": name,
        "state": _name(group.state),
        "type": _name(group.type),
        "assignor": group.partition_assignor,
        "coordinator": address_of(group.coordinator),
        "lag": total_lag(partitions),
        "topics": [{"topic": topic, "lag": lag} for topic, lag in topics.items()],
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.number,
                "committed": each.offset,
                "end_offset": each.end,
                "lag": each.lag,
                "member": owners.get(each.partition),
            }
            for each in partitions
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


def _show(group: dict[str, Any]) -> None:
    say(
        f"{styled(group['group'], 'bold')}  {group['state']}, {group['type']},"
        f" {plural(len(group['members']), 'member')}, lag {count(group['lag'])}"
    )
    if len(group["topics"]) > 1:
        rows = [(each["topic"], count(each["lag"])) for each in group["topics"]]
        say("\n" + table(("topic", ">lag"), rows))
    if group["partitions"]:
        cells = [
            ["-" if cell is None else cell for cell in each.values()]
            for each in group["partitions"]
        ]
        headers = ("topic", ">partition", ">committed", ">end", ">lag", "member")
        say("\n" + table(headers, cells))
    if group["members"]:
        cells = [list(each.values()) for each in group["members"]]
        say("\n" + table(("member", "client", "host", "static id", ">partitions"), cells))


def _configure_seek(parser: Parser) -> None:
    parser.add_argument("group", metavar="GROUP", help="group to move; it must have no members")
    parser.add_argument(
        "--to",
        required=True,
        metavar="POSITION",
        help="start, end, N, @TIME (ISO, epoch ms, -1h), or +n, -n from where the group is",
    )
    parser.add_argument(
        "-t",
        "--topic",
        dest="topics",
        metavar="TOPIC[:P]",
        action="append",
        default=[],
        help="only this topic or partition (default: all that the group has committed)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    client_options(parser)


def _seek(args: argparse.Namespace) -> int:
    wanted = parse_range(args.to)
    if wanted.last is not None:
        raise UsageError(f"--to {args.to} is a range", hint="one position is needed")
    cluster = Cluster.of(args)
    group = _described(cluster, [args.group])[args.group]
    state = _name(group.state)
    if group.members and not args.dry_run:
        raise RequestRefused(
            f"group {args.group} is active",
            detail=f"it is {state} with {plural(len(group.members), 'member')},"
            " which would overwrite the offsets",
            hint="stop its members first; --dry-run shows what would change",
        )
    before = {each.partition: each.offset for each in committed(cluster, [args.group])[args.group]}
    partitions = _wanted_partitions(cluster, args, list(before))
    after = _targets(wanted.first, cluster, partitions, before)
    changes = [
        {
            "topic": partition.topic,
            "partition": partition.number,
            "before": before.get(partition),
            "after": after[partition],
        }
        for partition in partitions
    ]
    if not args.dry_run:
        _alter_offsets(cluster, args.group, after)
    if args.json:
        print_json({"group": args.group, "dry_run": args.dry_run, "partitions": changes})
        return 0
    cells = [["-" if cell is None else cell for cell in each.values()] for each in changes]
    say(table(("topic", ">partition", ">before", ">after"), cells))
    if args.dry_run:
        note("nothing was changed (--dry-run)")
    return 0


def _wanted_partitions(
    cluster: Cluster, args: argparse.Namespace, present: list[Partition]
) -> list[Partition]:
    if not args.topics:
        if not present:
            raise RequestRefused(
                f"group {args.group} has committed nothing", hint="name a topic with --topic"
            )
        return present
    partitions: list[Partition] = []
    for text in args.topics:
        topic, _, number = text.partition(":")  # a topic's name has no colon
        of_topic = all_partitions(cluster.existing([topic]))
        if number:
            of_topic = [each for each in of_topic if str(each.number) == number]
            if not of_topic:
                raise RequestRefused(
                    f"there is no partition {text}",
                    hint=f"`headwater topic describe {topic}` lists the partitions",
                )
        partitions += of_topic
    return sorted(set(partitions))


def _targets(
    position: Position,
    cluster: Cluster,
    partitions: list[Partition],
    before: Mapping[Partition, int | None],
) -> dict[Partition, int]:
    """The new offset of each partition, within the bounds that it has now."""
    relative = {"plus": 1, "minus": -1}.get(position.kind)
    spans = resolve(Range(position), cluster, partitions)
    targets = {}
    for partition in partitions:
        if partition not in spans:
            raise NotReady(f"{partition} cannot be asked", detail="it has no leader at the moment")
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


def _alter_offsets(cluster: Cluster, group: str, offsets: dict[Partition, int]) -> None:
    wanted = [TopicPartition(each.topic, each.number, at) for each, at in offsets.items()]
    request = ConsumerGroupTopicPartitions(group, wanted)
    futures = cluster.admin.alter_consumer_group_offsets([request], request_timeout=15)
    answer = settled(futures, "move group")[group]
    for each in answer.topic_partitions:
        if each.error:
            raise refused(each.error, f"cannot move group {group} in {each.topic}:{each.partition}")


def _configure_delete(parser: Parser) -> None:
    parser.add_argument("groups", metavar="GROUP", nargs="+", help="groups to delete")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    client_options(parser)


def _delete(args: argparse.Namespace) -> int:
    cluster = Cluster.of(args)
    if not args.yes and not confirmed(f"delete {', '.join(args.groups)} and their offsets?"):
        note("nothing was deleted")
        return 1
    deleted = []
    failure: HeadwaterError | None = None
    futures = cluster.admin.delete_consumer_groups(args.groups, request_timeout=15)
    for name, future in futures.items():
        try:
            future.result()
            deleted.append(name)
        except KafkaException as error:
            failure = failure or refused(error, f"cannot delete group {name}")
    # Those that could be deleted are gone, whatever became of the others.
    if args.json and deleted:
        print_json([{"group": name, "deleted": True} for name in deleted])
    elif not args.json:
        for name in deleted:
            say(f"deleted {name}")
    if failure:
        raise failure
    return 0


def _described(cluster: Cluster, groups: list[str]) -> dict[str, Any]:
    if not groups:
        return {}
    futures = cluster.admin.describe_consumer_groups(groups, request_timeout=15)
    return settled(futures, "describe group")


def _name(enumerated: Any) -> str:
    """Of a ConsumerGroupState or ConsumerGroupType: "preparing rebalance"."""
    return str(enumerated.name).lower().replace("_", " ")


COMMANDS = {
    "list": Command("list groups with their state and lag", _configure_list, _list),
    "describe": Command(
        "show lag in total, by topic and by partition, and the members",
        _configure_describe,
        _describe,
    ),
    "seek": Command(
        "move a group to another position",
        _configure_seek,
        _seek,
        "  headwater group seek billing --to @-2h --topic orders --dry-run\n"
        "  headwater group seek billing --to start\n"
        "  headwater group seek billing --to -100 --topic orders:3",
    ),
    "delete": Command("delete groups and their offsets", _configure_delete, _delete),
}
