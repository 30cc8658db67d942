"""The incremental join of two multisets, for one bucket of join keys.

What is added and removed follows from the deltas of both sides (delta rules): ΔL⋈R + L⋈ΔR + ΔL⋈ΔR.
Rows that an outer, semi or anti join has by themselves depend on whether the other side has any row
of their key, before the batch and after it.

| join      | matched pairs | rows of the left that have a match | that have none | of the right |
|-----------|---------------|------------------------------------|----------------|--------------|
| inner     | ✓             |                                    |                |              |
| left      | ✓             |                                    | ✓              |              |
| right     | ✓             |                                    |                | ✓            |
| full      | ✓             |                                    | ✓              | ✓            |
| semi      |               | ✓                                  |                |              |
| anti      |               |                                    | ✓              |              |
| existence |               | ✓, with the flag true              | ✓, false       |              |

A null in a key column matches nothing, unless the columns are compared by `<=>`. Conditions other
than equality are applied to the pairs by Spark, behind the node (translation.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.runtime.lineage import is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS, Hashes
from headwater.pipelines.operators.state.row_kernels import bounds, expanded
from headwater.pipelines.position import POSITION, POSITION_TYPE
from headwater.pipelines.views.nodes.counted_node import CountedNode
from headwater.pipelines.views.nodes.deltas import (
    WEIGHT,
    Delta,
    Flags,
    Multiset,
    Weights,
    delta_of,
    rescale_multiset,
)

INNER: Final = "inner"
LEFT: Final = "left"
RIGHT: Final = "right"
FULL: Final = "full"
SEMI: Final = "semi"
ANTI: Final = "anti"
EXISTENCE: Final = "existence"
EXISTS: Final = "__exists"  # the flag of an existence join
_LEFT, _RIGHT = "left", "right"  # names in the state
_PAIRS: Final = (INNER, LEFT, RIGHT, FULL)


@dataclass(frozen=True)
class JoinSide:
    columns: pa.Schema
    key: tuple[str, ...]
    nullable_key: tuple[bool, ...]  # of each column of the key, whether null equals null


@dataclass(frozen=True)
class Join(CountedNode):
    """The operator (contract.py). Column names of the two sides are different."""

    left: JoinSide
    right: JoinSide
    how: str
    # No equality says which rows meet, and both sides can have many: only for messages.
    is_product: bool = field(default=False, compare=False)

    @property
    def output(self) -> pa.Schema:
        columns = list(self.left.columns)
        if self.how in _PAIRS:
            columns += list(self.right.columns)
        elif self.how == EXISTENCE:
            columns.append(pa.field(EXISTS, pa.bool_()))
        return pa.schema([*columns, (WEIGHT, pa.int64()), (POSITION, POSITION_TYPE)])

    def result(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        self._check_compatible(state)
        left = _Side(state, _LEFT, self.left, inputs[0])
        right = _Side(state, _RIGHT, self.right, inputs[1])
        found: list[pa.Table] = []
        if self.how in _PAIRS:
            found += self._pairs(left, right)
        if self.how in (SEMI, EXISTENCE):
            found += self._alone(left, right, matched=True)
        if self.how in (LEFT, FULL, ANTI, EXISTENCE):
            found += self._alone(left, right, matched=False)
        if self.how in (RIGHT, FULL):
            found += self._alone(right, left, matched=False)
        state.counters["left_rows"] = left.change()
        state.counters["right_rows"] = right.change()
        filled = [part for part in found if len(part)]
        return pa.concat_tables(filled) if filled else self.output.empty_table()

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        for name, side in ((_LEFT, self.left), (_RIGHT, self.right)):
            count = rescale_multiset(before, after, share, name, side.columns)
            after.counters[f"{name}_rows"] = count

    roles = ("left", "right")
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The rows that were joined; of a semi join, those that the row was found by."""
        left, right = (given.rows for given in inputs)
        names = self.left.columns.names
        of_left = is_among(left.select(names).columns, rows.select(names).columns)
        if self.how in _PAIRS:
            names = self.right.columns.names
            return of_left, is_among(right.select(names).columns, rows.select(names).columns)
        if self.how == EXISTENCE:
            rows = rows.filter(rows[EXISTS])
        if self.how == ANTI or not self.left.key:
            return of_left, np.full(len(right), self.how != ANTI and len(rows) > 0)
        keys = rows.select(self.left.key).columns
        return of_left, is_among(right.select(self.right.key).columns, keys)

    def _check_compatible(self, state: State) -> None:
        settings = f"{self.how}: {self.left.key} {self.right.key}"
        check_settings_compatible(state, "a join of a view", settings)

    def _pairs(self, left: "_Side", right: "_Side") -> Iterator[pa.Table]:
        which, rows, weights = right.stored.of_keys(left.delta.hashes)
        ours = left.delta.rows.take(pa.array(which))
        yield self._joined(
            ours,
            rows,
            left.delta.weights[which] * weights,
            left.delta.positions.take(pa.array(which)),
        )
        which, rows, weights = left.stored.of_keys(right.delta.hashes)
        theirs = right.delta.rows.take(pa.array(which))
        yield self._joined(
            rows,
            theirs,
            right.delta.weights[which] * weights,
            right.delta.positions.take(pa.array(which)),
        )
        which, other = expanded(*bounds(right.delta.hashes, left.delta.hashes, WORDS))
        yield self._joined(
            left.delta.rows.take(pa.array(which)),
            right.delta.rows.take(pa.array(other)),
            left.delta.weights[which] * right.delta.weights[other],
            left.delta.positions.take(pa.array(which)),
        )

    def _alone(self, side: "_Side", other: "_Side", *, matched: bool) -> Iterator[pa.Table]:
        """Rows of one side whose key has a row on the other side, or has none."""
        if not matched and len(side.without_key):
            of_null = side.without_key
            yield self._one_sided(side, of_null.rows, of_null.weights, of_null.positions, matched)
        # Changes at keys that had, or had not, a match before, and still do.
        delta = side.delta
        had, has = other.has_rows(delta.hashes)
        stays = np.flatnonzero(has == matched)
        chosen = delta.take(stays)
        yield self._one_sided(side, chosen.rows, chosen.weights, chosen.positions, matched)
        # Keys whose first match comes, or whose last one goes: all rows stored before.
        begins = other.delta.key_begins
        hashes = other.delta.hashes[begins]
        had, has = other.has_rows(hashes)
        turned = np.flatnonzero(had != has)
        which, rows, weights = side.stored.of_keys(hashes[turned])
        appears = has[turned][which] == matched
        positions = other.delta.positions.take(pa.array(begins[turned][which]))
        yield self._one_sided(side, rows, np.where(appears, weights, -weights), positions, matched)

    def _joined(
        self, left: pa.Table, right: pa.Table, weights: Weights, positions: pa.Array
    ) -> pa.Table:
        return pa.table(
            [*left.columns, *right.columns, pa.array(weights), positions], schema=self.output
        )

    def _one_sided(
        self, side: "_Side", rows: pa.Table, weights: Weights, positions: pa.Array, matched: bool
    ) -> pa.Table:
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        columns[EXISTS] = pa.repeat(matched, len(rows))
        columns[WEIGHT] = pa.array(weights)
        columns[POSITION] = positions
        return pa.table(
            [
                columns[field.name] if field.name in columns else pa.nulls(len(rows), field.type)
                for field in self.output
            ],
            schema=self.output,
        )


