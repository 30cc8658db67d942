"""Percentiles by logarithmic bins (DDSketch, Masson et al., 2019), the same for any merge order.

A bin is all doubles that agree in sign, exponent and the first 6 bits of the mantissa: its bounds
are at most 1/64 apart, so its middle is off by at most 1/128 = 0.8 % of a value in it. To find the
bin of a double is a shift of its bits, and the same on every machine, which a logarithm is not.
There are 64 bins for each power of two; integers up to 127 have one each. The least and the
greatest value are stored too, and exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates.contract import Groups, column_type, present, refused
from headwater.pipelines.operators.aggregates.extremes import BoundExtreme
from headwater.pipelines.operators.aggregates.histograms import (
    Histograms,
    as_list,
    entries,
    histograms_of,
)
from headwater.pipelines.operators.aggregates.kernels.histograms import key_at_rank

_SHIFT: Final = 46  # of the 52 bits of a mantissa
_FINEST: Final = 1_000_000  # of a share; ranks are exact


@dataclass(frozen=True)
class Percentiles:
    """The value of rank ⌈share · n⌉ of n: one for each share, or the only one by itself."""

    column: str
    shares: tuple[float, ...]
    is_single: bool

    def __post_init__(self) -> None:
        for share in self.shares:
            if not 0 <= share <= 1:
                raise PipelineError(
                    f"percentile of {self.column}: {share} is not between 0 and 1",
                    hint="the 99th percentile is 0.99",
                )
        if not self.shares:
            raise PipelineError(f"percentiles of {self.column}: which?", hint="[0.5, 0.9, 0.99]")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def bound(self, schema: pa.Schema) -> "BoundPercentiles":
        kind = column_type("percentile", schema, self.column)
        is_integer = bool(pat.is_signed_integer(kind))
        if not (is_integer or pat.is_floating(kind) or pat.is_decimal(kind)):
            raise refused("percentile", self.column, kind, "it takes numbers")
        return BoundPercentiles(self.column, self.shares, self.is_single, is_integer)


@dataclass(frozen=True)
class BoundPercentiles:
    column: str
    shares: tuple[float, ...]
    is_single: bool
    is_integer: bool

    accumulators = (
        pa.float64(),  # the least value
        pa.float64(),  # the greatest
        pa.list_(pa.int32()),  # bins
        pa.list_(pa.int64()),  # how many values are in each
    )

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64() if self.is_single else pa.list_(pa.float64())

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        values, group = present(rows[self.column], group)
        values = values.cast(pa.float64(), safe=False)  # a double has 53 bits of an integer
        of_bins = histograms_of(group, groups, _bins(np.asarray(values)))
        return [*self._bounds(values, values, group, groups), *_lists(of_bins)]

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        least, greatest, bins, counts = accumulators
        offsets, keys = entries(bins)
        of_bins = histograms_of(
            np.repeat(group, np.diff(offsets)),
            groups,
            np.asarray(keys.cast(pa.int64())),
            np.asarray(entries(counts)[1]),
        )
        return [*self._bounds(least, greatest, group, groups), *_lists(of_bins)]

    def result(self, accumulators: Sequence[pa.Array], start_us: Any, end_us: Any) -> pa.Array:
        least, greatest, bins, counts = accumulators
        offsets, keys = entries(bins)
        in_bins = np.asarray(entries(counts)[1])
        numbers = np.add.reduceat(np.append(in_bins, 0), offsets[:-1]) * (np.diff(offsets) > 0)
        found = []
        for share in self.shares:
            ranks = _ranks(share, numbers)
            middles = _middles(
                key_at_rank(offsets, np.asarray(keys), in_bins, ranks), self.is_integer
            )
            found.append(_within(pa.array(middles), ranks == 1, ranks == numbers, least, greatest))
        if self.is_single:
            return found[0]
        several = np.array([np.asarray(values.fill_null(0)) for values in found]).T
        ends = np.arange(len(least) + 1, dtype=np.int32) * len(self.shares)
        mask = pa.array(numbers == 0)
        return pa.ListArray.from_arrays(pa.array(ends), pa.array(several.ravel()), mask=mask)

    def _bounds(
        self, lows: pa.Array, highs: pa.Array, group: Groups, groups: int
    ) -> tuple[pa.Array, pa.Array]:
        kind = pa.float64()
        (low,) = BoundExtreme(self.column, False, kind).merge([lows], group, groups)
        (high,) = BoundExtreme(self.column, True, kind).merge([highs], group, groups)
        return low, high


def _within(
    middles: pa.Array,
    is_least: npt.NDArray[np.bool_],
    is_greatest: npt.NDArray[np.bool_],
    least: pa.Array,
    greatest: pa.Array,
) -> pa.Array:
    """No percentile is beyond the least and the greatest value; they themselves are exact."""
    above = pc.if_else(pc.or_(pa.array(is_least), pc.less(middles, least)), least, middles)
    return pc.if_else(
        pc.or_(pa.array(is_greatest & ~is_least), pc.greater(above, greatest)), greatest, above
    )


def _ranks(share: float, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    exact = Fraction(str(share)).limit_denominator(_FINEST)
    ranks = -(-numbers * exact.numerator // exact.denominator)
    return np.where(numbers > 0, np.maximum(ranks, 1), 0)


def _bins(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """In the order of the values; NaN is the greatest. Bin 0 is zero, and all that is less than
    10⁻³⁰⁸ away from it.
    """
    bins = np.abs(values).view(np.int64) >> _SHIFT
    bins[np.isnan(values)] = _NAN
    return np.where(values < 0, -bins, bins)


def _middles(bins: npt.NDArray[np.int64], is_integer: bool) -> npt.NDArray[np.float64]:
    """Of what may lie in the bin; infinity and NaN are alone in theirs."""
    start = np.abs(bins) << _SHIFT
    middle = (start + (1 << _SHIFT - 1)).view(np.float64)
    if is_integer:
        last = np.ceil((start + (1 << _SHIFT)).view(np.float64)) - 1
        middle = (np.ceil(start.view(np.float64)) + last) / 2
    middle = np.where(np.abs(bins) >= _INFINITE, start.view(np.float64), middle)
    return np.where(bins == 0, 0.0, np.copysign(middle, bins))


_INFINITE: Final = int(np.array(np.inf).view(np.int64)) >> _SHIFT
_NAN: Final = int(np.array(np.nan).view(np.int64)) >> _SHIFT


def _lists(of_bins: Histograms) -> list[pa.Array]:
    return [
        as_list(of_bins.offsets, pa.array(of_bins.keys, pa.int32())),
        as_list(of_bins.offsets, pa.array(of_bins.counts)),
    ]
