"""Deltas: rows with weights (Z-sets), as they go from node to node, and multisets in state.

A row with weight 2 was added twice, one with weight -1 was removed once. Between two nodes of a
plan there are deltas only; a multiset is what all deltas until now add up to. Rows are identified
by a hash of 128 bits over all their columns, in which null equals null, NaN equals NaN and -0.0
equals 0.0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import StateLost
from headwater.pipelines.operators.joins.tables.table_changes import positions_of
from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS, Hashes, hashes_of
from headwater.pipelines.operators.state.sorted_rows import (
    RowNumbers,
    SortedRows,
    rescale_sorted_rows,
    sorted_order,
)
from headwater.pipelines.position import POSITION_TYPE

WEIGHT: Final = "__weight"  # int64, never 0 in a delta that was consolidated

Weights = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Delta:
    """Rows of one batch, each once, sorted by their hashes: those of the key, then of the row."""

    rows: pa.Table  # without weight and position
    weights: Weights
    hashes: Hashes  # (rows, 2 · WORDS)
    positions: pa.Array  # of one of the changes that made the row

    def __len__(self) -> int:
        return len(self.weights)

    def take(self, numbers: RowNumbers) -> "Delta":
        """In ascending order."""
        where = pa.array(numbers)
        return Delta(
            self.rows.take(where),
            self.weights[numbers],
            self.hashes[numbers],
            self.positions.take(where),
        )

    @property
    def key_begins(self) -> RowNumbers:
        """The first row of each key."""
        is_first = np.ones(len(self), np.bool_)
        is_first[1:] = (self.hashes[1:, :WORDS] != self.hashes[:-1, :WORDS]).any(axis=1)
        return np.flatnonzero(is_first)


def delta_of(given: Input, columns: pa.Schema, key: Sequence[str]) -> Delta:
    """The rows of an input, consolidated: weights of equal rows are added up."""
    rows = given.rows.select(columns.names).cast(columns)
    weights = given.rows[WEIGHT].combine_chunks().to_numpy()
    return consolidated(rows, key_hashes(given.rows, key), weights, positions_of(given))


def key_hashes(rows: pa.Table, key: Sequence[str]) -> Hashes:
    """Without a key, all rows have the same."""
    if not key:
        return np.zeros((len(rows), WORDS), np.uint64)
    return hashes_of([rows[name] for name in key])


def consolidated(rows: pa.Table, keys: Hashes, weights: Weights, positions: pa.Array) -> Delta:
    of_rows = hashes_of(rows.columns) if rows.num_columns else np.zeros_like(keys)
    hashes = np.hstack([keys, of_rows])
    order = sorted_order(hashes)
    hashes, weights = hashes[order], weights[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (hashes[1:] != hashes[:-1]).any(axis=1)
    begins = np.flatnonzero(is_first)
    if len(begins) < len(order):
        weights = np.add.reduceat(weights, begins)
    is_left = weights != 0
    if not is_left.all() or len(begins) < len(order):
        begins, weights = begins[is_left], weights[is_left]
        order, hashes = order[begins], hashes[begins]
    where = pa.array(order)
    return Delta(rows.take(where), weights, hashes, positions.take(where))


class Multiset:
    """The rows of one bucket that all deltas before this batch add up to, by key.

    `change` adds the batch's delta, and ends the use of the object.
    """

    def __init__(self, state: State, name: str, columns: pa.Schema) -> None:
        self._name = name
        self._columns = columns
        schema = columns.append(pa.field(WEIGHT, pa.int64()))
        self._stored = SortedRows(state, name, schema, columns.names, words=2 * WORDS)

    def count(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """How many different rows the key of each of these has."""
        return self._stored.count(hashes)

    def of_keys(self, hashes: Hashes) -> tuple[npt.NDArray[np.int64], pa.Table, Weights]:
        """All rows of each of these keys: which key, the rows, their weights."""
        which, numbers = self._stored.groups(hashes)
        order = np.argsort(numbers, kind="stable")  # rows of the base first (SortedRows.take)
        rows = self._stored.take(numbers[order])
        weights = rows[WEIGHT].combine_chunks().to_numpy()
        return which[order], rows.select(self._columns.names), weights

    def every(self) -> Delta:
        """All rows, in the order of their hashes; their positions are not stored."""
        numbers = self._stored.numbers()
        hashes = self._stored.hashes(numbers)
        order = sorted_order(hashes)
        rows = self._stored.take(numbers).combine_chunks().take(pa.array(order))
        weights = rows[WEIGHT].combine_chunks().to_numpy()
        positions = pa.nulls(len(rows), POSITION_TYPE)
        return Delta(rows.select(self._columns.names), weights, hashes[order], positions)

    def before(self, delta: Delta) -> tuple[RowNumbers, Weights]:
        """Of each row of the delta, its number and its weight; -1 and 0 if it is not stored."""
        numbers = self._stored.find(delta.hashes)
        existing = np.flatnonzero(numbers >= 0)
        existing = existing[np.argsort(numbers[existing])]
        weights = np.zeros(len(delta), np.int64)
        stored = self._stored.take(numbers[existing], [WEIGHT])[WEIGHT]
        weights[existing] = stored.combine_chunks().to_numpy()
        return numbers, weights

    def change(self, delta: Delta) -> int:
        """Returns the number of different rows afterwards."""
        numbers, before = self.before(delta)
        after = before + delta.weights
        if (after < 0).any():
            at = int(np.flatnonzero(after < 0)[0])
            raise StateLost(
                f"a row is removed from {self._name} that is not there",
                detail=str(delta.rows.slice(at, 1).to_pylist()[0])[:200],
                hint="rebuild the view: its state is derived from the log again",
            )
        added = np.flatnonzero(after > 0)
        rows = delta.rows.take(pa.array(added)).append_column(WEIGHT, pa.array(after[added]))
        return self._stored.change(numbers[numbers >= 0], rows, delta.hashes[added])


def rescale_multiset(
    before: Sequence[State], after: State, share: Share, name: str, columns: pa.Schema
) -> int:
    """contract.Rescalable. Returns the number of different rows."""
    schema = columns.append(pa.field(WEIGHT, pa.int64()))
    return rescale_sorted_rows(before, after, share, name, schema, columns.names, words=2 * WORDS)