class _Side:
    def __init__(self, state: State, name: str, side: JoinSide, given: Input) -> None:
        delta = delta_of(given, side.columns, side.key)
        has_key: Flags = np.ones(len(delta), np.bool_)
        for column, is_nullable in zip(side.key, side.nullable_key, strict=True):
            if not is_nullable and delta.rows[column].null_count:
                has_key &= delta.rows[column].is_valid().to_numpy()
        everything = np.arange(len(delta))
        self.delta = delta if has_key.all() else delta.take(everything[has_key])
        self.without_key: Delta = delta.take(everything[~has_key])
        self.stored = Multiset(state, name, side.columns)
        self._net: tuple[Hashes, npt.NDArray[np.int64]] | None = None

    def has_rows(self, hashes: Hashes) -> tuple[Flags, Flags]:
        """Whether the key of each of these has rows: before the batch, and after it."""
        before = self.stored.count(hashes)
        if self._net is None:
            _, weights = self.stored.before(self.delta)
            after = weights + self.delta.weights
            change = (after > 0).astype(np.int64) - (weights > 0).astype(np.int64)
            self._net = self.delta.hashes, np.concatenate([[0], np.cumsum(change)])
        begins, ends = bounds(self._net[0], hashes, WORDS)
        after = before + self._net[1][ends] - self._net[1][begins]
        return before > 0, after > 0

    def change(self) -> int:
        return self.stored.change(self.delta)
