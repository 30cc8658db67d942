"""`headwater pipeline diff NAME`: what its file, as it is now, would change in its stores."""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater import extras
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser, duration_s
from headwater.inspect.captures import connected
from headwater.inspect.pipelines import load_pipelines, spark_of, wanted
from headwater.pipelines.running import status
from headwater.terminal.output import count, note, plural, print_json, say, styled
from headwater.terminal.progress import shows_progress

if TYPE_CHECKING:
    from headwater.pipelines.verification.comparison import Difference
    from headwater.pipelines.verification.difference import StoreDifference


def _configure(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="pipeline: [pipeline.NAME]")
    parser.add_argument("--write", metavar="SINK/TABLE", help="only this write (default: all)")
    parser.add_argument(
        "--last",
        metavar="DURATION",
        type=duration_s,
        help='only rows written by records of the last "1h", "30m" (default: the whole log)',
    )
    parser.add_argument(
        "--file", metavar="PATH", help="the edited file, if it is not that of the configuration"
    )
    broker_options(parser)


def _diff(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    (name,) = wanted(loaded, [args.name])
    extras.require("headwater pipeline diff", "pipelines")
    connected(loaded)
    if args.file is not None:
        edited = dataclasses.replace(loaded.pipelines[name], file=str(Path(args.file).resolve()))
        loaded = dataclasses.replace(loaded, pipelines={**loaded.pipelines, name: edited})
    if shows_progress(args):
        note("starting Spark …")
    (pipeline,) = load_pipelines(loaded, lambda: spark_of(loaded, "headwater diff"), [name])
    from headwater.pipelines.running.loaded_pipeline import write_named
    from headwater.pipelines.verification.difference import difference

    flow = pipeline.flow()
    writes = [write_named(flow, args.write)] if args.write else flow.writes
    reported = status.read(loaded.state_dir(), name).writes
    found = []
    for write in writes:
        if shows_progress(args):
            note(f"deriving {write.name} from the log …")
        key_was = reported.get(write.name, {}).get("key")
        found.append(difference(pipeline, write, last_s=args.last, key_was=key_was))
    described = {"", *(write.name for write in flow.writes)}
    dropped = [] if args.write else [write for write in reported if write not in described]
    if args.json:
        print_json({"writes": [one.as_json() for one in found], "no_longer_written": dropped})
    else:
        for one in found:
            _show(one)
        for dropped_write in dropped:
            say(f"{styled(dropped_write, 'bold')}: no longer written; its store stays as it is")
        for one in found:
            if one.left_out:
                note(
                    f"{one.write}: the last records of {plural(one.left_out, 'more row')} are left"
                    " out: a rebuild removes these, unless an earlier record makes one;"
                    " without --last the whole log decides"
                )
    return 0 if all(one.is_same for one in found) and not dropped else 3


def _show(found: "StoreDifference") -> None:
    from headwater.pipelines.verification.difference import NEW, REKEYED, UNREADABLE

    name = styled(found.write, "bold")
    if found.state == UNREADABLE:
        say(f"{name}: its sink cannot be read")
    elif found.state == REKEYED:
        say(
            f"{name}: another key, {', '.join(found.key) or 'none'} instead of"
            f" {', '.join(found.key_was) or 'none'}; {plural(found.derived or 0, 'row')} instead of"
            f" {count(found.rows)}"
        )
    elif found.state == NEW:
        say(f"{name}: new, with {plural(found.derived or 0, 'row')}")
    elif found.is_same:
        say(f"{name}: {styled('no change', 'bold green')} of {plural(found.rows, 'row')}")
    else:
        parts = [
            f"{count(number)} {what}"
            for number, what in (
                (found.added, "added"),
                (found.changed, "changed"),
                (found.removed, "removed"),
            )
            if number
        ]
        say(f"{name}: {', '.join(parts) or 'no change'} of {plural(found.rows, 'row')}")
    _show_columns(found, is_new=found.state == NEW)
    for example in found.examples:
        _show_example(example)


def _show_columns(found: "StoreDifference", *, is_new: bool) -> None:
    for name, kind in found.columns_added.items() if not is_new else ():
        say(f"  column {name} {kind} is added")
    for name in found.columns_removed:
        say(f"  column {name} is no longer derived")
    for name, (was, now) in found.columns_changed.items():
        say(f"  column {name} is {now} instead of {was}")


def _show_example(example: "Difference") -> None:
    if example.stored is None:
        say(styled(f"  + {_row(example.derived)}", "green"))
    elif example.derived is None:
        say(styled(f"  - {_row(example.stored)}", "red"))
    else:
        stored, derived = example.stored, example.derived
        changes = (f"{name} {stored[name]!r} → {derived[name]!r}" for name in example.columns)
        say(styled(f"  ~ {_row(example.key)}: {', '.join(changes)}", "yellow"))


def _row(row: dict[str, Any] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in (row or {}).items())


COMMAND = Command(
    "show what its file, as it is now, would change in its stores; exit code 3 if anything",
    _configure,
    _diff,
    "  headwater pipeline diff revenue\n  headwater pipeline diff revenue --last 1h\n"
    "  headwater pipeline diff revenue --file pipelines/revenue_new.py",
)
