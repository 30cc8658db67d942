"""The display of the demo: its start step by step, then every derived store, live.

On a terminal a screen that is redrawn, elsewhere lines now and then, with --json nothing.
"""

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from headwater.demo.summary import Summary, percentile, recent
from headwater.demo.watching import Store, Watch
from headwater.supervisor import status_file
from headwater.terminal.output import count, path_to_type, say, terminal

POSTGRES, BROKER, CONSOLE, CAPTURE, SPARK, PIPELINES = (
    "PostgreSQL", "broker", "console", "capture", "Spark", "pipelines",
)  # fmt: skip
STEPS: Final = (POSTGRES, BROKER, CONSOLE, CAPTURE, SPARK, PIPELINES)
_REDRAW_S: Final = 0.5
_LINE_EVERY_S: Final = 5.0
_IN_STEP_S: Final = 5.0  # a store whose newest change is older than this has fallen behind
_TITLE: Final = "a shop in PostgreSQL, and everything that follows it"
_WIDE: Final = 90  # columns


class View(Protocol):
    """Called by running.py, in this order."""

    def progress(self, step: str, text: str) -> None: ...

    def done(self, step: str, at_s: float, detail: str = "") -> None:
        """Once or more for each step."""

    def tick(self) -> None: ...

    def ready(self, at_s: float, children: Sequence[status_file.ChildStatus]) -> None: ...

    def show(self, watch: Watch, children: Sequence[status_file.ChildStatus]) -> None: ...

    def phase(self, text: str) -> None: ...

    def ending(self) -> None: ...


def view_for(directory: Path, steps: Sequence[str], *, quiet: bool) -> View:
    """Must be called in the directory that the program was started in: its own path may be
    relative to that.
    """
    if quiet:
        return Silent()
    entering = [*path_to_type(), f"cd {shlex.quote(str(directory))}"]
    return Screen(entering, steps) if terminal() else Lines(entering)


def addresses(children: Sequence[status_file.ChildStatus]) -> dict[str, str]:
    found = {child.kind: child.address for child in children if child.address}
    shown = {BROKER: found.get("broker", "")}
    if "console" in found:
        shown[CONSOLE] = f"http://{found['console']}"
    return {name: text for name, text in shown.items() if text}


def to_try(entering: Sequence[str], children: Sequence[status_file.ChildStatus]) -> list[str]:
    """Three things, for another terminal. What begins with three spaces is run by a shell as it
    stands; `entering` is typed first.
    """
    # The capture first: it is the one whose end shows best.
    pids = [(child.pid, child.name) for child in children if child.pid]
    pids.sort(key=lambda child: not child[1].startswith("capture"))
    others = "".join(f", or {pid} {name}" for pid, name in pids[1:])
    return [
        *(f"   {line}" for line in entering),
        "1  change a row, and see it everywhere:",
        "   ./psql -c \"UPDATE customers SET country = 'IS' WHERE id = 1\"",
        '   ./psql warehouse -c "SELECT * FROM customers WHERE id = 1"',
        "2  prove that a store is what the log says:",
        "   headwater verify orders",
        "3  kill any process, and watch it catch up:",
        *(f"   kill -9 {pid}   # {name}{others}" for pid, name in pids[:1]),
    ]


def store_rows(stores: Sequence[Store]) -> list[tuple[str, str, str, str, str, str]]:
    """Name, kind, rows, behind, p50 and p99 of each."""
    return [
        (
            f"{store.pipeline} → {store.name}",
            store.kind,
            "" if store.rows is None else count(store.rows),
            state_of(store),
            _ms(percentile(recent([store]), 0.5)),
            _ms(percentile(recent([store]), 0.99)),
        )
        for store in stores
    ]


def state_of(store: Store) -> str:
    if store.state not in ("running", "waiting"):
        return store.state
    return "in step" if store.behind_s < _IN_STEP_S else f"{store.behind_s:.0f} s behind"


def headline(watch: Watch) -> str:
    stores = list(watch.stores.values())
    in_step = sum(state_of(store) == "in step" for store in stores)
    latencies = recent(stores)
    return (
        f"{watch.changes.per_s(time.monotonic()):.0f} changes/s,"
        f" {count(watch.changes.count)} so far; {in_step} of {len(stores)} stores in step;"
        f" from commit to derived row p50 {_ms(percentile(latencies, 0.5)) or '…'},"
        f" p99 {_ms(percentile(latencies, 0.99)) or '…'}"
    )


def summary_lines(summary: Summary) -> list[str]:
    """For the end."""
    totals = summary.as_json()
    if summary.ready_s is None:
        return ["ended before it was ready"]
    first = (
        f"{count(summary.changes)} changes in {summary.seconds:.0f} s of load; from the database's"
        f" commit to the derived row p50 {_ms(totals['p50_ms'])}, p99 {_ms(totals['p99_ms'])}"
    )
    lines = [first]
    for store in totals["stores"]:
        verdict = {True: "equal", False: f"{store['different']} rows differ", None: ""}
        rows = "" if store["rows"] is None else f"{count(store['rows'])} rows"
        lines.append(f"  {store['store']:34} {rows:>12}  {verdict[store['is_equal']]}".rstrip())
    if summary.verdicts:
        lines.append(
            "verified: every store is what the log says"
            if summary.is_verified
            else "not verified: see above"
        )
    return lines


