"""The pipelines of one process: built, started, watched, and tried again when they fail.

Each write of a pipeline is a query of its own, with its own checkpoint and its own store, in one
Spark application. One that fails is tried again with growing pauses; the others do not notice.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headwater.errors import HeadwaterError, PipelineError
from headwater.pipelines.flow import Flow, Write
from headwater.pipelines.offsets import check_derivable
from headwater.pipelines.operators.runtime.naming import building
from headwater.pipelines.pipeline import Function, failed
from headwater.pipelines.pipeline_file import PipelineFile
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.running import status
from headwater.pipelines.running.batch_applier import is_final
from headwater.pipelines.running.query_run import Place, WriteRun, choose, open_store
from headwater.pipelines.running.questions import Questions
from headwater.pipelines.running.schema_watch import SchemaChanged, SchemaWatch
from headwater.pipelines.session import cores, has_ended
from headwater.pipelines.settings import PipelineSettings

_log = logging.getLogger(__name__)
_ROUND_S: Final = 0.2
_VERSIONS_EVERY_S: Final = 2.0  # how soon a promoted version is taken up
_FILES_EVERY_S: Final = 1.0  # how often the pipelines' files are looked at
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_STARTS_WITHIN_S: Final = 30.0  # others wait no longer for one that starts
_STEADY_S: Final = 60.0  # after which a failure counts as the first again


# Functions may give names to frames (temporary views), which a session has once: those of a trace
# are others than those of the stream.
_describing = threading.Lock()


@dataclass
class Pipeline:
    """A pipeline's function, and the log that it is to read."""

    settings: PipelineSettings
    function: Function
    place: Place
    spark: SparkSession
    file: PipelineFile | None = None  # where the function was loaded from
    file_error: HeadwaterError | None = None  # why its file, which has changed, is not in use

    @property
    def name(self) -> str:
        return self.settings.name

    def flow(self, reader: LiveReader | None = None) -> Flow:
        """What the function describes. Raises PipelineError if it fails, or describes nothing."""
        if reader is None:
            reader = LiveReader(self.spark, self.place.log, self.settings)
        flow = Flow(self.spark, self.name, reader, self.place.sinks)
        try:
            with _describing, building(self.name) as built:
                self.function(flow)
                flow.unrepeatable = built.unrepeatable
        except (Exception, SystemExit) as error:
            raise failed(self.name, error) from error
        if not flow.writes:
            raise PipelineError(f"pipeline {self.name} writes nothing", hint="flow.write(…) does")
        return flow


def pipelines_of(
    settings: Sequence[PipelineSettings],
    base: Path,
    place: Place,
    start: Callable[[], SparkSession],
) -> list[Pipeline]:
    """Spark starts after all files were read, so that a mistake in one is reported at once."""
    files = [PipelineFile(pipeline, base) for pipeline in settings]
    spark = start()
    return [
        Pipeline(pipeline, file.function, place, spark, file)
        for pipeline, file in zip(settings, files, strict=True)
    ]


@dataclass
class _Kept:
    """One write, which is kept running."""

    pipeline: Pipeline
    name: str | None = None  # None: the function has not told yet what it writes
    run: WriteRun | None = None
    watch: SchemaWatch | None = None
    error: HeadwaterError | None = None
    has_ended: bool = False  # for good
    failures: int = 0
    next_s: float = 0.0  # when it is tried again
    started_s: float = 0.0
    looked_s: float = 0.0  # at the versions
    has_told_plan: bool = False
    about: dict[str, Any] = field(default_factory=dict)  # what it writes, as the status tells it
    operators: dict[str, Any] = field(default_factory=dict)  # as the last run left them

    @property
    def label(self) -> str:
        return f"{self.pipeline.name}/{self.name}" if self.name else self.pipeline.name


