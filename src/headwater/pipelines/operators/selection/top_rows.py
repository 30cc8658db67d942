"""The first rows of each group, for one bucket of groups: the operator of hw.top (top.py).

Its input is the changes of a table by group (joins/table_changes.py). The groups that have changes
are ordered before and after the batch, and the difference of their first rows is emitted. State:
all rows of the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.joins.tables.group_changes import (
    GroupChanges,
    GroupedRows,
    rescale_groups,
)
from headwater.pipelines.operators.joins.tables.table_changes import CREATE, UPDATE, Numbers
from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.runtime.lineage import Flags, is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import as_one
from headwater.pipelines.position import POSITION, POSITION_TYPE, RESULTS, TABLE, with_metadata
from headwater.sinks.contract import DELETE, OP

_GROUP: Final = "__group"


@dataclass(frozen=True)
class TopRows:
    """The operator (contract.py)."""

    n: int
    by: tuple[str, ...]
    ascending: bool
    per: tuple[str, ...]
    key: tuple[str, ...]
    rank: str | None
    columns: pa.Schema

    @cached_property
    def output(self) -> pa.Schema:
        rank = [] if self.rank is None else [pa.field(self.rank, pa.int32())]
        position = with_metadata(pa.field(POSITION, POSITION_TYPE), {RESULTS: TABLE})
        return pa.schema([*self.columns, *rank, pa.field(OP, pa.string()), position])

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        (given,) = inputs
        self._check_compatible(state)
        changes = GroupChanges(state, given, self.columns, self.per, self.key)
        before, after = self._first(changes.before), self._first(changes.after)
        result = self._changes(before, after, changes.positions)
        changes.save()
        return result

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        rescale_groups(before, after, share, self.columns, (*self.per, *self.key))

    def _check_compatible(self, state: State) -> None:
        settings = f"{self.n} {self.by} {self.ascending} {self.per} {self.key} {self.rank}"
        check_settings_compatible(state, "a ranking", settings)

    roles = ("row",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The row itself."""
        names = self.columns.names
        return (is_among(inputs[0].rows.select(names).columns, rows.select(names).columns),)

    def _first(self, ranked: GroupedRows) -> "_First":
        """The rows of each group that are among its first, in their order."""
        names = dict.fromkeys([*self.by, *self.key])
        direction = "ascending" if self.ascending else "descending"
        order = pc.sort_indices(
            ranked.rows.select(list(names)).append_column(_GROUP, pa.array(ranked.group)),
            sort_keys=[
                (_GROUP, "ascending"),
                *((name, direction if name in self.by else "ascending") for name in names),
            ],
        ).to_numpy()
        group = ranked.group[order]
        starts = np.searchsorted(group, group)  # of its group
        rank = np.arange(len(order)) - starts + 1
        chosen = order[rank <= self.n]
        return _First(
            ranked.rows.take(pa.array(chosen)),
            ranked.group[chosen],
            as_one(ranked.keys[chosen]),
            rank[rank <= self.n],
            chosen >= ranked.unchanged,
        )

    def _changes(self, before: "_First", after: "_First", position: pa.Array) -> pa.Table:
        is_left = ~np.isin(before.keys, after.keys)
        is_new = ~np.isin(after.keys, before.keys)
        is_changed = after.is_changed & ~is_new
        if self.rank is not None:
            order = np.argsort(before.keys)
            stays = np.flatnonzero(~is_new)
            was = before.rank[order[np.searchsorted(before.keys[order], after.keys[stays])]]
            is_changed[stays] |= was != after.rank[stays]
        op = np.where(is_new, CREATE, UPDATE)
        return pa.concat_tables(
            [
                self._table(before, is_left, np.full(len(is_left), DELETE), position),
                self._table(after, is_new | is_changed, op, position),
            ]
        )

    def _table(
        self, first: "_First", which: Flags, op: npt.NDArray[Any], position: pa.Array
    ) -> pa.Table:
        chosen = np.flatnonzero(which)
        columns = [
            *first.rows.take(pa.array(chosen)).columns,
            *([] if self.rank is None else [pa.array(first.rank[chosen], pa.int32())]),
            pa.array(op[chosen].tolist(), pa.string()),
            position.take(pa.array(first.group[chosen])),
        ]
        return pa.Table.from_arrays(columns, schema=self.output)


@dataclass(frozen=True, slots=True)
class _First:
    """Of the rows of groups that have changes, the first ones."""

    rows: pa.Table
    group: Numbers
    keys: npt.NDArray[Any]
    rank: Numbers  # from 1
    is_changed: Flags
