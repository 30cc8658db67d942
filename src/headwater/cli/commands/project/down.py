"""`headwater down`: stops what `headwater up` runs, and waits until nothing of it is left."""

import argparse
import signal
import time
from pathlib import Path
from typing import Final

from headwater.cli.arguments import read_data_dir
from headwater.cli.parser import Command, Parser, common_options
from headwater.errors import HeadwaterError, NotReady
from headwater.supervisor import lock
from headwater.supervisor.plan import GRACE_S
from headwater.terminal.output import note, print_json, say

# All kinds one after the other, and what the guard waits for.
_LONGEST_S: Final = sum(GRACE_S.values()) + 60.0
_LOOK_S: Final = 0.05


def _configure(parser: Parser) -> None:
    common_options(parser)


def _run(args: argparse.Namespace) -> int:
    data_dir = read_data_dir(args)
    began_s = time.monotonic()
    pid = stop(data_dir)
    if args.json:
        print_json({"pid": pid, "seconds": time.monotonic() - began_s})
    elif pid is None:
        note(f"`headwater up` does not run for {data_dir}")
    else:
        say(f"process {pid} and all of its children have ended")
    return 0


def stop(data_dir: Path) -> int | None:
    """Asks the supervisor of this directory to stop, and waits for the end of everything. Its pid;
    None if there is none. Raises NotReady if it takes too long.
    """
    try:
        pid = lock.send(data_dir, signal.SIGTERM)
    except PermissionError as error:
        raise HeadwaterError(
            "`headwater up` runs as another user",
            detail=f"it supervises {data_dir}",
            hint="run this command as that user",
        ) from error
    until_s = time.monotonic() + _LONGEST_S
    while lock.is_held(data_dir):  # also what a killed one has left
        if time.monotonic() > until_s:
            raise NotReady(
                f"it has not ended after {_LONGEST_S:.0f} s",
                detail=f"process {pid} supervises {data_dir}",
                hint="`headwater status` shows what is left; a second `down` kills at once",
            )
        time.sleep(_LOOK_S)
    return pid


COMMANDS = {
    "": Command(
        "stop what `headwater up` runs, in order, and wait for the end of all of it",
        _configure,
        _run,
        "  headwater down\n  headwater down --config shop/headwater.toml",
    )
}
