"""Window functions (OVER), for one bucket of partitions.

All rows are stored, by partition. A partition that has changes is computed before and after the
batch; rows that differ are removed and added. So a change costs as much as its partition has rows.
Rows that ORDER BY does not distinguish are in the order of their hashes, which is always the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.runtime.lineage import is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import hashes_of
from headwater.pipelines.position import POSITION, POSITION_TYPE
from headwater.pipelines.views.nodes.counted_node import CountedNode
from headwater.pipelines.views.nodes.deltas import (
    WEIGHT,
    Delta,
    Multiset,
    Weights,
    consolidated,
    delta_of,
    rescale_multiset,
)
from headwater.pipelines.views.nodes.window_functions import (
    SortedPartitions,
    SortKey,
    WindowCall,
    codes_of,
    window_column,
)


@dataclass(frozen=True)
class WindowFunctions(CountedNode):
    """The operator (contract.py). Results are columns w0, w1, …"""

    columns: pa.Schema
    partition: tuple[str, ...]
    order: tuple[SortKey, ...]
    calls: tuple[WindowCall, ...]

    @property
    def _results(self) -> list[pa.Field]:
        return [pa.field(f"w{at}", call.result) for at, call in enumerate(self.calls)]

    @property
    def output(self) -> pa.Schema:
        return pa.schema(
            [*self.columns, *self._results, (WEIGHT, pa.int64()), (POSITION, POSITION_TYPE)]
        )

    def result(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        self._check_compatible(state)
        delta = delta_of(inputs[0], self.columns, self.partition)
        if not len(delta):
            return self.output.empty_table()
        keys = delta.hashes[delta.key_begins]
        before = Multiset(state, "rows", self.columns)
        was = self._computed(*before.of_keys(keys))
        state.counters["rows"] = before.change(delta)
        now = self._computed(*Multiset(state, "rows", self.columns).of_keys(keys))
        return self._difference(was, now, delta)

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        after.counters["rows"] = rescale_multiset(before, after, share, "rows", self.columns)

    roles = ("row",)
    is_exact = True

    def lineage(
        self, inputs: tuple[Input, ...], rows: pa.Table
    ) -> tuple[npt.NDArray[np.bool_], ...]:
        """The row itself, not the others of its partition."""
        given, names = inputs[0].rows, self.columns.names
        return (is_among(given.select(names).columns, rows.select(names).columns),)

    def _check_compatible(self, state: State) -> None:
        settings = f"{self.partition} {self.columns.names}"
        check_settings_compatible(state, "window functions of a view", settings)

    def _computed(
        self, which: npt.NDArray[np.int64], rows: pa.Table, weights: Weights
    ) -> tuple[npt.NDArray[np.int64], pa.Table]:
        return computed(which, rows, weights, self.order, self.calls)

    def _difference(
        self,
        was: tuple[npt.NDArray[np.int64], pa.Table],
        now: tuple[npt.NDArray[np.int64], pa.Table],
        delta: Delta,
    ) -> pa.Table:
        rows = pa.concat_tables([was[1], now[1]]).combine_chunks()
        which = np.concatenate([was[0], now[0]])
        weights = np.concatenate([np.full(len(was[0]), -1), np.full(len(now[0]), 1)])
        positions = delta.positions.take(pa.array(delta.key_begins[which]))
        keys = delta.hashes[delta.key_begins[which]][:, :2]
        changed = consolidated(rows, keys, weights.astype(np.int64), positions)
        return pa.table(
            [*changed.rows.columns, pa.array(changed.weights), changed.positions],
            schema=self.output,
        )


def computed(
    which: npt.NDArray[np.int64],
    rows: pa.Table,
    weights: Weights,
    order: Sequence[SortKey],
    calls: Sequence[WindowCall],
) -> tuple[npt.NDArray[np.int64], pa.Table]:
    """The partition of each row, and the rows with the results; equal rows one by one."""
    numbers = np.repeat(np.arange(len(weights)), weights)
    rows, which = rows.take(pa.array(numbers)).combine_chunks(), which[numbers]
    tie = hashes_of(rows.columns)
    codes = [codes_of(rows[key.column], key) for key in order]
    sorted_ = np.lexsort((tie[:, 1], tie[:, 0], *reversed(codes), which))
    rows, which = rows.take(pa.array(sorted_)), which[sorted_]
    partitions = SortedPartitions(which, [code[sorted_] for code in codes])
    for at, call in enumerate(calls):
        values = window_column(call, partitions, rows, order)
        rows = rows.append_column(f"w{at}", values.cast(call.result))
    return which, rows
