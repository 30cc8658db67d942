"""The records of the log behind one derived row.

The pipeline is asked for that row only: the condition "key = K" is put behind its result, and
Spark's optimiser moves it through projections, groups and joins as far towards the sources as it
holds. What arrives in front of a source are the records that can have made the row. Where nothing
arrives (a function in Python in between, a key that is computed), any record of the topic can have.

Nothing goes through an operator. But what it groups by, and the bounds of a window, are columns of
its result: where the topic has columns of these names, they tell which records it took together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)

from headwater.errors import NotReady, PipelineError, UsageError
from headwater.pipelines.flow import AT, POSITION, Schema, Write
from headwater.pipelines.operators.building import Built
from headwater.pipelines.operators.window_results import WINDOW_END, WINDOW_START
from headwater.pipelines.reading import BoundedReader
from headwater.pipelines.running import Pipeline, write_named
from headwater.pipelines.write_run import open_store
from headwater.sinks.contract import DELETE, OP, Position


@dataclass(frozen=True, slots=True)
class Cause:
    """One record that can have made the row."""

    topic: str
    partition: int
    offset: int
    at: datetime | None
    op: str | None
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trace:
    write: str
    position: Position
    row: dict[str, Any] | None  # as the log derives it; None: there is no such row
    causes: list[Cause]  # newest first
    count: int  # of all of them
    untraced: list[str]  # topics of which any record can have made the row


class _Recorded(BoundedReader):
    """Remembers which DataFrame is which topic's."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.frames: dict[str, DataFrame] = {}

    def changes(
        self, topic: str, schema: Schema | None, value: str, options: Mapping[str, str]
    ) -> DataFrame:
        self.frames[topic] = super().changes(topic, schema, value, options)
        return self.frames[topic]


def why(pipeline: Pipeline, name: str, key: Mapping[str, str], *, limit: int = 20) -> Trace:
    """`key` has a text for each column of the write's key."""
    write = write_named(pipeline.flow(), name)
    _check_key(write, key)
    position = _position(pipeline, write)
    reader = _Recorded(pipeline.spark, pipeline.place.log, pipeline.settings, position.offsets)
    flow = pipeline.flow(reader)
    bounded = write_named(flow, write.name)
    rows = _asked_for(bounded.frame, key)
    derived = _derived(write, rows)
    found, untraced = _causes(reader, rows)
    for topic in list(untraced):
        taken = _taken_together(reader.frames[topic], bounded.operators, derived)
        if taken is not None:
            untraced.remove(topic)
            found = taken if found is None else found.unionByName(taken)
    count, newest = 0, []
    if found is not None:
        count = found.count()
        newest = found.orderBy(F.desc(AT), F.desc(f"{POSITION}.offset")).limit(limit).collect()
    return Trace(
        write.name,
        position,
        derived,
        [_cause(row.asDict(recursive=True)) for row in newest],
        count,
        untraced,
    )


def _check_key(write: Write, key: Mapping[str, str]) -> None:
    if not write.key:
        raise PipelineError(f"{write.name} has no key: its rows cannot be told apart")
    if set(key) != set(write.key):
        raise UsageError(
            f"the key of {write.name} is {', '.join(write.key)}",
            detail=f"given: {', '.join(key) or 'nothing'}",
            hint="--key " + " --key ".join(f"{column}=…" for column in write.key),
        )


def _position(pipeline: Pipeline, write: Write) -> Position:
    store = open_store(pipeline.place, pipeline.name, write)
    try:
        live = next((each for each in store.versions() if each.is_live), None)
    finally:
        store.close()
    if live is None or live.position is None:
        raise NotReady(f"{write.name} has not been written yet")
    return live.position


def _asked_for(frame: DataFrame, key: Mapping[str, str]) -> DataFrame:
    kinds = {each.name: each.dataType for each in frame.schema}
    casts = [F.lit(text).try_cast(kinds[column]) for column, text in key.items()]
    (values,) = frame.sparkSession.range(1).select(*casts).collect()
    for value, (column, text) in zip(values, key.items(), strict=True):
        if value is None:
            raise UsageError(f"{text!r} is no {kinds[column].simpleString()}, as {column} is")
        frame = frame.where(F.col(column) == F.lit(text).cast(kinds[column]))
    return frame


def _derived(write: Write, rows: DataFrame) -> dict[str, Any] | None:
    from headwater.pipelines.reading import as_table

    if POSITION in rows.columns:
        rows = as_table(rows, write.key)
    elif OP in rows.columns:
        rows = rows.where(F.coalesce(F.col(OP), F.lit("")) != DELETE)
    found = rows.drop(OP, AT, POSITION).take(1)
    return found[0].asDict(recursive=True) if found else None


def _causes(reader: _Recorded, rows: DataFrame) -> tuple[DataFrame | None, list[str]]:
    plan = rows._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
    found: DataFrame | None = None
    untraced = []
    for topic, condition in _conditions(plan, None):
        frame = reader.frames.get(topic)
        if frame is None:
            continue
        if condition is None:
            untraced.append(topic)
            continue
        of_topic = _told(frame.where(condition))
        found = of_topic if found is None else found.unionByName(of_topic)
    return found, untraced


def _told(frame: DataFrame) -> DataFrame:
    columns = [name for name in frame.columns if name not in (OP, AT, POSITION)]
    return frame.select(OP, AT, POSITION, F.to_json(F.struct(*columns)).alias("row"))


def _taken_together(
    frame: DataFrame, operators: Sequence[Built], row: Mapping[str, Any] | None
) -> DataFrame | None:
    """Records that an operator groups with those of the row, if the row and the topic have its
    columns; in a window by its time at least, where others come from a join. None if nothing can be
    told so.
    """
    if row is None:
        return None
    for each in operators:
        for by, times in zip(each.keys, each.time_columns, strict=True):
            is_in_window = bool(times) and WINDOW_START in row and times[0] in frame.columns
            known = [name for name in by if name in row and name in frame.columns]
            if not is_in_window and (not by or len(known) < len(by)):
                continue
            for name in known:
                frame = frame.where(F.col(name).eqNullSafe(F.lit(row[name])))
            if is_in_window:
                at = F.col(times[0])
                frame = frame.where(
                    (at >= F.lit(row[WINDOW_START])) & (at < F.lit(row[WINDOW_END]))
                )
            return _told(frame)
    return None


def _conditions(node: Any, above: str | None) -> list[tuple[str, str | None]]:
    """Each source in the plan: its topic, and the condition that stands right above it."""
    name = node.nodeName()
    children = node.children()
    if children.size() == 0:
        topic = _topic_of(node)
        return [] if topic is None else [(topic, above)]
    above = node.condition().sql() if name == "Filter" else above if name == "Project" else None
    return [
        pair
        for index in range(children.size())
        for pair in _conditions(children.apply(index), above)
    ]


def _topic_of(leaf: Any) -> str | None:
    try:
        relation = leaf.relation() if "ScanRelation" in leaf.nodeName() else leaf
        return str(relation.options().get("topic"))
    except Exception:  # a relation of another kind
        return None


def _cause(row: dict[str, Any]) -> Cause:
    place = row[POSITION]
    return Cause(
        place["topic"],
        place["partition"],
        place["offset"],
        row[AT],
        row[OP],
        orjson.loads(row["row"]),
    )
