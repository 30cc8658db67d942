"""`headwater why NAME --key K`: the records of the log behind a derived row."""

import argparse
from typing import TYPE_CHECKING, Any

from headwater.cli.capture_state import client_options
from headwater.cli.output import count, note, print_json, say, styled, table
from headwater.cli.parser import Command, Parser, whole_number
from headwater.cli.pipeline_state import started
from headwater.cli.progress import is_told
from headwater.errors import UsageError

if TYPE_CHECKING:
    from headwater.pipelines.tracing import Trace


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
    name, _, write_name = args.name.partition("/")
    if is_told(args):
        note("starting Spark …")
    _, pipeline = started(args, name)
    from headwater.pipelines.tracing import why

    writes = pipeline.flow().writes
    if not write_name:
        if len(writes) > 1:
            names = ", ".join(f"{name}/{each.name}" for each in writes)
            raise UsageError(f"pipeline {name} writes several tables", hint=f"name one: {names}")
        write_name = writes[0].name
    key_columns = next((w.key for w in writes if write_name in (w.name, w.table)), ())
    trace = why(pipeline, write_name, _key(args.key, key_columns), limit=args.limit)
    if args.json:
        print_json(_as_json(trace))
    else:
        _show(trace)
    return 0 if trace.causes or trace.untraced else 3


def _key(given: list[str], columns: tuple[str, ...]) -> dict[str, str]:
    if len(given) == 1 and len(columns) == 1 and not given[0].startswith(f"{columns[0]}="):
        return {columns[0]: given[0]}
    pairs = [each.partition("=") for each in given]
    return {column: value for column, _, value in pairs}


def _show(trace: "Trace") -> None:
    if trace.row is None:
        say(f"{trace.write} has no such row")
    else:
        say("  ".join(f"{styled(name, 'bold')} {value}" for name, value in trace.row.items()))
    for topic in trace.untraced:
        say(f"any record of {topic} can have made it: the key is computed on the way")
    if trace.causes:
        say()
        headers = ("topic", ">partition", ">offset", "time", "op", "record")
        say(table(headers, ([*_cells(each)] for each in trace.causes)))
    if trace.count > len(trace.causes):
        say(f"… and {count(trace.count - len(trace.causes))} older; --limit shows more")


def _cells(cause: Any) -> tuple[str, ...]:
    at = cause.at.isoformat(" ", "milliseconds") if cause.at else "-"
    row = " ".join(f"{name}={value}" for name, value in cause.row.items())
    return cause.topic, str(cause.partition), str(cause.offset), at, cause.op or "-", row


def _as_json(trace: "Trace") -> dict[str, Any]:
    return {
        "write": trace.write,
        "row": trace.row,
        "count": trace.count,
        "untraced": trace.untraced,
        "causes": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "offset": each.offset,
                "at": each.at.isoformat() if each.at else None,
                "op": each.op,
                "record": each.row,
            }
            for each in trace.causes
        ],
    }


COMMANDS = {
    "": Command(
        "the records of the log behind a derived row, newest first",
        _configure,
        _why,
        "  headwater why revenue --key DE\n"
        "  headwater why revenue/warehouse/revenue --key minute=2026-01-01T00:00 --key country=DE",
    )
}
