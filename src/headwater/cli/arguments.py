"""From the arguments of a command to the configuration and the broker that it works on."""

import argparse
import dataclasses
from pathlib import Path

from headwater import config, settings_loader
from headwater.cli.parser import Parser, common_options, key_value
from headwater.client import login
from headwater.errors import UsageError
from headwater.inspect.kafka_cluster import KafkaCluster
from headwater.supervisor.plan import data_dir_of


def broker_options(parser: Parser, *, json_help: str = "write JSON, for machines") -> None:
    """The options of commands that use only our own client, which [client] configures: there are
    no librdkafka properties.
    """
    parser.add_argument(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT[,...]",
        help="brokers to talk to (broker.bootstrap, else broker.advertise, else broker.listen)",
    )
    common_options(parser, json_help=json_help)


def load_config(args: argparse.Namespace) -> config.Config:
    """The configuration. Asks for the broker's password if it is required and not configured."""
    loaded = config.load({"broker.bootstrap": args.bootstrap}, path=args.config)
    return dataclasses.replace(loaded, client=login.with_password(loaded.client))


def read_data_dir(args: argparse.Namespace) -> Path:
    """The data directory, also if other settings are wrong: a mistake that was made since must not
    keep a user from stopping what runs. Raises ConfigError if it cannot be determined.
    """
    loaded = config.read(path=args.config)
    is_unreadable = not loaded.sections and bool(loaded.mistakes)
    if is_unreadable or any("data_dir" in mistake.read for mistake in loaded.mistakes):
        settings_loader.check(loaded.mistakes)
    return data_dir_of(loaded)


def cluster_of(args: argparse.Namespace) -> KafkaCluster:
    """The cluster that the options name, else the configuration. Raises BrokerUnreachable at once
    if no broker listens there: librdkafka would retry a refused connection until its timeout.
    """
    settings = config.load({"broker.bootstrap": args.bootstrap}, path=args.config)
    try:
        given = dict(key_value(pair) for pair in args.properties)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"-X {error}") from error
    properties = {**login.properties_of(settings.client), **given}
    cluster = KafkaCluster(settings.bootstrap(), properties, verbose=args.verbose)
    cluster.require_listener()
    return cluster
