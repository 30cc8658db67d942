"""`headwater up`: everything that headwater.toml asks for, in the foreground."""

import argparse
import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Mapping

from headwater import config
from headwater.cli.parser import Command, Parser, common_options
from headwater.client import login
from headwater.supervisor.log_mux import Merged
from headwater.supervisor.plan import children_of
from headwater.supervisor.supervisor import Supervisor, View
from headwater.terminal.output import terminal


def _configure(parser: Parser) -> None:
    common_options(parser, json_help="write one JSON object per event and log line")


def _run(args: argparse.Namespace) -> int:
    from headwater.cli.up_view import JsonView, TextView

    loaded = config.load(path=args.config)
    loaded, secrets = _with_password(loaded)
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


def _with_password(loaded: config.Config) -> tuple[config.Config, dict[str, str]]:
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
        "  headwater up\n  headwater up --config shop/headwater.toml\n"
        "  headwater up --json | jq 'select(.event == \"child\")'",
    )
}
