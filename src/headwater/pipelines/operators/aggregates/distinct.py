"""Distinct counts: exact up to 511 values, then HyperLogLog with 4096 registers.

The standard error of HyperLogLog (Flajolet et al., 2007) is 1.04 / √4096 = 1.6 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headwater.pipelines.operators.aggregates.contract import Groups, column_type, refused
from headwater.pipelines.operators.aggregates.extremes import ORDERED, is_ordered
from headwater.pipelines.operators.aggregates.hash_sets import WORDS, HashSets, words_of
from headwater.pipelines.operators.aggregates.kernels.hash_sets import cardinalities

_SETS: Final = HashSets(size=4096 // 8, probes=0)


@dataclass(frozen=True)
class Distinct:
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    accumulators = (WORDS,)
    result_type = pa.int64()

    def bound(self, schema: pa.Schema) -> "Distinct":
        kind = column_type("distinct", schema, self.column)
        if not is_ordered(kind):
            raise refused("distinct", self.column, kind, f"it takes {ORDERED}")
        return self

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        return [_SETS.of_values(rows[self.column], group, groups)]

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        return [_SETS.merged(accumulators[0], group, groups)]

    def result(self, accumulators: Sequence[pa.Array], start_us: Any, end_us: Any) -> pa.Array:
        return pa.array(cardinalities(*words_of(accumulators[0]), _SETS.size))
