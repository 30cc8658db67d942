"""Changes of a table's rows by group, in one batch: the rows of its groups before and after.

What hw.top and windows over tables share. Their state is all rows of the table, sorted by the
hashes of group and key, and a batch reads the groups that it changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import StateLost
from headwater.pipelines.operators.joins.tables.table_changes import CREATE, Numbers, positions_of
from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS, Hashes, distinct, hashes_of
from headwater.pipelines.operators.state.sorted_rows import (
    SortedRows,
    rescale_sorted_rows,
    sorted_order,
)
from headwater.sinks.contract import DELETE, OP

_ROWS: Final = "rows"


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows of the groups that have changes."""

    rows: pa.Table
    group: Numbers
    keys: Hashes  # of their keys
    unchanged: int  # the first rows, which are as they were


class GroupChanges:
    """Of one bucket of groups. `save` puts the rows after the batch into the state."""

    def __init__(
        self,
        state: State,
        given: Input,
        columns: pa.Schema,
        group: tuple[str, ...],
        key: tuple[str, ...],
    ) -> None:
        """`given` is what table_changes.py gives: each row changes once in a batch."""
        self._state = state
        self._given = given
        self._stored = SortedRows(state, _ROWS, columns, (*group, *key), words=2 * WORDS)
        of_group = hashes_of([given.rows[name] for name in group])
        hashes = np.hstack([of_group, hashes_of([given.rows[name] for name in key])])
        groups, self._group = distinct(of_group)
        self.groups = len(groups)
        op = given.rows[OP].combine_chunks()
        was_there, is_there = (
            pc.not_equal(op, value).to_numpy(zero_copy_only=False) for value in (CREATE, DELETE)
        )
        self._replaced = self._found(hashes[was_there])
        self._new = given.rows.select(columns.names).filter(pa.array(is_there))
        self._hashes = hashes[is_there]

        whose, numbers = self._stored.groups(groups)
        order = np.argsort(numbers)
        whose, numbers = whose[order], numbers[order]
        rows = self._stored.take(numbers)
        keys = self._stored.hashes(numbers)[:, WORDS:]
        self.before = GroupedRows(rows, whose, keys, len(rows))
        stays = ~np.isin(numbers, self._replaced)
        self.after = GroupedRows(
            pa.concat_tables([rows.filter(pa.array(stays)), self._new]).combine_chunks(),
            np.concatenate([whose[stays], self._group[is_there]]),
            np.concatenate([keys[stays], self._hashes[:, WORDS:]]),
            int(stays.sum()),
        )

    @cached_property
    def positions(self) -> pa.Array:
        """Of the last change of each group."""
        last = np.empty(self.groups, np.int64)
        last[self._group] = np.arange(len(self._group))
        return positions_of(self._given).take(pa.array(last))

    def save(self) -> None:
        order = sorted_order(self._hashes)
        self._state.counters[_ROWS] = self._stored.change(
            np.sort(self._replaced), self._new.take(pa.array(order)), self._hashes[order]
        )

    def _found(self, hashes: Hashes) -> Numbers:
        found = self._stored.find(hashes)
        if (found < 0).any():
            raise StateLost(
                "a row of the table is missing from the state of its groups",
                detail="the states of operators that follow each other are not of the same batch",
                hint="rebuild the pipeline",
            )
        return found


def rescale_groups(
    before: Sequence[State], after: State, share: Share, columns: pa.Schema, key: tuple[str, ...]
) -> None:
    """contract.Rescalable; `key` with the columns of the group."""
    after.counters[_ROWS] = rescale_sorted_rows(
        before, after, share, _ROWS, columns, key, words=2 * WORDS
    )
