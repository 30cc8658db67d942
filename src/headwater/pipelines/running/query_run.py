"""One write of a pipeline at work: which version it feeds, its query, and what became of it."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.client.group_offsets import GroupOffsets
from headwater.errors import HeadwaterError, PipelineError, StateLost
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.flow import AT, TOPICS, Write
from headwater.pipelines.offsets import has_reached
from headwater.pipelines.operators.runtime.task import STATE_DIRECTORY
from headwater.pipelines.operators.state.manifests import CommittedManifests
from headwater.pipelines.operators.state.state_files import begin, check_begun
from headwater.pipelines.operators.state.state_metrics import OperatorMetrics, metrics_of_all
from headwater.pipelines.position import POSITION
from headwater.pipelines.publishing.late_rows import LateRows
from headwater.pipelines.publishing.refused_rows import RefusedRows
from headwater.pipelines.running.batch_applier import Applying
from headwater.pipelines.running.late_alert import LateAlert
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.spark_errors import explained
from headwater.sinks.contract import OP, Log, Offsets, Position, Store, Target, Version
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_GROUP_PATIENCE_S: Final = 5.0  # nothing depends on it


@dataclass(frozen=True)
class Place:
    """What all writes of a process have in common."""

    log: Log
    sinks: dict[str, SinkSettings]
    state_dir: Path


def target_of(pipeline: str, write: Write) -> Target:
    return Target(f"{pipeline}/{write.name}", write.table, write.key, write.options)


def open_store(place: Place, pipeline: str, write: Write) -> Store:
    settings = place.sinks.get(write.to)
    if settings is None:
        assert write.to == TOPICS, "checked by flow.write"
        settings = SinkSettings(TOPICS, kind="topic")
    return store_of(settings, target_of(pipeline, write), place.log)


def fields_of(write: Write) -> pa.Schema:
    """What the store keeps of the rows."""
    kept = [each for each in write.frame.schema if each.name not in (OP, AT, POSITION)]
    fields = to_arrow_schema(type(write.frame.schema)(kept), timezone="UTC")
    is_key = dict.fromkeys(write.key, False)
    return pa.schema([each.with_nullable(is_key.get(each.name, True)) for each in fields])


@dataclass(frozen=True)
class Choice:
    """Which version of a target a run feeds."""

    version: int
    overtakes: Offsets | None = None  # made live as soon as it has come so far


def choose(place: Place, pipeline: str, write: Write, versions: list[Version]) -> Choice:
    """The live version, as long as its checkpoint stands where it does. If it does not (it was
    lost, or what an operator remembers, or one of the two was set back), nobody knows what state
    belongs to the store's rows: a new version is derived from the start of the log beside it, and
    made live when it has come as far. Once: if that one loses its state too, a person has to look.
    """
    live = next((each for each in versions if each.is_live), None)
    if live is None or live.position is None:
        return Choice(live.number if live else 1)
    _check_key(pipeline, write, live)
    if _belongs(place, pipeline, write, live):
        return Choice(live.number)
    # Topics that the function no longer reads are not waited for.
    overtakes = {name: ends for name, ends in live.position.offsets.items() if write.reads(name)}
    newer = [each for each in versions if each.number > live.number]
    for each in reversed(newer):  # what an earlier run has begun for the same reason
        if _belongs(place, pipeline, write, each):
            return Choice(each.number, overtakes)
    if any(_checkpoint(place, pipeline, write, each).is_lost() for each in newer):
        raise StateLost(
            f"the state of {write.name} was lost, and lost again while it was derived anew",
            hint=f"find out why; then `headwater pipeline rebuild {pipeline} --promote`",
        )
    _log.warning(
        "%s: the checkpoint of %s is gone, or stands elsewhere; it is derived anew from the log",
        pipeline,
        write.name,
    )
    return Choice(max(each.number for each in versions) + 1, overtakes)


def _check_key(pipeline: str, write: Write, live: Version) -> None:
    key = [each.name for each in live.fields if not each.nullable]  # see `fields_of`
    if key and set(key) != set(write.key):
        raise PipelineError(
            f"pipeline {pipeline}: the key of {write.name} has changed",
            detail=f"it was {', '.join(key)}, now it is {', '.join(write.key) or 'none'}",
            hint=f"`headwater pipeline rebuild {pipeline}` derives the table anew",
        )


def _belongs(place: Place, pipeline: str, write: Write, version: Version) -> bool:
    """Nothing that was applied stands in nobody's way: such a version is begun anew."""
    if version.position is None:
        return True
    checkpoint = _checkpoint(place, pipeline, write, version)
    if not checkpoint.stands_at(version.position):
        return False
    try:
        _check_operators(checkpoint, write)
    except StateLost as error:
        _log.warning("%s: %s", pipeline, error)
        return False
    return True


