"""`headwater console`: the web console, in the foreground until SIGINT or SIGTERM."""

import argparse

from headwater import config
from headwater.cli.parser import Command, Parser, common_options
from headwater.terminal.output import ready_reporter


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="address to bind (console.listen, 127.0.0.1:8080)"
    )
    parser.add_argument(
        "-b", "--bootstrap", metavar="HOST:PORT[,...]", help="brokers to show (broker.bootstrap)"
    )
    common_options(parser, json_help="write one JSON line to stdout when ready")


def _run(args: argparse.Namespace) -> int:
    flags = {"console.listen": args.listen, "broker.bootstrap": args.bootstrap}
    settings = config.load(flags, path=args.config)

    from headwater.broker.monitoring import logs
    from headwater.console import server

    logs.set_up(settings.broker.log_format, settings.broker.log_level)

    ready = ready_reporter("console", settings.bootstrap(), as_json=args.json)
    server.run(settings, ready)
    return 0


COMMANDS = {
    "": Command(
        "run the web console",
        _configure,
        _run,
        "  headwater console\n  headwater console --listen 127.0.0.1:8081 -b kafka-1:9092",
    )
}
