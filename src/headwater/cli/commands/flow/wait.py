"""`headwater wait NAME`: waits until a derived store has what was written."""

import argparse
import time

from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser, duration_s
from headwater.inspect.captures import connected
from headwater.terminal.output import print_json, say


def _configure(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="pipeline, or pipeline/sink/table")
    parser.add_argument(
        "token",
        metavar="TOKEN",
        nargs="?",
        help="records that must be in, topic:partition:offset with commas between"
        " (all that is committed now, in the log and in captured databases)",
    )
    parser.add_argument(
        "--timeout",
        metavar="DURATION",
        type=duration_s,
        default=30.0,
        help="how long to wait (30s)",
    )
    broker_options(parser)


def _wait(args: argparse.Namespace) -> int:
    from headwater.inspect.waiting import wait

    loaded = load_config(args)
    connected(loaded)
    began_s = time.monotonic()
    positions = wait(args.name, args.token, timeout_s=args.timeout, loaded=loaded)
    if args.json:
        print_json({name: position.offsets for name, position in positions.items()})
    else:
        took_s = time.monotonic() - began_s
        say(f"{', '.join(positions)}: up to date after {took_s:.2f} s")
    return 0


COMMANDS = {
    "": Command(
        "wait until a derived store has what was written; exit code 3 if it does not in time",
        _configure,
        _wait,
        "  headwater wait revenue\n  headwater wait revenue orders:0:41 --timeout 5s",
    )
}
