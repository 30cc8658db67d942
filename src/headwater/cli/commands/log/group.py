"""`headwater group list | describe | seek | delete`."""

import argparse
from typing import Any

from confluent_kafka import KafkaException

from headwater.cli.arguments import cluster_of
from headwater.cli.commands.log.topic import confirmed
from headwater.cli.parser import Command, Parser, client_options
from headwater.errors import HeadwaterError, RequestRefused, UsageError
from headwater.inspect.groups import (
    alter_offsets,
    committed,
    described,
    group_as_json,
    listed,
    name_of,
    planned_seek,
)
from headwater.inspect.kafka_cluster import refused
from headwater.inspect.positions import parse_range
from headwater.inspect.share_groups import share_groups
from headwater.terminal.output import count, note, plural, print_json, say, styled, table

__all__ = ["COMMANDS", "listed"]


def _configure_list(parser: Parser) -> None:
    client_options(parser)


def _list(args: argparse.Namespace) -> int:
    groups = listed(cluster_of(args))
    if args.json:
        print_json(groups)
    elif groups:
        rows = [(*list(group.values())[:5], count(group["lag"])) for group in groups]
        say(table(("group", "state", "type", ">members", ">topics", ">lag"), rows))
    else:
        note("no groups yet; `headwater consume TOPIC -g NAME` makes one")
    return 0


def _configure_describe(parser: Parser) -> None:
    parser.add_argument("groups", metavar="GROUP", nargs="+", help="groups to describe")
    client_options(parser)


def _describe(args: argparse.Namespace) -> int:
    cluster = cluster_of(args)
    for shared in share_groups(cluster, args.groups):
        raise RequestRefused(
            f"{shared.name} is a share group", hint=f"`headwater queue describe {shared.name}`"
        )
    details = described(cluster, args.groups)
    commits = committed(cluster, args.groups)
    groups = []
    for name in args.groups:
        group = details[name]
        if not commits[name] and not group.members and name_of(group.state) == "dead":
            raise RequestRefused(
                f"there is no group {name}", hint="`headwater group list` shows the groups"
            )
        groups.append(group_as_json(cluster, name, group, commits[name]))
    if args.json:
        print_json(groups)
        return 0
    for position, group in enumerate(groups):
        if position:
            say()
        _show(group)
    return 0


def _show(group: dict[str, Any]) -> None:
    say(
        f"{styled(group['group'], 'bold')}  {group['state']}, {group['type']},"
        f" {plural(len(group['members']), 'member')}, lag {count(group['lag'])}"
    )
    if len(group["topics"]) > 1:
        rows = [(topic["topic"], count(topic["lag"])) for topic in group["topics"]]
        say("\n" + table(("topic", ">lag"), rows))
    if group["partitions"]:
        cells = [
            ["-" if cell is None else cell for cell in partition.values()]
            for partition in group["partitions"]
        ]
        headers = ("topic", ">partition", ">committed", ">end", ">lag", "member")
        say("\n" + table(headers, cells))
    if group["members"]:
        cells = [list(member.values()) for member in group["members"]]
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
    cluster = cluster_of(args)
    seek = planned_seek(cluster, args.group, wanted.first, args.topics)
    if not args.dry_run:
        seek.require_idle()
        alter_offsets(
            cluster, args.group, {partition: at for partition, (_, at) in seek.changes.items()}
        )
    changes = seek.as_json()
    if args.json:
        print_json({"group": args.group, "dry_run": args.dry_run, "partitions": changes})
        return 0
    cells = [["-" if cell is None else cell for cell in change.values()] for change in changes]
    say(table(("topic", ">partition", ">before", ">after"), cells))
    if args.dry_run:
        note("nothing was changed (--dry-run)")
    return 0


def _configure_delete(parser: Parser) -> None:
    parser.add_argument("groups", metavar="GROUP", nargs="+", help="groups to delete")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for a confirmation")
    client_options(parser)


def _delete(args: argparse.Namespace) -> int:
    cluster = cluster_of(args)
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
    # Those that could be deleted are deleted, also if others could not.
    if args.json and deleted:
        print_json([{"group": name, "deleted": True} for name in deleted])
    elif not args.json:
        for name in deleted:
            say(f"deleted {name}")
    if failure:
        raise failure
    return 0


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
