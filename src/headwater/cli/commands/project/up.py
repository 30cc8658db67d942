"""`headwater up`: everything that headwater.toml asks for, in the foreground or detached."""

import argparse
import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Mapping
from typing import Final

from headwater import config
from headwater.cli.parser import Command, Parser, common_options, duration_s
from headwater.client import login
from headwater.supervisor.log_mux import Merged
from headwater.supervisor.plan import children_of
from headwater.supervisor.supervisor import Supervisor, View
from headwater.terminal.output import terminal

READY_S: Final = 120.0


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "-d",
        "--detach",
        action="store_true",
        help="in the background; returns when everything is ready (log: `headwater logs`)",
    )
    parser.add_argument(
        "--timeout",
        metavar="DURATION",
        type=duration_s,
        default=READY_S,
        help="with -d: how long to wait until everything is ready (2m)",
    )
    common_options(parser, json_help="write one JSON object per event and log line")


def _run(args: argparse.Namespace) -> int:
    from headwater.cli.up_view import JsonView, TextView

    loaded = config.load(path=args.config)
    loaded, secrets = with_password(loaded)
    if args.detach:
        from headwater.cli import up_detached

        return up_detached.start(loaded, secrets, timeout_s=args.timeout, as_json=args.json)
    sys.stdout.flush()
    output = Merged(
        sys.stdout.fileno(),
        is_terminal=terminal() and not args.json,
        on_gone=lambda: os.kill(os.getpid(), signal.SIGTERM),  # `| head` has seen enough
    )
    names = [child.name for child in children_of(loaded)]
    view: View = JsonView(output) if args.json else TextView(output, loaded, names)
    try:
        asyncio.run(_supervise(loaded, view, secrets))
    finally:
        output.close()
    return 0


async def _supervise(loaded: config.Config, view: View, secrets: Mapping[str, str]) -> None:
    await Supervisor(loaded, view, secrets).run()


def with_password(loaded: config.Config) -> tuple[config.Config, dict[str, str]]:
    """One that is nowhere is asked for once, and children find it in their environment."""
    client = login.with_password(loaded.client)
    if client is loaded.client or client.password is None:
        return loaded, {}
    secrets = {"HEADWATER_CLIENT__PASSWORD": client.password.reveal()}
    return dataclasses.replace(loaded, client=client), secrets


COMMANDS = {
    "": Command(
        "run everything that headwater.toml asks for",
        _configure,
        _run,
        "  headwater up\n  headwater up -d\n  headwater up --config shop/headwater.toml\n"
        "  headwater up --json | jq 'select(.event == \"child\")'",
    )
}
