"""Windows over a table that changes: the operator of hw.tumbling and hw.hopping with a key.

Its input is the changes of the table by group, which is `by` and a window (joins/table_changes.py);
of hopping windows a row is in several.
A row that is updated or deleted is taken out of its window again. Not every aggregate can subtract,
so the rows of the table are stored, and the windows that have changes are aggregated before and
after the batch; what differs is emitted. A table has no lateness: a window changes with its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.joins.tables.group_changes import GroupChanges, rescale_groups
from headwater.pipelines.operators.joins.tables.table_changes import CREATE, UPDATE, Numbers
from headwater.pipelines.operators.runtime.contract import OFFSET, Input, State
from headwater.pipelines.operators.runtime.grouping import first_rows
from headwater.pipelines.operators.runtime.lineage import Flags, is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import hashes_of
from headwater.pipelines.operators.windows.results import WINDOW_END, WINDOW_START
from headwater.pipelines.operators.windows.zoned_windows import DAY_US, Calendar
from headwater.pipelines.position import (
    POSITION,
    POSITION_TYPE,
    RESULTS,
    TABLE,
    with_metadata,
)
from headwater.sinks.contract import DELETE, OP

# int64: the window of a row, by its start in microseconds; in a time zone by its first pane.
WINDOW: Final = "__window"
_TIMESTAMP: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class TableWindows:
    """The operator (contract.py)."""

    aggregates: NamedAggregates
    by: tuple[str, ...]
    key: tuple[str, ...]
    size_us: int

    @cached_property
    def output(self) -> pa.Schema:
        return pa.schema(
            [
                *(self.columns.field(name) for name in self.by),
                pa.field(WINDOW_START, _TIMESTAMP),
                pa.field(WINDOW_END, _TIMESTAMP),
                *self.aggregates.results_schema,
                with_metadata(pa.field(POSITION, POSITION_TYPE), {RESULTS: TABLE}),
                pa.field(OP, pa.string()),
            ]
        )

    @property
    def columns(self) -> pa.Schema:
        """Of the table: `by`, `key`, TIME, WINDOW and what is aggregated."""
        return self.aggregates.schema

    @property
    def group(self) -> tuple[str, ...]:
        return (*self.by, WINDOW)

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        (given,) = inputs
        self._check_compatible(state)
        changes = GroupChanges(state, given, self.columns, self.group, self.key)
        before, after = (
            self._aggregated(rows.rows, rows.group, changes.groups)
            for rows in (changes.before, changes.after)
        )
        result = self._changes(before, after, changes.positions)
        changes.save()
        return result

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        rescale_groups(before, after, share, self.columns, (*self.group, *self.key))

    def _check_compatible(self, state: State) -> None:
        layout = f"{self._layout} {self.group} {self.key} {self.aggregates.layout(self.by)}"
        check_settings_compatible(state, "windows over a table", layout)

    @property
    def _layout(self) -> str:
        return str(self.size_us)

    def bounds_us(self, windows: Numbers) -> tuple[Numbers, Numbers]:
        """Starts and ends of the windows with these numbers (WINDOW)."""
        return windows, windows + self.size_us

    def windows_at(self, start_us: Numbers) -> Numbers:
        """The numbers of windows that begin then."""
        return start_us

    roles = ("row",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The rows of the window."""
        start_us = rows[WINDOW_START].combine_chunks().cast(pa.int64()).to_numpy()
        wanted = [*(rows[name] for name in self.by), pa.array(self.windows_at(start_us))]
        return (is_among(inputs[0].rows.select(self.group).columns, wanted),)

    def _aggregated(self, rows: pa.Table, group: Numbers, groups: int) -> "_Windows":
        """The result of each group that has rows."""
        there = np.flatnonzero(np.bincount(group, minlength=groups))
        number = np.full(groups, -1, np.int64)
        number[there] = np.arange(len(there))
        dense = number[group]
        rows = rows.combine_chunks()
        # A table's rows have no order but time and value: that is enough for first and last.
        offset = pa.repeat(pa.scalar(0, pa.int64()), len(rows))
        accumulated = pa.Table.from_arrays(
            self.aggregates.accumulate(rows.append_column(OFFSET, offset), dense, len(there)),
            schema=self.aggregates.accumulators_schema,
        )
        keys = rows.select(self.group).take(pa.array(first_rows(dense, len(there))))
        start_us, end_us = self.bounds_us(keys[WINDOW].to_numpy())
        bounds = [pa.array(bound_us).cast(_TIMESTAMP) for bound_us in (start_us, end_us)]
        results = self.aggregates.results(accumulated, start_us, end_us)
        names = self.output.names[: -len((POSITION, OP))]
        columns = [*keys.select(self.by).columns, *bounds, *results]
        return _Windows(pa.Table.from_arrays(columns, names), there, number)

    def _changes(self, before: "_Windows", after: "_Windows", position: pa.Array) -> pa.Table:
        is_empty_now = after.number[before.groups] < 0
        was = before.number[after.groups]
        names = self.aggregates.results_schema.names
        old = hashes_of(before.rows.select(names).columns)
        new = hashes_of(after.rows.select(names).columns)
        is_changed = was < 0
        stays = np.flatnonzero(was >= 0)
        is_changed[stays] = (old[was[stays]] != new[stays]).any(axis=1)
        op = np.where(was < 0, CREATE, UPDATE)
        return pa.concat_tables(
            [
                self._table(before, is_empty_now, [DELETE] * int(is_empty_now.sum()), position),
                self._table(after, is_changed, op[is_changed].tolist(), position),
            ]
        )

    def _table(
        self, windows: "_Windows", which: Flags, op: list[str], position: pa.Array
    ) -> pa.Table:
        columns = [
            *windows.rows.filter(pa.array(which)).columns,
            position.take(pa.array(windows.groups[which])),
            pa.array(op, pa.string()),
        ]
        return pa.Table.from_arrays(columns, schema=self.output)


@dataclass(frozen=True)
class ZonedTableWindows(TableWindows):
    """Of days in a time zone, `hop_us` apart (zoned_windows.py)."""

    hop_us: int = DAY_US
    zone: str = "UTC"

    @property
    def _layout(self) -> str:
        return f"{super()._layout} every {self.hop_us} in {self.zone}"

    @cached_property
    def _calendar(self) -> Calendar:
        return Calendar(self.zone, self.hop_us // DAY_US)

    def bounds_us(self, windows: Numbers) -> tuple[Numbers, Numbers]:
        ends = windows + self.size_us // self.hop_us
        return self._calendar.start_of(windows), self._calendar.start_of(ends)

    def windows_at(self, start_us: Numbers) -> Numbers:
        return self._calendar.pane_at(start_us)


@dataclass(frozen=True, slots=True)
class _Windows:
    rows: pa.Table  # of the output, without position and op
    groups: Numbers  # of the rows
    number: Numbers  # of each group, the number of its row; -1: it has none
