"""`headwater topic create | list | describe | alter | delete`."""

import argparse
import sys
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka import admin as kafka_admin

from headwater.cli.arguments import cluster_of
from headwater.cli.parser import Command, Parser, client_options, key_value, whole_number
from headwater.errors import HeadwaterError, RequestRefused, UsageError
from headwater.inspect import archived_topics
from headwater.inspect.kafka_cluster import (
    KafkaCluster,
    Partition,
    address_of,
    all_partitions,
    refused,
    settled,
)
from headwater.inspect.topic_changes import add_partitions, alter_configs
from headwater.inspect.topic_configs import configs_of
from headwater.terminal.output import count, note, plural, print_json, say, size, styled, table

_api: Any = kafka_admin
_PARTITIONS = whole_number(1, 100_000)  # more, librdkafka does not ask for
_REPLICAS = whole_number(1, 32_767)


def _configure_create(parser: Parser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="names of the new topics")
    parser.add_argument(
        "-p",
        "--partitions",
        type=_PARTITIONS,
        metavar="N",
        help="partitions (the broker's default)",
    )
    parser.add_argument(
        "-r", "--replicas", type=_REPLICAS, metavar="N", help="replicas (the broker's default)"
    )
    _config_option(parser, "-c", "--set")
    parser.add_argument(
        "--if-not-exists", action="store_true", help="a topic that exists is no error"
    )
    client_options(parser)


def _create(args: argparse.Namespace) -> int:
    cluster = cluster_of(args)
    configs = configs_of(args.set)
    topics = [
        _api.NewTopic(
            name,
            num_partitions=-1 if args.partitions is None else args.partitions,
            replication_factor=-1 if args.replicas is None else args.replicas,
            config=configs,
        )
        for name in args.topics
    ]
    results = []
    failure: HeadwaterError | None = None
    for name, future in cluster.admin.create_topics(topics, request_timeout=15).items():
        try:
            future.result()
            results.append({"topic": name, "created": True})
        except KafkaException as error:
            if args.if_not_exists and error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                results.append({"topic": name, "created": False})
            else:
                failure = failure or refused(error, f"cannot create topic {name}")
    # Those that could be created are there, whatever became of the others.
    if args.json and (results or not failure):
        print_json(results)
    elif not args.json:
        for result in results:
            say(f"{'created' if result['created'] else 'exists already:'} {result['topic']}")
    if failure:
        raise failure
    return 0


def _configure_list(parser: Parser) -> None:
    parser.add_argument(
        "-i", "--internal", action="store_true", help="also internal topics (those that begin __)"
    )
    client_options(parser)


def _list(args: argparse.Namespace) -> int:
    cluster = cluster_of(args)
    metadata = cluster.metadata()
    topics = {
        name: topic
        for name, topic in metadata.topics.items()
        if args.internal or not name.startswith("__")
    }
    bounds = cluster.bounds(all_partitions(topics))
    sizes = cluster.sizes_bytes(_addresses(metadata))
    rows = []
    for name, topic in sorted(topics.items()):
        partitions = [Partition(name, number) for number in topic.partitions]
        on_disk = [sizes[partition] for partition in partitions if partition in sizes]
        records = sum(
            high - low
            for low, high in (bounds[partition] for partition in partitions if partition in bounds)
        )
        replicas = max(
            (len(partition.replicas) for partition in topic.partitions.values()), default=0
        )
        rows.append(
            {
                "topic": name,
                "partitions": len(partitions),
                "replicas": replicas,
                "records": records,
                "size_bytes": sum(on_disk) if on_disk else None,
            }
        )
    if args.json:
        print_json(rows)
    elif rows:
        say(
            table(
                ("topic", ">partitions", ">replicas", ">records", ">size"),
                [
                    (
                        row["topic"],
                        row["partitions"],
                        row["replicas"],
                        count(row["records"]),
                        size(row["size_bytes"]),
                    )
                    for row in rows
                ],
            )
        )
    else:
        note("no topics yet; `headwater topic create NAME` makes one")
    return 0


