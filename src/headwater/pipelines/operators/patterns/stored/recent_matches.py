"""What a pattern would have found in the last records of a topic, here and without Spark.

Types are those that JSON has, but for the column with the time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from headwater.pipelines.operators.patterns.match_settings import EVENT_TIME, PARTITION, TOPIC
from headwater.pipelines.operators.patterns.matching.key_searches import INPUT, KEYS, find_matches
from headwater.pipelines.operators.patterns.stored.definitions import (
    TIMED_OUT,
    PatternDefinition,
    compiled,
)
from headwater.pipelines.operators.patterns.stored.versioned_match import (
    MEASURES,
    ROW,
    RowValues,
    VersionedMatch,
    result_schema,
)
from headwater.pipelines.operators.runtime.contract import OFFSET, TIME
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import DROP, Lateness
from headwater.pipelines.recent_records import RecentRecord

UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_ADDED: Final = (TIME, TOPIC, PARTITION, OFFSET, INPUT, ROW)


@dataclass(frozen=True, slots=True)
class RecentPatternMatch:
    key: dict[str, Any]
    at: datetime
    measures: dict[str, Any]
    is_timed_out: bool


@dataclass(slots=True)
class RecentPatternMatches:
    """The result of one test."""

    rows: int = 0
    unreadable: int = 0  # records that are no JSON objects
    without_time: int = 0
    open: int = 0  # keys with an attempt that waits
    matches: list[RecentPatternMatch] = field(default_factory=list)


def match_recent(
    definition: PatternDefinition,
    topic: str,
    records: Iterable[RecentRecord],
    key: Sequence[str],
    time: str,
    unit: str = "ms",
) -> RecentPatternMatches:
    """In the order of time: all that is decided when the last of the records has come. `unit`: of
    times that are numbers. Raises PipelineError.
    """
    result = RecentPatternMatches()
    rows = []
    for found in records:
        result.unreadable += found.is_unreadable
        if found.columns is None:
            continue
        at = _time(found.columns.get(time), unit)
        if at is None:
            result.without_time += 1
            continue
        position = ((at - _EPOCH) // _MICROSECOND, topic, found.partition, found.record.offset)
        added = dict(zip(_ADDED, position, strict=False))
        rows.append(found.columns | {time: at} | added)
    result.rows = len(rows)
    pattern = compiled(definition)
    if not rows:
        return result
    table = _table(rows, [*key, *pattern.columns], time)
    state = MemoryState()
    shown = table.select(list(key)).schema
    columns = [name for name in pattern.columns if name not in key]
    settings = VersionedMatch(
        tuple(key),
        pattern.rules,
        EventTime(time, 0),
        Lateness(DROP, 0),
        shown,
        table.select(columns).schema,
        pa.schema([]),
        topic,
        definition.id,
        pattern,
        RowValues(table),
        result_schema(shown, pa.field("id", pa.string())),
    )
    end_us = max(row[TIME] for row in rows) + 1
    for row in find_matches(settings, state, table, end_us).table.to_pylist():
        of_key = {name: row[name] for name in key}
        measures = orjson.loads(row[MEASURES])
        result.matches.append(RecentPatternMatch(of_key, row[EVENT_TIME], measures, row[TIMED_OUT]))
    result.open = state.counters.get(KEYS, 0)
    return result


def _table(rows: Sequence[dict[str, Any]], names: Sequence[str], time: str) -> pa.Table:
    """Their columns, of the types that JSON has; other values are texts."""
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            texts = [None if value is None else _as_text(value) for value in values]
            columns[name] = pa.array(texts, pa.string())
        if name != time and columns[name].type == pa.null():
            columns[name] = columns[name].cast(pa.string())
    columns[TIME] = pa.array([row[TIME] for row in rows], pa.int64())
    columns[TOPIC] = pa.array([row[TOPIC] for row in rows], pa.string())
    columns[PARTITION] = pa.array([row[PARTITION] for row in rows], pa.int32())
    columns[OFFSET] = pa.array([row[OFFSET] for row in rows], pa.int64())
    numbers = pa.array(np.arange(len(rows)), pa.int64())
    return pa.table(columns | {INPUT: numbers, ROW: numbers})


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _time(value: Any, unit: str) -> datetime | None:
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        if isinstance(value, int) and not isinstance(value, bool):
            return _EPOCH + timedelta(microseconds=value * 10**6 // UNITS[unit])
    except (ValueError, OverflowError):
        return None
    return None
