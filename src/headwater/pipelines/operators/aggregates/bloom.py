"""Bloom filters (Bloom, 1970) of the values of a group, and the test for membership.

A filter is bytes, for a column of any store: words of 64 bits in little-endian order.

    header   probes (8 bits), version (8), family of the value's type (16), size in words (32)
    words    fewer than the size: the hashes themselves, in order. Else: the bits
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates.contract import Groups, column_type, refused
from headwater.pipelines.operators.aggregates.extremes import ORDERED, is_ordered
from headwater.pipelines.operators.aggregates.hash_sets import WORDS, HashSets, words_of
from headwater.pipelines.operators.aggregates.kernels.hash_sets import contained
from headwater.pipelines.operators.runtime.hashing import family, hashes

if TYPE_CHECKING:
    from pyspark.sql import Column

_VERSION: Final = 1
_MOST: Final = 100_000_000  # values: a filter of 1 % takes 120 MB


@dataclass(frozen=True)
class Bloom:
    column: str
    expected: int  # distinct values, for which the share of false positives holds
    false_positives: float

    def __post_init__(self) -> None:
        if not 1 <= self.expected <= _MOST:
            raise PipelineError(
                f"bloom of {self.column}: expected={self.expected}",
                hint=f"how many distinct values a window has, at most {_MOST}",
            )
        if not 1e-9 <= self.false_positives <= 0.5:
            raise PipelineError(
                f"bloom of {self.column}: false_positives={self.false_positives}",
                hint="the share of other values that may seem to be in it, e.g. 0.01",
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def bound(self, schema: pa.Schema) -> "BoundBloom":
        kind = column_type("bloom", schema, self.column)
        if not is_ordered(kind):
            raise refused("bloom", self.column, kind, f"it takes {ORDERED}")
        bits = -self.expected * math.log(self.false_positives) / math.log(2) ** 2
        probes = round(bits / self.expected * math.log(2))
        return BoundBloom(self.column, HashSets(math.ceil(bits / 64), max(probes, 1)), family(kind))


@dataclass(frozen=True)
class BoundBloom:
    column: str
    sets: HashSets
    family: int

    accumulators = (WORDS,)
    result_type = pa.binary()

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        return [self.sets.of_values(rows[self.column], group, groups)]

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        return [self.sets.merged(accumulators[0], group, groups)]

    def result(self, accumulators: Sequence[pa.Array], start_us: Any, end_us: Any) -> pa.Array:
        words, offsets = words_of(accumulators[0])
        header = self.sets.probes | _VERSION << 8 | self.family << 16 | self.sets.size << 32
        with_headers = np.insert(words, offsets[:-1], np.uint64(header)).astype("<u8")
        ends = (offsets + np.arange(len(offsets))) * 8
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(with_headers)]
        wide = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
        return wide.cast(pa.binary())


def might_contain(filters: "Column | str", values: "Column | str") -> "Column":
    """False: the value was not in the window. True: it was, or is one of the few false positives.
    Null if the filter or the value is.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.functions import arrow_udf

    test = arrow_udf(_test, "boolean")  # type: ignore[call-overload]
    given = [
        F.col(argument) if isinstance(argument, str) else argument for argument in (filters, values)
    ]
    found: Column = test(*given)
    return found


def _test(filters: pa.Array, values: pa.Array) -> pa.Array:
    is_valid = pc.and_(filters.is_valid(), values.is_valid())
    some, of_some = filters.filter(is_valid).cast(pa.large_binary()), values.filter(is_valid)
    words, offsets = _checked(some, of_some.type)
    found = pa.array(contained(words, offsets, hashes(of_some)), pa.bool_())
    index = np.cumsum(np.asarray(is_valid)) - 1
    return found.take(pa.array(index, mask=~np.asarray(is_valid)))


def _checked(filters: pa.Array, kind: pa.DataType) -> tuple[Any, Any]:
    """The words of all filters, and where each begins."""
    _, ends, data = filters.buffers()
    bounds = np.frombuffer(ends, np.int64, len(filters) + 1, filters.offset * 8)
    if (np.diff(bounds) < 8).any() or (np.diff(bounds) % 8).any():
        raise PipelineError("might_contain: what it is given is no filter of hw.agg.bloom")
    offsets = (bounds - bounds[0]) // 8
    words = np.frombuffer(data or b"", "<u8", int(offsets[-1]), int(bounds[0]))
    headers = words[offsets[:-1]]
    if ((headers >> 8 & 0xFF) != _VERSION).any():
        raise PipelineError("might_contain: what it is given is no filter of hw.agg.bloom")
    if not is_ordered(kind) or ((headers >> 16 & 0xFFFF) != family(kind)).any():
        raise PipelineError(
            f"might_contain: values are {kind}, those of the filter are of another type",
            hint="cast the values to the type that the column of hw.agg.bloom had",
        )
    return words, offsets
