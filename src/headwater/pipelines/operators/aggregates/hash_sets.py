"""Sets of hashes, one for each group: exact while small, then a sketch of fixed size.

A hundred thousand groups of a few values take a few words each; large sets are Bloom filters or
HyperLogLog registers (kernels/hash_sets.py).

Which form a set has depends on how many distinct hashes it has, and on nothing else.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.pipelines.operators.aggregates.contract import Groups, present
from headwater.pipelines.operators.aggregates.histograms import Integers, entries
from headwater.pipelines.operators.aggregates.kernels.hash_sets import unite
from headwater.pipelines.operators.runtime.hashing import Hashes, hashes

WORDS: Final = pa.large_list(pa.uint64())


@dataclass(frozen=True)
class HashSets:
    size: int  # words of the full form
    probes: int  # of a Bloom filter; 0: the full form are the registers of a HyperLogLog

    def of_values(self, column: pa.ChunkedArray, group: Groups, groups: int) -> pa.Array:
        values, group = present(column, group)
        ends = np.arange(len(values) + 1, dtype=np.int64)
        return self._united(hashes(values), ends, group, groups)

    def merged(self, sets: pa.Array, group: Groups, groups: int) -> pa.Array:
        words, offsets = words_of(sets)
        return self._united(words, offsets, group, groups)

    def _united(self, words: Hashes, offsets: Integers, group: Groups, groups: int) -> pa.Array:
        ends, united = unite(group, groups, words, offsets, self.size, self.probes)
        return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(united))


def words_of(sets: pa.Array) -> tuple[Hashes, Integers]:
    offsets, words = entries(sets)
    return np.asarray(words), offsets
