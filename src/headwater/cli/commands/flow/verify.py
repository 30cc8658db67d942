"""`headwater verify [NAME …]`: compares stores with what is derived from the log.

Captured topics are compared with their tables. All in one Spark. With --erased or --receipt it is
about the erasure of a subject instead (cli/erasure.py), without Spark.
"""

import argparse
from typing import TYPE_CHECKING, Any

from headwater import config, extras
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser
from headwater.errors import UsageError
from headwater.inspect.captures import connected
from headwater.inspect.pipelines import load_pipelines, spark_of, verify_captured_topic, wanted
from headwater.terminal.output import count, note, plural, print_json, say, styled
from headwater.terminal.progress import shows_progress

if TYPE_CHECKING:
    from headwater.pipelines.running.loaded_pipeline import Pipeline
    from headwater.pipelines.verification.comparison import Difference, Verdict


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="pipelines, pipeline/sink/table, topics of captured tables (all pipelines)",
    )
    parser.add_argument(
        "--erased",
        metavar="KIND:ID",
        help="prove that nothing readable is left of a subject that was erased",
    )
    parser.add_argument(
        "--text",
        metavar="TEXT",
        action="append",
        default=[],
        help="with --erased: also search files and the rows of stores for this text, such as"
        " the person's name; may be repeated",
    )
    parser.add_argument(
        "--receipt", metavar="FILE", help="check the signature of a receipt of `headwater erase`"
    )
    broker_options(parser)


def _verify(args: argparse.Namespace) -> int:
    if args.erased or args.receipt:
        return _verify_erasure(args)
    if args.text:
        raise UsageError("--text needs --erased")
    loaded = load_config(args)
    names = args.names or list(loaded.pipelines)
    captured = [name for name in names if _is_captured(loaded, name)]
    writes = [name.partition("/") for name in names if name not in captured]
    wanted(loaded, [pipeline for pipeline, _, _ in writes])
    if not names:
        raise UsageError(
            "there is nothing to verify",
            hint="a section [pipeline.NAME] in headwater.toml makes a pipeline",
        )
    extras.require("headwater verify", "pipelines")
    connected(loaded)
    if shows_progress(args):
        note("starting Spark …")
    pipelines = {
        pipeline.name: pipeline
        for pipeline in load_pipelines(
            loaded,
            lambda: spark_of(loaded, "headwater verify"),
            list(dict.fromkeys(pipeline for pipeline, _, _ in writes)),
        )
    }
    verdicts = []
    for pipeline, _, write in writes:
        verdicts += _verified(args, pipelines[pipeline], write)
    for topic in captured:
        if shows_progress(args):
            note(f"reading the table of {topic} …")
        spark = spark_of(loaded, "headwater verify")
        verdicts.append((topic, verify_captured_topic(loaded, spark, topic)))
    return _report(args, verdicts)


def _verify_erasure(args: argparse.Namespace) -> int:
    from headwater.cli.erasure import check_receipt, verify_erased_subject

    if args.names:
        raise UsageError("--erased and --receipt take no names of pipelines")
    code = check_receipt(args) if args.receipt else 0
    return verify_erased_subject(args) if args.erased and not code else code


def _is_captured(loaded: config.Config, name: str) -> bool:
    return name not in loaded.pipelines and name.split(".", maxsplit=1)[0] in loaded.captures


def _verified(
    args: argparse.Namespace, pipeline: "Pipeline", write: str
) -> "list[tuple[str, Verdict]]":
    """One write of the pipeline, or all that can be read back."""
    from headwater.pipelines.verification.stores import is_readable, verify

    verdicts = []
    for name in [write] if write else [declared.name for declared in pipeline.flow().writes]:
        if not write and not is_readable(pipeline, name):
            note(f"{name} cannot be verified: its sink cannot be read")
            continue
        if shows_progress(args):
            note(f"deriving {name} from the log …")
        verdicts.append((pipeline.name, verify(pipeline, name)))
    return verdicts


def _report(args: argparse.Namespace, verdicts: "list[tuple[str, Verdict]]") -> int:
    if args.json:
        print_json([{"name": name, **_as_json(verdict)} for name, verdict in verdicts])
    else:
        for _, verdict in verdicts:
            _show(verdict)
    return 0 if all(verdict.is_equal for _, verdict in verdicts) else 3


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
    for difference in verdict.differences:
        _show_difference(difference)
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
            {"key": difference.key, "stored": difference.stored, "derived": difference.derived}
            for difference in verdict.differences
        ],
    }


COMMANDS = {
    "": Command(
        "prove that a store equals what the log says; exit code 3 if it does not",
        _configure,
        _verify,
        "  headwater verify\n  headwater verify revenue\n"
        "  headwater verify revenue/warehouse/revenue --json\n"
        "  headwater verify --erased customer:42 --text 'Ann Smith'\n"
        "  headwater verify --receipt receipt.json",
    )
}
