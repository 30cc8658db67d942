"""A run of one write, which feeds a version of its store: in the driver, or as a streaming query.

Small batches run in the driver (engine/local_run.py). What needs Spark's own state, and a large
backlog, runs as a streaming query with the same checkpoint.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.client.group_offsets import GroupOffsets
from headwater.errors import HeadwaterError, StateLost
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.engine.local_plan import LocalPlan, NotLocal, plan_locally
from headwater.pipelines.engine.local_run import LocalRun
from headwater.pipelines.engine.local_state import LocalState, is_local
from headwater.pipelines.engine.offset_log import OffsetLog
from headwater.pipelines.engine.query_batches import QueryBatches
from headwater.pipelines.flow import AT, Write
from headwater.pipelines.offsets import has_reached
from headwater.pipelines.operators.runtime.task import STATE_DIRECTORY
from headwater.pipelines.operators.state.manifests import CommittedManifests
from headwater.pipelines.operators.state.state_files import begin, begun_buckets
from headwater.pipelines.operators.time.lateness import LATE
from headwater.pipelines.position import POSITION
from headwater.pipelines.publishing.late_rows import LateRows
from headwater.pipelines.publishing.refused_rows import RefusedRows
from headwater.pipelines.running.batch_applier import BatchApplier
from headwater.pipelines.running.environment import Environment, open_store
from headwater.pipelines.running.staging_tasks import StagingTasks
from headwater.pipelines.running.version_choice import VersionChoice, check_operators
from headwater.pipelines.running.write_metrics import WriteMetrics
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.spark_errors import explained
from headwater.sinks.contract import OP, Position

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_GROUP_PATIENCE_S: Final = 5.0  # only monitoring depends on it
_GROUP_EVERY_S: Final = 0.2
_CATCHING_UP_S: Final = 0.1
_STOPPING_S: Final = 30.0  # for a batch in flight


def fields_of(write: Write) -> pa.Schema:
    """The columns that the store has; those of the key are not nullable."""
    stored = [field for field in write.frame.schema if field.name not in (OP, AT, POSITION)]
    fields = to_arrow_schema(type(write.frame.schema)(stored), timezone="UTC")
    return pa.schema([field.with_nullable(field.name not in write.key) for field in fields])


class WriteRun:
    """The run of one write, from `start` to `stop`, in a thread of its own or in Spark's."""

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
            environment.state_dir,
            settings.name,
            write.name,
            choice.version,
            state_url=environment.state_url,
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
        self._manifests = CommittedManifests(write.operators, self._checkpoint.operators)
        self._has_cuts = settings.transactions == "whole"
        self._query_batches = QueryBatches()  # of queries up to the log's current end
        self._applier = BatchApplier(
            self._store,
            choice.version,
            fields_of(write),
            self._checkpoint,
            rows_of=write.rows_of,
            before=before,
            computing=self._computing,
            computed=self._publish_late,
            refuse=self._refused.of_batch if settings.bad_rows == "dead-letter" else None,
            applied=self._on_applied,
            then=self._query_batches.plan_next,
            tasks=StagingTasks(write.key),
        )
        self.query: StreamingQuery | None = None
        self._state = LocalState(write.operators, self._checkpoint.operators)
        self._metrics = WriteMetrics(settings, write, self._checkpoint.operators, self._state)
        self._local: LocalRun | None = None  # if it runs in the driver
        self._plan: LocalPlan | None = None
        self._is_catching_up = False  # as a query, for a run in the driver
        self._stopping = threading.Event()
        self._stop_by_s = 0.0
        self._uncommitted: dict[tuple[str, int], int] | None = None  # offsets for the group
        self._committed_s = 0.0

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
                self._metrics.read(self.position.batch)
            self._metrics.begin()
            self._overtake()
            self._plan = self._local_plan()
            if self._plan is None or until_now:
                self._start_query(until_now=until_now)
                return
            self._local = LocalRun(
                self._plan,
                self._state,
                self._offset_log(self._plan),
                self._applier,
                catch_up=self._catch_up,
                idle=self._commit_group,
                every_s=self._settings.every,
                has_cuts=self._has_cuts,
                name=self.write.name,
            )
            self._local.start()
        except BaseException as error:
            if isinstance(error, StateLost):
                self._checkpoint.lose(str(error))
            self._local = None
            self.close()
            raise

    def _local_plan(self) -> LocalPlan | None:
        """None if only Spark can run it."""
        try:
            return plan_locally(self.write)
        except NotLocal as error:
            _log.info("%s: %s: %s", self.pipeline, self.write.name, error)
            return None

    def _offset_log(self, plan: LocalPlan) -> OffsetLog:
        return OffsetLog(self._checkpoint, self.write.frame.sparkSession, plan.slots)

    def _start_query(self, *, until_now: bool) -> None:
        self._hand_over_state()
        if until_now and self._plan is not None and self._has_cuts:
            self._query_batches.begin(self._plan, self._offset_log(self._plan))
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

    def _hand_over_state(self) -> None:
        """State of batches that ran in the driver, or with another number of buckets, for the tasks
        of the query.
        """
        done, directory = self._checkpoint.last_done(), self._checkpoint.operators
        is_rescaled = any(
            begun_buckets(directory / operator.name) != operator.buckets
            for operator in self.write.operators
        )
        if self.write.operators and (is_rescaled or is_local(directory, done)):
            self._state.load(done)
            if done >= 0:
                self._state.hand_over(done)

    def _catch_up(self) -> None:
        """Runs a query until the current end of the log, or until the run is stopped."""
        _log.info("%s: %s: catching up as a query", self.pipeline, self.write.name)
        self._is_catching_up = True
        self._start_query(until_now=True)
        assert self.query is not None
        while self.query.isActive and not self._stopping.wait(_CATCHING_UP_S):
            pass
        if self._stopping.is_set():
            self._stop_query()
        elif error := self._failure():
            raise error
        self._query_batches.close()
        self._metrics.look(self.query)
        self.query = None
        self._is_catching_up = False

    def _ready_operators(self) -> None:
        """From now on missing state is lost state: a task that misses it must not start empty."""
        if self._checkpoint.has_begun():
            check_operators(self._checkpoint, self.write)
            return
        if self.write.operators:
            self._checkpoint.begin_operators()
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
        context.setLocalProperty(STATE_DIRECTORY, self._checkpoint.operators.address)
        try:
            yield
        finally:
            context.setLocalProperty(STATE_DIRECTORY, None)  # type: ignore[arg-type]

    def stop(self) -> None:
        """The batch in flight is abandoned or finished; both are correct."""
        self.stop_soon()
        if self._local is not None:
            # Counted from `stop_soon` on: several that wait for their stores end in that time.
            self._local.stop(max(self._stop_by_s - time.monotonic(), 0.0), self.close)
        else:
            self._stop_query()
            self.close()

    def stop_soon(self) -> None:
        """Without waiting for it."""
        if not self._stopping.is_set():
            self._stop_by_s = time.monotonic() + _STOPPING_S
        self._applier.stop()
        self._stopping.set()
        if self._local is not None:
            self._local.stop_soon()

    def _stop_query(self) -> None:
        if self.query is not None:
            try:
                self.query.stop()
            except Exception as error:
                # Spark throws StackOverflowError at a query that is stopped within foreachBatch,
                # and yet it stops.
                _log.debug("while stopping %s: %s", self.write.name, error)

    def close(self) -> None:
        self._query_batches.close()
        if self._plan is not None and self._local is None:
            self._plan.close()
            self._plan = None
        self._commit_group()
        self._applier.close()
        self._store.close()
        self._group.close()
        self._refused.close()
        self._late.close()
        self._checkpoint.unlock()

    @property
    def _is_query(self) -> bool:
        """Whether batches are those of a query now."""
        return self._local is None or self._is_catching_up

    @property
    def is_active(self) -> bool:
        if self._local is not None:
            return self._local.is_active
        return self.query is not None and self.query.isActive

    @property
    def is_starting(self) -> bool:
        """Whether it has not come as far as reading the log."""
        if self._local is not None:
            return self._local.is_active and not self._local.is_running
        return self.is_active and self.query.status["message"].startswith("Initializing")  # type: ignore[union-attr]

    @property
    def position(self) -> Position | None:
        return self._applier.position

    @property
    def waits_for(self) -> str | None:
        return self._applier.waits_for

    def error(self) -> HeadwaterError | None:
        """Why the run has failed; None if it ended as planned."""
        failed = self._failure()
        if failed is None:
            return None
        found = explained(self.pipeline, failed)
        if isinstance(found, StateLost):
            self._checkpoint.lose(str(found))
        return found

    def _failure(self) -> Exception | None:
        failed: Exception | None = self._applier.error
        if failed is None and self._local is not None:
            failed = self._local.error
        if failed is None and self.query is not None:
            try:
                failed = self.query.exception()
            except Exception as error:
                failed = error
        return failed

    def progress(self) -> dict[str, Any]:
        """Metrics of the last batch that had records, for the status file. Called more often than
        Spark reports idle triggers (every 10 s), it misses no batch.
        """
        self._metrics.look(self.query)
        operators = {"operators": self.operator_metrics()} if self.write.operators else {}
        batches = [self._metrics.of_query(), self._local.progress if self._local else {}]
        batch = max(filter(None, batches), key=lambda found: found["batch"], default={})
        return {**operators, **batch, "store_ms": self._applier.store_ms} if batch else operators

    def operator_metrics(self) -> dict[str, Any]:
        """By operator, after the last applied batch."""
        return self._metrics.of_operators(is_query=self._is_query)

    def plan(self) -> str | None:
        """Spark's plan of the last batch; None before the first one."""
        if self._plan is not None and self._local is not None:
            return self._plan.explain() if self._local.progress else None
        if self.query is None or not self._metrics.of_query():
            return None
        plan: str = self.query._jsq.explainInternal(False)  # noqa: SLF001
        return plan

    def _publish_late(self, batch: int) -> None:
        if self._is_query:
            self._late.publish(batch)
            return
        late = self._state.sides(LATE)
        if any(late.values()):
            self._late.publish_rows(late)

    def _on_applied(self, position: Position) -> None:
        self._overtake()
        self._uncommitted = {
            (topic, partition): offset
            for topic, partitions in position.offsets.items()
            for partition, offset in partitions.items()
        }
        if self._is_query:
            self._metrics.read(position.batch)
            self._commit_group()
        elif time.monotonic() - self._committed_s > _GROUP_EVERY_S:
            self._commit_group()  # else as soon as there is nothing to do

    def _commit_group(self) -> None:
        offsets, self._uncommitted = self._uncommitted, None
        if offsets is None:
            return
        self._committed_s = time.monotonic()
        try:
            # A last batch that was left out would show as lag until the next.
            self._group.commit(offsets)
        except HeadwaterError as error:  # only monitoring of lag depends on it
            _log.warning("%s: offsets of its group not committed: %s", self.pipeline, error)

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