def _configure_describe(parser: Parser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="topics to describe")
    parser.add_argument(
        "-a", "--all", action="store_true", help="also the configs that are at their default"
    )
    client_options(parser)


def _describe(args: argparse.Namespace) -> int:
    cluster = cluster_of(args)
    metadata = cluster.metadata()
    topics = cluster.existing(args.topics)
    bounds = cluster.bounds(all_partitions(topics))
    sizes = cluster.sizes_bytes(_addresses(metadata))
    archives = archived_topics.in_archive(cluster, _addresses(metadata))
    described = [
        {
            "topic": name,
            "partitions": [
                _partition(Partition(name, number), partition, bounds, sizes, archives)
                for number, partition in sorted(topic.partitions.items())
            ],
            "configs": _read_configs(cluster, name, all_of_them=args.all),
        }
        for name, topic in topics.items()
    ]
    if args.json:
        print_json(described)
        return 0
    for position, topic in enumerate(described):
        if position:
            say()
        _show(topic)
    return 0


def _partition(
    partition: Partition,
    metadata: Any,
    bounds: dict[Partition, tuple[int, int]],
    sizes: dict[Partition, int],
    archives: dict[Partition, dict[str, Any]],
) -> dict[str, Any]:
    low, high = bounds.get(partition, (None, None))
    return {
        "partition": partition.number,
        "leader": metadata.leader,
        "replicas": metadata.replicas,
        "in_sync": metadata.isrs,
        "start_offset": low,
        "end_offset": high,
        "size_bytes": sizes.get(partition),
        "archive": archives.get(partition),
    }


def _show(topic: dict[str, Any]) -> None:
    partitions = topic["partitions"]
    records = sum(partition["end_offset"] - partition["start_offset"] for partition in partitions
                  if partition["end_offset"] is not None)  # fmt: skip
    on_disk = [
        partition["size_bytes"] for partition in partitions if partition["size_bytes"] is not None
    ]
    say(
        f"{styled(topic['topic'], 'bold')}  {plural(len(partitions), 'partition')},"
        f" {plural(records, _counted(topic))}, {size(sum(on_disk) if on_disk else None)} on disk"
    )
    say()
    say(
        table(
            (">partition", ">leader", "replicas", "in sync", ">start", ">end", ">size"),
            [
                (
                    partition["partition"],
                    partition["leader"] if partition["leader"] >= 0 else "none",
                    ",".join(map(str, partition["replicas"])),
                    ",".join(map(str, partition["in_sync"])),
                    partition["start_offset"],
                    partition["end_offset"],
                    size(partition["size_bytes"]),
                )
                for partition in partitions
            ],
        )
    )
    archived_topics.show(partitions)
    say()
    if topic["configs"] is None:
        say("you may not see its configs (DESCRIBE_CONFIGS on the topic)")
    elif topic["configs"]:
        rows = [(config["name"], config["value"], config["source"]) for config in topic["configs"]]
        say(table(("config", "value", "source"), rows))
    else:
        say("every config is at its default (--all shows them)")


def _counted(topic: dict[str, Any]) -> str:
    """What the difference of two offsets counts: where compaction made holes, not records."""
    policies = [
        config["value"] for config in topic["configs"] or () if config["name"] == "cleanup.policy"
    ]
    return "offset" if "compact" in "".join(policies) else "record"


def _read_configs(
    cluster: KafkaCluster, topic: str, *, all_of_them: bool
) -> list[dict[str, Any]] | None:
    resource = _api.ConfigResource(_api.ConfigResource.Type.TOPIC, topic)
    futures = cluster.admin.describe_configs([resource], request_timeout=15)
    try:
        entries = settled({topic: futures[resource]}, "describe")[topic]
    except RequestRefused as error:
        if "AUTHORIZATION_FAILED" in error.detail:
            return None  # a user may have DESCRIBE without DESCRIBE_CONFIGS
        raise
    return [
        {
            "name": name,
            "value": entry.value,
            "source": _api.ConfigSource(entry.source).name.lower().removesuffix("_config"),
        }
        for name, entry in sorted(entries.items())
        if all_of_them or not entry.is_default
    ]