def _checkpoint(place: Place, pipeline: str, write: Write, version: Version) -> Checkpoint:
    return Checkpoint(place.state_dir, pipeline, write.name, version.number)


def _check_operators(checkpoint: Checkpoint, write: Write) -> None:
    """Raises StateLost: also for one that is new, which cannot know what came before it."""
    for each in write.operators:
        if checkpoint.operators.is_dir() and not (checkpoint.operators / each.name).exists():
            there = [path.name for path in checkpoint.operators.iterdir() if path.is_dir()]
            raise StateLost(
                f"{write.name} has no state of {each.name}",
                detail="it is new, or its settings or inputs were changed; state is there of "
                + (", ".join(sorted(there)) or "none"),
                hint='an operator with name="…" finds its state when its inputs are changed',
            )
        check_begun(checkpoint.operators / each.name, each.buckets)


class WriteRun:
    """From `start` to `stop`. Its query runs in threads of Spark's."""

    def __init__(
        self,
        place: Place,
        settings: PipelineSettings,
        write: Write,
        choice: Choice,
        *,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.write = write
        self.choice = choice
        self.pipeline = settings.name
        self._place = place
        self._settings = settings
        self._store = open_store(place, settings.name, write)
        self._checkpoint = Checkpoint(place.state_dir, settings.name, write.name, choice.version)
        self._group = GroupOffsets(
            place.log.bootstrap,
            place.log.login,
            group_of(settings, write),
            patience_s=_GROUP_PATIENCE_S,
        )
        self._refused = RefusedRows(
            place.log, f"{settings.name}/{write.name}", settings.name, choice.version
        )
        self._late = LateRows(place.log, settings.name, write.operators, self._checkpoint.operators)
        self._manifests = CommittedManifests(write.operators, self._checkpoint.operators.absolute())
        self._alerts = {each.name: LateAlert(settings.late_alert) for each in write.operators}
        self._operators: dict[str, OperatorMetrics] = {}  # after the last batch
        self._applying = Applying(
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
        """`until_now`: the query ends by itself when it has read what is there."""
        self._checkpoint.lock()
        try:
            self._applying.open()
            if self.position is None and self._checkpoint.has_begun():
                # The store was emptied or made anew: it has to be given everything.
                _log.warning("%s: %s is empty; deriving it anew", self.pipeline, self.write.name)
                self._checkpoint.remove()
            self._ready_operators()
            if self.position is not None:
                self._look_at_operators(self.position)
            self._overtake()
            writer = (
                self.write.frame.writeStream.queryName(
                    f"{self.pipeline}/{self.write.name}/v{self.choice.version}"
                )
                .outputMode(self.write.mode)
                .option("checkpointLocation", str(self._checkpoint.path))
                .foreachBatch(self._applying)
            )
            if until_now:
                writer = writer.trigger(availableNow=True)
            elif self._settings.every:
                every_ms = round(self._settings.every * 1000)
                writer = writer.trigger(processingTime=f"{every_ms} milliseconds")
            with self._state_kept_here():
                self.query = writer.start()
        except BaseException:
            self.close()
            raise

    def _ready_operators(self) -> None:
        """From now on state that is not there is lost, and not begun anew by who misses it."""
        if self._checkpoint.has_begun():
            _check_operators(self._checkpoint, self.write)
            return
        shutil.rmtree(self._checkpoint.operators, ignore_errors=True)  # of a start that failed
        for each in self.write.operators:
            begin(self._checkpoint.operators / each.name, each.buckets)

    def _computing(self, batch: int) -> AbstractContextManager[None]:
        if not self.write.operators:
            return nullcontext()
        return self._manifests.computing(self.write.frame.sparkSession.sparkContext, batch)

    @contextmanager
    def _state_kept_here(self) -> Iterator[None]:
        """Threads that are begun within it, as the query's is, know where operators keep state."""
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
        """The batch that runs is given up, or finished; either is right."""
        self._applying.stop()
        if self.query is not None:
            try:
                self.query.stop()
            except Exception as error:
                # Spark throws StackOverflowError at a query that is stopped within foreachBatch,
                # and yet it stops.
                _log.debug("while stopping %s: %s", self.write.name, error)
        self.close()

    def close(self) -> None:
        self._applying.close()
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
        """Its source is not there yet."""
        return self.is_active and self.query.status["message"].startswith("Initializing")  # type: ignore[union-attr]

    @property
    def position(self) -> Position | None:
        return self._applying.position

    @property
    def waits_for(self) -> str | None:
        return self._applying.waits_for

    def error(self) -> HeadwaterError | None:
        """Why the query has ended; None if it was to end."""
        assert self.query is not None
        failed: Exception | None = self._applying.error
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
        """Of the last batch that had records, in few numbers. Asked more often than Spark tells
        of having nothing to do (every 10 s), it misses none.
        """
        last = self.query.lastProgress if self.query is not None else None
        if last is not None and last["numInputRows"]:
            self._last = last
        last = self._last
        told = {"operators": self.operators_told()} if self._operators else {}
        if last is None:
            return told
        operators = last["stateOperators"]
        return {
            **told,
            "batch": last["batchId"],
            "rows": last["numInputRows"],
            "rows_per_s": last["processedRowsPerSecond"],
            "input_rows_per_s": last["inputRowsPerSecond"],
            "batch_ms": last["batchDuration"],
            "store_ms": self._applying.store_ms,
            "at": last["timestamp"],
            "state_rows": sum(each["numRowsTotal"] for each in operators),
            "state_bytes": sum(each["memoryUsedBytes"] for each in operators),
        }

    def plan(self) -> str | None:
        """Spark's plan of the last batch, as it tells it; None before there was one."""
        if self.query is None or self._last is None:
            return None
        plan: str = self.query._jsq.explainInternal(False)  # noqa: SLF001
        return plan

    def _on_applied(self, position: Position) -> None:
        self._overtake()
        self._look_at_operators(position)
        offsets = {
            (topic, partition): offset
            for topic, partitions in position.offsets.items()
            for partition, offset in partitions.items()
        }
        try:
            # Each time: a last batch that is left out would show as lag until the next record.
            self._group.commit(offsets)
        except HeadwaterError as error:  # for people who look at lag; nothing depends on it
            _log.warning("%s: no offsets for its group: %s", self.pipeline, error)

    def _look_at_operators(self, position: Position) -> None:
        self._operators = metrics_of_all(
            self._checkpoint.operators, self.write.operators, position.batch
        )

    def operators_told(self) -> dict[str, Any]:
        """Of each operator, after the last batch that was applied."""
        told = {}
        for name, each in self._operators.items():
            alert = self._alerts[name]
            was_on = alert.is_on
            alert.saw(time.monotonic(), each.counters)
            if alert.is_on and not was_on:
                _log.warning(
                    "%s: %.2g %% of the rows of %s come too late, or with no usable time",
                    self.pipeline,
                    100 * (alert.share or 0),
                    name,
                )
            told[name] = {**each.as_json(), "late_share": alert.share, "late_alert": alert.is_on}
        return told

    def _overtake(self) -> None:
        """Makes the version live, if it was to be and is as far."""
        overtakes = self.choice.overtakes
        if overtakes is not None and self.position and has_reached(self.position, overtakes):
            self._store.promote(self.choice.version)
            _log.info(
                "%s: version %d of %s is live", self.pipeline, self.choice.version, self.write.name
            )
            self.choice = Choice(self.choice.version)


def group_of(settings: PipelineSettings, write: Write) -> str:
    """The consumer group whose lag is that of the write."""
    return f"headwater.{settings.name}.{write.to}.{write.table}"
