"""Rows of a large batch, staged in its store by tasks: they do not pass through the driver.

    DataFrame ──▶ by hash of the key, by Staging.task_of, or as it is partitioned ──▶ tasks
    task          its rows in log order ──▶ Staging.stage ──▶ a token, or why there is none
    driver        tokens of the accepted attempts ──▶ StagingWriter.commit

Spark accepts one attempt of each task. What another one has staged has no token in the driver.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DoubleType, FloatType, IntegerType, StructField, StructType

from headwater.errors import HeadwaterError, NotStaged
from headwater.pipelines.running.row_order import in_log_order, without_positions
from headwater.pipelines.source.reading import settle
from headwater.sinks.contract import Batch, Staging

# Fewer pass through the driver: that is as fast, and takes no more than some 100 MB of it.
_FEWEST_RECORDS: Final = 200_000
_TASK_RECORDS: Final = 250_000  # a task with a key has all its rows in memory
_MOST_TASKS: Final = 32  # each has a connection to the store
_TASK: Final = "_headwater_task"
_RESULT: Final = "token binary, failure string"


@dataclass(frozen=True, slots=True)
class StagingTasks:
    """The tasks of one write."""

    key: tuple[str, ...]

    def are_for(self, batch: Batch, frame: DataFrame) -> bool:
        """Whether they stage this batch."""
        kinds = [frame.schema[column].dataType for column in self.key]
        if any(isinstance(kind, FloatType | DoubleType) for kind in kinds):
            return False  # 0.0 and -0.0 are one key, and have two hashes
        return _records(batch) >= _FEWEST_RECORDS

    def stage(self, frame: DataFrame, batch: Batch, staging: Staging | None) -> Sequence[bytes]:
        """The tokens of all rows. Raises NotStaged if a task has none. Without `staging` the rows
        are only computed.
        """
        if staging is not None and staging.is_local and not _is_local(frame):
            raise NotStaged("the store is a directory of this machine, and tasks run on others")
        is_gathered = bool(self.key)
        if staging is not None and staging.tasks is not None:
            is_gathered = True
            columns = StructType([*frame.schema, StructField(_TASK, IntegerType())])
            frame = frame.mapInArrow(partial(_numbered, staging=staging), columns)
            frame = frame.repartitionById(min(staging.tasks, _MOST_TASKS), _TASK)
        elif self.key:
            tasks = max(math.ceil(_records(batch) / _TASK_RECORDS), _cores(frame))
            key = [F.col(_quoted(column)) for column in self.key]
            frame = frame.repartition(min(tasks, _MOST_TASKS), *key)
        else:
            frame = frame.coalesce(_MOST_TASKS)
        staged = frame.mapInArrow(
            partial(_stage, staging=staging, is_gathered=is_gathered), _RESULT
        ).toArrow()
        failures = staged["failure"].drop_null().to_pylist()
        if failures:
            raise NotStaged("tasks cannot stage the batch", detail=failures[0])
        return staged["token"].to_pylist()  # type: ignore[no-any-return]


def columns_of(frame: DataFrame) -> pa.Table:
    """No rows, with the columns that the store gets."""
    return without_positions(to_arrow_schema(frame.schema, timezone="UTC").empty_table())


def _stage(
    batches: Iterable[pa.RecordBatch], *, staging: Staging | None, is_gathered: bool
) -> Iterator[pa.RecordBatch]:
    """In a task."""
    if staging is None:
        deque(batches, maxlen=0)
        return
    context = TaskContext.get()
    assert context is not None
    token = failure = None
    try:
        token = staging.stage(
            _tables(batches, is_gathered=is_gathered), str(context.taskAttemptId())
        )
    except HeadwaterError as error:  # its type would be lost in the text of Spark's error
        failure = f"{type(error).__name__}: {error}"
    settle()
    yield pa.RecordBatch.from_pydict(
        {"token": pa.array([token], pa.binary()), "failure": pa.array([failure], pa.string())}
    )


def _tables(batches: Iterable[pa.RecordBatch], *, is_gathered: bool) -> Iterator[pa.Table]:
    if not is_gathered:
        for batch in batches:
            yield without_positions(pa.Table.from_batches([batch]))
        return
    gathered = list(batches)
    if gathered:
        rows = in_log_order(pa.Table.from_batches(gathered))
        yield rows.drop_columns([_TASK]) if _TASK in rows.column_names else rows


def _numbered(batches: Iterable[pa.RecordBatch], *, staging: Staging) -> Iterator[pa.RecordBatch]:
    """In a task before those that stage: the rows, with the numbers of theirs."""
    for batch in batches:
        yield batch.append_column(_TASK, staging.task_of(batch))


def _records(batch: Batch) -> int:
    """Of the log; of the first batch of a checkpoint at most so many."""
    return sum(
        end - batch.starts.get(topic, {}).get(partition, 0)
        for topic, ends in batch.offsets.items()
        for partition, end in ends.items()
    )


def _cores(frame: DataFrame) -> int:
    return frame.sparkSession.sparkContext.defaultParallelism


def _is_local(frame: DataFrame) -> bool:
    return str(frame.sparkSession.sparkContext.master).partition("[")[0] == "local"


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"
