"""`headwater pipeline list | status | check | run | …`: pipelines and their stores.

list and status start no Spark: stores report their own positions.
"""

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser
from headwater.cli.pipelines import check, diff, rebuild, run
from headwater.inspect.captures import connected
from headwater.inspect.pipelines import (
    NEW,
    RUNNING,
    PipelineState,
    WriteState,
    pipeline_states,
    wanted,
)
from headwater.terminal.output import (
    count,
    duration,
    note,
    plural,
    print_json,
    say,
    size,
    styled,
    table,
)

_STYLES = {RUNNING: "green", NEW: "dim"}
_MISSED = ("late", "future", "without_time")
_JOINED = {"waiting": "waiting for the table", "unmatched": "without a row", "too_old": "too old"}
_SEARCHED = {
    "queries": "stored",
    "refused_queries": "refused",
    "unindexed_queries": "decided for every document",
    "candidates": "candidates",
    "matches": "matches",
    "above_limit": "above their limit",
    "limited_waiting": "matches waiting for their turn",
}
_SLOW_S = 10  # a smaller gap is not worth a line
_NONE = "no pipelines yet; a section [pipeline.NAME] in headwater.toml makes one"


def _configure_list(parser: Parser) -> None:
    broker_options(parser)


def _list(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    connected(loaded)
    pipelines = pipeline_states(loaded, wanted(loaded, []))
    if args.json:
        print_json([pipeline.as_json() for pipeline in pipelines])
    elif pipelines:
        headers = ("pipeline", "file", "state", "writes", ">lag")
        say(table(headers, (_cells(pipeline) for pipeline in pipelines)))
    else:
        note(_NONE)
    return 0


def _cells(pipeline: PipelineState) -> tuple[str, ...]:
    lags = [write.lag for write in pipeline.writes]
    lag = "-" if not lags or None in lags else count(sum(number or 0 for number in lags))
    writes = ", ".join(write.name for write in pipeline.writes) or "-"
    return pipeline.name, pipeline.file, pipeline.state, writes, lag


def _configure_status(parser: Parser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="pipelines (all)")
    broker_options(parser)


def _status(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    connected(loaded)
    pipelines = pipeline_states(loaded, wanted(loaded, args.names))
    if args.json:
        print_json([pipeline.as_json() for pipeline in pipelines])
    elif not pipelines:
        note(_NONE)
    for index, pipeline in enumerate(pipelines if not args.json else ()):
        if index:
            say()
        _show(pipeline)
    return 0 if all(pipeline.is_well for pipeline in pipelines) else 3


def _show(pipeline: PipelineState) -> None:
    state = styled(pipeline.state, _STYLES.get(pipeline.state, "bold yellow"))
    say(f"{styled(pipeline.name, 'bold')}  {state}  {pipeline.file}")
    _show_error(pipeline.error, pipeline.hint, "  ")
    if not pipeline.is_running:
        say(f"  `headwater pipeline run {pipeline.name}` starts it")
    for topic, number in pipeline.dead_letters.items():
        say(styled(f"  {plural(number, 'record')} of {topic} unreadable: in {topic}.dlq", "yellow"))
    for write in pipeline.writes:
        _show_write(pipeline, write)
    late = sum(pipeline.late_rows.values())
    if late:
        say(f"  {plural(late, 'row')} put aside: in {pipeline.name}.late")


def _show_error(error: str | None, hint: str | None, indent: str) -> None:
    if error:
        say(f"{indent}{styled('error:', 'bold red')} {error}")
        if hint:
            say(f"{indent}{styled('hint:', 'bold cyan')} {hint}")


def _show_write(pipeline: PipelineState, write: WriteState) -> None:
    reported = write.reported
    is_at_work = pipeline.is_running and not pipeline.is_starting
    state = reported.get("state", "") if is_at_work else ""
    say(f"  {styled(write.name, 'bold')}  {state}".rstrip())
    if is_at_work:
        _show_error(reported.get("error"), reported.get("hint"), "    ")
    if write.error is not None:
        say(f"    {styled('error:', 'bold red')} the store cannot be read: {write.error}")
    elif write.lag is not None:
        behind = "in step" if write.lag == 0 else f"{plural(write.lag, 'record')} behind"
        batch = f", batch {write.position.batch}" if write.position else ""
        say(f"    {behind}{batch}")
    if write.refused:
        rows = plural(write.refused, "row")
        letters = f"{pipeline.name}.dlq"
        say(styled(f"    {rows} refused by the store: in {letters}", "yellow"))
    if reported.get("batch_ms") is not None:
        rate = count(round(reported.get("rows_per_s") or 0))
        ago = f", {duration(write.idle_s)} ago" if write.is_idle and write.idle_s else ""
        records = plural(reported["rows"], "record")
        say(f"    last batch  {records} in {reported['batch_ms']} ms ({rate}/s){ago}")
    if reported.get("state_rows"):
        say(f"    state  {count(reported['state_rows'])} rows, {size(reported['state_bytes'])}")
    for name, operator in write.operators.items():
        _show_operator(name, operator)
    if len(write.versions) > 1:
        shown = ", ".join(
            f"{version.number} (live)" if version.is_live else str(version.number)
            for version in write.versions
        )
        say(f"    versions  {shown}")


def _show_operator(name: str, reported: Mapping[str, Any]) -> None:
    """Its counts are exact: they are part of the state that the last batch left."""
    say(f"    {name}")
    say(f"      state  {plural(reported['state_rows'], 'row')}, {size(reported['state_bytes'])}")
    behind_s = reported.get("watermark_gap_s")
    if behind_s is not None:
        gap = f"{duration(behind_s)} behind" if behind_s >= 0 else f"{duration(-behind_s)} ahead"
        say(f"      watermark  {_at(reported['watermark_us'])} ({gap})")
    slowest = reported.get("slowest")
    if behind_s is not None and slowest and slowest["behind_s"] >= _SLOW_S:
        behind = duration(slowest["behind_s"])
        say(f"      waits for  {slowest['name']}, {behind} behind the furthest")
    missed = {metric.replace("_", " "): reported.get(metric, 0) for metric in _MISSED}
    shown = ", ".join(f"{count(number)} {what}" for what, number in missed.items() if number)
    if shown:
        judged = f"of {plural(reported['events'], 'row')}  " if "events" in reported else ""
        say(f"      {judged}{shown}")
    for subject, metrics in (("events", _JOINED), ("queries", _SEARCHED)):
        shown = ", ".join(
            f"{count(reported[metric])} {what}"
            for metric, what in metrics.items()
            if reported.get(metric)
        )
        if shown:
            say(f"      {subject}  {shown}")
    if reported.get("not_events"):
        say(
            f"      {plural(reported['not_events'], 'row')} skipped: changes and deletes, no events"
        )
    if reported.get("late_alert"):
        share = f"{100 * reported['late_share']:.2g} %"
        say(
            styled(f"      {share} of the last ten minutes' rows were not processed", "bold yellow")
        )


def _at(time_us: int) -> str:
    try:
        text = datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_us} µs"
    return text.replace("+00:00", "Z")


COMMANDS = {
    "list": Command("list pipelines with their state and lag", _configure_list, _list),
    "status": Command(
        "show rates, lag, state and versions of pipelines; exit code 3 if one is not well",
        _configure_status,
        _status,
        "  headwater pipeline status\n  headwater pipeline status revenue --json",
    ),
    "check": check.COMMAND,
    "run": run.COMMAND,
    "diff": diff.COMMAND,
    "rebuild": rebuild.REBUILD,
    "promote": rebuild.PROMOTE,
}
