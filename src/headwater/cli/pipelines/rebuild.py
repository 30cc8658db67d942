"""`headwater pipeline rebuild NAME`, `headwater pipeline promote NAME`: a store derived again."""

import argparse
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from headwater.cli.arguments import broker_options
from headwater.cli.parser import Command, Parser, whole_number
from headwater.cli.pipelines.run import STOP_S
from headwater.cli.pipelines.started import started_pipeline
from headwater.errors import UsageError
from headwater.inspect.pipelines import load_pipelines, spark_of
from headwater.terminal.output import duration, note, print_json, say
from headwater.terminal.progress import ProgressBar, shows_progress
from headwater.terminal.stop_signals import stop_on_signals

if TYPE_CHECKING:
    from headwater import config
    from headwater.pipelines.running import rebuilding
    from headwater.pipelines.running.loaded_pipeline import Pipeline


def _configure(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="pipeline: [pipeline.NAME]")
    parser.add_argument("--write", metavar="SINK/TABLE", help="only this write (default: all)")


def _configure_rebuild(parser: Parser) -> None:
    _configure(parser)
    parser.add_argument("--resume", action="store_true", help="resume a rebuild that was stopped")
    parser.add_argument(
        "--promote", action="store_true", help="make the new version live when it is complete"
    )
    parser.add_argument(
        "--drop", action="store_true", help="with --promote: remove the version that was live"
    )
    broker_options(parser)


def _rebuild(args: argparse.Namespace) -> int:
    if args.drop and not args.promote:
        raise UsageError("--drop needs --promote", detail="the version in use is not removed")
    if shows_progress(args):
        note("starting Spark …")
    _, pipeline = started_pipeline(args, args.name)
    from headwater.pipelines.running import rebuilding

    shown = _Shown("rebuilding", quiet=not shows_progress(args))
    try:
        versions = rebuilding.rebuild(
            pipeline,
            only=args.write,
            resume=args.resume,
            report=shown.report,
            stop=stop_on_signals(STOP_S),
        )
    finally:
        shown.close()
    if args.promote:
        promoted = rebuilding.promote(pipeline, only=args.write)
        if args.drop:
            _drop_former(pipeline, promoted)
    if args.json:
        print_json({"versions": versions, "promoted": args.promote})
        return 0
    for name, version in versions.items():
        say(f"{name}: version {version} is complete{' and live' if args.promote else ''}")
    if not args.promote:
        say(f"`headwater pipeline promote {args.name}` makes it live")
    return 0


def _configure_promote(parser: Parser) -> None:
    _configure(parser)
    parser.add_argument(
        "--version",
        metavar="N",
        type=whole_number(1, 1 << 30),
        help="version to make live (default: the newest)",
    )
    parser.add_argument("--drop", action="store_true", help="remove the version that was live")
    broker_options(parser)


def _promote(args: argparse.Namespace) -> int:
    if shows_progress(args):
        note("starting Spark …")
    _, pipeline = started_pipeline(args, args.name)
    from headwater.pipelines.running import rebuilding

    shown = _Shown("catching up", quiet=not shows_progress(args))
    try:
        promoted = rebuilding.promote(
            pipeline,
            only=args.write,
            version=args.version,
            report=shown.report,
            stop=stop_on_signals(STOP_S),
        )
    finally:
        shown.close()
    if args.drop:
        _drop_former(pipeline, promoted)
    if args.json:
        print_json({name: {"was": was, "is": now} for name, (was, now) in promoted.items()})
        return 0
    for name, (was, now) in promoted.items():
        say(f"{name}: version {now} is live" + (f", {was} was" if was not in (None, now) else ""))
        if was not in (None, now) and not args.drop:
            say(f"`headwater pipeline promote {args.name} --version {was}` reverts to it")
    return 0


def _drop_former(pipeline: "Pipeline", promoted: Mapping[str, tuple[int | None, int]]) -> None:
    from headwater.pipelines.running import rebuilding

    writes = {write.name: write for write in pipeline.flow().writes}
    for name, (before, now) in promoted.items():
        if before is not None and before != now:
            rebuilding.drop(pipeline, writes[name], before)


def rebuild_stores(
    loaded: "config.Config", stores: Mapping[str, Mapping[str, Collection[int]]], *, quiet: bool
) -> None:
    """Derives these writes of these pipelines again, and removes the versions that they had."""
    pipelines = load_pipelines(loaded, lambda: spark_of(loaded, "headwater rebuild"), list(stores))
    from headwater.pipelines.running import rebuilding

    shown = _Shown("rebuilding", quiet=quiet)
    try:
        for pipeline in pipelines:
            writes = {write.name: write for write in pipeline.flow().writes}
            for name, versions in stores[pipeline.name].items():
                rebuilding.rebuild(pipeline, only=name, report=shown.report)
                rebuilding.promote(pipeline, only=name)
                there = {
                    version.number for version in rebuilding.versions_of(pipeline, writes[name])
                }
                for number in sorted(there & {*versions}):
                    rebuilding.drop(pipeline, writes[name], number)
    finally:
        shown.close()


class _Shown:
    """One bar for all writes of the pipeline."""

    def __init__(self, doing: str, *, quiet: bool) -> None:
        self._doing = doing
        self._quiet = quiet
        self._bar: ProgressBar | None = None
        self._done: dict[str, tuple[int, int]] = {}

    def report(self, progress: "rebuilding.RebuildProgress") -> None:
        self._done[progress.write] = (progress.done, progress.total)
        done = sum(number for number, _ in self._done.values())
        total = sum(number for _, number in self._done.values())
        if self._bar is None:
            self._bar = ProgressBar(self._doing, total=total or None, quiet=self._quiet)
        left = progress.remaining_s
        self._bar.update(done, done, f", {duration(left)} left" if left else "")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


REBUILD = Command(
    "derive the stores again from the log, beside those in use",
    _configure_rebuild,
    _rebuild,
    "  headwater pipeline rebuild revenue\n  headwater pipeline rebuild revenue --promote --drop",
)
PROMOTE = Command(
    "make a rebuilt version live",
    _configure_promote,
    _promote,
    "  headwater pipeline promote revenue\n  headwater pipeline promote revenue --version 1",
)
