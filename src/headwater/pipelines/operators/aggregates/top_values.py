"""The most frequent values of a group, exactly.

Sketches that store only the values that look frequent so far (Misra–Gries, Space-Saving) depend on
the order of rows and merges, and a replay would give another result. So all values are counted, and
their number is bounded: more of them are an error, not an estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates.contract import Groups, column_type, present, refused
from headwater.pipelines.operators.aggregates.extremes import (
    ORDERED,
    as_integers,
    from_integers,
    is_integral,
    is_ordered,
    normalized,
)
from headwater.pipelines.operators.aggregates.histograms import as_list, entries, histograms_of
from headwater.pipelines.operators.aggregates.kernels.histograms import most_frequent


@dataclass(frozen=True)
class Top:
    column: str
    most: int
    distinct: int  # values that a group may have

    def __post_init__(self) -> None:
        if not 1 <= self.most <= self.distinct:
            raise PipelineError(
                f"top {self.most} of {self.column}, which may have {self.distinct} distinct values",
                hint='top("page", 10)',
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def bound(self, schema: pa.Schema) -> "BoundTop":
        kind = column_type("top", schema, self.column)
        if not is_ordered(kind):
            raise refused("top", self.column, kind, f"it takes {ORDERED}")
        return BoundTop(self.column, self.most, self.distinct, kind)


@dataclass(frozen=True)
class BoundTop:
    column: str
    most: int
    distinct: int
    kind: pa.DataType

    @property
    def accumulators(self) -> tuple[pa.DataType, ...]:
        return (pa.list_(self.kind), pa.list_(pa.int64()))  # values in their order, their counts

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(pa.struct([("value", self.kind), ("count", pa.int64())]))

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        values, group = present(rows[self.column], group)
        return self._accumulators(normalized(values), group, groups, None)

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        offsets, values = entries(accumulators[0])
        of_entries = np.repeat(group, np.diff(offsets))
        return self._accumulators(
            values, of_entries, groups, np.asarray(entries(accumulators[1])[1])
        )

    def result(self, accumulators: Sequence[pa.Array], start_us: Any, end_us: Any) -> pa.Array:
        (offsets, values), (_, counts) = entries(accumulators[0]), entries(accumulators[1])
        starts, chosen = most_frequent(offsets, np.asarray(counts), self.most)
        taken = [column.take(pa.array(chosen)) for column in (values, counts)]
        fields = list(self.result_type.value_type)
        return as_list(starts, pa.StructArray.from_arrays(taken, fields=fields))

    def _accumulators(
        self, values: pa.Array, group: Groups, groups: int, counts: npt.NDArray[np.int64] | None
    ) -> list[pa.Array]:
        if is_integral(self.kind):
            found = histograms_of(group, groups, as_integers(values), counts)
            of_keys = from_integers(pa.array(found.keys), self.kind)
        else:
            encoded = values.dictionary_encode()
            order = pc.sort_indices(encoded.dictionary)
            rank = np.empty(len(order), np.int64)
            rank[np.asarray(order)] = np.arange(len(order))
            found = histograms_of(group, groups, rank[np.asarray(encoded.indices)], counts)
            of_keys = encoded.dictionary.take(order).take(pa.array(found.keys))
        sizes = np.diff(found.offsets)
        if len(sizes) and sizes.max() > self.distinct:
            raise PipelineError(
                f"top of {self.column}: a group has {sizes.max()} distinct values",
                detail=f"at most {self.distinct} are counted",
                hint="count something coarser, or take smaller windows or groups, or allow more:"
                f' top("{self.column}", {self.most}, distinct=…)',
            )
        return [as_list(found.offsets, of_keys), as_list(found.offsets, pa.array(found.counts))]
