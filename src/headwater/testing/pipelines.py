"""`hw.testing.run`: what a pipeline writes, derived from rows of a test, without a broker.

The function is the one that runs in production, with the same operators, decoders of values and
reduction of changes to rows; what differs is where rows come from and go to. It is the bounded run
that `headwater verify` compares stores with: everything is one batch.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from headwater.errors import HeadwaterError, PipelineError
from headwater.pipelines.flow import Flow, Schema, Write, has_results
from headwater.pipelines.operators.runtime.contract import OFFSET, Operator
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.runtime.planning import BOUNDED_BUCKETS_CONF
from headwater.pipelines.operators.runtime.unpacking import packets_in, unpacked
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.operators.time.lateness import CAUSE, LATE, TOPIC
from headwater.pipelines.operators.windows.results import MARK
from headwater.pipelines.pipeline import is_pipeline, pickle_by_value
from headwater.pipelines.pipeline_file import PipelineFile, imported_by
from headwater.pipelines.position import POSITION
from headwater.pipelines.running.loaded_pipeline import described
from headwater.pipelines.running.row_order import check_truncates, in_log_order
from headwater.pipelines.session import spark
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.spark_errors import explained
from headwater.pipelines.verification.stores import two_rows_of_one_key
from headwater.sinks.contract import DELETE, OP
from headwater.sinks.rows.last_by_key import reduce
from headwater.spelling import nearest
from headwater.testing.memory_reader import MemoryReader
from headwater.testing.topic_rows import Rows, Topic, TopicRows

if TYPE_CHECKING:
    from headwater.pipelines.pipeline import Function

_MASTER: Final = "local[2]"  # a test has few rows: more tasks would only cost time
_LATE_ROWS: Final = "rows binary"

Given: TypeAlias = "Mapping[str, Rows | tuple[Rows, Schema] | Topic]"


def run(pipeline: "Function | str | Path", topics: Given) -> "Results":
    """What the pipeline writes when its topics have these rows.

    `pipeline`  the function, marked by `@hw.pipeline`; or the path of a file with one
    `topics`    by the topic's name, its rows: dictionaries, a pandas DataFrame or an Arrow table.
                With `_op` (default: "c", created; of a topic that is no captured table "u", as
                the log has it) and `_at` (without any, all rows are written at one time, after
                the times in them; else the default is that of the row before, at first the
                earliest of the test). Of a captured table the columns are those of the rows, or
                given: `(rows, "id bigint, …")`, or `hw.testing.topic(rows, schema=…, key=…)`

    Spark is started once in a process, and shared with `hw.spark()`. Raises PipelineError, with the
    line of the pipeline's file if an error comes from there.
    """
    function, name = _function_of(pipeline)
    session = SparkSession.getActiveSession() or spark("headwater.testing", _MASTER)
    given = {topic: TopicRows(topic, rows) for topic, rows in topics.items()}
    reader = MemoryReader(session, given)
    with _one_bucket(session):
        flow = described(Flow(session, name, reader, None), function)
    _check_read(name, reader, given)
    try:
        rows = {write.name: _stored(name, write, reader) for write in flow.writes}
    except HeadwaterError:
        raise
    except Exception as error:
        failure = explained(name, error)
        raise PipelineError(failure.what, detail=failure.detail) from error
    return Results(name, rows, _operators(flow))


class StoredRows(list[dict[str, Any]]):
    """The rows of a store, as dictionaries: those of a table with a key in its order, others in
    the order of the log.
    """

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table.to_pylist())
        self.arrow = table


class Results(Mapping[str, StoredRows]):
    """What each write has left in its store, by "sink/table", or "table" if only one is called so.

    A keyed table has the last row of each key, without those that were deleted.
    """

    def __init__(
        self, pipeline: str, rows: Mapping[str, pa.Table], operators: Mapping[str, Built]
    ) -> None:
        self._pipeline = pipeline
        self._rows = {name: StoredRows(table) for name, table in rows.items()}
        self._operators = operators

    def __getitem__(self, name: str) -> StoredRows:
        found = [rows for write, rows in self._rows.items() if name in (write, _table_of(write))]
        if len(found) == 1:
            return found[0]
        problem = "writes several tables" if found else "does not write"
        raise KeyError(f"{self._pipeline} {problem} {name}: it writes {', '.join(self._rows)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Results({dict(self._rows)!r})"

    @cached_property
    def late(self) -> list[dict[str, Any]]:
        """Rows that would be in the topic `<pipeline>.late`: those that an operator has rejected
        for their time, with its name, the `cause` (late, future, without_time), `topic` and
        `offset`.
        """
        found = []
        for name, operator in self._operators.items():
            for table in _late_rows(operator):
                names = [column for column in table.column_names if not column.startswith("__")]
                found += [
                    {
                        "operator": name,
                        "cause": row[CAUSE],
                        "topic": row[TOPIC],
                        "offset": row[OFFSET],
                        "row": {column: row[column] for column in names},
                    }
                    for row in table.to_pylist()
                ]
        return sorted(found, key=lambda row: (row["operator"], row["topic"], row["offset"]))


@contextmanager
def _one_bucket(session: SparkSession) -> Iterator[None]:
    """Operators planned within it have one: many would only cost time, for a few rows."""
    before = session.conf.get(BOUNDED_BUCKETS_CONF, None)
    session.conf.set(BOUNDED_BUCKETS_CONF, "1")
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(BOUNDED_BUCKETS_CONF)
        else:
            session.conf.set(BOUNDED_BUCKETS_CONF, before)


def _table_of(write: str) -> str:
    return write.partition("/")[2]


def _function_of(pipeline: "Function | str | Path") -> "tuple[Function, str]":
    if isinstance(pipeline, str | Path):
        path = Path(pipeline)
        if not path.is_file():
            raise PipelineError(
                f"there is no file {path}", hint=f"it is relative to {Path.cwd()}, where this runs"
            )
        settings = PipelineSettings(path.stem, file=str(path.resolve()))
        return PipelineFile(settings, path.parent).function, path.stem
    if not callable(pipeline) or not is_pipeline(pipeline):
        raise PipelineError(
            f"{getattr(pipeline, '__name__', repr(pipeline))} is no pipeline",
            hint="put @hw.pipeline in front of its function",
        )
    _send_by_value(pipeline)
    return pipeline, pipeline.__name__


def _send_by_value(function: "Callable[..., object]") -> None:
    """Its module, and those beside it that it imports: Spark's workers would not find modules that
    pytest or a notebook has put on the path.
    """
    file = inspect.getsourcefile(inspect.unwrap(function))
    if file is None or not Path(file).is_file():
        return  # of a notebook's cell, which is sent by value anyway
    files = {path.resolve() for path in (Path(file), *imported_by(Path(file)))}
    for name, module in list(sys.modules.items()):
        found = getattr(module, "__file__", None)
        if found and name != "__main__" and Path(found).resolve() in files:
            pickle_by_value(name, Path(found))


def _check_read(name: str, reader: MemoryReader, given: Mapping[str, TopicRows]) -> None:
    for topic in given:
        if topic in reader.topics or any(
            re.fullmatch(pattern, topic) for pattern in reader.patterns
        ):
            continue
        read = sorted(reader.topics | reader.patterns)
        meant = nearest(topic, tuple(read))
        raise PipelineError(
            f"pipeline {name} does not read {topic}",
            detail="it reads " + ", ".join(read),
            hint=f"did you mean {meant}?" if meant else "",
        )


def _operators(flow: Flow) -> dict[str, Built]:
    return {operator.name: operator for write in flow.writes for operator in write.operators}


def _stored(pipeline: str, write: Write, reader: MemoryReader) -> pa.Table:
    """The rows of the store after one batch with everything."""
    has_position = POSITION in write.frame.columns and not has_results(write.frame)
    rows = in_log_order(write.frame.toArrow())
    offsets = {topic: ends for topic, ends in reader.offsets.items() if write.rows_of(topic)}
    check_truncates(rows, offsets)
    if write.operators and not has_position:
        if MARK in rows.column_names:  # it depends on the batches (verification/stores.py)
            rows = rows.drop_columns([MARK])
        _check_one_row_of_each_key(pipeline, write, rows)
    stored = reduce(rows, write.key).upserts
    # Rows of Spark's tasks come in any order, unless that of the log is restored.
    ordered = write.key or (() if has_position else stored.column_names)
    return _sorted(stored, [name for name in ordered if _is_ordered(stored[name].type)])


def _check_one_row_of_each_key(pipeline: str, write: Write, rows: pa.Table) -> None:
    if not write.key:
        return
    if OP in rows.column_names:
        rows = rows.filter(pc.fill_null(pc.not_equal(rows[OP], DELETE), True))
    counted = rows.group_by(list(write.key)).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted["count_all"], 1))
    if len(twice):
        raise two_rows_of_one_key(pipeline, write, twice.slice(0, 1).to_pylist()[0])


def _is_ordered(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


def _sorted(rows: pa.Table, names: list[str]) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in names]) if names else rows


def _late_rows(operator: Built) -> Iterator[pa.Table]:
    run = operator.run
    assert run is not None, "a bounded run"
    stage = LateRowsStage(run.operator, run.schemas)
    for (rows,) in run.packets.mapInArrow(stage, _LATE_ROWS).collect():
        yield pa.ipc.open_stream(bytes(rows)).read_all()


@dataclass(frozen=True)
class LateRowsStage:
    """Called by Spark in each task with the packets of its buckets, in their order: runs the
    operator once more, for its side output.
    """

    operator: Operator
    schemas: tuple[pa.Schema, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packets = (row for batch in batches for row in packets_in(batch))
        for _, of_bucket in groupby(packets, key=lambda packet: packet.bucket):
            state = MemoryState()
            self.operator.step(state, unpacked(of_bucket, self.schemas))
            rows = state.sides.get(LATE)
            if rows is not None:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, rows.schema) as writer:
                    writer.write_table(rows)
                packed = pa.array([sink.getvalue().to_pybytes()], pa.binary())
                yield pa.RecordBatch.from_arrays([packed], names=["rows"])
