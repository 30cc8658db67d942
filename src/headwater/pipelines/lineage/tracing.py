"""`why`: traces one derived row back to the records of the log that it comes from.

The pipeline runs over the log up to the store's position, for that row only:

    key = K ──▶ Spark's optimiser: conditions in front of sources and operators (lineage/plans.py)
        an operator ──▶ rows of its result that meet the condition
                    ──▶ rows of each input that they come from (lineage/operator_rows.py)
                    ──▶ the same again, with these rows of that input's frame
        a source    ──▶ the records

Where no condition arrives (a function in Python in between, a key that is computed), any record of
the topics below may be a cause, and the result says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)

from headwater.errors import NotReady, PipelineError
from headwater.pipelines.flow import AT, Schema, Write
from headwater.pipelines.lineage.keys import check_key, not_of_type
from headwater.pipelines.lineage.operator_rows import (
    MOST_ROWS,
    condition_of,
    rows_of_sides,
    wanted_rows,
)
from headwater.pipelines.lineage.plans import (
    Arrival,
    arrivals,
    has_operators,
    options_of,
    topics_of,
)
from headwater.pipelines.operators.runtime.lineage import Traceable
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.runtime.planning import OperatorRun, Side
from headwater.pipelines.position import POSITION, POSITION_FIELDS
from headwater.pipelines.reading import BoundedReader
from headwater.pipelines.running.environment import open_store
from headwater.pipelines.running.loaded_pipeline import Pipeline, write_named
from headwater.pipelines.source.progress import READ_TO_END, READ_TO_HERE
from headwater.sinks.contract import DELETE, OP, TRUNCATE, Position

COMPUTED: Final = "the key is computed on the way"
NOT_CHANGES: Final = "it is not read by flow.changes"
TOO_MANY: Final = f"more than {MOST_ROWS:,} rows on the way"
_ROW: Final = "row"
_USE: Final = "use"


@dataclass(frozen=True, slots=True)
class Cause:
    """One record that the row was derived from."""

    topic: str
    partition: int
    offset: int
    at: datetime | None
    op: str | None
    row: dict[str, Any]
    use: str  # its role in an operator: "enrich-1: table row"; "" if none is in between


@dataclass(frozen=True, slots=True)
class Untraced:
    """A topic of which any record may be a cause of the row, and why it cannot be narrowed."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class Trace:
    write: str
    position: Position
    row: dict[str, Any] | None  # as the log derives it; None: there is no such row
    causes: list[Cause]  # newest first
    count: int  # of all of them
    untraced: list[Untraced]
    is_certain: bool  # else only some of the causes made it, and no other records

    def as_json(self) -> dict[str, Any]:
        return {
            "write": self.write,
            "row": self.row,
            "count": self.count,
            "is_certain": self.is_certain,
            "untraced": [
                {"topic": untraced.topic, "reason": untraced.reason} for untraced in self.untraced
            ],
            "causes": [
                {
                    "topic": cause.topic,
                    "partition": cause.partition,
                    "offset": cause.offset,
                    "at": cause.at.isoformat() if cause.at else None,
                    "op": cause.op,
                    "record": cause.row,
                    "use": cause.use,
                }
                for cause in self.causes
            ],
        }


class _RecordingReader(BoundedReader):
    """Records the frames that were read: a topic may be read more than once."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.frames: list[tuple[dict[str, str], DataFrame]] = []

    def changes(
        self, topic: str, schema: Schema | None, value: str, options: Mapping[str, str]
    ) -> DataFrame:
        frame = super().changes(topic, schema, value, options)
        self.frames.append((options_of(frame), frame))
        return frame

    def has_given(self, frame: DataFrame) -> bool:
        return any(frame is read for _, read in self.frames)

    def frame_of(self, arrival: Arrival) -> DataFrame | None:
        """None if it was read in another way: by flow.table, or a source of the user's own."""
        for options, frame in self.frames:
            if options == arrival.options and set(arrival.columns) <= set(frame.columns):
                return frame
        return None


