"""`headwater pipeline run [NAME …]`: pipelines in the foreground, all in one Spark application."""

import argparse
import json
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from headwater import config, extras
from headwater.broker.monitoring.logs import JsonFormatter, TextFormatter
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser
from headwater.errors import PipelineError, UsageError
from headwater.inspect.captures import connected
from headwater.inspect.pipelines import load_pipelines, spark_of, wanted
from headwater.pipelines.running import status
from headwater.terminal.output import note, plural, say, styled
from headwater.terminal.stop_signals import stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_S: Final = 20.0  # what has not ended by then is left as it is


def _configure(parser: Parser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="pipelines (all)")
    parser.add_argument(
        "--once",
        action="store_true",
        help="end when the stores have all records that the log has at the start",
    )
    broker_options(parser, json_help="write one JSON object at the start, and the log as JSON")


def _run(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    names = wanted(loaded, args.names)
    if not names:
        raise UsageError(
            "there is nothing to run",
            hint="a section [pipeline.NAME] in headwater.toml makes a pipeline",
        )
    connected(loaded)
    if args.once:
        _refuse_running(loaded, names)
    _log_to_stderr(loaded.broker.log_level, as_json=args.json)
    if args.verbose:
        logging.getLogger("headwater.pipelines").setLevel(logging.DEBUG)
    extras.require("headwater pipeline run", "pipelines")
    from headwater.pipelines.running.once import run_once
    from headwater.pipelines.running.runner import Runner

    began_s = time.monotonic()
    pipelines = load_pipelines(loaded, lambda: _started(loaded, names, quiet=args.json), names)
    stop = stop_on_signals(STOP_S)  # not before: Spark takes SIGINT for itself when it starts
    runner = Runner(pipelines, stop)
    if args.json:
        say(json.dumps({"pipelines": names, "bootstrap": loaded.bootstrap(), "pid": os.getpid()}))
    else:
        took_s = time.monotonic() - began_s
        say(f"Spark is ready after {took_s:.0f} s; {plural(len(names), 'pipeline')} on it")
        if sys.stdout.isatty() and not args.once:
            name = styled(f"headwater pipeline status {names[0]}", "bold")
            say(f"\nlook, in another terminal:\n  {name}\n\nCtrl-C stops it\n")
    sys.stdout.flush()
    if args.once:
        try:
            run_once(runner)
        finally:
            pipelines[0].spark.stop()
        if not args.json:
            say("the stores have the records that the log had at the start")
        return 0
    try:
        runner.run()
        pipelines[0].spark.stop()
    except Exception:
        if not stop.is_set():  # else Java was asked to stop, too, and was faster
            raise
    if not stop.is_set():  # all of them ended by themselves
        raise runner.errors()[0]
    if not args.json:
        say("stopped; the next run continues from here")
    return 0


def _refuse_running(loaded: config.Config, names: list[str]) -> None:
    for name in names:
        if status.read(loaded.state_dir(), name).is_running:
            raise PipelineError(
                f"{name} is run by another process",
                hint=f"`headwater wait {name}` returns when its stores have everything",
            )


def _started(loaded: config.Config, names: list[str], *, quiet: bool) -> "SparkSession":
    if not quiet:
        note(f"starting Spark ({loaded.spark.master}) …")
    state_dir = loaded.state_dir()
    for name in names:
        if status.read(state_dir, name).is_running:
            note(f"{name} is run by another process; this one takes over when that ends")
        status.starting(state_dir, name)
    return spark_of(loaded, "headwater " + ", ".join(names))


def _log_to_stderr(level: str, *, as_json: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # What Py4J logs, also by the root logger, is reported by us, in short.
    handler.addFilter(lambda record: "/py4j/" not in record.pathname)


COMMAND = Command(
    "run pipelines in the foreground",
    _configure,
    _run,
    "  headwater pipeline run\n  headwater pipeline run revenue\n"
    "  headwater pipeline run revenue --once",
)
