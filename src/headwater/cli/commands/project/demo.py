"""`headwater demo`: a shop with everything derived from it. See headwater/demo/."""

import argparse
import os
import shlex
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Final

from headwater import extras
from headwater.cli.parser import Command, Parser, output_options, whole_number
from headwater.errors import ConfigError, NotReady
from headwater.terminal.interrupt import Interrupt
from headwater.terminal.output import print_json, say

_INTERRUPTED: Final = 130


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "--seconds",
        type=whole_number(1, 10**9),
        metavar="N",
        help="end by itself after N seconds of load, with every store verified",
    )
    parser.add_argument(
        "--rate",
        type=whole_number(1, 10**4),
        default=25,
        metavar="N",
        help="transactions per second (default: 25)",
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="store everything in DIR (default: removed at the end)"
    )
    output_options(parser, json_help="show nothing, write the summary as JSON")


def _run(args: argparse.Namespace) -> int:
    interrupt = Interrupt()
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    extras.require("headwater demo", "demo")
    from headwater.demo.running import Demo
    from headwater.demo.view import STEPS, summary_lines, view_for

    directory = _directory(args.data_dir)
    try:
        view = view_for(directory, STEPS, quiet=args.json)
        os.chdir(directory)
        demo = Demo(directory, args.rate, view, lambda: bool(interrupt))
        demo.run(args.seconds)
    finally:
        if not args.data_dir:
            os.chdir("/")
            shutil.rmtree(directory, ignore_errors=True)
    if args.json:
        print_json(demo.summary.as_json())
    else:
        say("\n" + "\n".join(summary_lines(demo.summary)))
        say(_left(args.data_dir, directory))
    if args.seconds is None:
        return 0
    return _INTERRUPTED if interrupt else 0 if demo.summary.is_verified else NotReady.exit_code


def _directory(given: str | None) -> Path:
    """Where PostgreSQL's user gets in, if that is another one."""
    if given is None:
        directory = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
        directory.chmod(0o711)
        return directory
    directory = Path(given).resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            "the demo cannot use its directory",
            detail=f"{directory}: {(error.strerror or str(error)).lower()}",
            hint="--data-dir takes another one",
        ) from error
    return directory


def _left(given: str | None, directory: Path) -> str:
    if given is None:
        return "everything has stopped and is removed (--data-dir DIR retains it)"
    goes_on = f"headwater demo --data-dir {shlex.quote(str(directory))}"
    return f"everything has stopped; `{goes_on}` continues it"


COMMANDS = {
    "": Command(
        "run a demo shop with everything derived from it",
        _configure,
        _run,
        "  headwater demo\n  headwater demo --seconds 30 --json\n"
        "  headwater demo --data-dir shop --rate 100",
    )
}
