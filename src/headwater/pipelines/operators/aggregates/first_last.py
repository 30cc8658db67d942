"""The first or last value of a group by event time.

Partitions have no order among each other, so event time decides, and among equal times the offset:
the lower one is first. Rows with the same time and the same offset, in two partitions, are ordered
by their values. So the choice depends on the rows alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.aggregates.contract import Groups, column_type, refused
from headwater.pipelines.operators.aggregates.extremes import (
    ORDERED,
    as_integers,
    is_integral,
    is_ordered,
    normalized,
)
from headwater.pipelines.operators.aggregates.kernels.aggregates import ends_of_order
from headwater.pipelines.operators.runtime.contract import OFFSET, TIME


@dataclass(frozen=True)
class FirstOrLast:
    column: str
    is_last: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def bound(self, schema: pa.Schema) -> "BoundFirstOrLast":
        name = "last" if self.is_last else "first"
        kind = column_type(name, schema, self.column)
        if not is_ordered(kind):
            raise refused(name, self.column, kind, f"{name} takes {ORDERED}")
        return BoundFirstOrLast(self.column, self.is_last, kind)


@dataclass(frozen=True)
class BoundFirstOrLast:
    column: str
    is_last: bool
    kind: pa.DataType

    @property
    def accumulators(self) -> tuple[pa.DataType, ...]:
        return (pa.int64(), pa.int64(), self.kind)  # time, offset, value; all null: there is none

    @property
    def result_type(self) -> pa.DataType:
        return self.kind

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        given = [rows[name].combine_chunks() for name in (TIME, OFFSET, self.column)]
        return self._chosen([*given[:2], normalized(given[2])], group, groups)

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        return self._chosen(accumulators, group, groups)

    def result(self, accumulators: Sequence[pa.Array], start_us: Any, end_us: Any) -> pa.Array:
        return accumulators[2]

    def _chosen(self, given: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        if given[2].null_count:
            is_valid = given[2].is_valid()
            group = group[np.asarray(is_valid)]
            given = [column.filter(is_valid) for column in given]
        times, offsets = np.asarray(given[0]), np.asarray(given[1])
        ranks = np.zeros(len(group), np.int64)
        rows, are_equal = ends_of_order(group, groups, times, offsets, ranks, self.is_last)
        if are_equal:
            ranks = _ranks(given[2])
            rows, _ = ends_of_order(group, groups, times, offsets, ranks, self.is_last)
        taken = pa.array(rows, mask=rows < 0)
        return [column.take(taken) for column in given]


def _ranks(values: pa.Array) -> npt.NDArray[np.int64]:
    if is_integral(values.type):
        return as_integers(values)
    return np.asarray(pc.rank(values, tiebreaker="min")).astype(np.int64)
