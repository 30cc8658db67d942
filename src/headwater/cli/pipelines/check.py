"""`headwater pipeline check [NAME …]`: builds pipelines without reading records of their topics."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from headwater import extras
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser
from headwater.config import Config
from headwater.errors import BrokerUnreachable, UsageError
from headwater.inspect.captures import connected
from headwater.inspect.pipelines import spark_of, wanted
from headwater.pipelines.settings import PipelineSettings, ViewSettings
from headwater.terminal.output import note, print_json, say, styled
from headwater.terminal.progress import shows_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.checking import CheckedPipeline, CheckedWrite


_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
# The JVM lives for seconds: optimised code does not pay for its compilation.
_FIRST_COMPILER_ONLY: Final = "-XX:TieredStopAtLevel=1"


def _configure(parser: Parser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="pipelines (all)")
    broker_options(parser)


def _check(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    names = wanted(loaded, args.names)
    if not names:
        raise UsageError(
            "there is nothing to check",
            hint="a section [pipeline.NAME] in headwater.toml makes a pipeline",
        )
    return check_and_show(args, loaded, [loaded.pipelines[name] for name in names])


def check_and_show(
    args: argparse.Namespace, loaded: Config, pipelines: Sequence[PipelineSettings]
) -> int:
    """The exit code. Spark starts once a file has been loaded: its mistakes are reported without
    one.
    """
    extras.require("checking a pipeline", "pipelines")
    from headwater.pipelines.checking import check_pipeline
    from headwater.pipelines.running.environment import Environment
    from headwater.sinks.contract import Log

    unreachable = None
    try:
        connected(loaded)
    except BrokerUnreachable as error:
        unreachable = error

    environment = Environment(
        Log(loaded.bootstrap(), loaded.client), dict(loaded.sinks), loaded.state_dir()
    )
    start = planning_spark(args, loaded)
    checked = [
        check_pipeline(settings, loaded.base, environment, start, unreachable)
        for settings in pipelines
    ]
    if args.json:
        print_json([pipeline.as_json() for pipeline in checked])
    else:
        for index, (pipeline, settings) in enumerate(zip(checked, pipelines, strict=True)):
            if index:
                say()
            _show(pipeline, is_view=isinstance(settings, ViewSettings))
    return 1 if any(pipeline.error for pipeline in checked) else 0


def planning_spark(args: argparse.Namespace, loaded: Config) -> "Callable[[], SparkSession]":
    """A Spark that only builds plans, started when it is first asked for."""

    @cache
    def start() -> "SparkSession":
        if shows_progress(args):
            note("starting Spark …")
        # Plans are built in the driver: a cluster has no part in it.
        conf = {_JAVA_OPTIONS: _FIRST_COMPILER_ONLY, **loaded.spark.conf}
        local = dataclasses.replace(loaded.spark, master="local[1]", conf=conf)
        return spark_of(dataclasses.replace(loaded, spark=local), "headwater pipeline check")

    return start


def _show(pipeline: "CheckedPipeline", *, is_view: bool) -> None:
    state = styled("error", "bold red") if pipeline.error else styled("ok", "bold green")
    say(f"{styled(pipeline.name, 'bold')}  {state}  {pipeline.file}")
    if pipeline.error is not None:
        where = f"{pipeline.line}: " if pipeline.line else ""
        if pipeline.line and pipeline.line in pipeline.error.what:
            where = ""
        say(f"  {where}{pipeline.error.what}")
        for line in pipeline.error.detail.splitlines():
            say(f"  {line}")
        if pipeline.error.hint:
            say(f"  {styled('hint:', 'bold cyan')} {pipeline.error.hint}")
    for write in pipeline.writes:
        _show_write(write, is_view=is_view)


def _show_write(write: "CheckedWrite", *, is_view: bool) -> None:
    key = f"key {', '.join(write.key)}" if write.key else "no key: rows are added"
    say(f"  {styled(write.name, 'bold')}  {write.kind}, {key}")
    width = max((len(name) for name in write.columns), default=0)
    for name, kind in write.columns.items():
        say(f"    {name.ljust(width)}  {kind}")
    sources = [*write.topics, *(f"topics by {pattern}" for pattern in write.patterns)]
    say(f"    from {', '.join(sources) or 'no topic'}")
    for name, by in () if is_view else write.operators.items():  # `view explain` has its steps
        say(f"    through {name}" + (f", by {', '.join(by)}" if by else ""))
    for warning in write.warnings:
        say(f"    {styled('warning:', 'bold yellow')} {warning}")


COMMAND = Command(
    "build pipelines without reading records: their columns, keys, operators, or the error",
    _configure,
    _check,
    "  headwater pipeline check\n  headwater pipeline check revenue --json",
)
