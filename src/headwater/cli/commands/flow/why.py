"""`headwater why NAME --key K`: the lineage of a derived row, its records in the log."""

import argparse
from datetime import datetime
from typing import Any

import orjson

from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser, whole_number
from headwater.cli.pipelines.started import started_pipeline
from headwater.errors import UsageError
from headwater.inspect.pipelines import reported_writes, wanted
from headwater.pipelines.lineage.keys import check_key
from headwater.pipelines.running import status
from headwater.pipelines.running.questions import ask
from headwater.terminal.output import count, note, print_json, say, styled, table
from headwater.terminal.progress import shows_progress


def _configure(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="pipeline, or pipeline/sink/table")
    parser.add_argument(
        "--key",
        metavar="[COLUMN=]VALUE",
        action="append",
        required=True,
        help="the row's key; once for each of its columns",
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=whole_number(1, 100_000),
        default=20,
        help="most records to show (20)",
    )
    broker_options(parser)


def _why(args: argparse.Namespace) -> int:
    name, _, write = args.name.partition("/")
    trace = _of_running(args, name, write) or _of_own_spark(args, name, write)
    if args.json:
        print_json(trace)
    else:
        _show(trace)
    return 0 if trace["causes"] or trace["untraced"] else 3


def _of_running(args: argparse.Namespace, name: str, write: str) -> dict[str, Any] | None:
    """As the process that runs the pipeline answers; None if there is none. The key is checked
    first, against the status that it reports.
    """
    loaded = load_config(args)
    wanted(loaded, [name])
    state_dir = loaded.state_dir()
    writes = reported_writes(status.read(state_dir, name))
    if not writes:
        return None
    write = _chosen(name, write, {candidate: about["table"] for candidate, about in writes.items()})
    if write not in writes:
        return None  # the function may have changed
    columns = writes[write]["key"]
    kinds = writes[write].get("key_types", [""] * len(columns))
    key = _key(args.key, tuple(columns))
    check_key(write, dict(zip(columns, kinds, strict=True)), key)
    return ask(state_dir, name, {"write": write, "key": key, "limit": args.limit})


def _of_own_spark(args: argparse.Namespace, name: str, write: str) -> dict[str, Any]:
    if shows_progress(args):
        note("starting Spark …")
    _, pipeline = started_pipeline(args, name)
    from headwater.pipelines.lineage.tracing import why

    writes = {declared.name: declared for declared in pipeline.flow().writes}
    write = _chosen(name, write, {candidate: about.table for candidate, about in writes.items()})
    columns = writes[write].key if write in writes else ()
    trace = why(pipeline, write, _key(args.key, columns), limit=args.limit)
    found = orjson.dumps(trace.as_json(), default=str, option=orjson.OPT_NON_STR_KEYS)
    return dict(orjson.loads(found))


def _chosen(pipeline: str, write: str, tables: dict[str, str]) -> str:
    """The write that is meant; `tables` by write."""
    if not write and len(tables) > 1:
        names = ", ".join(f"{pipeline}/{candidate}" for candidate in tables)
        raise UsageError(f"pipeline {pipeline} writes several tables", hint=f"name one: {names}")
    if not write:
        return next(iter(tables))
    return next(
        (candidate for candidate, table in tables.items() if write in (candidate, table)), write
    )


def _key(given: list[str], columns: tuple[str, ...]) -> dict[str, str]:
    if len(given) == 1 and len(columns) == 1 and not given[0].startswith(f"{columns[0]}="):
        return {columns[0]: given[0]}
    pairs = [pair.partition("=") for pair in given]
    return {column: value for column, _, value in pairs}


def _show(trace: dict[str, Any]) -> None:
    if trace["row"] is None:
        say(f"{trace['write']} has no such row")
    else:
        say("  ".join(f"{styled(name, 'bold')} {value}" for name, value in trace["row"].items()))
    for untraced in trace["untraced"]:
        say(f"any record of {untraced['topic']} can have made it: {untraced['reason']}")
    causes = trace["causes"]
    if causes and not trace["is_certain"]:
        say("some of these records made it, and no others; which ones cannot be determined:")
    if causes:
        say()
        headers = ("topic", ">partition", ">offset", "time", "op", "used by", "record")
        say(table(headers, ([*_cells(cause)] for cause in causes)))
    if trace["count"] > len(causes):
        say(f"… and {count(trace['count'] - len(causes))} older; --limit shows more")


def _cells(cause: dict[str, Any]) -> tuple[str, ...]:
    at = "-"
    if cause["at"]:
        at = datetime.fromisoformat(cause["at"]).isoformat(" ", "milliseconds")
    row = " ".join(f"{name}={value}" for name, value in cause["record"].items())
    position = cause["topic"], str(cause["partition"]), str(cause["offset"])
    return *position, at, cause["op"] or "-", cause["use"] or "-", row


COMMANDS = {
    "": Command(
        "show the lineage of a derived row: its records in the log, newest first",
        _configure,
        _why,
        "  headwater why revenue --key DE\n"
        "  headwater why revenue/warehouse/revenue --key minute=2026-01-01T00:00 --key country=DE",
    )
}
