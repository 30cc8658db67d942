"""Minimum and maximum of a group. The accumulator is the value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from headwater.pipelines.operators.aggregates.contract import (
    Groups,
    by_arrow,
    column_type,
    present,
    refused,
)
from headwater.pipelines.operators.aggregates.kernels.aggregates import greatest, least


@dataclass(frozen=True)
class Extreme:
    """Texts are compared by their code points. NaN is greater than any number, as in Spark."""

    column: str
    is_max: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def bound(self, schema: pa.Schema) -> "BoundExtreme":
        name = "max" if self.is_max else "min"
        kind = column_type(name, schema, self.column)
        if not is_ordered(kind):
            raise refused(name, self.column, kind, f"{name} takes {ORDERED}")
        return BoundExtreme(self.column, self.is_max, kind)


ORDERED = "numbers, texts, binary, booleans, dates and timestamps"


def is_ordered(kind: pa.DataType) -> bool:
    return bool(is_integral(kind) or pat.is_floating(kind) or _is_wide(kind))


@dataclass(frozen=True)
class BoundExtreme:
    column: str
    is_max: bool
    kind: pa.DataType

    @property
    def accumulators(self) -> tuple[pa.DataType, ...]:
        return (self.kind,)

    @property
    def result_type(self) -> pa.DataType:
        return self.kind

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        return self._extremes(rows[self.column], group, groups)

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        return self._extremes(accumulators[0], group, groups)

    def result(self, accumulators: Sequence[pa.Array], start_us: Any, end_us: Any) -> pa.Array:
        return accumulators[0]

    def _extremes(self, column: pa.Array, group: Groups, groups: int) -> list[pa.Array]:
        values, group = present(column, group)
        if _is_wide(self.kind):
            return [by_arrow("max" if self.is_max else "min", values, group, groups)]
        if is_integral(self.kind):
            found, is_present = self._of_numbers(as_integers(values), group, groups)
            return [from_integers(pa.array(found, mask=~is_present), self.kind)]
        numbers = np.asarray(values.cast(pa.float64())) + 0.0  # -0.0 becomes 0.0
        found, is_present = self._with_nans(numbers, group, groups)
        return [pa.array(found, mask=~is_present).cast(self.kind)]

    def _of_numbers(
        self, numbers: npt.NDArray[Any], group: Groups, groups: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        found, is_present = np.zeros(groups, numbers.dtype), np.zeros(groups, np.bool_)
        (greatest if self.is_max else least)(numbers, group, found, is_present)
        return found, is_present

    def _with_nans(
        self, numbers: npt.NDArray[Any], group: Groups, groups: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        is_nan = np.isnan(numbers)
        if not is_nan.any():
            return self._of_numbers(numbers, group, groups)
        found, is_present = self._of_numbers(numbers[~is_nan], group[~is_nan], groups)
        has_nan = np.zeros(groups, np.bool_)
        has_nan[group[is_nan]] = True
        found[has_nan if self.is_max else has_nan & ~is_present] = np.nan
        return found, is_present | has_nan


def is_integral(kind: pa.DataType) -> bool:
    """Whether values are compared as integers of at most 64 bits."""
    return bool(
        pat.is_signed_integer(kind)
        or pat.is_boolean(kind)
        or pat.is_date(kind)
        or pat.is_timestamp(kind)
        or pat.is_duration(kind)
    )


def _is_wide(kind: pa.DataType) -> bool:
    return bool(
        pat.is_decimal(kind)
        or pat.is_string(kind)
        or pat.is_large_string(kind)
        or pat.is_binary(kind)
        or pat.is_large_binary(kind)
    )


def as_integers(values: pa.Array) -> npt.NDArray[np.int64]:
    if pat.is_date32(values.type):
        values = values.cast(pa.int32())
    return np.asarray(values.cast(pa.int64()))


def from_integers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return (values.cast(pa.int32()) if pat.is_date32(kind) else values).cast(kind)


def normalized(values: pa.Array) -> pa.Array:
    """Values that are equal in SQL get the same bits: 0.0 and -0.0, all NaNs."""
    if not pat.is_floating(values.type):
        return values
    numbers = values.to_numpy(zero_copy_only=False) + values.type.to_pandas_dtype()(0)
    numbers[np.isnan(numbers)] = np.nan
    return pa.array(numbers, values.type, mask=np.asarray(values.is_null()))
