"""Sums, averages and rates, with the types that Spark gives them.

| of       | sum                          | average                                 |
|----------|------------------------------|-----------------------------------------|
| integers | int64, an error if it is more | double                                  |
| decimals | decimal, 10 digits more       | decimal, 4 digits more behind the point |
| doubles  | double                       | double                                  |

Integers are added up with 96 bits, decimals with 256, and doubles without
rounding (exact_sums.py): the order does not matter, and what is too large meanwhile, but not in the
end, is no error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates import exact_sums
from headwater.pipelines.operators.aggregates.contract import (
    Count,
    Groups,
    by_arrow,
    column_type,
    present,
    refused,
)
from headwater.pipelines.operators.aggregates.extremes import as_integers
from headwater.pipelines.operators.aggregates.kernels.aggregates import add_halves, add_integers

_MOST_DIGITS: Final = 38  # of Spark's decimals
_SUM_DIGITS: Final = 56  # of sums, so that a quotient has room in the 76 that Arrow has


@dataclass(frozen=True)
class Sum:
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def bound(self, schema: pa.Schema) -> "BoundSum":
        return BoundSum(_total("sum", schema, self.column))


@dataclass(frozen=True)
class Average:
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def bound(self, schema: pa.Schema) -> "BoundAverage":
        return BoundAverage(_total("avg", schema, self.column), Count(self.column))


@dataclass(frozen=True)
class Rate:
    """Rows for each `per_us` of the window."""

    per_us: int

    columns = ()
    accumulators = (pa.int64(),)
    result_type = pa.float64()

    def bound(self, schema: pa.Schema) -> "Rate":
        return self

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        return Count().accumulate(rows, group, groups)

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        return Count().merge(accumulators, group, groups)

    def result(
        self,
        accumulators: Sequence[pa.Array],
        start_us: npt.NDArray[np.int64],
        end_us: npt.NDArray[np.int64],
    ) -> pa.Array:
        return pa.array(np.asarray(accumulators[0]) * self.per_us / (end_us - start_us))


class _Total(Protocol):
    """How values of one kind are added up."""

    @property
    def column(self) -> str: ...

    @property
    def accumulators(self) -> tuple[pa.DataType, ...]: ...

    @property
    def sum_type(self) -> pa.DataType: ...

    @property
    def average_type(self) -> pa.DataType: ...

    def accumulate(self, column: pa.ChunkedArray, group: Groups, groups: int) -> list[pa.Array]: ...

    def merge(
        self, accumulators: Sequence[pa.Array], group: Groups, groups: int
    ) -> list[pa.Array]: ...

    def sums(self, accumulators: Sequence[pa.Array]) -> pa.Array: ...

    def averages(self, accumulators: Sequence[pa.Array], counts: pa.Array) -> pa.Array:
        """A count of 0 has the sum null."""
        ...


@dataclass(frozen=True)
class BoundSum:
    total: _Total

    @property
    def accumulators(self) -> tuple[pa.DataType, ...]:
        return self.total.accumulators

    @property
    def result_type(self) -> pa.DataType:
        return self.total.sum_type

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        return self.total.accumulate(rows[self.total.column], group, groups)

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        return self.total.merge(accumulators, group, groups)

    def result(self, accumulators: Sequence[pa.Array], start_us: Any, end_us: Any) -> pa.Array:
        return self.total.sums(accumulators)


@dataclass(frozen=True)
class BoundAverage:
    total: _Total
    count: Count

    @property
    def accumulators(self) -> tuple[pa.DataType, ...]:
        return (*self.count.accumulators, *self.total.accumulators)

    @property
    def result_type(self) -> pa.DataType:
        return self.total.average_type

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        counts = self.count.accumulate(rows, group, groups)
        return counts + self.total.accumulate(rows[self.total.column], group, groups)

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        counts = self.count.merge(accumulators[:1], group, groups)
        return counts + self.total.merge(accumulators[1:], group, groups)

    def result(self, accumulators: Sequence[pa.Array], start_us: Any, end_us: Any) -> pa.Array:
        return self.total.averages(accumulators[1:], accumulators[0])


def _total(aggregate: str, schema: pa.Schema, column: str) -> _Total:
    kind = column_type(aggregate, schema, column)
    if pat.is_signed_integer(kind):
        return IntegerTotal(column)
    if pat.is_decimal(kind):
        return DecimalTotal(column, kind.precision, kind.scale)
    if pat.is_floating(kind):
        return FloatTotal(column)
    raise refused(
        aggregate, column, kind, f'{aggregate} takes numbers: F.col("{column}").cast("double")'
    )


@dataclass(frozen=True)
class IntegerTotal:
    column: str

    accumulators = (pa.int64(), pa.int64())  # the sum is the first · 2³² + the second
    sum_type = pa.int64()
    average_type = pa.float64()

    def accumulate(self, column: pa.ChunkedArray, group: Groups, groups: int) -> list[pa.Array]:
        values, group = present(column, group)
        is_present, high, low = _zeros(groups)
        add_integers(as_integers(values), is_present, group, high, low)
        return [pa.array(high, mask=~is_present), pa.array(low, mask=~is_present)]

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        (highs, of_values), (lows, _) = (present(half, group) for half in accumulators)
        is_present, high, low = _zeros(groups)
        add_halves(np.asarray(highs), np.asarray(lows), is_present, of_values, high, low)
        return [pa.array(high, mask=~is_present), pa.array(low, mask=~is_present)]

    def sums(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        high = np.asarray(accumulators[0].fill_null(0))
        if len(high) and not -(2**31) <= high.min() <= high.max() < 2**31:
            raise PipelineError(
                f"sum of {self.column} is too large for a bigint",
                hint=f'sum decimals instead: F.col("{self.column}").cast("decimal(38,0)")',
            )
        sums = (high << 32) + np.asarray(accumulators[1].fill_null(0))
        return pa.array(sums, mask=np.asarray(accumulators[0].is_null()))

    def averages(self, accumulators: Sequence[pa.Array], counts: pa.Array) -> pa.Array:
        sums = np.asarray(accumulators[0].fill_null(0)) * 2.0**32 + np.asarray(
            accumulators[1].fill_null(0)
        )
        number = np.asarray(counts)
        return pa.array(sums / np.maximum(number, 1), mask=number == 0)


@dataclass(frozen=True)
class DecimalTotal:
    column: str
    digits: int
    scale: int

    @property
    def accumulators(self) -> tuple[pa.DataType, ...]:
        return (pa.decimal256(76, self.scale),)

    @property
    def sum_type(self) -> pa.DataType:
        return pa.decimal128(min(_MOST_DIGITS, self.digits + 10), self.scale)

    @property
    def average_type(self) -> pa.DataType:
        digits, scale = min(_MOST_DIGITS, self.digits + 4), min(_MOST_DIGITS, self.scale + 4)
        return pa.decimal128(digits, scale)

    def accumulate(self, column: pa.ChunkedArray, group: Groups, groups: int) -> list[pa.Array]:
        values, group = present(column, group)
        return [by_arrow("sum", values.cast(self.accumulators[0]), group, groups)]

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        return self.accumulate(accumulators[0], group, groups)

    def sums(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return self._fitting("sum", accumulators[0], self.sum_type)

    def averages(self, accumulators: Sequence[pa.Array], counts: pa.Array) -> pa.Array:
        sums = accumulators[0].cast(pa.decimal256(_SUM_DIGITS, self.scale))
        number = counts.cast(pa.decimal256(19, 0))
        divisor = pc.if_else(pc.equal(counts, 0), pa.scalar(None, number.type), number)
        quotients = pc.divide(sums, divisor)
        rounded = pc.round(quotients, self.average_type.scale, "half_towards_infinity")
        return self._fitting("avg", rounded, self.average_type)

    def _fitting(self, name: str, values: pa.Array, kind: pa.DataType) -> pa.Array:
        try:
            return values.cast(kind)
        except pa.ArrowInvalid as error:
            raise PipelineError(
                f"{name} of {self.column} is too large for {kind}", detail=str(error)
            ) from error


@dataclass(frozen=True)
class FloatTotal:
    column: str

    accumulators = exact_sums.ACCUMULATORS
    sum_type = pa.float64()
    average_type = pa.float64()

    def accumulate(self, column: pa.ChunkedArray, group: Groups, groups: int) -> list[pa.Array]:
        return exact_sums.sums_of(column, group, groups)

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        return exact_sums.merged(accumulators, group, groups)

    def sums(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        sums, is_null = exact_sums.rounded(accumulators)
        return pa.array(sums, mask=is_null)

    def averages(self, accumulators: Sequence[pa.Array], counts: pa.Array) -> pa.Array:
        sums, is_null = exact_sums.rounded(accumulators)
        return pa.array(sums / np.maximum(np.asarray(counts), 1), mask=is_null)


def _zeros(
    groups: int,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.zeros(groups, np.bool_), np.zeros(groups, np.int64), np.zeros(groups, np.int64)
