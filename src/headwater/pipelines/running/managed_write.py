"""One write of a pipeline that the runner keeps running: start, retry with backoff, status."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.errors import HeadwaterError, PipelineError
from headwater.pipelines.flow import Write
from headwater.pipelines.offsets import check_derivable
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.running import status
from headwater.pipelines.running.batch_applier import is_final
from headwater.pipelines.running.environment import open_store
from headwater.pipelines.running.loaded_pipeline import Pipeline
from headwater.pipelines.running.query_run import QueryRun
from headwater.pipelines.running.schema_watch import SchemaWatch
from headwater.pipelines.running.version_choice import choose

_log = logging.getLogger(__name__)
_VERSIONS_EVERY_S: Final = 2.0  # how soon a promoted version is followed
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_STARTS_WITHIN_S: Final = 30.0  # other writes wait no longer for one that starts
_STEADY_S: Final = 60.0  # after which a failure counts as the first again


@dataclass
class ManagedWrite:
    """The state of one write between and during its runs."""

    pipeline: Pipeline
    name: str | None = None  # None: the function has not yet described what it writes
    run: QueryRun | None = None
    watch: SchemaWatch | None = None
    error: HeadwaterError | None = None
    has_ended: bool = False  # for good
    failures: int = 0
    retry_s: float = 0.0  # when it is started again
    started_s: float = 0.0
    checked_s: float = 0.0  # when its store's versions were read last
    has_written_plan: bool = False
    about: dict[str, Any] = field(default_factory=dict)  # what it writes, for the status
    operators: dict[str, Any] = field(default_factory=dict)  # metrics as the last run left them

    @property
    def label(self) -> str:
        return f"{self.pipeline.name}/{self.name}" if self.name else self.pipeline.name

    @property
    def is_due(self) -> bool:
        return self.run is None and not self.has_ended and time.monotonic() >= self.retry_s

    @property
    def is_starting(self) -> bool:
        return (
            self.run is not None
            and time.monotonic() - self.started_s < _STARTS_WITHIN_S
            and self.run.is_starting
        )

    def start(self, writes: Sequence[Write], reader: LiveReader) -> None:
        """`writes` are those that the function describes now, with the frames of `reader`."""
        write = next((write for write in writes if write.name == self.name), None)
        if write is None:
            raise PipelineError(f"pipeline {self.pipeline.name} no longer writes {self.name}")
        self.about = status.about(write)  # reported also while it fails
        environment = self.pipeline.environment
        self.watch = SchemaWatch(reader, environment.log)
        store = open_store(environment, self.pipeline.name, write)
        try:
            store.check()
            versions = store.versions()
            choice = choose(environment, self.pipeline.name, write, versions)
        finally:
            store.close()
        has_begun = any(
            version.number == choice.version and version.position for version in versions
        )
        if choice.overtakes is not None and not has_begun:
            # The live version stays rather than being replaced by one with fewer rows.
            check_derivable(self.pipeline.settings, environment.log, choice.overtakes)
        run = QueryRun(environment, self.pipeline.settings, write, choice, before=self.watch)
        run.start()
        self.run = run
        self.error = None
        self.has_written_plan = False
        self.started_s = self.checked_s = time.monotonic()

    def check(self) -> None:
        """Raises what ended the query, if it has ended. Ends the run if another version was
        promoted: the next run feeds that one.
        """
        assert self.run is not None
        if not self.run.is_active:
            error = self.run.error()
            self.end()
            raise error or PipelineError(f"the query of {self.label} has ended")
        if time.monotonic() - self.checked_s >= _VERSIONS_EVERY_S:
            self.checked_s = time.monotonic()
            self._follow_live(self.run)

    def _follow_live(self, run: QueryRun) -> None:
        if time.monotonic() - self.started_s > _STEADY_S:
            self.failures = 0
        if run.choice.overtakes is not None or run.waits_for is not None:
            return
        store = open_store(self.pipeline.environment, self.pipeline.name, run.write)
        try:
            live = next((version.number for version in store.versions() if version.is_live), None)
        except HeadwaterError:
            return  # the query itself reports it
        finally:
            store.close()
        if live is not None and live != run.choice.version:
            _log.info("%s: version %d is live now", self.label, live)
            self.end()

    def fail(self, error: HeadwaterError) -> None:
        """Starts again after a pause that doubles, unless the error is final. The same error is
        logged once, and then again with every longest pause.
        """
        is_logged = str(self.error) == str(error)
        self.error = error
        if is_final(error):
            self.has_ended = True
            _log.error("%s: %s%s", self.label, error, hint_of(error))
            return
        pause_s = min(_FIRST_PAUSE_S * 2**self.failures, _LONGEST_PAUSE_S)
        self.failures = min(self.failures + 1, 16)
        self.retry_s = time.monotonic() + pause_s
        if not is_logged or pause_s == _LONGEST_PAUSE_S:
            hint = hint_of(error)
            _log.error("%s: %s; trying again in %.0f s%s", self.label, error, pause_s, hint)

    def end(self) -> None:
        run, self.run = self.run, None
        watch, self.watch = self.watch, None
        if run is not None:
            run.stop()
            self.operators = run.operator_metrics()
        if watch is not None:
            watch.close()

    def status(self) -> dict[str, Any]:
        """As it stands in the status file."""
        run = self.run
        file_error = self.pipeline.file_error
        if run is None:
            state = "stopped" if self.has_ended else "failed" if self.error else status.STARTING
            reason = file_error or self.error  # the newer one
            hint = reason.hint if reason else ""
            error = str(reason) if reason else None
            operators = {"operators": self.operators} if self.operators else {}
            return {**self.about, **operators, "state": state, "error": error, "hint": hint}
        read = run.position.offsets if run.position else {}  # has the topics of a pattern
        return {
            **self.about,
            "topics": sorted({*self.about["topics"], *read}),
            "state": "waiting" if run.waits_for else "running",
            "error": run.waits_for or (not_in_use(file_error) if file_error else None),
            "hint": file_error.hint if file_error and not run.waits_for else "",
            "version": run.choice.version,
            "overtakes": run.choice.overtakes is not None,
            **run.progress(),
        }

    def write_plan(self) -> None:
        """Once in each run: Spark takes a while to explain a plan, which does not change."""
        plan = self.run.plan() if self.run is not None and not self.has_written_plan else None
        if plan is not None and self.name is not None:
            self.has_written_plan = True
            state_dir = self.pipeline.environment.state_dir
            status.write_plan(state_dir, self.pipeline.name, self.name, plan)


def hint_of(error: HeadwaterError) -> str:
    return f" (hint: {error.hint})" if error.hint else ""


def not_in_use(error: HeadwaterError) -> str:
    return f"its file has changed, and the version loaded before stays in use: {error}"