def why(pipeline: Pipeline, name: str, key: Mapping[str, str], *, limit: int = 20) -> Trace:
    """`key` has a text for each column of the write's key."""
    write = write_named(pipeline.flow(), name)
    _check_key(write, key)
    position = _position(pipeline, write)
    reader = _RecordingReader(
        pipeline.spark, pipeline.environment.log, pipeline.settings, position.offsets
    )
    flow = pipeline.flow(reader)
    if "hw.processing_time" in flow.unrepeatable:
        raise PipelineError(
            f"pipeline {pipeline.name} uses hw.processing_time",
            detail="its rows depend on when they were derived, not on the log alone",
            hint="they cannot be traced",
        )
    bounded = write_named(flow, write.name)
    asked = _asked_for(bounded.frame, _values(bounded.frame, key))
    operators = {operator.name: operator for operator in bounded.operators}
    tracing = _Tracing(reader, operators, is_certain=asked.is_only)
    tracing.follow(bounded.frame, asked.condition, "")
    causes, count = tracing.newest(limit)
    untraced = [Untraced(*item) for item in sorted(tracing.untraced.items())]
    return Trace(write.name, position, asked.row, causes, count, untraced, tracing.is_certain)


def _check_key(write: Write, key: Mapping[str, str]) -> None:
    kinds = [write.frame.schema[name].dataType.simpleString() for name in write.key]
    check_key(write.name, dict(zip(write.key, kinds, strict=True)), key)


def _position(pipeline: Pipeline, write: Write) -> Position:
    store = open_store(pipeline.environment, pipeline.name, write)
    try:
        live = next((version for version in store.versions() if version.is_live), None)
    finally:
        store.close()
    if live is None or live.position is None:
        raise NotReady(f"{write.name} has not been written yet")
    return live.position


def _values(frame: DataFrame, key: Mapping[str, str]) -> Column:
    """The condition that a row has this key."""
    kinds = {column.name: column.dataType for column in frame.schema}
    casts = [F.lit(text).try_cast(kinds[column]) for column, text in key.items()]
    one = frame.sparkSession.createDataFrame([(1,)], "one int")  # which takes no job
    (values,) = one.select(*casts).collect()
    equal = []
    for value, (column, text) in zip(values, key.items(), strict=True):
        if value is None:
            raise not_of_type(column, text, kinds[column].simpleString())
        equal.append(F.col(column) == F.lit(text).cast(kinds[column]))
    return reduce(lambda one, other: one & other, equal)


@dataclass(frozen=True, slots=True)
class _Asked:
    row: dict[str, Any] | None
    condition: Column  # of the rows of the frame that made the row
    is_only: bool = True  # one row of the frame meets it


def _asked_for(frame: DataFrame, has_key: Column) -> _Asked:
    """Where rows have positions, the last one of the key, or the truncate after it."""
    if POSITION not in frame.columns:
        if OP in frame.columns:
            has_key &= F.coalesce(F.col(OP), F.lit("")) != DELETE
        found = frame.where(has_key).take(2)
        row = _shown(found[0].asDict(recursive=True)) if found else None
        return _Asked(row, has_key, len(found) < 2)
    position_column = F.col(POSITION)
    is_asked = has_key
    if OP in frame.columns:
        is_asked |= F.coalesce(F.col(OP), F.lit("")) == TRUNCATE
    order = [F.desc(position_column[name]) for name in POSITION_FIELDS]
    found = frame.where(is_asked).orderBy(*order).take(2)
    if not found:
        return _Asked(None, has_key)
    last = found[0].asDict(recursive=True)
    at = last[POSITION]
    is_last = (
        (position_column["topic"] == F.lit(at["topic"]))
        & (position_column["partition"] == F.lit(at["partition"]))
        & (position_column["offset"] == F.lit(at["offset"]))
    )
    if last.get(OP) == TRUNCATE:
        return _Asked(None, is_last)
    is_only = len(found) < 2 or found[1][POSITION] != found[0][POSITION]
    return _Asked(None if last.get(OP) == DELETE else _shown(last), has_key & is_last, is_only)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in (OP, AT, POSITION)}


