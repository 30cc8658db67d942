"""The runner of one process: starts the writes of its pipelines, watches and restarts them.

Each write of a pipeline is a query of its own, with its own checkpoint and its own store, in one
Spark application. A write that fails is retried with backoff; the others are not affected.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from headwater.errors import HeadwaterError, PipelineError
from headwater.pipelines.flow import Write
from headwater.pipelines.pipeline import failed
from headwater.pipelines.pipeline_file import PipelineFile
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.running import status
from headwater.pipelines.running.loaded_pipeline import Pipeline
from headwater.pipelines.running.managed_write import ManagedWrite, hint_of, not_in_use
from headwater.pipelines.running.questions import Questions
from headwater.pipelines.running.schema_watch import SchemaChanged
from headwater.pipelines.session import cores, has_ended

_log = logging.getLogger(__name__)
_ROUND_S: Final = 0.2
_STEADY_ROUND_S: Final = 0.5  # while all writes run
_FILES_EVERY_S: Final = 1.0  # how often the pipelines' files are checked for changes


@dataclass
class Runner:
    """Runs pipelines until it is stopped."""

    pipelines: list[Pipeline]
    stop: threading.Event = field(default_factory=threading.Event)
    _writes: list[ManagedWrite] = field(default_factory=list)
    _files_s: float = 0.0  # when the files are checked again

    def run(self) -> None:
        """Returns when `stop` is set, or when no pipeline can ever go on. Raises PipelineError when
        Spark has ended under them: only a new process can start it again.
        """
        spark = self.pipelines[0].spark
        self._writes = [ManagedWrite(pipeline) for pipeline in self.pipelines]
        questions = Questions(self.pipelines)
        try:
            while not self.stop.is_set() and not all(write.has_ended for write in self._writes):
                if has_ended(spark):
                    raise PipelineError(
                        "Spark has ended",
                        detail="its JVM was killed or failed, or its cluster ended the application",
                        hint="start the pipelines again; they continue from their checkpoints",
                    )
                try:
                    self._check_files()
                    for write in list(self._writes):
                        self._advance(write)
                    self._write_status()
                    questions.look()
                except (Py4JError, OSError):
                    if not has_ended(spark):
                        raise
                self.stop.wait(_STEADY_ROUND_S if self._are_running() else _ROUND_S)
        finally:
            for write in self._writes:
                write.stop_soon()
            for write in self._writes:
                write.end()
            self._write_status()
            for pipeline in self.pipelines:
                status.ended(pipeline.environment.state_dir, pipeline.name)

    def errors(self) -> list[HeadwaterError]:
        return [write.error for write in self._writes if write.error is not None]

    def lasting_errors(self, attempts: int) -> list[HeadwaterError]:
        """Of writes that have failed so many times in a row, or for good."""
        return [
            write.error
            for write in self._writes
            if write.error is not None and (write.has_ended or write.failures >= attempts)
        ]

    def _check_files(self) -> None:
        if time.monotonic() < self._files_s:
            return
        for pipeline in self.pipelines:
            if pipeline.file is not None:
                self._check_file(pipeline, pipeline.file)
        self._files_s = time.monotonic() + _FILES_EVERY_S

    def _check_file(self, pipeline: Pipeline, file: PipelineFile) -> None:
        """A changed file replaces the running function once it loads and describes a write; until
        then the function loaded before stays in use.
        """
        if pipeline.file_error is not None and file.is_as_loaded:
            _log.info("%s: %s is again as it was loaded", pipeline.name, file.path.name)
            pipeline.file_error = None
        if not file.is_changed():
            return
        try:
            with file.replacing() as function:
                flow = dataclasses.replace(pipeline, function=function).flow()
        except Exception as error:
            reason = failed(pipeline.name, error)
            if str(reason) != str(pipeline.file_error):
                _log.error("%s: %s%s", pipeline.name, not_in_use(reason), hint_of(reason))
            pipeline.file_error = reason
            return
        _log.info(
            "%s: %s has changed and is in use now; `headwater pipeline rebuild %s --promote`"
            " applies it to the rows derived before, too",
            pipeline.name,
            file.path.name,
            pipeline.name,
        )
        pipeline.function = file.function
        pipeline.file_error = None
        self._restart(pipeline, flow.writes)

    def _restart(self, pipeline: Pipeline, writes: Sequence[Write]) -> None:
        """Each write continues from its checkpoint, if that fits, as at the first start. Not so a
        write that has ended for good: another process has taken it over, and reads the same file.
        """
        before = {write.name: write for write in self._writes if write.pipeline is pipeline}
        for managed in before.values():
            managed.end()
        self._writes = [write for write in self._writes if write.pipeline is not pipeline]
        for write in writes:
            managed = before.get(write.name, ManagedWrite(pipeline))
            if not managed.has_ended:
                managed = ManagedWrite(pipeline, write.name)
            managed.about = status.about(write)
            self._writes.append(managed)

    def _advance(self, write: ManagedWrite) -> None:
        """Starts the write if it is due, or checks on its run."""
        try:
            write.check()
            if write.is_due and not self._is_busy_starting():
                self._start(write)
        except SchemaChanged as error:
            _log.info("%s: %s; restarting it", write.label, error)
            write.retry_s = 0.0
        except HeadwaterError as error:
            self._fail(write, error)
        except Exception as error:
            self._fail(write, failed(write.pipeline.name, error))

    def _is_busy_starting(self) -> bool:
        """Each query starts a Python process of its own, which Spark gives 10 s to come up: many
        at once on few cores would all be too late.
        """
        return sum(write.is_starting for write in self._writes) >= cores()

    def _are_running(self) -> bool:
        return all(
            write.has_ended or (write.run is not None and not write.is_starting)
            for write in self._writes
        )

    def _start(self, write: ManagedWrite) -> None:
        pipeline = write.pipeline
        reader = LiveReader(pipeline.spark, pipeline.environment.log, pipeline.settings)
        flow = pipeline.flow(reader)
        if write.name is None:
            about = {described.name: status.about(described) for described in flow.writes}
            write.name, *others = about
            self._writes += [ManagedWrite(pipeline, name, about=about[name]) for name in others]
        write.start(flow.writes, reader)

    def _fail(self, write: ManagedWrite, error: HeadwaterError) -> None:
        write.end()
        if not self.stop.is_set():  # else Spark was stopped as well, and was faster
            write.fail(error)

    def _write_status(self) -> None:
        for pipeline in self.pipelines:
            writes = [write for write in self._writes if write.pipeline is pipeline]
            status.write(
                pipeline.environment.state_dir,
                pipeline.name,
                {write.name or "": write.status() for write in writes},
            )
            for write in writes:
                write.write_plan()
