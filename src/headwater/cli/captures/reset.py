"""`headwater capture reset NAME`: deletes the position of a capture, here and in its database.

First the running process, if there is one, is fenced; then what the capture made in the database
goes; then its positions, in one transaction. Interrupted anywhere, it can be run again.
"""

import argparse
from typing import Final

from confluent_kafka import KafkaException

from headwater.capture import positions
from headwater.capture.publishing import cuts
from headwater.capture.runner import transactional_id
from headwater.capture.settings import CaptureSettings
from headwater.capture.sources import source_of
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.commands.log.topic import confirmed
from headwater.cli.parser import Command, Parser
from headwater.client.reading.compacted import read_committed_latest
from headwater.inspect.captures import connected, named
from headwater.inspect.kafka_cluster import KafkaCluster, refused
from headwater.terminal.output import note, plural, print_json, say

_TIMEOUT_S: Final = 60.0


def _configure(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="capture")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for a confirmation")
    broker_options(parser)


def _run(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    settings = named(loaded, args.name)
    cluster = connected(loaded)
    name = settings.name
    keys = [
        key
        for key in read_committed_latest(loaded.bootstrap(), loaded.client, positions.TOPIC)
        if key == positions.key_of(name) or key.startswith(positions.key_of(name, ""))
    ]
    if not args.yes:
        tables = plural(max(0, len(keys) - 1), "table")
        note(
            f"Resetting {name}\n"
            f"  stops its process, if one runs;\n"
            f"  removes what it created in {settings.shown_source} (slot, publication, triggers);\n"
            f"  deletes its position and the state of {tables}.\n"
            f"Its topics stay as they are. The next run copies all tables again, into the same"
            " topics."
        )
        if not confirmed(f"reset {name}?"):
            note("nothing was changed")
            return 1
    stored_cuts = read_committed_latest(loaded.bootstrap(), loaded.client, cuts.TOPIC)
    _reset(cluster, settings, keys, cuts.keys_of(name, stored_cuts))
    if args.json:
        print_json({"capture": name, "reset": True, "positions": len(keys)})
    else:
        say(f"reset {name}; `headwater capture run {name}` begins with a new snapshot")
    return 0


def _reset(
    cluster: KafkaCluster, settings: CaptureSettings, keys: list[bytes], of_cuts: list[bytes]
) -> None:
    producer = cluster.producer(
        {
            "transactional.id": transactional_id(settings.name),
            "partitioner": "murmur2_random",  # where the capture's own producer puts them
        }
    )
    try:
        producer.init_transactions(_TIMEOUT_S)  # from here on a running process is fenced
        source = source_of(settings)
        try:
            source.remove()
        finally:
            source.close()
        if keys or of_cuts:
            producer.begin_transaction()
            for key in keys:
                producer.produce(positions.TOPIC, key=key, value=None)
            for key in of_cuts:
                producer.produce(cuts.TOPIC, key=key, value=None)
            producer.commit_transaction(_TIMEOUT_S)
    except KafkaException as error:
        raise refused(error, f"cannot reset {settings.name}") from error


COMMAND = Command(
    "delete the position of a capture, and what it created in its database",
    _configure,
    _run,
    "  headwater capture reset shop",
)
