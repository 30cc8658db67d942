"""The first rows of each partition (ORDER BY … LIMIT, row_number() <= n), for one bucket of them.

    rows   all rows of the input, by partition
    top    those that are in the result

A partition's other rows are read only when one of its first ones is removed: without that, the
first ones of now are among those of before and the ones that were added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.runtime.lineage import is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS
from headwater.pipelines.operators.state.sorted_rows import RowNumbers
from headwater.pipelines.position import POSITION, POSITION_TYPE
from headwater.pipelines.views.nodes.counted_node import CountedNode
from headwater.pipelines.views.nodes.deltas import (
    WEIGHT,
    Flags,
    Multiset,
    Weights,
    consolidated,
    delta_of,
    rescale_multiset,
)
from headwater.pipelines.views.nodes.window_functions import Frame, SortKey, WindowCall
from headwater.pipelines.views.nodes.window_node import computed

_ROWS: Final = "rows"  # names in the state
_TOP: Final = "top"
_WHOLE: Final = Frame(is_rows=True, lower=None, upper=None)


@dataclass(frozen=True)
class TopRows(CountedNode):
    """The operator (contract.py). Rows that `order` does not distinguish are in the order of their
    hashes, as in WindowFunctions.
    """

    columns: pa.Schema
    partition: tuple[str, ...]
    order: tuple[SortKey, ...]
    function: str  # row_number, rank or dense_rank, which is limited
    limit: int

    @property
    def output(self) -> pa.Schema:
        return pa.schema([*self.columns, (WEIGHT, pa.int64()), (POSITION, POSITION_TYPE)])

    def result(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        self._check_compatible(state)
        delta = delta_of(inputs[0], self.columns, self.partition)
        if not len(delta):
            return self.output.empty_table()
        begins = delta.key_begins
        keys = delta.hashes[begins]
        of_key = np.searchsorted(begins, np.arange(len(delta)), side="right") - 1
        top = Multiset(state, _TOP, self.columns)
        was = top.of_keys(keys)
        is_removed = (delta.weights < 0) & (top.before(delta)[0] >= 0)
        is_read: Flags = np.zeros(len(keys), np.bool_)
        is_read[of_key[is_removed]] = True
        state.counters[_ROWS] = Multiset(state, _ROWS, self.columns).change(delta)
        read = np.flatnonzero(is_read)
        which, rows, weights = Multiset(state, _ROWS, self.columns).of_keys(keys[read])
        of_top = np.flatnonzero(~is_read[was[0]])
        added = np.flatnonzero((delta.weights > 0) & ~is_read[of_key])
        now = self._first(
            np.concatenate([read[which], was[0][of_top], of_key[added]]),
            pa.concat_tables(
                [rows, was[1].take(pa.array(of_top)), delta.rows.take(pa.array(added))]
            ),
            np.concatenate([weights, was[2][of_top], delta.weights[added]]),
        )
        which = np.concatenate([was[0], now[0]])
        result = consolidated(
            pa.concat_tables([was[1], now[1]]).combine_chunks(),
            keys[which][:, :WORDS],
            np.concatenate([-was[2], np.ones(len(now[0]), np.int64)]),
            delta.positions.take(pa.array(begins[which])),
        )
        Multiset(state, _TOP, self.columns).change(result)
        return pa.table(
            [*result.rows.columns, pa.array(result.weights), result.positions], schema=self.output
        )

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        rescale_multiset(before, after, share, _TOP, self.columns)
        after.counters[_ROWS] = rescale_multiset(before, after, share, _ROWS, self.columns)

    roles = ("row",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The row itself, not those that it was compared with."""
        given, names = inputs[0].rows, self.columns.names
        return (is_among(given.select(names).columns, rows.select(names).columns),)

    def _check_compatible(self, state: State) -> None:
        settings = f"{self.partition} {self.order} {self.function} {self.limit}"
        check_settings_compatible(state, "the first rows of a view", settings)

    def _first(
        self, which: RowNumbers, rows: pa.Table, weights: Weights
    ) -> tuple[RowNumbers, pa.Table]:
        """Of these rows of partitions, one by one."""
        if self.function == "row_number":
            weights = np.minimum(weights, self.limit)
        call = WindowCall(self.function, None, pa.int32(), _WHOLE)
        which, rows = computed(which, rows, weights, self.order, (call,))
        *_, number = rows.columns
        first = np.flatnonzero(np.asarray(number) <= self.limit)
        return which[first], rows.select(self.columns.names).take(pa.array(first))
