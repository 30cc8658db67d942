"""Key groups: ranges of the hash of a key, by which rows and state are assigned to buckets.

A key group is one of 4,096 equal ranges of the first word of a key's hash (row_hashes.py), as
Flink's key groups are (Carbone et al., "State Management in Apache Flink", 2017). A bucket has
adjacent groups. The group of a key never changes; so the state of some buckets can be split and
merged into that of another number of buckets (engine/rescaling.py).

The hash is computed in Python and not by Spark: sorted state stores it, and is split by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.state.row_hashes import hashes_of

_BITS: Final = 12
KEY_GROUPS: Final = 1 << _BITS  # recorded with the state: it cannot change while state exists

Buckets = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
KeyColumns = Sequence[pa.Array | pa.ChunkedArray]


def buckets_of(key: KeyColumns, rows: int, buckets: int) -> Buckets:
    """The bucket of each row. Without columns all rows have the same key."""
    if not key or not rows or buckets == 1:
        return np.zeros(rows, np.int64)
    return _buckets(hashes_of(key)[:, 0] >> np.uint64(64 - _BITS), buckets)


def _buckets(groups: npt.NDArray[np.uint64], buckets: int) -> Buckets:
    return groups.astype(np.int64) * buckets >> _BITS


@dataclass(frozen=True, slots=True)
class Share:
    """The keys of one bucket of so many."""

    bucket: int
    buckets: int

    def of_rows(self, rows: pa.Table, key: Sequence[str]) -> Flags:
        """Which rows have these keys; `key` are the columns of it."""
        columns = [rows[name] for name in key]
        found: Flags = buckets_of(columns, len(rows), self.buckets) == self.bucket
        return found

    def of_hashes(self, first: npt.NDArray[np.uint64]) -> Flags:
        """The same by the first words of the keys' hashes."""
        groups = first >> np.uint64(64 - _BITS)
        found: Flags = _buckets(groups, self.buckets) == self.bucket
        return found

    def overlaps(self, other: "Share") -> bool:
        """Whether a key can be in both."""
        groups = np.arange(KEY_GROUPS, dtype=np.uint64)
        is_here = _buckets(groups, self.buckets) == self.bucket
        return bool(np.any(is_here & (_buckets(groups, other.buckets) == other.bucket)))