def _configure_alter(parser: Parser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="topic to change")
    _config_option(parser, "-c", "--set")
    parser.add_argument(
        "-d", "--unset", metavar="KEY", action="append", default=[], help="config back to default"
    )
    parser.add_argument(
        "-p",
        "--partitions",
        type=_PARTITIONS,
        metavar="N",
        help="number of partitions (can only grow)",
    )
    client_options(parser)


def _alter(args: argparse.Namespace) -> int:
    configs = configs_of(args.set)
    if not (configs or args.unset or args.partitions is not None):
        raise UsageError("nothing to alter", hint="name a change: -c KEY=VALUE, -d KEY or -p N")
    cluster = cluster_of(args)
    (topic,) = cluster.existing([args.topic]).values()
    present = len(topic.partitions)
    if args.partitions is not None and args.partitions < present:
        raise RequestRefused(
            f"cannot remove partitions from {args.topic}",
            detail=f"it has {present}, {args.partitions} were asked for",
            hint="create another topic and copy the records",
        )
    if configs or args.unset:
        alter_configs(cluster, args.topic, configs, args.unset)
    if args.partitions is not None and args.partitions > present:
        add_partitions(cluster, args.topic, args.partitions)
    if args.json:
        print_json(
            {
                "topic": args.topic,
                "set": configs,
                "unset": args.unset,
                "partitions": max(present, args.partitions or 0),
            }
        )
        return 0
    say(f"altered {args.topic}")
    return 0


def _configure_delete(parser: Parser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="topics to delete")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for a confirmation")
    client_options(parser)


def _delete(args: argparse.Namespace) -> int:
    cluster = cluster_of(args)
    topics = cluster.existing(args.topics)
    if not args.yes:
        bounds = cluster.bounds(all_partitions(topics))
        records = sum(high - low for low, high in bounds.values())
        if not confirmed(f"delete {', '.join(topics)} with {plural(records, 'record')}?"):
            note("nothing was deleted")
            return 1
    settled(cluster.admin.delete_topics(list(topics), request_timeout=15), "delete topic")
    if args.json:
        print_json([{"topic": name, "deleted": True} for name in topics])
        return 0
    for name in topics:
        say(f"deleted {name}")
    return 0


def confirmed(question: str) -> bool:
    """Asks at the terminal. Without a terminal --yes is needed."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "nothing was changed: there is no terminal to ask for a confirmation",
            hint="--yes continues without a confirmation",
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _config_option(parser: Parser, *names: str) -> None:
    parser.add_argument(
        *names,
        dest="set",
        metavar="KEY=VALUE",
        type=key_value,
        action="append",
        default=[],
        help='topic config; *.ms may be a duration ("7d"), *.bytes a size ("64MiB")',
    )


def _addresses(metadata: Any) -> list[str]:
    return [address_of(broker) for broker in metadata.brokers.values()]


COMMANDS = {
    "create": Command(
        "create topics",
        _configure_create,
        _create,
        "  headwater topic create orders -p 4 -c retention.ms=7d\n"
        "  headwater topic create customers -c cleanup.policy=compact --if-not-exists",
    ),
    "list": Command("list topics with their sizes", _configure_list, _list),
    "describe": Command(
        "show partitions, offsets, sizes and configs of topics", _configure_describe, _describe
    ),
    "alter": Command(
        "change configs of a topic, or add partitions",
        _configure_alter,
        _alter,
        "  headwater topic alter orders -c retention.bytes=10GiB -d retention.ms\n"
        "  headwater topic alter orders -p 8",
    ),
    "delete": Command("delete topics and their records", _configure_delete, _delete),
}