@dataclass
class Runner:
    """Runs pipelines until it is stopped."""

    pipelines: list[Pipeline]
    stop: threading.Event = field(default_factory=threading.Event)
    _kept: list[_Kept] = field(default_factory=list)
    _files_s: float = 0.0  # when their files are looked at again

    def run(self) -> None:
        """Returns when `stop` is set, or when no pipeline can ever go on. Raises PipelineError when
        Spark has ended under them: only a new process can start it again.
        """
        spark = self.pipelines[0].spark
        self._kept = [_Kept(pipeline) for pipeline in self.pipelines]
        questions = Questions(self.pipelines)
        try:
            while not self.stop.is_set() and not all(each.has_ended for each in self._kept):
                if has_ended(spark):
                    raise PipelineError(
                        "Spark has ended",
                        detail="its JVM was killed or failed, or its cluster ended the application",
                        hint="start the pipelines again; they go on where they were",
                    )
                try:
                    self._look_at_files()
                    for each in list(self._kept):
                        self._look_after(each)
                    self._tell()
                    questions.look()
                except (Py4JError, OSError):
                    if not has_ended(spark):
                        raise
                self.stop.wait(_ROUND_S)
        finally:
            for each in self._kept:
                self._end(each)
            self._tell()
            for pipeline in self.pipelines:
                status.ended(pipeline.place.state_dir, pipeline.name)

    def errors(self) -> list[HeadwaterError]:
        return [each.error for each in self._kept if each.error is not None]

    def _look_at_files(self) -> None:
        if time.monotonic() < self._files_s:
            return
        for pipeline in self.pipelines:
            if pipeline.file is not None:
                self._look_at_file(pipeline, pipeline.file)
        self._files_s = time.monotonic() + _FILES_EVERY_S

    def _look_at_file(self, pipeline: Pipeline, file: PipelineFile) -> None:
        """A file that has changed takes the place of what runs, once it loads and describes
        something; until then what was loaded before goes on.
        """
        if pipeline.file_error is not None and file.is_as_loaded:
            _log.info("%s: %s is as it was", pipeline.name, file.path.name)
            pipeline.file_error = None
        if not file.is_changed():
            return
        try:
            with file.replacing() as function:
                flow = dataclasses.replace(pipeline, function=function).flow()
        except Exception as error:
            reason = failed(pipeline.name, error)
            if str(reason) != str(pipeline.file_error):
                _log.error("%s: %s%s", pipeline.name, _not_in_use(reason), _hint(reason))
            pipeline.file_error = reason
            return
        _log.info(
            "%s: %s has changed and is in use now; `headwater pipeline rebuild %s --promote`"
            " applies it to what was derived before, too",
            pipeline.name,
            file.path.name,
            pipeline.name,
        )
        pipeline.function = file.function
        pipeline.file_error = None
        self._begin_again(pipeline, flow.writes)

    def _begin_again(self, pipeline: Pipeline, writes: Sequence[Write]) -> None:
        """Each write goes on from its checkpoint, if that fits; `_start` decides, as at first. Not
        so one that has ended for good: another process has taken it over, and reads the same file.
        """
        before = {each.name: each for each in self._kept if each.pipeline is pipeline}
        for kept in before.values():
            self._end(kept)
        self._kept = [each for each in self._kept if each.pipeline is not pipeline]
        for write in writes:
            kept = before.get(write.name, _Kept(pipeline))
            if not kept.has_ended:
                kept = _Kept(pipeline, write.name)
            kept.about = status.about(write)
            self._kept.append(kept)

    def _look_after(self, kept: _Kept) -> None:
        now_s = time.monotonic()
        try:
            if kept.run is None:
                if not kept.has_ended and now_s >= kept.next_s and not self._is_busy_starting():
                    self._start(kept)
            elif not kept.run.is_active:
                error = kept.run.error()
                self._end(kept)
                raise error or PipelineError(f"the query of {kept.label} has ended")
            elif now_s - kept.looked_s >= _VERSIONS_EVERY_S:
                kept.looked_s = now_s
                self._follow(kept)
        except SchemaChanged as error:
            _log.info("%s: %s; building it anew", kept.label, error)
            kept.next_s = 0.0
        except HeadwaterError as error:
            self._failed(kept, error)
        except Exception as error:
            self._failed(kept, failed(kept.pipeline.name, error))

    def _is_busy_starting(self) -> bool:
        """Each query starts a Python of its own, which Spark gives 10 s to come up: many at once
        on few cores would all be too late.
        """
        now_s = time.monotonic()
        starting = sum(
            each.run is not None
            and now_s - each.started_s < _STARTS_WITHIN_S
            and each.run.is_starting
            for each in self._kept
        )
        return starting >= cores()

    def _start(self, kept: _Kept) -> None:
        reader = LiveReader(kept.pipeline.spark, kept.pipeline.place.log, kept.pipeline.settings)
        flow = kept.pipeline.flow(reader)
        about = {each.name: status.about(each) for each in flow.writes}
        if kept.name is None:
            kept.name, *others = about
            self._kept += [_Kept(kept.pipeline, each, about=about[each]) for each in others]
        write = next((each for each in flow.writes if each.name == kept.name), None)
        if write is None:
            raise PipelineError(f"pipeline {kept.pipeline.name} no longer writes {kept.name}")
        kept.about = about[write.name]  # told also while it fails
        kept.watch = SchemaWatch(reader, kept.pipeline.place.log)
        place = kept.pipeline.place
        store = open_store(place, kept.pipeline.name, write)
        try:
            store.check()
            versions = store.versions()
            choice = choose(place, kept.pipeline.name, write, versions)
        finally:
            store.close()
        has_begun = any(each.number == choice.version and each.position for each in versions)
        if choice.overtakes is not None and not has_begun:
            # What is there stays rather than being replaced by less.
            check_derivable(kept.pipeline.settings, place.log, choice.overtakes)
        run = WriteRun(place, kept.pipeline.settings, write, choice, before=kept.watch)
        run.start()
        kept.run = run
        kept.error = None
        kept.has_told_plan = False
        kept.started_s = kept.looked_s = time.monotonic()

    def _follow(self, kept: _Kept) -> None:
        """Another version may have been made live; what has run well is well."""
        assert kept.run is not None
        if time.monotonic() - kept.started_s > _STEADY_S:
            kept.failures = 0
        if kept.run.choice.overtakes is not None or kept.run.waits_for is not None:
            return
        store = open_store(kept.pipeline.place, kept.pipeline.name, kept.run.write)
        try:
            live = next((each.number for each in store.versions() if each.is_live), None)
        except HeadwaterError:
            return  # the query will tell
        finally:
            store.close()
        if live is not None and live != kept.run.choice.version:
            _log.info("%s: version %d is live now", kept.label, live)
            self._end(kept)

    def _failed(self, kept: _Kept, error: HeadwaterError) -> None:
        self._end(kept)
        if self.stop.is_set():
            return  # Spark was asked to stop as well, and was faster
        is_known = str(kept.error) == str(error)
        kept.error = error
        if is_final(error):
            kept.has_ended = True
            _log.error("%s: %s%s", kept.label, error, _hint(error))
            return
        pause_s = min(_FIRST_PAUSE_S * 2**kept.failures, _LONGEST_PAUSE_S)
        kept.failures = min(kept.failures + 1, 16)
        kept.next_s = time.monotonic() + pause_s
        if not is_known or pause_s == _LONGEST_PAUSE_S:
            _log.error("%s: %s; trying again in %.0f s%s", kept.label, error, pause_s, _hint(error))

    def _end(self, kept: _Kept) -> None:
        run, kept.run = kept.run, None
        watch, kept.watch = kept.watch, None
        if run is not None:
            run.stop()
            kept.operators = run.operators_told()
        if watch is not None:
            watch.close()

    def _tell(self) -> None:
        for pipeline in self.pipelines:
            of_it = [each for each in self._kept if each.pipeline is pipeline]
            status.write(
                pipeline.place.state_dir,
                pipeline.name,
                {each.name or "": _told(each) for each in of_it},
            )
            for each in of_it:
                _tell_plan(each)


