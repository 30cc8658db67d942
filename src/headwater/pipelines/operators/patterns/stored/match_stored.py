"""`hw.match_stored`: rows of a stream past patterns that a topic has."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.flow import AT
from headwater.pipelines.operators.joins.enrich import (
    arrow_schema,
    changes_of_table,
    key_of_table,
    table_in_log,
)
from headwater.pipelines.operators.patterns.match import keys_of
from headwater.pipelines.operators.patterns.match_arguments import OURS
from headwater.pipelines.operators.patterns.stored.definitions import PATTERN_COLUMNS
from headwater.pipelines.operators.patterns.stored.stored_match_operator import StoredMatching
from headwater.pipelines.operators.patterns.stored.versioned_match import result_schema
from headwater.pipelines.operators.runtime.grouping import check_keys
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import CORRECT, DROP, lateness_of
from headwater.pipelines.operators.time.result_time import input_time
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import OP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KIND: Final = "match_stored"


def match_stored(
    frame: "DataFrame",
    patterns: "DataFrame",
    key: str | Sequence[str],
    *,
    time: str | EventTime,
    late: str = DROP,
    name: str | None = None,
) -> "DataFrame":
    """Matches of stored patterns in the rows of each key, as `hw.match` finds them. A pattern holds
    for rows by their event time: from when it was stored, or as it says, until it is dropped or
    replaced.

    `patterns`   what `flow.table` gave: a topic of patterns by their id, with a column `pattern`
                 and, if they are there, the other columns of `hw.PATTERNS`
    `key`        the columns that rows of a match share

    Results have `pattern_id`, `owner`, `target`, the key's columns, `event_time`, which is when the
    match was decided, `measures` (a JSON object) and `timed_out`.
    """
    keys = keys_of(_KIND, frame, key)
    _refuse_corrections(late)
    found = table_in_log(_KIND, patterns)
    topic = found.topic.topic
    pattern_key = key_of_table(_KIND, found, ())
    if len(pattern_key) != 1:
        raise PipelineError(
            f"{_KIND}: a pattern has one column that identifies it",
            detail=f"the key of {topic} is {', '.join(pattern_key)}",
        )
    changes = found.applied(changes_of_table(_KIND, found.topic, is_stream=frame.isStreaming))
    stored = _stored(arrow_schema(changes), pattern_key[0], topic)
    columns = arrow_schema(frame)
    check_keys(_KIND, columns, keys)
    rows = pa.schema([column for column in columns if column.name not in OURS])
    operator = StoredMatching(
        output=_output(rows, keys, stored[0]),
        key=keys,
        rows=rows,
        pattern_key=pattern_key[0],
        patterns=stored,
        time=input_time(_KIND, frame, time, late),
        lateness=lateness_of(late, None),
        is_stream=frame.isStreaming,
    )
    read = tuple(dict.fromkeys([*(column.name for column in stored), OP, AT]))
    passed = tuple(column for column in frame.columns if column != POSITION)
    return run_operator(
        _KIND,
        operator,
        [
            # As for hw.enrich, rows are planned first. Patterns go to every bucket.
            Side(frame, keys, passed, operator.time),
            Side(changes, (), read, EventTime(AT, 0), "true"),
        ],
        name=name,
    )


def _refuse_corrections(late: str) -> None:
    if late == CORRECT:
        raise PipelineError(
            f"{_KIND}: late={late!r} is for windows and hw.match",
            detail="a match of a stored pattern that was emitted is not retracted",
            hint='late="drop" counts late rows, "side" stores them, too; a longer delay of'
            " hw.event_time waits for them",
        )


def _stored(schema: pa.Schema, key: str, topic: str) -> tuple[pa.Field, ...]:
    """The columns of the patterns that are used."""
    for name in (key, "pattern"):
        if name not in schema.names:
            raise PipelineError(
                f"{_KIND}: {topic} has no column {name}",
                detail="columns are " + ", ".join(schema.names),
                hint='flow.table("patterns", hw.PATTERNS, key="id") has all',
            )
    for name, kind in PATTERN_COLUMNS.items():
        if name in schema.names and schema.field(name).type != kind:
            found = schema.field(name).type
            raise PipelineError(f"{_KIND}: {name} of {topic} is {found}, and no {kind}")
    names = [name for name in PATTERN_COLUMNS if name in schema.names and name != key]
    return schema.field(key), *(schema.field(name) for name in names)


def _output(rows: pa.Schema, keys: tuple[str, ...], pattern_id: pa.Field) -> pa.Schema:
    found = result_schema([rows.field(name) for name in keys], pattern_id)
    for name in keys:
        if found.names.count(name) > 1:
            raise PipelineError(
                f"{_KIND}: two columns of the result would be called {name}",
                hint=f'.withColumnRenamed("{name}", "…") before',
            )
    return found
