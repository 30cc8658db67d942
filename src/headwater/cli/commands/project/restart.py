"""`headwater restart [CHILD]`: one child of `headwater up` again, or all of it."""

import argparse
import time
from pathlib import Path
from typing import Final

from headwater import config
from headwater.cli import up_detached
from headwater.cli.commands.project.down import stop
from headwater.cli.commands.project.up import READY_S, with_password
from headwater.cli.parser import Command, Parser, common_options, duration_s
from headwater.errors import NotReady, UsageError
from headwater.spelling import nearest
from headwater.supervisor import requests, status_file
from headwater.supervisor.plan import data_dir_of
from headwater.terminal.output import print_json, say

_LOOK_S: Final = 0.05


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "child",
        metavar="CHILD",
        nargs="?",
        help='broker, console, gateway, pipelines, "capture NAME", "pipeline NAME" (all of it)',
    )
    parser.add_argument(
        "--timeout", metavar="DURATION", type=duration_s, default=READY_S,
        help="how long to wait until it is ready (2m)",
    )  # fmt: skip
    common_options(parser)


def _run(args: argparse.Namespace) -> int:
    loaded = config.load(path=args.config)
    data_dir = data_dir_of(loaded)
    running = status_file.read(data_dir)
    if running is None:
        raise NotReady(
            "`headwater up` does not run", detail=f"for {data_dir}", hint="`headwater up -d`"
        )
    if args.child is not None:
        return _restart(args, data_dir, running)
    if running.log is None:
        raise UsageError(
            f"process {running.pid} was not started by `headwater up -d`",
            hint="end it where it runs and start it again there; `headwater restart CHILD`"
            " restarts one child",
        )
    loaded, secrets = with_password(loaded)
    stop(data_dir)
    return up_detached.start(loaded, secrets, timeout_s=args.timeout, as_json=args.json)


def _restart(
    args: argparse.Namespace, data_dir: Path, running: status_file.SupervisorStatus
) -> int:
    before = _child(running, args.child)
    began_s = time.monotonic()
    if not requests.ask(data_dir, before.name, requests.RESTART):
        raise NotReady("`headwater up` has just ended", detail=f"for {data_dir}")
    while True:
        child = _child(status_file.read(data_dir) or running, before.name)
        is_new = child.started_at != before.started_at
        if is_new and child.state == status_file.READY:
            break
        if is_new and child.state == status_file.FAILED:
            raise NotReady(f"{child.name} has failed", detail=child.reason, hint=child.hint)
        if time.monotonic() - began_s > args.timeout:
            raise NotReady(
                f"{child.name} is not ready after {args.timeout:g} s",
                detail=f"{child.state} {child.reason}".strip(),
                hint="`headwater status --watch` shows it",
            )
        time.sleep(_LOOK_S)
    took_s = time.monotonic() - began_s
    if args.json:
        print_json({"child": child.name, "pid": child.pid, "seconds": took_s})
    else:
        say(f"{child.name}: ready after {took_s:.1f} s, process {child.pid}")
    return 0


def _child(running: status_file.SupervisorStatus, name: str) -> status_file.ChildStatus:
    """Also by the name of a capture or an isolated pipeline alone."""
    exact = [child for child in running.children if child.name == name]
    short = [child for child in running.children if name and child.name.partition(" ")[2] == name]
    for child in exact or short:
        return child
    names = [child.name for child in running.children]
    meant = nearest(name, names)
    raise UsageError(
        f"`headwater up` has no child {name}",
        hint=f"did you mean {meant}?" if meant else "there are " + ", ".join(names),
    )


COMMANDS = {
    "": Command(
        "restart one child of `headwater up`, or all of a detached one",
        _configure,
        _run,
        "  headwater restart broker\n  headwater restart 'capture shop'\n  headwater restart",
    )
}
