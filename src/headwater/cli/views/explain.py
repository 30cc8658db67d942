"""`headwater view explain NAME`: the incremental plan, and the state of each of its steps."""

import argparse
from typing import TYPE_CHECKING, Any

from headwater import extras
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser
from headwater.cli.pipelines.check import planning_spark
from headwater.inspect.captures import connected
from headwater.inspect.pipelines import load_pipelines, reported_writes
from headwater.inspect.views import view_named
from headwater.pipelines.running import status
from headwater.terminal.output import plural, print_json, say, size, styled

if TYPE_CHECKING:
    from headwater.pipelines.views.plan_steps import Step


def _configure(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="view")
    broker_options(parser)


def _explain(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    settings = view_named(loaded, args.name)
    connected(loaded)
    before = status.read(loaded.state_dir(), args.name)  # for rates, while Spark starts
    extras.require("headwater view explain", "pipelines")
    from headwater.pipelines.reading import LiveReader
    from headwater.pipelines.views.explain import explained

    (pipeline,) = load_pipelines(loaded, planning_spark(args, loaded), [args.name])
    reader = LiveReader(pipeline.spark, pipeline.environment.log, settings)
    plan = explained(pipeline, settings, loaded.base, reader)
    reported = status.read(loaded.state_dir(), args.name)
    plan = plan.with_state(_operators(reported))
    if reported.is_running:
        seconds = reported.at_s - before.at_s
        plan = plan.with_rates(_operators(before), _operators(reported), seconds)
    if args.json:
        found = {"view": args.name, "is_running": reported.is_running, "plan": plan.as_json()}
        print_json(found)
        return 0
    state = "running" if reported.is_running else "not running"
    say(f"{styled(args.name, 'bold')}  {state}")
    _show(plan, "", "")
    return 0


def _operators(reported: status.Status) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for write in reported_writes(reported).values():
        found.update(write.get("operators", {}))
    return found


def _show(step: "Step", first: str, rest: str) -> None:
    """One line, and those of its inputs below it."""
    by = f"  by {step.key}" if step.key else ""
    line = f"{first}{styled(step.does, 'bold')}{by}"
    if step.stores:
        line += f"  stores {step.stores}"
        if step.grows_with:
            line += f"; grows with {step.grows_with}"
    measured = []
    if step.state_rows is not None:
        measured.append(f"{plural(step.state_rows, 'row')}, {size(step.state_bytes or 0)}")
    if step.rows_in_per_s is not None and step.rows_out_per_s is not None:
        measured.append(f"{step.rows_in_per_s:,.1f} changes/s in, {step.rows_out_per_s:,.1f} out")
    if measured:
        shown = "; ".join(measured)
        line += f"  {styled(f'({shown})', 'green')}"
    say(line)
    for at, below in enumerate(step.inputs):
        is_last = at == len(step.inputs) - 1
        _show(below, rest + ("└─ " if is_last else "├─ "), rest + ("   " if is_last else "│  "))


COMMAND = Command(
    "show the incremental plan of a view: its steps, what each stores, and what grows",
    _configure,
    _explain,
    "  headwater view explain revenue",
)
