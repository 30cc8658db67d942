"""Changes of a table as a delta: the previous row of each key is removed, the new one added.

A change contains the new row only (or, of a delete, the key), so the rows are stored by key, with
the columns that the query needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.joins.tables.table_changes import (
    has_op,
    in_order,
    last_by_hash,
    positions_of,
    since_truncate,
)
from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.runtime.lineage import is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS, hashes_of
from headwater.pipelines.operators.state.sorted_rows import (
    RowNumbers,
    SortedRows,
    rescale_sorted_rows,
)
from headwater.pipelines.position import POSITION, POSITION_TYPE
from headwater.pipelines.views.nodes.counted_node import CountedNode
from headwater.pipelines.views.nodes.deltas import WEIGHT
from headwater.sinks.contract import DELETE


@dataclass(frozen=True)
class Upserts(CountedNode):
    """The operator (contract.py), by buckets of the table's key."""

    table: str
    columns: pa.Schema  # that the query needs, and the key
    key: tuple[str, ...]

    @property
    def output(self) -> pa.Schema:
        return pa.schema([*self.columns, (WEIGHT, pa.int64()), (POSITION, POSITION_TYPE)])

    def result(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        self._check_compatible(state)
        rows, truncate = since_truncate(self.table, state, in_order(inputs[0]))
        if not len(rows) and truncate is None:
            return self.output.empty_table()
        stored = SortedRows(state, "rows", self.columns, self.columns.names, words=WORDS)
        hashes = hashes_of([rows[name] for name in self.key])
        last = last_by_hash(hashes)
        rows, hashes = rows.take(pa.array(last)), hashes[last]
        before = stored.find(hashes)
        is_there = ~has_op(rows, DELETE)
        is_same = self._is_same(stored, before, rows) & is_there
        removed = np.flatnonzero((before >= 0) & ~is_same)
        removed = removed[np.argsort(before[removed])]
        parts = [
            self._weighted(stored.take(before[removed]), -1, rows[POSITION].take(pa.array(removed)))
        ]
        gone = before[removed]
        if truncate is not None:
            others = np.setdiff1d(stored.numbers(), before)
            parts.append(self._weighted(stored.take(others), -1, pa.repeat(truncate, len(others))))
            gone = np.concatenate([gone, others])
        added = np.flatnonzero(is_there & ~is_same)
        new = rows.take(pa.array(added))
        parts.append(self._weighted(new.select(self.columns.names), 1, new[POSITION]))
        state.counters["rows"] = stored.change(gone, new.select(self.columns.names), hashes[added])
        return pa.concat_tables(parts)

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        after.counters["rows"] = rescale_sorted_rows(
            before, after, share, "rows", self.columns, self.columns.names, words=WORDS
        )

    roles = ("row",)
    is_exact = True

    def lineage(
        self, inputs: tuple[Input, ...], rows: pa.Table
    ) -> tuple[npt.NDArray[np.bool_], ...]:
        """The last change of each row's key."""
        given = inputs[0].rows.append_column(POSITION, positions_of(inputs[0]))
        names = [*self.columns.names, POSITION]
        return (is_among(given.select(names).columns, rows.select(names).columns),)

    def _check_compatible(self, state: State) -> None:
        check_settings_compatible(state, "a table of a view", f"key {self.key}")

    def _is_same(
        self, stored: SortedRows, before: RowNumbers, rows: pa.Table
    ) -> npt.NDArray[np.bool_]:
        """Which rows are stored as they are: their changes concern columns of no interest."""
        existing = np.flatnonzero(before >= 0)
        existing = existing[np.argsort(before[existing])]
        was = hashes_of(stored.take(before[existing]).columns)
        now = hashes_of(rows.select(self.columns.names).take(pa.array(existing)).columns)
        is_same = np.zeros(len(before), np.bool_)
        is_same[existing] = (was == now).all(axis=1)
        return is_same

    def _weighted(
        self, rows: pa.Table, weight: int, positions: pa.Array | pa.ChunkedArray
    ) -> pa.Table:
        weights = pa.array(np.full(len(rows), weight, np.int64))
        weighted = rows.append_column(WEIGHT, weights).append_column(POSITION, positions)
        return weighted.cast(self.output)
