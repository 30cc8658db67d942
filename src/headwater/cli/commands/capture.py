"""`headwater capture list | status | run | snapshot | reset`: databases whose changes are followed.

list and status read the log, so they work from any machine that reaches the broker; the database of
a capture that does not run is asked what it keeps for it, if it can be reached.
"""

import argparse
import time

from headwater import config
from headwater.capture import positions
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.captures import reset, run
from headwater.cli.captures import snapshot as capture_snapshot
from headwater.cli.parser import Command, Parser
from headwater.client.compacted import read_committed_latest
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
    known = _known(load_config(args))
    if args.json:
        print_json([each.as_json() for each in known])
    elif known:
        headers = ("capture", "source", "state", "tables", "lag")
        say(table(headers, ([*_cells(each)] for each in known)))
    else:
        note("no captures yet; a section [capture.NAME] in headwater.toml makes one")
    return 0


def _cells(known: CaptureState) -> tuple[str, ...]:
    source = known.settings.shown_source if known.settings else "(not in this configuration)"
    return known.name, source, known.state, shown_tables(known), shown_lag(known)


def _configure_status(parser: Parser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="captures (all)")
    broker_options(parser)


def _status(args: argparse.Namespace) -> int:
    known = {each.name: each for each in _known(load_config(args))}
    for name in args.names:
        if name not in known:
            raise no_capture(name, list(known))
    wanted = [known[name] for name in args.names or known]
    if args.json:
        print_json([each.as_json() for each in wanted])
    elif not wanted:
        note("no captures yet; a section [capture.NAME] in headwater.toml makes one")
    else:
        for index, each in enumerate(wanted):
            if index:
                say()
            _show(each)
    return 0 if all(each.is_well for each in wanted) else 3


def _show(known: CaptureState) -> None:
    capture = known.stored.capture
    state = styled(known.state, _STYLES.get(known.state, "bold yellow"))
    source = known.settings.shown_source if known.settings else "not in this configuration"
    say(f"{styled(known.name, 'bold')}  {state}  {source}")
    if capture is None:
        say(f"  `headwater capture run {known.name}` starts it")
        return
    if known.state != FOLLOWING:
        say(f"  its position was last stored {duration(known.silent_s or 0)} ago")
    if known.not_ready is not None:
        say(f"  it says: {known.not_ready}")
    place = ", ".join(f"{key} {value}" for key, value in capture.position.at.items())
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(capture.ts_ms / 1000))
    say(f"  position  {place}")
    say(f"  last transaction  {at}")
    say(f"  lag  {shown_lag(known)}")
    if known.lag.retained_bytes is not None:
        is_old = known.lag_now is None and known.state != FOLLOWING
        then = " when it was last seen; its database does not answer now" if is_old else ""
        say(f"  log kept for it  {size(known.lag.retained_bytes)}{then}")
    warning = warning_of(known)
    if warning is not None:
        say(f"{styled('warning:', 'bold yellow')} {warning}")
    if known.stored.tables:
        say()
        say(table(("table", "state", ">rows copied", "topic"), _table_rows(known)))
    for name in known.failed:
        failure = known.stored.tables[name].failed
        assert failure is not None
        say()
        say(f"{styled('failed:', 'bold red')} {name}: {failure.what}")
        for line in failure.detail.splitlines():
            say(f"  {line}")
        if failure.hint:
            say(f"{styled('hint:', 'bold cyan')} {failure.hint}")


def _table_rows(known: CaptureState) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in known.as_json()["tables"]:
        snapshot = each["snapshot"]
        copied, state = "-", "followed"
        if snapshot is not None:
            copied, total = count(snapshot["rows"]), snapshot["estimated_rows"]
            if not snapshot["done"]:
                state = "copying"
                copied += f" of ~{count(total)}" if total else ""
        if each["failed"] is not None:
            state = "failed"
        rows.append((each["table"], state, copied, each["topic"]))
    return rows


def _known(loaded: config.Config) -> list[CaptureState]:
    connected(loaded)
    records = read_committed_latest(loaded.bootstrap(), loaded.client, positions.TOPIC)
    names = {*loaded.captures, *positions.captures_in(records)}
    known = capture_states(
        loaded.captures, {name: positions.decode(name, records) for name in sorted(names)}
    )
    return with_lags_now(known)


COMMANDS = {
    "list": Command("the captures, and how far each is", _configure_list, _list),
    "status": Command(
        "position, lag and tables of captures; exit code 3 if one is not well",
        _configure_status,
        _status,
        "  headwater capture status\n  headwater capture status shop --json",
    ),
    "run": run.COMMAND,
    "snapshot": capture_snapshot.COMMAND,
    "reset": reset.COMMAND,
}
