"""`headwater capture list | status | run | snapshot | reset`: change data capture.

list and status read the log, so they work from any machine that reaches the broker. If a capture
does not run, its database is asked how much log it retains for it, if it can be reached.
"""

import argparse
import time

from headwater import config
from headwater.capture import positions
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.captures import reset, run
from headwater.cli.captures import snapshot as capture_snapshot
from headwater.cli.parser import Command, Parser
from headwater.client.reading.compacted import read_committed_latest
from headwater.inspect.captures import (
    FOLLOWING,
    NEW,
    CaptureState,
    capture_states,
    connected,
    no_capture,
    shown_lag,
    shown_tables,
    warning_of,
    with_lags_now,
)
from headwater.terminal.output import count, duration, note, print_json, say, size, styled, table

_STYLES = {FOLLOWING: "green", NEW: "dim"}


def _configure_list(parser: Parser) -> None:
    broker_options(parser)


def _list(args: argparse.Namespace) -> int:
    captures = _captures(load_config(args))
    if args.json:
        print_json([capture.as_json() for capture in captures])
    elif captures:
        headers = ("capture", "source", "state", "tables", "lag")
        say(table(headers, ([*_cells(capture)] for capture in captures)))
    else:
        note("no captures yet; a section [capture.NAME] in headwater.toml makes one")
    return 0


def _cells(capture: CaptureState) -> tuple[str, ...]:
    source = capture.settings.shown_source if capture.settings else "(not in this configuration)"
    return capture.name, source, capture.state, shown_tables(capture), shown_lag(capture)


def _configure_status(parser: Parser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="captures (all)")
    broker_options(parser)


def _status(args: argparse.Namespace) -> int:
    captures = {capture.name: capture for capture in _captures(load_config(args))}
    for name in args.names:
        if name not in captures:
            raise no_capture(name, list(captures))
    wanted = [captures[name] for name in args.names or captures]
    if args.json:
        print_json([capture.as_json() for capture in wanted])
    elif not wanted:
        note("no captures yet; a section [capture.NAME] in headwater.toml makes one")
    else:
        for index, capture in enumerate(wanted):
            if index:
                say()
            _show(capture)
    return 0 if all(capture.is_well for capture in wanted) else 3


def _show(capture: CaptureState) -> None:
    stored = capture.stored.capture
    state = styled(capture.state, _STYLES.get(capture.state, "bold yellow"))
    source = capture.settings.shown_source if capture.settings else "not in this configuration"
    say(f"{styled(capture.name, 'bold')}  {state}  {source}")
    if stored is None:
        say(f"  `headwater capture run {capture.name}` starts it")
        return
    if capture.state != FOLLOWING:
        say(f"  its position was last stored {duration(capture.silent_s or 0)} ago")
    if capture.not_ready is not None:
        say(f"  not ready: {capture.not_ready}")
    position = ", ".join(f"{key} {value}" for key, value in stored.position.at.items())
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stored.ts_ms / 1000))
    say(f"  position  {position}")
    say(f"  last transaction  {at}")
    say(f"  lag  {shown_lag(capture)}")
    if capture.lag.retained_bytes is not None:
        is_old = capture.lag_now is None and capture.state != FOLLOWING
        then = " when it was last seen; its database does not answer now" if is_old else ""
        say(f"  retained log  {size(capture.lag.retained_bytes)}{then}")
    warning = warning_of(capture)
    if warning is not None:
        say(f"{styled('warning:', 'bold yellow')} {warning}")
    if capture.stored.tables:
        say()
        say(table(("table", "state", ">rows copied", "topic"), _table_rows(capture)))
    for name in capture.failed:
        failure = capture.stored.tables[name].failed
        assert failure is not None
        say()
        say(f"{styled('failed:', 'bold red')} {name}: {failure.what}")
        for line in failure.detail.splitlines():
            say(f"  {line}")
        if failure.hint:
            say(f"{styled('hint:', 'bold cyan')} {failure.hint}")


def _table_rows(capture: CaptureState) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for shown in capture.as_json()["tables"]:
        snapshot = shown["snapshot"]
        copied, state = "-", "followed"
        if snapshot is not None:
            copied, total = count(snapshot["rows"]), snapshot["estimated_rows"]
            if not snapshot["done"]:
                state = "copying"
                copied += f" of ~{count(total)}" if total else ""
        if shown["failed"] is not None:
            state = "failed"
        rows.append((shown["table"], state, copied, shown["topic"]))
    return rows


def _captures(loaded: config.Config) -> list[CaptureState]:
    connected(loaded)
    records = read_committed_latest(loaded.bootstrap(), loaded.client, positions.TOPIC)
    names = {*loaded.captures, *positions.captures_in(records)}
    captures = capture_states(
        loaded.captures, {name: positions.decode(name, records) for name in sorted(names)}
    )
    return with_lags_now(captures)


COMMANDS = {
    "list": Command("list captures with their state and lag", _configure_list, _list),
    "status": Command(
        "show position, lag and tables of captures; exit code 3 if one is not well",
        _configure_status,
        _status,
        "  headwater capture status\n  headwater capture status shop --json",
    ),
    "run": run.COMMAND,
    "snapshot": capture_snapshot.COMMAND,
    "reset": reset.COMMAND,
}
