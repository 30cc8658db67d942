"""The progress of a command on stderr: a bar on a terminal, a line now and then elsewhere."""

import argparse
import os
import sys
import time
from typing import Any, Final

from headwater.terminal.output import count, note

_BAR_AFTER_S: Final = 0.5  # most commands are done before a bar is worth its import
_BAR_EVERY_S: Final = 0.1
_LINE_EVERY_S: Final = 5.0
_REQUESTED_LINE_EVERY_S: Final = 1.0  # if HEADWATER_PROGRESS is set
_ASKED: Final = "HEADWATER_PROGRESS"  # set by the console, which uses --json and shows it


def shows_progress(args: argparse.Namespace) -> bool:
    """Whether progress goes to stderr: with --json only if it is asked for."""
    return not args.json or _ASKED in os.environ


class ProgressBar:
    """The progress of one command. `update` is cheap; `total` is the final value of `done`."""

    def __init__(self, doing: str, *, total: int | None = None, quiet: bool = False) -> None:
        self._doing = doing
        self._total = total
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._line_every_s = _REQUESTED_LINE_EVERY_S if _ASKED in os.environ else _LINE_EVERY_S
        self._began_s = time.monotonic()
        self._next_s = self._began_s + (_BAR_AFTER_S if self._terminal else self._line_every_s)
        self._bar: Any = None
        self._task: Any = None

    def update(self, records: int, done: int = 0, more: str = "") -> None:
        now_s = time.monotonic()
        if self._quiet or now_s < self._next_s:
            return
        rate = records / (now_s - self._began_s)
        text = f"{count(records)} records, {count(round(rate))}/s{more}"
        if not self._terminal:
            self._next_s = now_s + self._line_every_s
            share = f" ({done / self._total:.0%})" if self._total else ""
            note(f"{self._doing}: {text}{share}")
            return
        self._next_s = now_s + _BAR_EVERY_S
        if self._bar is None:
            self._start_bar()
        self._bar.update(self._task, completed=done, records=text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            SpinnerColumn,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress

        with_total = (
            (BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) if self._total else ()
        )
        self._bar = RichProgress(
            SpinnerColumn(),
            TextColumn(self._doing),
            *with_total,
            TextColumn("{task.fields[records]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self._doing, total=self._total, records="")
        self._bar.start()
