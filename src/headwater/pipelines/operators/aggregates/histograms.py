"""Histograms: for each group, a list of its keys in ascending order, and one of their counts.

Percentiles count bins, top counts values.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.aggregates.contract import Groups
from headwater.pipelines.operators.aggregates.kernels.histograms import count_keys

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Histograms:
    offsets: Integers  # of each group's first entry, and the end
    keys: Integers
    counts: Integers


def histograms_of(
    group: Groups, groups: int, keys: Integers, weights: Integers | None = None
) -> Histograms:
    if weights is None:
        weights = np.ones(len(keys), np.int64)
    return Histograms(*count_keys(group, groups, keys, weights))


def as_list(offsets: Integers, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def entries(lists: pa.ListArray) -> tuple[Integers, pa.Array]:
    """The offset of each list among the values, from 0, and the values."""
    offsets = np.asarray(lists.offsets).astype(np.int64)
    return offsets - offsets[0], lists.flatten()
