"""A run of one write: the streaming query that feeds a version of its store, and its metrics."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.client.group_offsets import GroupOffsets
from headwater.errors import HeadwaterError, StateLost
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.flow import AT, Write
from headwater.pipelines.offsets import has_reached
from headwater.pipelines.operators.runtime.task import STATE_DIRECTORY
from headwater.pipelines.operators.state.manifests import CommittedManifests
from headwater.pipelines.operators.state.state_files import begin
from headwater.pipelines.operators.state.state_metrics import OperatorMetrics, metrics_of_all
from headwater.pipelines.position import POSITION
from headwater.pipelines.publishing.late_rows import LateRows
from headwater.pipelines.publishing.refused_rows import RefusedRows
from headwater.pipelines.running.batch_applier import BatchApplier
from headwater.pipelines.running.environment import Environment, open_store
from headwater.pipelines.running.late_alert import LateAlert
from headwater.pipelines.running.version_choice import VersionChoice, check_operators
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.spark_errors import explained
from headwater.sinks.contract import OP, Position

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_GROUP_PATIENCE_S: Final = 5.0  # only monitoring depends on it


def fields_of(write: Write) -> pa.Schema:
    """The columns that the store has; those of the key are not nullable."""
    stored = [field for field in write.frame.schema if field.name not in (OP, AT, POSITION)]
    fields = to_arrow_schema(type(write.frame.schema)(stored), timezone="UTC")
    return pa.schema([field.with_nullable(field.name not in write.key) for field in fields])


class QueryRun:
    """The query of one write, from `start` to `stop`. It runs in threads of Spark's."""

    def __init__(
        self,
        environment: Environment,
        settings: PipelineSettings,
        write: Write,
        choice: VersionChoice,
        *,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.write = write
        self.choice = choice
        self.pipeline = settings.name
        self._settings = settings
        self._store = open_store(environment, settings.name, write)
        self._checkpoint = Checkpoint(
            environment.state_dir, settings.name, write.name, choice.version
        )
        self._group = GroupOffsets(
            environment.log.bootstrap,
            environment.log.login,
            group_of(settings, write),
            patience_s=_GROUP_PATIENCE_S,
        )
        self._refused = RefusedRows(
            environment.log, f"{settings.name}/{write.name}", settings.name, choice.version
        )
        self._late = LateRows(
            environment.log, settings.name, write.operators, self._checkpoint.operators
        )
        self._manifests = CommittedManifests(write.operators, self._checkpoint.operators.absolute())
        self._alerts = {
            operator.name: LateAlert(settings.late_alert) for operator in write.operators
        }
        self._operators: dict[str, OperatorMetrics] = {}  # after the last batch
        self._applier = BatchApplier(
            self._store,
            choice.version,
            fields_of(write),
            self._checkpoint,
            rows_of=write.rows_of,
            before=before,
            computing=self._computing,
            computed=self._late.publish,
            refuse=self._refused.of_batch if settings.bad_rows == "dead-letter" else None,
            applied=self._on_applied,
        )
        self.query: StreamingQuery | None = None
        self._last: StreamingQueryProgress | None = None

    def start(self, *, until_now: bool = False) -> None:
        """`until_now`: the query ends when it has read the records that the log has now."""
        self._checkpoint.lock()
        try:
            self._applier.open()
            if self.position is None and self._checkpoint.has_begun():
                # The store was emptied or created again: everything has to be applied to it.
                _log.warning("%s: %s is empty; rebuilding it", self.pipeline, self.write.name)
                self._checkpoint.remove()
            self._ready_operators()
            if self.position is not None:
                self._read_operator_metrics(self.position)
            self._overtake()
            writer = (
                self.write.frame.writeStream.queryName(
                    f"{self.pipeline}/{self.write.name}/v{self.choice.version}"
                )
                .outputMode(self.write.mode)
                .option("checkpointLocation", str(self._checkpoint.path))
                .foreachBatch(self._applier)
            )
            if until_now:
                writer = writer.trigger(availableNow=True)
            elif self._settings.every:
                every_ms = round(self._settings.every * 1000)
                writer = writer.trigger(processingTime=f"{every_ms} milliseconds")
            with self._state_directory_set():
                self.query = writer.start()
        except BaseException:
            self.close()
            raise

    def _ready_operators(self) -> None:
        """From now on missing state is lost state: a task that misses it must not start empty."""
        if self._checkpoint.has_begun():
            check_operators(self._checkpoint, self.write)
            return
        shutil.rmtree(self._checkpoint.operators, ignore_errors=True)  # of a start that failed
        for operator in self.write.operators:
            begin(self._checkpoint.operators / operator.name, operator.buckets)

    def _computing(self, batch: int) -> AbstractContextManager[None]:
        if not self.write.operators:
            return nullcontext()
        return self._manifests.computing(self.write.frame.sparkSession.sparkContext, batch)

    @contextmanager
    def _state_directory_set(self) -> Iterator[None]:
        """Threads that start within it inherit the property, as the query's thread does."""
        if not self.write.operators:
            yield
            return
        context = self.write.frame.sparkSession.sparkContext
        context.setLocalProperty(STATE_DIRECTORY, str(self._checkpoint.operators.absolute()))
        try:
            yield
        finally:
            context.setLocalProperty(STATE_DIRECTORY, None)  # type: ignore[arg-type]

    def stop(self) -> None:
        """The batch in flight is abandoned or finished; both are correct."""
        self._applier.stop()
        if self.query is not None:
            try:
                self.query.stop()
            except Exception as error:
                # Spark throws StackOverflowError at a query that is stopped within foreachBatch,
                # and yet it stops.
                _log.debug("while stopping %s: %s", self.write.name, error)
        self.close()

    def close(self) -> None:
        self._applier.close()
        self._store.close()
        self._group.close()
        self._refused.close()
        self._late.close()
        self._checkpoint.unlock()

    @property
    def is_active(self) -> bool:
        return self.query is not None and self.query.isActive

    @property
    def is_starting(self) -> bool:
        """Whether Spark has not yet created its source."""
        return self.is_active and self.query.status["message"].startswith("Initializing")  # type: ignore[union-attr]

    @property
    def position(self) -> Position | None:
        return self._applier.position

    @property
    def waits_for(self) -> str | None:
        return self._applier.waits_for

    def error(self) -> HeadwaterError | None:
        """Why the query has failed; None if it ended as planned."""
        assert self.query is not None
        failed: Exception | None = self._applier.error
        try:
            failed = failed or self.query.exception()
        except Exception as error:
            failed = error
        if failed is None:
            return None
        found = explained(self.pipeline, failed)
        if isinstance(found, StateLost):
            self._checkpoint.lose(str(found))
        return found

    def progress(self) -> dict[str, Any]:
        """Metrics of the last batch that had records, for the status file. Called more often than
        Spark reports idle triggers (every 10 s), it misses no batch.
        """
        last = self.query.lastProgress if self.query is not None else None
        if last is not None and last["numInputRows"]:
            self._last = last
        last = self._last
        metrics = {"operators": self.operator_metrics()} if self._operators else {}
        if last is None:
            return metrics
        operators = last["stateOperators"]
        return {
            **metrics,
            "batch": last["batchId"],
            "rows": last["numInputRows"],
            "rows_per_s": last["processedRowsPerSecond"],
            "input_rows_per_s": last["inputRowsPerSecond"],
            "batch_ms": last["batchDuration"],
            "store_ms": self._applier.store_ms,
            "at": last["timestamp"],
            "state_rows": sum(operator["numRowsTotal"] for operator in operators),
            "state_bytes": sum(operator["memoryUsedBytes"] for operator in operators),
        }

    def plan(self) -> str | None:
        """Spark's plan of the last batch; None before the first one."""
        if self.query is None or self._last is None:
            return None
        plan: str = self.query._jsq.explainInternal(False)  # noqa: SLF001
        return plan

    def _on_applied(self, position: Position) -> None:
        self._overtake()
        self._read_operator_metrics(position)
        offsets = {
            (topic, partition): offset
            for topic, partitions in position.offsets.items()
            for partition, offset in partitions.items()
        }
        try:
            # After every batch: a last one that was left out would show as lag until the next.
            self._group.commit(offsets)
        except HeadwaterError as error:  # only monitoring of lag depends on it
            _log.warning("%s: offsets of its group not committed: %s", self.pipeline, error)

    def _read_operator_metrics(self, position: Position) -> None:
        self._operators = metrics_of_all(
            self._checkpoint.operators, self.write.operators, position.batch
        )

    def operator_metrics(self) -> dict[str, Any]:
        """By operator, after the last applied batch."""
        metrics = {}
        for name, state in self._operators.items():
            alert = self._alerts[name]
            was_on = alert.is_on
            alert.saw(time.monotonic(), state.counters)
            if alert.is_on and not was_on:
                _log.warning(
                    "%s: %.2g %% of the rows of %s are late, or have no usable time",
                    self.pipeline,
                    100 * (alert.share or 0),
                    name,
                )
            lateness = {"late_share": alert.share, "late_alert": alert.is_on}
            metrics[name] = {**state.as_json(), **lateness}
        return metrics

    def _overtake(self) -> None:
        """Promotes the version once it has reached the offsets of the one that it replaces."""
        overtakes = self.choice.overtakes
        if overtakes is not None and self.position and has_reached(self.position, overtakes):
            self._store.promote(self.choice.version)
            _log.info(
                "%s: version %d of %s is live", self.pipeline, self.choice.version, self.write.name
            )
            self.choice = VersionChoice(self.choice.version)


def group_of(settings: PipelineSettings, write: Write) -> str:
    """The consumer group whose lag is that of the write."""
    return f"headwater.{settings.name}.{write.to}.{write.table}"
