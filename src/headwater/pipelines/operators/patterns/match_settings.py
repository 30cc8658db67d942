"""Settings of the operator of hw.match, and the columns of its input, state and output."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.patterns.leaves import COLUMN
from headwater.pipelines.operators.patterns.pattern_rules import PatternRules
from headwater.pipelines.operators.runtime.contract import OFFSET, TIME
from headwater.pipelines.operators.state.fingerprints import NO_SETTING
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.operators.windows.results import LEAD
from headwater.pipelines.position import (
    EVENTS,
    POSITION,
    POSITION_TYPE,
    RESULTS,
    with_metadata,
)
from headwater.sinks.contract import OP

EVENT_TIME: Final = "event_time"
TOPIC: Final = "__topic"
PARTITION: Final = "__partition"
STATE: Final = "__state"  # of a key: its search as JSON
TIMER: Final = "__timer"  # and its next deadline
_TIMESTAMP: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class MatchSettings:
    key: tuple[str, ...]
    rules: PatternRules
    time: EventTime
    lateness: Lateness
    rows: pa.Schema  # of the input: the key's columns, and for ALL ROWS PER MATCH all others
    computed: pa.Schema  # what Spark computes of each row
    results: pa.Schema  # the leaves of measures
    topic: str = field(default="", metadata=NO_SETTING)  # in the positions of results

    @cached_property
    def output(self) -> pa.Schema:
        timed_out = self.rules.timed_out
        return pa.schema(
            [
                *self.rows,
                with_metadata(pa.field(EVENT_TIME, _TIMESTAMP), {LEAD: 1}),
                *self.results,
                *([] if timed_out is None else [pa.field(timed_out, pa.bool_())]),
                with_metadata(pa.field(POSITION, POSITION_TYPE), {RESULTS: EVENTS}),
                pa.field(OP, pa.string()),
            ]
        )

    @property
    def stored_schema(self) -> pa.Schema:
        """Of the rows of keys in the state."""
        return self.row_schema

    @cached_property
    def row_schema(self) -> pa.Schema:
        return pa.schema([*self.rows, *self.computed, (TIME, pa.int64())])

    @cached_property
    def pending_schema(self) -> pa.Schema:
        position = [(TOPIC, pa.string()), (PARTITION, pa.int32()), (OFFSET, pa.int64())]
        return pa.schema([*self.row_schema, *position])

    @cached_property
    def keys_schema(self) -> pa.Schema:
        keys = [self.rows.field(name) for name in self.key]
        return pa.schema([*keys, (STATE, pa.string()), (TIMER, pa.int64())])

    def starts_in(self, rows: pa.Table) -> npt.NDArray[np.bool_] | None:
        """Which rows a match could begin with; None: any, as far as single rows say."""
        columns = self.rules.first_columns
        if columns is None:
            return None
        found = np.zeros(len(rows), np.bool_)
        for column in columns:
            flags = rows[COLUMN.format(column)].combine_chunks().fill_null(False)
            found |= flags.to_numpy(zero_copy_only=False)
        return found
