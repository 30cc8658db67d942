"""`headwater view read NAME [--as-of …]`: the rows of a view."""

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from headwater import extras
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser, whole_number
from headwater.inspect.view_rows import parse_moment, view_contents
from headwater.inspect.views import view_named
from headwater.terminal.output import count, note, say, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_SHOWN: Final = 100


def _configure(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="view")
    parser.add_argument(
        "--as-of",
        metavar="TIME|OFFSET",
        help="as it was then, if it is in a topic: 2026-11-15T10:00:00Z, -1h, or an offset",
    )
    parser.add_argument(
        "-n",
        "--num",
        type=whole_number(0, 10**18 - 1),
        metavar="N",
        help=f"most rows to show ({_SHOWN}; all with --json)",
    )
    broker_options(parser, json_help="one JSON object per row and line")


def _read(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    view = view_named(loaded, args.name)
    as_of = parse_moment(args.as_of) if args.as_of is not None else None
    extras.require("headwater view read", "pipelines")
    with view_contents(loaded, view, as_of) as (contents, key):
        if args.json:
            _write_json(contents.rows, args.num)
        else:
            _show(contents.rows, key, _SHOWN if args.num is None else args.num)
    return 0


def _write_json(batches: "Iterator[pa.RecordBatch]", most: int | None) -> None:
    from headwater.sinks.rows import json_text

    for batch in _up_to(batches, most):
        objects = json_text.objects(batch.columns, batch.schema.names)
        sys.stdout.writelines(f"{value.decode()}\n" for value in objects.to_pylist())


def _show(batches: "Iterator[pa.RecordBatch]", key: tuple[str, ...], most: int) -> None:
    from headwater.sinks.rows.row_validation import shown

    rows = [row for batch in _up_to(batches, most + 1) for row in shown(batch)]
    names = list(rows[0]) if rows else list(key)
    ordered = sorted(rows[:most], key=lambda row: [_ordinal(row[name]) for name in key])
    say(table(names, ([_cell(row[name]) for name in names] for row in ordered)))
    if len(rows) > most:
        note(f"… there are more than {count(most)} rows; -n shows more")


def _up_to(batches: "Iterator[pa.RecordBatch]", most: int | None) -> "Iterator[pa.RecordBatch]":
    for batch in batches:
        if most is not None:
            batch = batch.slice(0, most)  # noqa: PLW2901
            most -= len(batch)
        if len(batch):
            yield batch
        if most == 0:
            return


def _ordinal(value: Any) -> tuple[bool, Any]:
    """Nulls last; values of one column are of one type."""
    is_comparable = isinstance(value, int | float | str | bytes) or hasattr(value, "__lt__")
    return value is None, "" if value is None else value if is_comparable else str(value)


def _cell(value: Any) -> str:
    return "null" if value is None else str(value)


COMMAND = Command(
    "print the rows of a view, from its store",
    _configure,
    _read,
    "  headwater view read revenue\n"
    "  headwater view read revenue --as-of 2026-11-15T10:00:00Z --json",
)
