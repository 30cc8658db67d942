"""The display of a running capture: snapshot bars and a line about the stream, or log lines.

On a terminal it shows a bar for each table that is copied; elsewhere log lines only, now and then
one about progress.
"""

import logging
import sys
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, Final, Self

from headwater.broker.monitoring.logs import JsonFormatter, TextFormatter
from headwater.capture.metrics import CaptureState, SnapshotProgress
from headwater.errors import HeadwaterError
from headwater.terminal.output import count, duration, plural, size

log = logging.getLogger(__name__)

_REDRAW_S: Final = 0.25
_LINE_S: Final = 10.0
_LOOKS: Final = 20
_MAX_BARS: Final = 8  # tables beyond are counted in one line
_BAR_CHARACTERS: Final = 24


class Display(logging.Handler):
    """Shows `state` until it is left. Log lines go through it, for they would tear the bars."""

    def __init__(self, state: CaptureState, log_level: str, *, is_json: bool) -> None:
        super().__init__()
        self._state = state
        self._is_terminal = sys.stderr.isatty() and not is_json
        self._bars = Bars(state) if self._is_terminal else None
        self._rates = Rates()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="display", daemon=True)
        self._shown_counts: tuple[int, int] = (0, 0)
        self.setFormatter(JsonFormatter() if is_json else TextFormatter())
        logging.basicConfig(level=log_level.upper(), handlers=[self], force=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._bars is not None:
            self._bars.close()

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if self._bars is not None:
            self._bars.print(line)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def retrying(self, error: HeadwaterError, pause_s: float) -> None:
        reason = str(error).replace("\n", "; ")
        hint = f" (hint: {error.hint})" if error.hint else ""
        log.warning("%s; retrying in %s%s", reason, duration(pause_s), hint)

    def _run(self) -> None:
        while not self._stop.wait(_REDRAW_S if self._bars is not None else _LINE_S):
            if self._bars is not None:
                self._bars.draw()
            else:
                self._log_progress()

    def _log_progress(self) -> None:
        """A line for a log, if there is something new."""
        state = self._state
        for table, progress in state.snapshots.items():
            if not progress.is_done:
                rate = self._rates.of(table, progress.rows)
                log.info("%s: %s", table, shown_rows(progress, rate))
        shown = (state.transactions, state.changes)
        if shown != self._shown_counts:
            self._shown_counts = shown
            log.info("%s", shown_stream(state))


class Rates:
    """Counts per second, of the last few looks."""

    def __init__(self) -> None:
        self._looks: dict[str, deque[tuple[float, int]]] = {}

    def of(self, name: str, now: int) -> float | None:
        looks = self._looks.setdefault(name, deque(maxlen=_LOOKS))
        if looks and now < looks[-1][1]:  # it began again
            looks.clear()
        looks.append((time.monotonic(), now))
        (first_s, first), (last_s, last) = looks[0], looks[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None


def shown_rows(progress: SnapshotProgress, rate: float | None) -> str:
    """12,000 of ~40,000 rows, 8,000/s, 4 s left."""
    total = progress.rows_total
    has_total = total is not None and total >= progress.rows
    text = count(progress.rows) + (f" of ~{count(total or 0)}" if has_total else "") + " rows"
    if rate:
        text += f", {count(round(rate))}/s"
        if has_total and total is not None:
            text += f", {duration(max(1, (total - progress.rows) / rate))} left"
    return text


def shown_stream(state: CaptureState) -> str:
    """1,203 records, 400 transactions, 1.2 MiB; behind by 3.0 KiB, 20.0 ms."""
    parts = (plural(state.changes, "record"), plural(state.transactions, "transaction"))
    text = ", ".join((*parts, size(state.size_bytes)))
    lag = state.last_lag.size_bytes
    if lag == 0:
        return f"{text}; nothing waits"
    behind = [size(lag)] if lag is not None else []
    if state.lag_s is not None:
        behind.append(duration(state.lag_s))
    return f"{text}; behind by {', '.join(behind)}" if behind else text


class Bars:
    """On a terminal, by rich: bars of the tables that are being copied, the stream below them."""

    def __init__(self, state: CaptureState) -> None:
        from rich.console import Console
        from rich.live import Live

        self._state = state
        self._rates = Rates()
        console = Console(stderr=True, highlight=False)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def print(self, line: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._live.stop()

    def draw(self) -> None:
        self._live.update(self._rendered(), refresh=True)

    def _rendered(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        state = self._state
        copying = {
            table: snapshot for table, snapshot in state.snapshots.items() if not snapshot.is_done
        }
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(width=_BAR_CHARACTERS)
        grid.add_column(no_wrap=True)
        for table, snapshot in list(copying.items())[:_MAX_BARS]:
            total = (
                max(snapshot.rows_total, snapshot.rows) if snapshot.rows_total is not None else None
            )
            bar = ProgressBar(total=total, completed=snapshot.rows, pulse=total is None)
            grid.add_row(table, bar, shown_rows(snapshot, self._rates.of(table, snapshot.rows)))
        more = len(copying) - _MAX_BARS
        rest = [Text(f"and {count(more)} more tables")] if more > 0 else []
        failed = [
            Text(f"{table} is not followed: {error.what}", style="red")
            for table, error in list(state.failed_tables.items())[:_MAX_BARS]
        ]
        rate = self._rates.of("", state.changes)
        if state.is_following:
            text = Text(shown_stream(state) + (f"; {count(round(rate))}/s" if rate else ""))
        else:
            text = Text(f"waiting: {state.not_ready_because()}", style="yellow")
        return Group(*([grid] if copying else []), *rest, *failed, text)
