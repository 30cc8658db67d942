"""The result of a query as changes of a table: one for each key whose row has changed.

If the query itself implies that the key is unique (the columns of its GROUP BY), no rows are
stored. Otherwise they are, by key, and a second row of a key is an error: a store would lose one of
the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.joins.tables.table_changes import CREATE, UPDATE
from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.runtime.lineage import is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS
from headwater.pipelines.operators.state.row_kernels import bounds
from headwater.pipelines.position import POSITION, POSITION_TYPE, RESULTS, TABLE, with_metadata
from headwater.pipelines.views.nodes.counted_node import CountedNode
from headwater.pipelines.views.nodes.deltas import Delta, Multiset, delta_of, rescale_multiset
from headwater.sinks.contract import DELETE, OP


@dataclass(frozen=True)
class ResultChanges(CountedNode):
    """The operator (contract.py), by buckets of the result's key."""

    columns: pa.Schema
    key: tuple[str, ...]
    is_unique: bool  # by what the query says

    @property
    def output(self) -> pa.Schema:
        position = with_metadata(pa.field(POSITION, POSITION_TYPE), {RESULTS: TABLE})
        return pa.schema([*self.columns, pa.field(OP, pa.string()), position])

    def result(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        self._check_compatible(state)
        delta = delta_of(inputs[0], self.columns, self.key)
        keys = delta.hashes[delta.key_begins]
        if self.is_unique:
            existed = _have(delta, keys, delta.weights < 0)
        else:
            stored = Multiset(state, "rows", self.columns)
            existed = stored.count(keys) > 0
            state.counters["rows"] = stored.change(delta)
            self._check_unique(state, keys)
        exist = _have(delta, keys, delta.weights > 0)
        self._check_once(delta)
        return self._changes(delta, keys, existed, exist)

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        if not self.is_unique:
            after.counters["rows"] = rescale_multiset(before, after, share, "rows", self.columns)

    roles = ("row",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[np.ndarray, ...]:
        given, names = inputs[0].rows, self.columns.names
        return (is_among(given.select(names).columns, rows.select(names).columns),)

    def _check_compatible(self, state: State) -> None:
        settings = f"{self.key} {self.is_unique}"
        check_settings_compatible(state, "the result of a view", settings)

    def _changes(
        self, delta: Delta, keys: np.ndarray, existed: np.ndarray, exist: np.ndarray
    ) -> pa.Table:
        of_key = np.searchsorted(delta.key_begins, np.arange(len(delta)), side="right") - 1
        is_added = delta.weights > 0
        chosen = np.flatnonzero(is_added | ~exist[of_key])
        ops = np.where(is_added, np.where(existed[of_key], UPDATE, CREATE), DELETE)[chosen]
        picked = delta.take(chosen)
        columns = [*picked.rows.columns, pa.array(ops, pa.string()), picked.positions]
        return pa.table(columns, schema=self.output)

    def _check_once(self, delta: Delta) -> None:
        added = np.flatnonzero(delta.weights > 0)
        hashes = delta.hashes[added, :WORDS]
        is_again = (hashes[1:] == hashes[:-1]).all(axis=1)
        if is_again.any():
            raise self._twice(delta, int(added[np.flatnonzero(is_again)[0] + 1]))
        if (delta.weights > 1).any():
            raise self._twice(delta, int(np.flatnonzero(delta.weights > 1)[0]))

    def _check_unique(self, state: State, keys: np.ndarray) -> None:
        stored = Multiset(state, "rows", self.columns)
        which, rows, weights = stored.of_keys(keys)
        order = np.argsort(which, kind="stable")
        is_again = np.flatnonzero(which[order][1:] == which[order][:-1])
        twice = order[is_again + 1] if len(is_again) else np.flatnonzero(weights > 1)
        if len(twice):
            at = int(twice[0])
            raise _not_unique(self.key, rows.slice(at, 1))

    def _twice(self, delta: Delta, at: int) -> PipelineError:
        return _not_unique(self.key, delta.rows.slice(at, 1))


def _have(delta: Delta, keys: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Which of the keys have rows among those chosen."""
    begins, ends = bounds(delta.hashes[chosen], keys, WORDS)
    found: np.ndarray = begins < ends
    return found


def _not_unique(key: tuple[str, ...], row: pa.Table) -> PipelineError:
    values = ", ".join(f"{name} = {row[name][0].as_py()!r}" for name in key)
    return PipelineError(
        f"the key of a view is not unique: {', '.join(key)}",
        detail=f"two rows have {values}; a store would have one of them",
        hint="add columns to `key` that tell the rows apart, or GROUP BY the key",
    )
