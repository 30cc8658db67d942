"""`headwater verify NAME`: whether a store is what its pipeline derives from the log, or a captured
topic what its table is.
"""

import argparse
from typing import TYPE_CHECKING, Any

from headwater import config
from headwater.cli.capture_state import client_options, connected, load
from headwater.cli.output import count, note, plural, print_json, say, styled
from headwater.cli.parser import Command, Parser
from headwater.cli.pipeline_state import spark_of, started, wanted
from headwater.cli.progress import is_told

if TYPE_CHECKING:
    from headwater.pipelines.verifying import Difference, Verdict


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "name",
        metavar="NAME",
        help="pipeline, pipeline/sink/table, or the topic of a captured table",
    )
    client_options(parser)


def _verify(args: argparse.Namespace) -> int:
    loaded = load(args)
    if args.name not in loaded.pipelines and args.name.split(".")[0] in loaded.captures:
        return _verify_captured(args, loaded)
    name, _, write = args.name.partition("/")
    wanted(loaded, [name])
    if is_told(args):
        note("starting Spark …")
    _, pipeline = started(args, name)
    from headwater.pipelines.verifying import is_readable, verify

    names = [write] if write else [each.name for each in pipeline.flow().writes]
    verdicts = []
    for each in names:
        if not write and not is_readable(pipeline, each):
            note(f"{each} cannot be read back; what was sent was sent")
            continue
        if is_told(args):
            note(f"deriving {each} from the log …")
        verdicts.append(verify(pipeline, each))
    return _told(args, verdicts)


def _verify_captured(args: argparse.Namespace, loaded: config.Config) -> int:
    connected(loaded)
    if is_told(args):
        note("starting Spark …")
    spark = spark_of(loaded, f"headwater {args.name}")
    from headwater.pipelines.verifying_capture import verify_captured

    if is_told(args):
        note(f"reading the table of {args.name} …")
    return _told(args, [verify_captured(loaded, spark, args.name)])


def _told(args: argparse.Namespace, verdicts: "list[Verdict]") -> int:
    if args.json:
        print_json([_as_json(each) for each in verdicts])
    else:
        for verdict in verdicts:
            _show(verdict)
    return 0 if all(each.is_equal for each in verdicts) else 3


def _show(verdict: "Verdict") -> None:
    if verdict.not_derived:
        note(f"not compared, for it is no longer derived: {', '.join(verdict.not_derived)}")
    at = ", ".join(
        f"{topic}-{partition}@{offset}"
        for topic, partitions in sorted(verdict.position.offsets.items())
        for partition, offset in sorted(partitions.items())
    )
    if verdict.is_equal:
        say(
            f"{styled('equal', 'bold green')}  {verdict.write} (version {verdict.version}):"
            f" {plural(verdict.rows, 'row')} at {at}"
        )
        return
    say(
        f"{styled('different', 'bold red')}  {verdict.write} (version {verdict.version}):"
        f" {count(verdict.count)} of {plural(verdict.rows, 'row')} at {at}"
    )
    for each in verdict.differences:
        _show_difference(each)
    if verdict.count > len(verdict.differences):
        say(f"  … and {count(verdict.count - len(verdict.differences))} more")


def _show_difference(difference: "Difference") -> None:
    key = _row(difference.key)
    if difference.stored is None:
        say(f"  {key}: missing in the store; the log says {_row(difference.derived)}")
    elif difference.derived is None:
        say(f"  {key}: not in the log; the store has {_row(difference.stored)}")
    else:
        for column in difference.columns:
            stored, derived = difference.stored[column], difference.derived[column]
            say(f"  {key}: {column} is {stored!r} in the store, {derived!r} by the log")


def _row(row: dict[str, Any] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in (row or {}).items())


def _as_json(verdict: "Verdict") -> dict[str, Any]:
    return {
        "write": verdict.write,
        "version": verdict.version,
        "is_equal": verdict.is_equal,
        "rows": verdict.rows,
        "offsets": verdict.position.offsets,
        "different": verdict.count,
        "not_derived": verdict.not_derived,
        "differences": [
            {"key": each.key, "stored": each.stored, "derived": each.derived}
            for each in verdict.differences
        ],
    }


COMMANDS = {
    "": Command(
        "prove that a store equals what the log says; exit code 3 if it does not",
        _configure,
        _verify,
        "  headwater verify revenue\n  headwater verify revenue/warehouse/revenue --json",
    )
}
