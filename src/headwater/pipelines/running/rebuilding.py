"""Rebuild and promote: a new version of a store, derived beside the live one, replaces it.

    rebuild    reads the log from its start into the next version; the live one is still fed
    promote    brings that version up to the position of the live one, and makes it live

A process that runs the pipeline meanwhile finds the new version within seconds, and feeds it from
then on. The old one stays as it is, with its checkpoint: promoting it again is a rollback.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from headwater.errors import HeadwaterError, PipelineError
from headwater.pipelines.checkpoint import Checkpoint, RunsElsewhere
from headwater.pipelines.flow import Write
from headwater.pipelines.offsets import check_derivable, ends_of, has_reached
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.running.environment import open_store
from headwater.pipelines.running.loaded_pipeline import Pipeline, write_named
from headwater.pipelines.running.schema_watch import SchemaWatch
from headwater.pipelines.running.version_choice import VersionChoice
from headwater.pipelines.running.write_run import WriteRun
from headwater.sinks.contract import Offsets, Store, Version

_ROUND_S: Final = 0.1
_LEAVING_S: Final = 30.0  # for a process to leave a version that is no longer live


@dataclass(frozen=True, slots=True)
class RebuildProgress:
    """The progress of one write, in records of the log."""

    write: str
    version: int
    done: int
    total: int
    elapsed_s: float

    @property
    def remaining_s(self) -> float | None:
        """None until it can be estimated."""
        if not self.done or self.elapsed_s < 1:
            return None
        return self.elapsed_s / self.done * (self.total - self.done)


Report: TypeAlias = Callable[[RebuildProgress], None]


def rebuild(
    pipeline: Pipeline,
    *,
    only: str | None = None,
    resume: bool = False,
    report: Report = lambda _: None,
    stop: threading.Event | None = None,
) -> dict[str, int]:
    """The new version of each write. Returns when they have read the log up to its current end.

    A version that an earlier rebuild has left without a promote is removed, or continued if
    `resume`.
    """
    reader = LiveReader(pipeline.spark, pipeline.environment.log, pipeline.settings)
    writes = _writes(pipeline, reader, only)
    check_derivable(pipeline.settings, pipeline.environment.log, reader.topics)
    chosen = {write.name: _next_version(pipeline, write, resume=resume) for write in writes}
    _run(pipeline, reader, writes, chosen, report, stop)
    return chosen


def promote(
    pipeline: Pipeline,
    *,
    only: str | None = None,
    version: int | None = None,
    report: Report = lambda _: None,
    stop: threading.Event | None = None,
) -> dict[str, tuple[int | None, int]]:
    """By write, which version was live, and which is now. Without `version`: the newest, of the
    writes that have one newer than the live one.

    A version that is behind the live one is brought up to it first, so that readers miss at most
    the records that arrive in that moment.
    """
    reader = LiveReader(pipeline.spark, pipeline.environment.log, pipeline.settings)
    writes = _writes(pipeline, reader, only)
    versions = {write.name: versions_of(pipeline, write) for write in writes}
    if version is None:
        writes = [write for write in writes if _newer(versions[write.name])] or writes
    chosen: dict[str, int] = {}
    live: dict[str, Version | None] = {}
    behind: list[Write] = []
    for write in writes:
        live[write.name] = _live(versions[write.name])
        wanted = _wanted(pipeline, write, versions[write.name], version)
        chosen[write.name] = wanted.number
        if (
            (current := live[write.name])
            and current.position
            and not has_reached(wanted.position, current.position.offsets)
        ):
            behind.append(write)
    if behind:
        _run(pipeline, reader, behind, chosen, report, stop)
    for write in writes:
        store = open_store(pipeline.environment, pipeline.name, write)
        try:
            store.promote(chosen[write.name])
        finally:
            store.close()
    return {
        name: (was.number if (was := live[name]) else None, number)
        for name, number in chosen.items()
    }


def drop(pipeline: Pipeline, write: Write, version: int) -> None:
    """Removes a version that is not live, and its checkpoint. Raises RunsElsewhere while a process
    feeds it; the pipeline's process leaves one that is no longer live within seconds.
    """
    store = open_store(pipeline.environment, pipeline.name, write)
    try:
        live = _live(store.versions())
        if live is not None and live.number == version:
            store.drop(version)  # which it refuses
        _drop(pipeline, write, store, version)
    finally:
        store.close()


def _drop(pipeline: Pipeline, write: Write, store: Store, version: int) -> None:
    environment = pipeline.environment
    checkpoint = Checkpoint(
        environment.state_dir, pipeline.name, write.name, version, state_url=environment.state_url
    )
    _await_lock(checkpoint)
    try:
        store.drop(version)
        checkpoint.remove()
    finally:
        checkpoint.unlock()


def _await_lock(checkpoint: Checkpoint) -> None:
    until_s = time.monotonic() + _LEAVING_S
    while True:
        try:
            checkpoint.lock()
            return
        except RunsElsewhere:
            if time.monotonic() > until_s:
                raise
            time.sleep(_ROUND_S)


def versions_of(pipeline: Pipeline, write: Write) -> list[Version]:
    store = open_store(pipeline.environment, pipeline.name, write)
    try:
        return store.versions()
    finally:
        store.close()


def _writes(pipeline: Pipeline, reader: LiveReader, only: str | None) -> list[Write]:
    flow = pipeline.flow(reader)
    return flow.writes if only is None else [write_named(flow, only)]


def _next_version(pipeline: Pipeline, write: Write, *, resume: bool) -> int:
    store = open_store(pipeline.environment, pipeline.name, write)
    try:
        versions = store.versions()
        unfinished = _newer(versions)
        if resume and unfinished:
            return unfinished[-1].number
        for version in unfinished:
            _drop(pipeline, write, store, version.number)
        return max([version.number for version in versions], default=0) + 1
    finally:
        store.close()


def _live(versions: list[Version]) -> Version | None:
    return next((version for version in versions if version.is_live), None)


def _newer(versions: list[Version]) -> list[Version]:
    """Versions newer than the live one: of a rebuild, and not promoted."""
    live = _live(versions)
    return [version for version in versions if live is None or version.number > live.number]


def _wanted(
    pipeline: Pipeline, write: Write, versions: list[Version], version: int | None
) -> Version:
    if version is None:
        candidates = _newer(versions)
    else:
        candidates = [candidate for candidate in versions if candidate.number == version]
    if candidates:
        return candidates[-1]
    raise PipelineError(
        f"{write.name} has no version {version}"
        if version is not None
        else f"{write.name} has no version newer than the live one",
        detail="it has " + (", ".join(str(found.number) for found in versions) or "none"),
        hint=f"`headwater pipeline rebuild {pipeline.name}` makes a new one",
    )


def _run(
    pipeline: Pipeline,
    reader: LiveReader,
    writes: list[Write],
    chosen: dict[str, int],
    report: Report,
    stop: threading.Event | None,
) -> None:
    """Feeds each write's version up to the current end of the log."""
    first, *others = writes
    # Sources of one flow have one plan of micro-batches, and each write is a query of its own.
    writes = [first, *(write_named(pipeline.flow(), write.name) for write in others)]
    watch = SchemaWatch(reader, pipeline.environment.log)
    runs = [
        WriteRun(
            pipeline.environment,
            pipeline.settings,
            write,
            VersionChoice(chosen[write.name]),
            before=watch,
        )
        for write in writes
    ]
    started_s = time.monotonic()
    totals = {
        write.name: _count(ends_of(pipeline.environment.log, write.topics)) for write in writes
    }
    try:
        for run in runs:
            run.start(until_now=True)
        while True:
            active = [run for run in runs if run.is_active]
            for run in runs:
                total = totals[run.write.name]
                done = min(_count(run.position.offsets), total) if run.position else 0
                elapsed_s = time.monotonic() - started_s
                report(RebuildProgress(run.write.name, run.choice.version, done, total, elapsed_s))
            if not active:
                break
            if stop is not None and stop.wait(_ROUND_S):
                raise PipelineError("stopped before the end", hint="--resume continues from here")
            if stop is None:
                time.sleep(_ROUND_S)
        for run in runs:
            error: HeadwaterError | None = run.error()
            if error is not None:
                raise error
    finally:
        for run in runs:
            run.stop()
        watch.close()


def _count(offsets: Offsets) -> int:
    return sum(sum(partitions.values()) for partitions in offsets.values())