def _tell_plan(kept: _Kept) -> None:
    """Once for each run: asking Spark takes a while, and the plan stays."""
    plan = kept.run.plan() if kept.run is not None and not kept.has_told_plan else None
    if plan is not None and kept.name is not None:
        kept.has_told_plan = True
        status.write_plan(kept.pipeline.place.state_dir, kept.pipeline.name, kept.name, plan)


def _hint(error: HeadwaterError) -> str:
    return f" (hint: {error.hint})" if error.hint else ""


def _not_in_use(error: HeadwaterError) -> str:
    return f"its file has changed, and what was loaded before goes on: {error}"


def _told(kept: _Kept) -> dict[str, Any]:
    run = kept.run
    file_error = kept.pipeline.file_error
    if run is None:
        state = "stopped" if kept.has_ended else "failed" if kept.error else "starting"
        reason = file_error or kept.error  # the newer one
        hint = reason.hint if reason else ""
        error = str(reason) if reason else None
        operators = {"operators": kept.operators} if kept.operators else {}
        return {**kept.about, **operators, "state": state, "error": error, "hint": hint}
    read = run.position.offsets if run.position else {}  # a pattern's topics are known so
    return {
        **kept.about,
        "topics": sorted({*kept.about["topics"], *read}),
        "state": "waiting" if run.waits_for else "running",
        "error": run.waits_for or (_not_in_use(file_error) if file_error else None),
        "hint": file_error.hint if file_error and not run.waits_for else "",
        "version": run.choice.version,
        "overtakes": run.choice.overtakes is not None,
        **run.progress(),
    }


def write_named(flow: Flow, name: str) -> Write:
    """Raises PipelineError."""
    for write in flow.writes:
        if name in (write.name, write.table):
            return write
    raise PipelineError(
        f"pipeline {flow.name} does not write {name}",
        detail="it writes " + ", ".join(write.name for write in flow.writes),
    )