class Silent:
    def progress(self, step: str, text: str) -> None: ...

    def done(self, step: str, at_s: float, detail: str = "") -> None: ...

    def tick(self) -> None: ...

    def ready(self, at_s: float, children: Sequence[status_file.ChildStatus]) -> None: ...

    def show(self, watch: Watch, children: Sequence[status_file.ChildStatus]) -> None: ...

    def phase(self, text: str) -> None: ...

    def ending(self) -> None: ...


class Lines:
    """For pipes and files."""

    def __init__(self, entering: Sequence[str]) -> None:
        self._entering = entering
        self._done: set[str] = set()
        self._next_s = 0.0

    def progress(self, step: str, text: str) -> None: ...

    def done(self, step: str, at_s: float, detail: str = "") -> None:
        if step not in self._done:
            self._done.add(step)
            _say(f"{at_s:5.1f} s  {step}{f'  {detail}' if detail else ''}")

    def tick(self) -> None: ...

    def ready(self, at_s: float, children: Sequence[status_file.ChildStatus]) -> None:
        _say(f"ready after {at_s:.1f} s")
        for name, address in addresses(children).items():
            _say(f"{name:8} {address}")
        _say("\ntry, in another terminal:\n" + "\n".join(to_try(self._entering, children)) + "\n")

    def show(self, watch: Watch, children: Sequence[status_file.ChildStatus]) -> None:
        if time.monotonic() > self._next_s:
            self._next_s = time.monotonic() + _LINE_EVERY_S
            _say(headline(watch))

    def phase(self, text: str) -> None:
        _say(text)

    def ending(self) -> None:
        _say("stopping …")


class Screen:
    """For a terminal."""

    def __init__(self, entering: Sequence[str], steps: Sequence[str]) -> None:
        from rich.live import Live
        from rich.spinner import Spinner

        self._spinner = Spinner("dots")
        self._entering = entering
        self._steps: dict[str, str] = dict.fromkeys(steps, "")
        self._done: dict[str, float] = {}
        self._live = Live(auto_refresh=False)
        self._next_s = 0.0

    def progress(self, step: str, text: str) -> None:
        if step not in self._done:
            self._steps[step] = text

    def done(self, step: str, at_s: float, detail: str = "") -> None:
        if step not in self._done:
            self._done[step] = at_s
            self._steps[step] = detail
            self.tick()

    def tick(self) -> None:
        self._live.start()
        self._live.update(self._start_screen(), refresh=True)

    def ready(self, at_s: float, children: Sequence[status_file.ChildStatus]) -> None:
        self.tick()

    def show(self, watch: Watch, children: Sequence[status_file.ChildStatus]) -> None:
        if time.monotonic() > self._next_s:
            self._next_s = time.monotonic() + _REDRAW_S
            self._live.update(self._live_screen(watch, children), refresh=True)

    def phase(self, text: str) -> None:
        self._close()
        say(text)

    def ending(self) -> None:
        self._close()
        say("stopping …")

    def _close(self) -> None:
        self._live.stop()

    def _start_screen(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        screen = Table(
            box=None, show_header=False, padding=(0, 1), title=_TITLE, title_justify="left"
        )
        for step, detail in self._steps.items():
            at_s = self._done.get(step)
            mark: Any = self._spinner if at_s is None else Text("✓", "green")
            took = "" if at_s is None else f"{at_s:.1f} s"
            screen.add_row(mark, Text(step, "bold"), Text(took, "dim"), Text(detail, "dim"))
        return screen

    def _live_screen(self, watch: Watch, children: Sequence[status_file.ChildStatus]) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        is_wide = self._live.console.width >= _WIDE
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("derived store", no_wrap=True, overflow="ellipsis")
        for title in ("kind", "rows", "state", "p50", "p99"):
            if is_wide or title in ("rows", "state"):
                table.add_column(
                    title,
                    justify="left" if title in ("kind", "state") else "right",
                    no_wrap=True,
                )
        for name, kind, rows, state, p50, p99 in store_rows(list(watch.stores.values())):
            shown = Text(state, "green" if state == "in step" else "yellow")
            table.add_row(name, *((kind,) if is_wide else ()), rows, shown,
                          *((p50, p99) if is_wide else ()))  # fmt: skip
        where = "   ".join(f"{name} {address}" for name, address in addresses(children).items())
        return Group(
            Text(headline(watch), "bold"),
            "",
            table,
            "",
            Text(where, "cyan"),
            Text("try, in another terminal:", "dim"),
            Text("\n".join(to_try(self._entering, children)), no_wrap=True, overflow="ellipsis"),
            Text("Ctrl-C ends it", "dim"),
        )


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.1f} s"


def _say(text: str) -> None:
    """Flushed at once: a reader may be waiting for it."""
    say(text)
    sys.stdout.flush()
