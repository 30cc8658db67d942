"""Aggregates over overlapping ranges of rows: a sparse table over power-of-two ranges.

Sliding windows need it. Accumulators can be merged, but not subtracted. So a range is composed of
disjoint blocks of 1, 2, 4, … rows by the binary digits of its length; a block of each width begins
at each row. A row is merged log₂(longest range) times, however many ranges it is in. Nothing is
subtracted, so floats lose no precision, and which blocks are merged depends on the range alone.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.aggregates.contract import Bound, Count
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates

_BYTES_AT_ONCE: Final = 1 << 26  # of accumulators: each row has some temporarily
_MOST_AT_ONCE: Final = 1 << 16

RowNumbers = npt.NDArray[np.int64]


def accumulate_ranges(
    aggregates: NamedAggregates, rows: pa.Table, low: RowNumbers, high: RowNumbers
) -> pa.Table:
    """Accumulators of the rows low … high - 1, for each range; none is empty, and both bounds only
    ever rise.
    """
    schema = aggregates.accumulators_schema
    if not len(low):
        return schema.empty_table()
    columns = [
        column for _, bound in aggregates.bound for column in _in_parts(bound, rows, low, high)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _in_parts(
    bound: Bound, rows: pa.Table, low: RowNumbers, high: RowNumbers
) -> list[pa.ChunkedArray]:
    if isinstance(bound, Count) and bound.column is None:
        return [pa.chunked_array([high - low])]
    parts = []
    at_once = _ranges_at_once(bound, rows)
    for start in range(0, len(low), at_once):
        of_part = slice(start, start + at_once)
        base = int(low[start])
        near = rows.slice(base, int(high[of_part][-1]) - base)
        parts.append(_accumulated(bound, near, low[of_part] - base, high[of_part] - base))
    return [pa.chunked_array(list(columns)) for columns in zip(*parts, strict=True)]


def _ranges_at_once(bound: Bound, rows: pa.Table) -> int:
    """A Bloom filter has kilobytes, a sum has a few bytes."""
    of_one = bound.accumulate(rows.slice(0, 1), np.zeros(1, np.intp), 1)
    size_bytes: int = sum(column.nbytes for column in of_one)
    return max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // max(size_bytes, 1)))


def _accumulated(bound: Bound, rows: pa.Table, low: RowNumbers, high: RowNumbers) -> list[pa.Array]:
    length = high - low
    block = bound.accumulate(rows, np.arange(len(rows)), len(rows))
    reach = high[np.searchsorted(low, np.arange(len(rows)), "right") - 1]
    at = low.copy()
    ranges, parts = [], []  # from the first rows of each range to its last
    width = 1
    while True:
        which = np.flatnonzero(length & width)
        ranges.append(which)
        parts.append([column.take(pa.array(at[which])) for column in block])
        at[which] += width
        if int(length.max()) < 2 * width:
            break
        block = _doubled(bound, block, width, reach)
        width *= 2
    joined = [pa.concat_arrays(columns) for columns in zip(*parts, strict=True)]
    return bound.merge(joined, np.concatenate(ranges), len(low))


def _doubled(bound: Bound, block: list[pa.Array], width: int, reach: RowNumbers) -> list[pa.Array]:
    """Blocks of twice this width. Rows beyond the `reach` of all ranges that contain a row are not
    merged with it: no range has both, and both together may be more than an aggregate allows.
    """
    count = len(block[0]) - width
    within = np.flatnonzero(np.arange(count) + 2 * width <= reach[:count])
    later = pa.array(within + width)
    halves = [pa.concat_arrays([column.slice(0, count), column.take(later)]) for column in block]
    return bound.merge(halves, np.concatenate([np.arange(count), within]), count)
