"""One write of a pipeline that the runner keeps running: start, retry with backoff, status."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
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
from headwater.pipelines.running.schema_watch import SchemaWatch
from headwater.pipelines.running.version_choice import VersionChoice, choose
from headwater.pipelines.running.write_run import WriteRun

_log = logging.getLogger(__name__)
# How soon a promoted version is followed. Each check connects to the store, which costs PostgreSQL
# a process.
_VERSIONS_EVERY_S: Final = 5.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_STARTS_WITHIN_S: Final = 30.0  # other writes wait no longer for one that starts
_OPENS_WITHIN_S: Final = 3.0  # nor for one whose store has not answered
_ENDING_S: Final = 5.0  # for a start in flight
_STEADY_S: Final = 60.0  # after which a failure counts as the first again


@dataclass
class ManagedWrite:
    """The state of one write between and during its runs.

    Its store is asked in a thread of its own, because a store that does not answer must not delay
    other writes. The methods themselves are for one thread.
    """

    pipeline: Pipeline
    name: str | None = None  # None: the function has not yet described what it writes
    run: WriteRun | None = None
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
    _asking: threading.Thread | None = None  # waits for its store
    _failed: Exception | None = None  # what that has raised
    _live: int | None = None  # the version that the store had live when it was last asked
    _is_discarded: bool = False  # ended while it started
    _end_by_s: float | None = None  # how long `end` waits for a start in flight
    _deciding: threading.Lock = field(default_factory=threading.Lock)

    @property
    def label(self) -> str:
        return f"{self.pipeline.name}/{self.name}" if self.name else self.pipeline.name

    @property
    def is_due(self) -> bool:
        return (
            self.run is None
            and self._asking is None
            and not self.has_ended
            and time.monotonic() >= self.retry_s
        )

    @property
    def is_starting(self) -> bool:
        since_s = time.monotonic() - self.started_s
        if self.run is None:
            return self._asking is not None and since_s < _OPENS_WITHIN_S
        return since_s < _STARTS_WITHIN_S and self.run.is_starting

    def start(self, writes: Sequence[Write], reader: LiveReader) -> None:
        """`writes` are those that the function describes now, with the frames of `reader`. Returns
        before its store has answered; `check` raises what fails then.
        """
        write = next((write for write in writes if write.name == self.name), None)
        if write is None:
            raise PipelineError(f"pipeline {self.pipeline.name} no longer writes {self.name}")
        self.about = status.about(write)  # reported also while it fails
        self.started_s = time.monotonic()
        self._is_discarded = False
        self._ask(lambda: self._start(write, reader))

    def _ask(self, action: Callable[[], None]) -> None:
        def asking() -> None:
            try:
                action()
            except Exception as error:
                self._failed = error
            finally:
                self._asking = None

        self._asking = threading.Thread(
            target=asking, name=f"headwater-store-{self.name}", daemon=True
        )
        self._asking.start()

    def _start(self, write: Write, reader: LiveReader) -> None:
        watch = SchemaWatch(reader, self.pipeline.environment.log)
        try:
            run = WriteRun(
                self.pipeline.environment,
                self.pipeline.settings,
                write,
                self._choice(write),
                before=watch,
            )
            run.start()
        except BaseException:
            watch.close()
            raise
        with self._deciding:
            if not self._is_discarded:
                self.run, self.watch = run, watch
                self.error = None
                self.has_written_plan = False
                self._live = None
                self.started_s = self.checked_s = time.monotonic()
                return
        run.stop()
        watch.close()

    def _choice(self, write: Write) -> VersionChoice:
        environment = self.pipeline.environment
        store = open_store(environment, self.pipeline.name, write)
        try:
            store.check()
            versions = store.versions()
            choice = choose(
                environment, self.pipeline.name, write, versions, can_promote=store.can_promote
            )
        finally:
            store.close()
        has_begun = any(
            version.number == choice.version and version.position for version in versions
        )
        if choice.overtakes is not None and not has_begun:
            # The live version stays rather than being replaced by one with fewer rows.
            check_derivable(self.pipeline.settings, environment.log, choice.overtakes)
        return choice

    def check(self) -> None:
        """Raises what ended the query, if it has ended, and why it could not start. Ends the run if
        another version was promoted: the next run feeds that one.
        """
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        if self.run is None:
            return
        if not self.run.is_active:
            error = self.run.error()
            self.end()
            raise error or PipelineError(f"the query of {self.label} has ended")
        if self._live is not None and self._live != self.run.choice.version:
            _log.info("%s: version %d is live now", self.label, self._live)
            self.end()
        elif time.monotonic() - self.checked_s >= _VERSIONS_EVERY_S and self._asking is None:
            self.checked_s = time.monotonic()
            self._follow_live(self.run)

    def _follow_live(self, run: WriteRun) -> None:
        if time.monotonic() - self.started_s > _STEADY_S:
            self.failures = 0
        if run.choice.overtakes is None and run.waits_for is None:
            self._ask(lambda: self._read_live(run.write))

    def _read_live(self, write: Write) -> None:
        store = open_store(self.pipeline.environment, self.pipeline.name, write)
        try:
            self._live = next(
                (version.number for version in store.versions() if version.is_live), None
            )
        except HeadwaterError:
            self._live = None  # the query itself reports it
        finally:
            store.close()

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

    def stop_soon(self) -> None:
        """Before `end`, so that several end at the same time."""
        with self._deciding:
            self._is_discarded = self.run is None and self._asking is not None
        self._end_by_s = time.monotonic() + _ENDING_S
        if self.run is not None:
            self.run.stop_soon()

    def end(self) -> None:
        """A start that still waits for its store after a while ends by itself."""
        with self._deciding:
            asking = self._asking
            self._is_discarded = self.run is None and asking is not None
            run, self.run = self.run, None
            watch, self.watch = self.watch, None
        end_by_s, self._end_by_s = self._end_by_s, None
        if run is None and asking is not None:
            left_s = _ENDING_S if end_by_s is None else end_by_s - time.monotonic()
            asking.join(max(left_s, 0.0))
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
            steps = self.run.write.steps if self.run is not None else None
            if steps is not None:
                status.write_view(state_dir, self.pipeline.name, steps())


def hint_of(error: HeadwaterError) -> str:
    return f" (hint: {error.hint})" if error.hint else ""


def not_in_use(error: HeadwaterError) -> str:
    return f"its file has changed, and the version loaded before stays in use: {error}"
