"""Aggregate functions that can subtract: count, sum and avg.

Their accumulators are those of windows (operators/aggregates/sums.py): integers with 96 bits,
decimals with 256, doubles without rounding. So a row that is removed leaves no trace, and a sum
that is too large meanwhile, but not in the end, is no error. Infinities and NaN cannot be
subtracted; they are counted instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates.sums import DecimalTotal, FloatTotal, IntegerTotal
from headwater.pipelines.views.nodes.deltas import Weights

Groups = npt.NDArray[np.int64]
_SPECIAL: Final = 3  # counters of a sum of doubles: NaN, infinity, minus infinity


class Inverse(Protocol):
    @property
    def accumulators(self) -> tuple[pa.DataType, ...]: ...

    def after(
        self,
        before: Sequence[pa.Array],
        rows: pa.Table,
        weights: Weights,
        group: Groups,
        groups: int,
    ) -> list[pa.Array]:
        """The accumulators with these rows added, as often as their weights say."""
        ...

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array: ...


@dataclass(frozen=True)
class Count:
    """Of rows, or of those where the column is not null."""

    column: str | None
    kind: pa.DataType

    accumulators = (pa.int64(),)

    def after(
        self,
        before: Sequence[pa.Array],
        rows: pa.Table,
        weights: Weights,
        group: Groups,
        groups: int,
    ) -> list[pa.Array]:
        if self.column is not None:
            weights = np.where(np.asarray(rows[self.column].is_valid()), weights, 0)
        return [_added(before[0], weights, group, groups)]

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return accumulators[0]


@dataclass(frozen=True)
class Sum:
    column: str
    kind: pa.DataType

    @property
    def accumulators(self) -> tuple[pa.DataType, ...]:
        special = (pa.int64(),) * (_SPECIAL if pat.is_floating(self.kind) else 0)
        return (pa.int64(), *special, *self._total.accumulators)

    def after(
        self,
        before: Sequence[pa.Array],
        rows: pa.Table,
        weights: Weights,
        group: Groups,
        groups: int,
    ) -> list[pa.Array]:
        column = rows[self.column].combine_chunks()
        present = np.flatnonzero(np.asarray(column.is_valid()))
        column, weights, group = column.take(pa.array(present)), weights[present], group[present]
        found = [_added(before[0], weights, group, groups)]
        if pat.is_floating(self.kind):
            values = np.asarray(column.cast(pa.float64()))
            for before_it, is_it in zip(
                before[1 : 1 + _SPECIAL],
                (np.isnan(values), np.isposinf(values), np.isneginf(values)),
                strict=True,
            ):
                found.append(_added(before_it, np.where(is_it, weights, 0), group, groups))
            column = pa.array(np.where(np.isfinite(values), values, 0.0))
        existing = np.flatnonzero(np.asarray(before[-1].is_valid()))
        totals = [(existing, [one.take(pa.array(existing)) for one in before[len(found) :]])]
        for is_chosen, is_negative in ((weights > 0, False), (weights < 0, True)):
            numbers = np.repeat(np.arange(len(weights)), np.where(is_chosen, np.abs(weights), 0))
            values_of = pa.chunked_array([column.take(pa.array(numbers))])
            part = self._total.accumulate(
                _negated(values_of) if is_negative and not self._negates_total else values_of,
                group[numbers],
                groups,
            )
            if is_negative and self._negates_total:
                part = [pc.negate(one) for one in part]
            totals.append((np.arange(groups), part))
        where = np.concatenate([numbers for numbers, _ in totals])
        accumulators = [
            pa.concat_arrays([part[at].cast(kind) for _, part in totals])
            for at, kind in enumerate(self._total.accumulators)
        ]
        return found + self._total.merge(accumulators, where, groups)

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return self._finished(accumulators, self._total.sums(self._totals(accumulators)))

    def _finished(self, accumulators: Sequence[pa.Array], results: pa.Array) -> pa.Array:
        counts = np.asarray(accumulators[0])
        if pat.is_floating(self.kind):
            nan, above, below = (np.asarray(one) > 0 for one in accumulators[1 : 1 + _SPECIAL])
            values = np.asarray(results.fill_null(0.0)).copy()
            values[above] = np.inf
            values[below] = -np.inf
            values[nan | (above & below)] = np.nan
            return pa.array(values, mask=counts == 0)
        return pc.if_else(pa.array(counts > 0), results, pa.scalar(None, results.type))

    def _totals(self, accumulators: Sequence[pa.Array]) -> list[pa.Array]:
        return list(accumulators[-len(self._total.accumulators) :])

    @property
    def _total(self) -> IntegerTotal | DecimalTotal | FloatTotal:
        if pat.is_signed_integer(self.kind):
            return IntegerTotal(self.column)
        if pat.is_decimal(self.kind):
            return DecimalTotal(self.column, self.kind.precision, self.kind.scale)
        if pat.is_floating(self.kind):
            return FloatTotal(self.column)
        raise PipelineError(f"a sum of {self.kind} cannot be maintained incrementally")

    @property
    def _negates_total(self) -> bool:
        """The least integer has no opposite; its total has."""
        return bool(pat.is_signed_integer(self.kind))


class Average(Sum):
    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        averages = self._total.averages(self._totals(accumulators), accumulators[0])
        return self._finished(accumulators, averages)


def _negated(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.negate(values)


def _added(before: pa.Array, weights: Weights, group: Groups, groups: int) -> pa.Array:
    counts = np.asarray(before.fill_null(0)).copy()
    np.add.at(counts, group, weights)
    return pa.array(counts)


INVERSES: Final[Mapping[str, Callable[[str | None, pa.DataType], Inverse]]] = {
    "count": Count,
    "sum": Sum,  # type: ignore[dict-item]
    "avg": Average,  # type: ignore[dict-item]
}