@dataclass
class _Tracing:
    """Collects the records that the frames of a pipeline are derived from, from the top down."""

    reader: _RecordingReader
    operators: Mapping[str, Built]
    untraced: dict[str, str] = field(default_factory=dict)  # by topic: why
    is_certain: bool = True
    _found: list[DataFrame] = field(default_factory=list)

    def follow(self, frame: DataFrame, condition: Column, use: str) -> None:
        if self.reader.has_given(frame):
            self._found.append(_records(frame.where(condition), use))
            return
        of_operators: dict[str, list[str]] = {}
        for arrival in arrivals(frame, condition, self.operators):
            source = None if arrival.operator else self.reader.frame_of(arrival)
            if arrival.condition is None:
                self._give_up(arrival.topics, COMPUTED)
                continue
            if arrival.operator is None and source is None:
                self._give_up(arrival.topics, NOT_CHANGES)
                continue
            self.is_certain &= arrival.is_certain
            if source is not None:
                self._found.append(_records(source.where(arrival.condition), use))
            elif arrival.operator is not None:
                of_operators.setdefault(arrival.operator, []).append(f"({arrival.condition})")
        for name, conditions in of_operators.items():
            self._through(self.operators[name], " OR ".join(conditions))

    def _through(self, operator: Built, condition: str) -> None:
        run = operator.run
        assert run is not None  # it was built by a bounded reader
        if not isinstance(run.operator, Traceable):
            for side in run.sides:
                self._give_up(topics_of(side.frame), f"{operator.name} cannot be traced")
            return
        wanted = wanted_rows(run, condition)
        if len(wanted) > MOST_ROWS:
            for side in run.sides:
                self._give_up(topics_of(side.frame), TOO_MANY)
        elif len(wanted):
            self._into_sides(operator.name, run, run.operator, wanted)

    def _into_sides(
        self, name: str, run: OperatorRun, operator: Traceable, wanted: pa.Table
    ) -> None:
        found = rows_of_sides(run, operator, wanted)
        self.is_certain &= operator.is_exact
        for side, rows, role in zip(run.sides, found, operator.roles, strict=True):
            if rows is None:
                self._give_up(topics_of(side.frame), TOO_MANY)
                continue
            if not len(rows):
                continue
            before = self._giving(side, rows)
            if before is not None:
                self._into_sides(*before, rows.select(before[2].output.names))
            else:
                by_content = has_operators(side.frame, self.operators)
                these = condition_of(side.frame, rows, by_content=by_content)
                self.follow(side.frame, these, f"{name}: {role}")

    def _giving(self, side: Side, rows: pa.Table) -> tuple[str, OperatorRun, Traceable] | None:
        """The operator whose whole result is the input, unchanged: these rows are its own."""
        for operator in self.operators.values():
            run = operator.run
            if (
                run is not None
                and run.result is side.frame
                and isinstance(run.operator, Traceable)
                and side.stamping is None  # else `_op` may be another one (planning.py)
                and set(rows.column_names) >= set(run.operator.output.names)
            ):
                return operator.name, run, run.operator
        return None

    def _give_up(self, topics: Sequence[str], reason: str) -> None:
        for topic in topics:
            self.untraced.setdefault(topic, reason)

    def newest(self, limit: int) -> tuple[list[Cause], int]:
        """The records, each once; and how many they are."""
        if not self._found:
            return [], 0
        every = reduce(lambda one, other: one.unionByName(other), self._found)
        once = every.groupBy(POSITION).agg(
            *(F.first(name).alias(name) for name in (OP, AT, _ROW)),
            F.array_join(F.sort_array(F.collect_set(_USE)), ", ").alias(_USE),
        )
        newest = once.orderBy(F.desc(AT), F.desc(f"{POSITION}.offset")).limit(limit).collect()
        count = len(newest) if len(newest) < limit else once.count()
        return [_cause(row.asDict(recursive=True)) for row in newest], count


def _records(frame: DataFrame, use: str) -> DataFrame:
    """Rows of a source, as causes."""
    given = frame
    if POSITION not in frame.columns:  # keys and values as bytes
        position_column = F.struct(*POSITION_FIELDS).alias(POSITION)
        ours = [F.lit(None).cast("string").alias(OP), F.col("timestamp").alias(AT), position_column]
        given = frame.select("key", "value", *ours)
    columns = [name for name in given.columns if name not in (OP, AT, POSITION)]
    row = F.to_json(F.struct(*columns)).alias(_ROW)
    is_record = ~F.coalesce(F.col(OP), F.lit("")).isin(READ_TO_END, READ_TO_HERE)
    return given.where(is_record).select(OP, AT, POSITION, row, F.lit(use).alias(_USE))


def _cause(row: dict[str, Any]) -> Cause:
    position = row[POSITION]
    return Cause(
        position["topic"],
        position["partition"],
        position["offset"],
        row[AT],
        row[OP],
        orjson.loads(row[_ROW]),
        row[_USE],
    )
