"""Settings of the operator of hw.match, and the columns of its input, state and output."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.patterns.matching.leaves import COLUMN
from headwater.pipelines.operators.patterns.matching.measures import MatchRows
from headwater.pipelines.operators.patterns.pattern_rules import ALL_ROWS, PatternRules
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
    result_positions,
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

    @property
    def needs_every_key(self) -> bool:
        """Also one without state, and without a row that a match could begin with."""
        return self.rules.needs_every_key

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

    def values(self, old: pa.Table, ready: pa.Table) -> list[list[Any]]:
        """By the number of the computed column: its values in rows of the state, and behind them in
        those of the batch. Empty where conditions and aggregates do not need them.
        """
        wanted = self.rules.columns_in_python
        return [
            old[name].to_pylist() + ready[name].to_pylist() if number in wanted else []
            for number, name in enumerate(self.computed.names)
        ]

    def starts_among(
        self, rows: pa.Table, values: Sequence[Sequence[Any]]
    ) -> Sequence[bool] | None:
        """`starts_in` of all rows of a batch, whose values these are."""
        found = self.starts_in(rows)
        return None if found is None else found.tolist()

    def result(
        self, keys: pa.Table, rows: pa.Table, values: Sequence[Sequence[Any]], found: MatchRows
    ) -> pa.Table:
        """The rows of the output. `keys` are the columns of each key, `rows` all rows."""
        times = pa.array(np.array(found.times_us, np.int64))
        columns = self.result_columns(keys, rows, found)
        columns += [result_positions(self.topic, times), pa.repeat("c", len(times))]
        return pa.Table.from_arrays(columns, schema=self.output)

    def result_columns(self, keys: pa.Table, rows: pa.Table, found: MatchRows) -> list[Any]:
        """Those before the position."""
        if self.rules.rows == ALL_ROWS:
            shown = rows.select(self.rows.names).take(pa.array(found.rows, pa.int64()))
        else:
            shown = keys.take(pa.array(found.keys, pa.int64()))
        computed = [rows[name] for name in self.computed.names]
        columns = [*shown.columns, pa.array(found.times_us, pa.int64()).cast(_TIMESTAMP)]
        for number, column in enumerate(self.results):
            columns.append(found.column(number, column.type, computed))
        if self.rules.timed_out is not None:
            columns.append(pa.array(found.is_timed_out, pa.bool_()))
        return columns

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
