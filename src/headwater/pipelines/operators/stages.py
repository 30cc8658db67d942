"""The two stages that run an operator in Spark, as one DataFrame.

    rows ──▶ mapInArrow: packets by bucket (packing.py)
         ──▶ shuffle: all packets of a bucket into one task
         ──▶ mapInArrow: state of the bucket, step, state after it (state.py), rows of the result

To Spark both are stateless, so that operators can follow each other in any output mode. State goes
by the number of the micro-batch, which Spark fixes together with its offsets before it runs: a
batch that runs again finds the state that it found the first time, and gives the same.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import PipelineError
from headwater.pipelines.flow import has_events, reads_twice
from headwater.pipelines.operators.building import Built, current, is_operator, name_operator
from headwater.pipelines.operators.contract import (
    OFFSET,
    ORIGIN,
    SEEN,
    Input,
    Operator,
    Progress,
    Stamping,
)
from headwater.pipelines.operators.fingerprints import fingerprint
from headwater.pipelines.operators.lateness import SIDE, Lateness
from headwater.pipelines.operators.manifests import (
    Reports,
    reports_of,
    required_manifest,
)
from headwater.pipelines.operators.packing import (
    BUCKET,
    EVERY_BUCKET,
    NOW,
    PACKETS,
    Packing,
    from_bytes,
    packed_schema,
)
from headwater.pipelines.operators.state import FileState, MemoryState
from headwater.pipelines.plans import moves_rows, plan_of
from headwater.pipelines.position import POSITION, POSITION_NAMES
from headwater.sinks.contract import OP

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import Column, DataFrame

STATE_DIRECTORY: Final = "headwater.state"  # a local property of Spark's: where the query has it
_STATE_CONF: Final = "spark.headwater.state.dir"
_BUCKETS_CONF: Final = "spark.headwater.state.buckets"
_BUCKETS: Final = 8
_BOUNDED_BUCKETS: Final = 64  # of a run over everything, which has the rows of a bucket in memory
_ORDER: Final = ("bucket", "side", "task", "number")
_COMMITS: Final = 4  # at once, of one task
_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True)
class Side:
    """One input of an operator."""

    frame: "DataFrame"
    key: tuple[str, ...]  # rows of the same key meet; all sides' are of the same types
    columns: tuple[str, ...]  # that the operator gets
    stamping: Stamping | None = None
    everywhere: str | None = None  # rows for every bucket, as a condition of Spark's: "_op = 't'"
    passes: bool = False  # its rows are rows of the result, with their `_op`


@dataclass(frozen=True)
class OperatorRun:
    """Of a bounded run: what its result is traced by (pipelines/lineage)."""

    operator: Operator
    sides: tuple[Side, ...]
    packets: "DataFrame"  # of each bucket in one task, and in their order
    schemas: tuple[pa.Schema, ...]
    result: "DataFrame"


def run_operator(
    kind: str, operator: Operator, sides: Sequence[Side], *, name: str | None = None
) -> "DataFrame":
    """The operator's result over these inputs: a stream if they are, else a bounded frame. `name`:
    what its state is found by, whatever becomes of its inputs.
    """
    from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    is_stream = _is_stream(kind, sides)
    _check_place_of_late_rows(kind, operator)
    plans = [plan_of(side.frame) for side in sides]
    name = name_operator(kind, fingerprint(operator, plans, is_operator), name)
    conf = sides[0].frame.sparkSession.conf
    buckets = int(conf.get(_BUCKETS_CONF, str(_BUCKETS)) or 0) if is_stream else _BOUNDED_BUCKETS
    packets, schemas = None, []
    for number, (side, plan) in enumerate(zip(sides, plans, strict=True)):
        _check(kind, side)
        stamping = side.stamping
        read = {*side.columns, POSITION, *(stamping.columns() if stamping else ())}
        key = [F.col(each) for each in side.key] or [F.lit(0)]  # without one, all rows meet
        bucket = F.pmod(F.xxhash64(*key), F.lit(buckets)).cast("int")
        if side.everywhere is not None:
            bucket = F.when(F.expr(side.everywhere), EVERY_BUCKET).otherwise(bucket)
        chosen = side.frame.select(
            *[_column(side, each) for each in side.frame.columns if each in read],
            bucket.alias(BUCKET),
            F.current_timestamp().alias(NOW),
        )
        if stamping is not None and (moves_rows(plan) or reads_twice(side.frame)):
            chosen = _in_log_order(chosen, is_stream=is_stream)
        packing = Packing(number, buckets, stamping, side.columns)
        of_side = chosen.mapInArrow(packing, from_arrow_schema(PACKETS))
        packets = of_side if packets is None else packets.union(of_side)
        fields = to_arrow_schema(side.frame.select(*side.columns).schema, timezone="UTC")
        schemas.append(packed_schema(list(fields), stamped=stamping is not None))
    assert packets is not None
    parts = min(buckets, int(conf.get("spark.sql.shuffle.partitions") or buckets))
    directory = conf.get(_STATE_CONF, None)
    if "://" in (directory or ""):
        raise PipelineError(
            f"{kind}: {_STATE_CONF} is to be a directory",
            detail=f"{directory}: state in object stores and HDFS does not work yet",
            hint="one that all executors share, such as a mounted volume",
        )
    running = Running(
        name,
        operator,
        buckets,
        tuple(schemas),
        directory,
        is_stream,
        reports_of(sides[0].frame.sparkSession.sparkContext) if is_stream else None,
    )
    packets = packets.repartitionById(parts, F.col("bucket") % parts)
    if not is_stream:  # Spark does not sort streams
        packets = packets.sortWithinPartitions(*_ORDER)
    result = packets.mapInArrow(running, from_arrow_schema(operator.output))
    now = current()
    if now is not None:
        keys = tuple(side.key for side in sides)
        passes = tuple(plan for side, plan in zip(sides, plans, strict=True) if side.passes)
        run = OperatorRun(operator, tuple(sides), packets, tuple(schemas), result)
        now.built[name] = Built(name, buckets, keys, passes, None if is_stream else run)
    return result


def _in_log_order(rows: "DataFrame", *, is_stream: bool) -> "DataFrame":
    """What an operator gives comes by buckets, and a partition's rows from several tasks, as behind
    a join or a repartition of Spark's, or a union of a topic with itself. Time is told by a
    partition's rows in their order, so they go into one task again.
    """
    from pyspark.sql import functions as F  # noqa: N812

    place = F.col(POSITION)
    parts = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or _BUCKETS)
    task = F.pmod(F.xxhash64(place["topic"], place["partition"]), F.lit(parts)).cast("int")
    together = rows.repartitionById(parts, task)
    if not is_stream:
        return together.sortWithinPartitions(place["topic"], place["partition"], place["offset"])
    return together.mapInArrow(_sorted_by_place, rows.schema)  # Spark does not sort streams


def _sorted_by_place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    given = [batch for batch in batches if batch.num_rows]
    if given:
        rows = pa.Table.from_batches(given).combine_chunks()
        place = rows[POSITION].combine_chunks().flatten()
        order = pc.sort_indices(
            pa.table(place, names=list(POSITION_NAMES)),
            sort_keys=[(name, "ascending") for name in POSITION_NAMES],
        )
        yield from rows.take(order).to_batches()


@dataclass(frozen=True)
class Running:
    """The second stage. Called by Spark in each task with the packets of its buckets: of a stream
    in any order, else in theirs, so that those of one bucket at a time are in memory.
    """

    name: str
    operator: Operator
    buckets: int
    schemas: tuple[pa.Schema, ...]
    directory: str | None
    is_stream: bool
    reports: "Accumulator[Reports] | None" = None  # what was committed, for the driver

    @property
    def __name__(self) -> str:
        """By which it is found in plans."""
        return self.name

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from headwater.pipelines.source.reading import settle

        rows: Iterable[_Packet] = (row for batch in batches for row in packets_in(batch))
        if self.is_stream:
            rows = sorted(rows, key=lambda row: (row.bucket, row.side, row.task, row.number))
        # A commit is mostly waiting for the disk, which does several at once.
        with ThreadPoolExecutor(_COMMITS) as pool:
            commits: deque[Future[None]] = deque()
            for bucket, packets in groupby(rows, key=lambda row: row.bucket):
                state = self._state(bucket)
                result = self.operator.step(state, unpacked(packets, self.schemas))
                if len(commits) == _COMMITS:  # no more of them in memory
                    commits.popleft().result()
                if isinstance(state, FileState):
                    commits.append(pool.submit(self._commit, state))
                yield from result.cast(self.operator.output).combine_chunks().to_batches()
            for each in commits:
                each.result()
        settle()

    def _commit(self, state: FileState) -> None:
        manifest = state.commit()
        if self.reports is not None:
            self.reports.add({state.place: (state.batch, manifest)})

    def _state(self, bucket: int) -> FileState | MemoryState:
        from pyspark import TaskContext

        if not self.is_stream:
            return MemoryState()
        context = TaskContext.get()
        assert context is not None
        batch, query = context.getLocalProperty(_BATCH_ID), context.getLocalProperty(_QUERY_ID)
        directory = context.getLocalProperty(STATE_DIRECTORY)
        is_begun = directory is not None  # by the pipeline's driver
        if directory is None and self.directory is not None:
            directory = str(Path(self.directory) / str(query))
        if batch is None or directory is None:
            raise PipelineError(
                f"{self.name} has no place for its state",
                hint=f"a pipeline has one; elsewhere set {_STATE_CONF}, to a directory that all"
                " executors share",
            )
        required = None
        if is_begun:
            required = required_manifest(Path(directory), int(batch), self.name, bucket)
        return FileState(
            Path(directory) / self.name,
            bucket,
            int(batch),
            buckets=self.buckets,
            is_begun=is_begun,
            required=required,
        )


@dataclass(frozen=True, slots=True)
class _Packet:
    bucket: int
    side: int
    task: int
    number: int
    packet: pa.Scalar
    control: bytes | None


def packets_in(batch: pa.RecordBatch) -> Iterator[_Packet]:
    numbers = [batch.column(each).to_pylist() for each in _ORDER]
    for bucket, side, task, number, packet, control in zip(
        *numbers, batch.column("packet"), batch.column("control"), strict=True
    ):
        yield _Packet(bucket, side, task, number, packet, control.as_py())


def unpacked(packets: Iterator[_Packet], schemas: Sequence[pa.Schema]) -> tuple[Input, ...]:
    """The inputs of one bucket."""
    sides: list[list[_Task]] = [[] for _ in schemas]
    for (side, _), of_task in groupby(packets, key=lambda each: (each.side, each.task)):
        sides[side].append(_Task(list(of_task)))
    now_us = max(task.control["now"] for tasks in sides for task in tasks)
    return tuple(
        _input(tasks, schema, now_us) for tasks, schema in zip(sides, schemas, strict=True)
    )


class _Task:
    def __init__(self, packets: list[_Packet]) -> None:
        *rows, last = packets
        assert last.control is not None
        self.control: dict[str, Any] = orjson.loads(last.control)
        self.tables = [from_bytes(each.packet) for each in rows]


def _input(tasks: list[_Task], schema: pa.Schema, now_us: int) -> Input:
    codes: dict[tuple[str, int], int] = {}
    progress: dict[tuple[str, int], Progress] = {}
    tables = []
    is_split = False
    before_us = _seen_before(tasks)
    for number, task in enumerate(tasks):
        names = [(topic, partition) for topic, partition in task.control["origins"]]
        is_split |= any(name in codes for name in names)
        mapped = [codes.setdefault(name, len(codes)) for name in names]
        tables += [
            _recoded(table, mapped, before_us.get(number)).cast(schema) for table in task.tables
        ]
        for topic, partition, seen_us, offset, punctuations in task.control["progress"]:
            new = Progress(topic, partition, seen_us, offset, tuple(punctuations))
            before = progress.get((topic, partition))
            progress[topic, partition] = new if before is None else _further(before, new)
    rows = pa.concat_tables(tables) if tables else schema.empty_table()
    if is_split and len(rows):
        rows = rows.sort_by([(ORIGIN, "ascending"), (OFFSET, "ascending")])
    return Input(rows, tuple(codes), tuple(progress.values()), now_us)


def _seen_before(tasks: list[_Task]) -> dict[int, list[int | None]]:
    """The latest times that earlier tasks saw in the partitions of a task, if there are such: a
    bounded run reads stretches of a partition in several. By the task's number, in the order of its
    own origins.
    """
    stretches: dict[tuple[str, int], list[tuple[int, int, int, int | None]]] = {}
    for number, task in enumerate(tasks):
        for origin, (topic, partition, seen_us, offset, _) in enumerate(task.control["progress"]):
            stretches.setdefault((topic, partition), []).append((offset, number, origin, seen_us))
    found: dict[int, list[int | None]] = {}
    for of_partition in stretches.values():
        before_us: int | None = None
        for _, number, origin, seen_us in sorted(of_partition, key=lambda each: each[0]):
            if before_us is not None:
                empty: list[int | None] = [None] * len(tasks[number].control["progress"])
                found.setdefault(number, empty)[origin] = before_us
            if seen_us is not None:
                before_us = seen_us if before_us is None else max(before_us, seen_us)
    return found


def _recoded(
    table: pa.Table, codes: list[int], before_us: list[int | None] | None = None
) -> pa.Table:
    if before_us is not None:
        earlier = pa.array(before_us, pa.int64()).take(table[ORIGIN].combine_chunks())
        seen = pc.max_element_wise(table[SEEN].combine_chunks(), earlier)  # nulls are skipped
        table = table.set_column(table.schema.get_field_index(SEEN), SEEN, seen)
    if codes == list(range(len(codes))):
        return table
    origin = pa.array(codes, pa.int32()).take(table[ORIGIN].combine_chunks())
    return table.set_column(table.schema.get_field_index(ORIGIN), ORIGIN, origin)


def _further(one: Progress, other: Progress) -> Progress:
    seen = [each.seen_us for each in (one, other) if each.seen_us is not None]
    return Progress(
        one.topic,
        one.partition,
        max(seen, default=None),
        max(one.offset, other.offset),
        (*one.punctuations, *other.punctuations),
    )


def _column(side: Side, name: str) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col(name)
    if name != OP or side.stamping is None or not has_events(side.frame):
        return column
    return F.when(column == "u", "c").otherwise(column).alias(OP)


def _is_stream(kind: str, sides: Sequence[Side]) -> bool:
    streams = [side.frame.isStreaming for side in sides]
    if any(streams) and not all(streams):
        raise PipelineError(
            f"{kind}: one input is a stream, the other is not",
            hint="flow.changes and flow.table are; read the other one so, too",
        )
    return all(streams)


def _check_place_of_late_rows(kind: str, operator: Operator) -> None:
    is_put_aside = any(
        isinstance(each, Lateness) and each.mode == SIDE
        for each in getattr(operator, "__dict__", {}).values()
    )
    if is_put_aside and current() is None:
        raise PipelineError(
            f'{kind}: late="{SIDE}" outside of a pipeline',
            detail="late rows go to the topic <pipeline>.late",
            hint='late="drop" counts them; or make it part of a pipeline',
        )


def _check(kind: str, side: Side) -> None:
    columns = side.frame.columns
    if POSITION not in columns:
        is_of_windows = "window_start" in columns
        raise PipelineError(
            f"{kind}: its input has no column {POSITION}",
            detail="columns are " + ", ".join(columns),
            hint="results of windows stand at no place in the log: write them to a topic"
            ' (flow.write(…, to="topic", …)), and go on from there'
            if is_of_windows
            else f'it tells where a row stands in the log: select "{POSITION}", too',
        )
    if side.stamping is not None:
        side.stamping.check(kind, side.frame.schema)
    for name in (*side.key, *side.columns):
        if name not in columns:
            raise PipelineError(
                f"{kind}: there is no column {name}", detail="columns are " + ", ".join(columns)
            )
