"""`headwater why NAME --key K`: the records of the log behind a derived row."""

import argparse
from datetime import datetime
from typing import Any

import orjson

from headwater.cli.parser import Command, Parser, whole_number
from headwater.errors import UsageError
from headwater.inspect.captures import client_options, load
from headwater.inspect.pipelines import started, wanted, writes_told
from headwater.pipelines.lineage.keys import check_key
from headwater.pipelines.running import status
from headwater.pipelines.running.questions import ask
from headwater.pipelines.running.store_lookup import state_dir_of
from headwater.terminal.output import count, note, print_json, say, styled, table
from headwater.terminal.progress import is_told


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
        "--limit", metavar="N", type=whole_number(1, 100_000), default=20, help="records (20)"
    )
    client_options(parser)


def _why(args: argparse.Namespace) -> int:
    name, _, write = args.name.partition("/")
    trace = _of_running(args, name, write) or _of_own_spark(args, name, write)
    if args.json:
        print_json(trace)
    else:
        _show(trace)
    return 0 if trace["causes"] or trace["untraced"] else 3


def _of_running(args: argparse.Namespace, name: str, write: str) -> dict[str, Any] | None:
    """As the process that runs the pipeline answers; None if there is none. What its status tells
    of the write's key is checked first.
    """
    loaded = load(args)
    wanted(loaded, [name])
    place = state_dir_of(loaded)
    writes = writes_told(status.read(place, name))
    if not writes:
        return None
    write = _chosen(name, write, {each: about["table"] for each, about in writes.items()})
    if write not in writes:
        return None  # the function may have changed
    columns = writes[write]["key"]
    kinds = writes[write].get("key_types", [""] * len(columns))
    key = _key(args.key, tuple(columns))
    check_key(write, dict(zip(columns, kinds, strict=True)), key)
    return ask(place, name, {"write": write, "key": key, "limit": args.limit})


def _of_own_spark(args: argparse.Namespace, name: str, write: str) -> dict[str, Any]:
    if is_told(args):
        note("starting Spark …")
    _, pipeline = started(args, name)
    from headwater.pipelines.lineage.tracing import why

    writes = {each.name: each for each in pipeline.flow().writes}
    write = _chosen(name, write, {each: about.table for each, about in writes.items()})
    columns = writes[write].key if write in writes else ()
    trace = why(pipeline, write, _key(args.key, columns), limit=args.limit)
    found = orjson.dumps(trace.as_json(), default=str, option=orjson.OPT_NON_STR_KEYS)
    return dict(orjson.loads(found))


def _chosen(pipeline: str, write: str, tables: dict[str, str]) -> str:
    """The write that is meant; `tables` by write."""
    if not write and len(tables) > 1:
        names = ", ".join(f"{pipeline}/{each}" for each in tables)
        raise UsageError(f"pipeline {pipeline} writes several tables", hint=f"name one: {names}")
    if not write:
        return next(iter(tables))
    return next((each for each, table in tables.items() if write in (each, table)), write)


def _key(given: list[str], columns: tuple[str, ...]) -> dict[str, str]:
    if len(given) == 1 and len(columns) == 1 and not given[0].startswith(f"{columns[0]}="):
        return {columns[0]: given[0]}
    pairs = [each.partition("=") for each in given]
    return {column: value for column, _, value in pairs}


def _show(trace: dict[str, Any]) -> None:
    if trace["row"] is None:
        say(f"{trace['write']} has no such row")
    else:
        say("  ".join(f"{styled(name, 'bold')} {value}" for name, value in trace["row"].items()))
    for each in trace["untraced"]:
        say(f"any record of {each['topic']} can have made it: {each['reason']}")
    causes = trace["causes"]
    if causes and not trace["is_certain"]:
        say("some of these records made it, and no others; which ones cannot be followed:")
    if causes:
        say()
        headers = ("topic", ">partition", ">offset", "time", "op", "used by", "record")
        say(table(headers, ([*_cells(each)] for each in causes)))
    if trace["count"] > len(causes):
        say(f"… and {count(trace['count'] - len(causes))} older; --limit shows more")


def _cells(cause: dict[str, Any]) -> tuple[str, ...]:
    at = "-"
    if cause["at"]:
        at = datetime.fromisoformat(cause["at"]).isoformat(" ", "milliseconds")
    row = " ".join(f"{name}={value}" for name, value in cause["record"].items())
    place = cause["topic"], str(cause["partition"]), str(cause["offset"])
    return *place, at, cause["op"] or "-", cause["use"] or "-", row


COMMANDS = {
    "": Command(
        "the records of the log behind a derived row, newest first",
        _configure,
        _why,
        "  headwater why revenue --key DE\n"
        "  headwater why revenue/warehouse/revenue --key minute=2026-01-01T00:00 --key country=DE",
    )
}
