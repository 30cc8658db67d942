"""`headwater queue list | describe | alter | redrive`: share groups and their dead letters."""

import argparse
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka import admin as kafka_admin

from headwater.cli import redrive
from headwater.cli.arguments import cluster_of
from headwater.cli.parser import Command, Parser, client_options, key_value
from headwater.errors import RequestRefused, UsageError
from headwater.inspect.kafka_cluster import KafkaCluster, refused, settled
from headwater.inspect.share_groups import ShareGroup, dead_letters, share_groups
from headwater.inspect.topic_configs import configs_of
from headwater.terminal.output import count, duration, note, plural, print_json, say, styled, table

_api: Any = kafka_admin  # confluent_kafka's annotations leave it half typed


def _configure_list(parser: Parser) -> None:
    client_options(parser)


def _list(args: argparse.Namespace) -> int:
    cluster = cluster_of(args)
    groups = share_groups(cluster)
    letters = dead_letters(cluster, {topic for group in groups for topic in group.topics})
    queues = [
        {
            "queue": group.name,
            "state": group.state,
            "members": len(group.members),
            "topics": group.topics,
            "backlog": group.total("backlog"),
            "in_flight": group.total("in_flight"),
            "dead_letters": sum(
                n for partition, n in letters.items() if partition.topic in group.topics
            ),
        }
        for group in groups
    ]
    if args.json:
        print_json(queues)
    elif queues:
        rows = [
            [", ".join(cell) if isinstance(cell, list) else _cell(cell) for cell in queue.values()]
            for queue in queues
        ]
        headers = ("queue", "state", ">members", "topics", ">backlog", ">in flight")
        say(table((*headers, ">dead letters"), rows))
    else:
        note("no queues yet; a consumer of a share group (KIP-932) makes one")
    return 0


def _configure_describe(parser: Parser) -> None:
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="queues (share groups)")
    client_options(parser)


def _describe(args: argparse.Namespace) -> int:
    cluster = cluster_of(args)
    groups = {group.name: group for group in share_groups(cluster, args.queues)}
    for name in args.queues:
        if name not in groups:
            raise _no_queue(name)
    letters = dead_letters(cluster, {topic for group in groups.values() for topic in group.topics})
    ends = cluster.bounds(
        {progress.partition for group in groups.values() for progress in group.progress}
    )
    queues = [_queue(cluster, groups[name], letters, ends) for name in args.queues]
    if args.json:
        print_json(queues)
        return 0
    for position, queue in enumerate(queues):
        if position:
            say()
        _show(queue)
    return 0


def _queue(cluster: KafkaCluster, group: ShareGroup, letters: Any, ends: Any) -> dict[str, Any]:
    return {
        "queue": group.name,
        "state": group.state,
        "backlog": group.total("backlog"),
        "in_flight": group.total("in_flight"),
        "partitions": [
            {
                "topic": progress.partition.topic,
                "partition": progress.partition.number,
                "start_offset": progress.start,
                "end_offset": ends.get(progress.partition, (None, None))[1],
                "backlog": progress.backlog,
                "in_flight": progress.in_flight,
                "oldest_lock_s": progress.oldest_lock_s,
                "dead_letters": letters.get(progress.partition, 0),
            }
            for progress in group.progress
        ],
        "members": group.members,
        "settings": _settings(cluster, group.name),
    }


def _settings(cluster: KafkaCluster, name: str) -> list[dict[str, Any]]:
    resource = _api.ConfigResource(_api.ConfigResource.Type.GROUP, name)
    try:
        entries = cluster.admin.describe_configs([resource], request_timeout=15)[resource].result()
    except KafkaException as error:
        raise refused(error, f"cannot read the settings of queue {name}") from error
    return [
        {"setting": entry.name, "value": entry.value, "is_set": not entry.is_default}
        for entry in sorted(entries.values(), key=lambda entry: entry.name)
        if not entry.name.startswith(("consumer.", "streams."))
    ]


def _show(queue: dict[str, Any]) -> None:
    say(
        f"{styled(queue['queue'], 'bold')}  {queue['state']},"
        f" {plural(len(queue['members']), 'member')}, backlog {_cell(queue['backlog'])},"
        f" in flight {_cell(queue['in_flight'])}"
    )
    if queue["partitions"]:
        rows = []
        for partition in queue["partitions"]:
            lock_s = partition["oldest_lock_s"]
            shown = {**partition, "oldest_lock_s": None if lock_s is None else duration(lock_s)}
            rows.append([_cell(cell) for cell in shown.values()])
        headers = ("topic", ">partition", ">start", ">end", ">backlog", ">in flight")
        say("\n" + table((*headers, ">oldest lock", ">dead letters"), rows))
    if queue["members"]:
        rows = [[*list(member.values())[:3], member["partitions"]] for member in queue["members"]]
        say("\n" + table(("member", "client", "host", ">partitions"), rows))
    settings = [
        (setting["setting"], setting["value"], "this queue" if setting["is_set"] else "default")
        for setting in queue["settings"]
    ]
    say("\n" + table(("setting", "value", "source"), settings))
    note(f"\n`headwater queue alter {queue['queue']} --set KEY=VALUE` changes a setting")


def _configure_alter(parser: Parser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="queue (share group); it need not exist yet")
    parser.add_argument(
        "-c",
        "--set",
        metavar="KEY=VALUE",
        type=key_value,
        action="append",
        default=[],
        help='setting to change; `describe` lists them; *.ms may be a duration ("90s")',
    )
    parser.add_argument(
        "-d", "--unset", metavar="KEY", action="append", default=[], help="setting back to default"
    )
    client_options(parser)


def _alter(args: argparse.Namespace) -> int:
    if not (args.set or args.unset):
        raise UsageError("nothing to alter", hint="name a change: --set KEY=VALUE or --unset KEY")
    operation = _api.AlterConfigOpType
    resource = _api.ConfigResource(
        _api.ConfigResource.Type.GROUP,
        args.queue,
        incremental_configs=[
            *(
                _api.ConfigEntry(name, value, incremental_operation=operation.SET)
                for name, value in configs_of(args.set).items()
            ),
            *(
                _api.ConfigEntry(name, None, incremental_operation=operation.DELETE)
                for name in args.unset
            ),
        ],
    )
    cluster = cluster_of(args)
    try:
        futures = cluster.admin.incremental_alter_configs([resource], request_timeout=15)
        settled({args.queue: futures[resource]}, "alter queue")
    except RequestRefused as error:
        if "INVALID_CONFIG" in error.detail:
            error.hint = "docs/queues.md lists the settings of a queue"
        raise
    if args.json:
        print_json({"queue": args.queue, "set": configs_of(args.set), "unset": args.unset})
    else:
        say(f"altered {args.queue}")
    return 0


def _no_queue(name: str) -> RequestRefused:
    return RequestRefused(
        f"there is no queue {name}", hint="`headwater queue list` shows the queues"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return count(value) if isinstance(value, int) else str(value)


COMMANDS = {
    "list": Command(
        "list queues (share groups) with their backlog and the dead letters of their topics",
        _configure_list,
        _list,
    ),
    "describe": Command(
        "show a queue by partition, its members and its settings", _configure_describe, _describe
    ),
    "alter": Command(
        "change the settings of a queue",
        _configure_alter,
        _alter,
        "  headwater queue alter jobs --set share.auto.offset.reset=earliest\n"
        "  headwater queue alter jobs --set share.record.lock.duration.ms=60s\n"
        "  headwater queue alter jobs --unset share.delivery.count.limit",
    ),
    "redrive": redrive.COMMAND,
}
