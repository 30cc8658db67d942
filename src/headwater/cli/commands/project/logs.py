"""`headwater logs [CHILD]`: what `headwater up -d` and its children have written."""

import argparse
import io
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from headwater.cli.arguments import read_data_dir
from headwater.cli.parser import Command, Parser, common_options, whole_number
from headwater.errors import NotReady
from headwater.printable import printable_json
from headwater.supervisor.log_events import event_of, name_of, text_of
from headwater.supervisor.log_file import FILE_NAME, files_of
from headwater.terminal.interrupt import Interrupt
from headwater.terminal.output import say, styled

_LOOK_S: Final = 0.1
_LEVEL_STYLES: Final = {"warning": "yellow", "error": "red", "critical": "bold red"}


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "child",
        metavar="CHILD",
        nargs="?",
        help='broker, console, gateway, pipelines, "capture NAME", "pipeline NAME", up (all)',
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on as lines come")
    parser.add_argument(
        "-n", "--lines", metavar="N", type=whole_number(0, 10**9), help="only the last N (all)"
    )
    common_options(parser, json_help="write the events as they are stored")


def _run(args: argparse.Namespace) -> int:
    data_dir = read_data_dir(args)
    if not files_of(data_dir):
        raise NotReady(
            "there is no log", detail=f"in {data_dir}", hint="`headwater up -d` writes one"
        )
    older = [path for path in files_of(data_dir) if path.name != FILE_NAME]
    stored = [line for path in older for line in _lines_of(path)]
    newest = _Tail(data_dir / FILE_NAME)
    wanted = _wanted((*stored, *newest.lines()), args.child)
    for event in deque(wanted, maxlen=args.lines):
        _show(event, as_json=args.json)
    interrupt = Interrupt() if args.follow else None
    while args.follow and not interrupt:
        sys.stdout.flush()
        for event in _wanted(newest.lines(), args.child):
            _show(event, as_json=args.json)
        time.sleep(_LOOK_S)
    return 0


class _Tail:
    """The whole lines of a file that grows, and is replaced by a new one when it is large."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Missing between the two steps of its replacement, or if it was removed.
        self._file: IO[bytes] = path.open("rb") if path.exists() else io.BytesIO()
        self._rest = b""

    def lines(self) -> Iterator[bytes]:
        """Those since the last call."""
        while True:
            *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
            yield from lines
            if not self._is_replaced():
                return
            # What came into the old file since, then the new one.
            *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
            yield from lines
            self._file.close()
            self._file = self._path.open("rb")
            self._rest = b""

    def _is_replaced(self) -> bool:
        try:
            now = self._path.stat()
        except FileNotFoundError:  # between the two steps of its replacement
            return False
        if isinstance(self._file, io.BytesIO):
            return True
        return not os.path.samestat(os.fstat(self._file.fileno()), now)


def _lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def _wanted(lines: Iterable[bytes], child: str | None) -> Iterator[dict[str, Any]]:
    for line in lines:
        event = event_of(line)
        name = name_of(event)
        if child is None or child == name or (child and child == name.partition(" ")[2]):
            yield event


def _show(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(printable_json(json.dumps(event)) + "\n")
        return
    at = event.get("at")
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else " " * 19
    for text in text_of(event).split("\n"):
        style = _LEVEL_STYLES.get(str(event.get("level")))
        shown = styled(text, style) if style and text else text
        say(f"{styled(clock, 'dim')} {styled(name_of(event), 'bold')} | {shown}")


COMMANDS = {
    "": Command(
        "what `headwater up -d` and its children have written",
        _configure,
        _run,
        "  headwater logs -f\n  headwater logs broker -n 100\n"
        "  headwater logs 'capture shop' --json | jq .message",
    )
}
