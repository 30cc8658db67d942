"""`headwater gateway`: topics and tables over HTTP, in the foreground until SIGINT or SIGTERM."""

import argparse
import dataclasses

from headwater import config
from headwater.cli.parser import Command, Parser, common_options
from headwater.gateway_settings import DEFAULT_LISTEN
from headwater.terminal.output import ready_reporter


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help=f"address to bind (gateway.listen, {DEFAULT_LISTEN})"
    )
    parser.add_argument(
        "-b", "--bootstrap", metavar="HOST:PORT[,...]", help="brokers to use (broker.bootstrap)"
    )
    common_options(parser, json_help="write one JSON line to stdout when ready")


def _run(args: argparse.Namespace) -> int:
    flags = {"gateway.listen": args.listen, "broker.bootstrap": args.bootstrap}
    settings = config.load(flags, path=args.config)
    if not settings.gateway.is_on and args.listen is None:
        served = dataclasses.replace(settings.gateway, listen=DEFAULT_LISTEN)
        settings = dataclasses.replace(settings, gateway=served)

    from headwater.broker.monitoring import logs
    from headwater.client import login
    from headwater.gateway import server

    settings = dataclasses.replace(settings, client=login.with_password(settings.client))
    logs.set_up(settings.broker.log_format, settings.broker.log_level)

    ready = ready_reporter("gateway", settings.bootstrap(), as_json=args.json)
    server.run(settings, ready)
    return 0


COMMANDS = {
    "": Command(
        "run the gateway: topics and tables over HTTP",
        _configure,
        _run,
        "  headwater gateway\n  headwater gateway --listen 127.0.0.1:8082 -b kafka-1:9092",
    )
}
