"""Window functions over rows that are sorted by partition and order, all partitions at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from headwater.errors import PipelineError

Numbers = npt.NDArray[np.int64]
_BEFORE_ALL: Final = np.int64(-(2**62))
_AFTER_ALL: Final = np.int64(2**62)
_RANKING: Final = (
    "row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile",
)  # fmt: skip
_SHIFTED: Final = ("lag", "lead")
_IN_FRAME: Final = ("count", "sum", "avg", "min", "max", "first", "last", "nth_value")
MERGED_SESSION: Final = "session"  # of sessions in the order of their starts, those that overlap
FUNCTIONS: Final = frozenset({*_RANKING, *_SHIFTED, *_IN_FRAME})


@dataclass(frozen=True)
class SortKey:
    column: str
    is_descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Frame:
    """ROWS or RANGE BETWEEN. A bound is a number of rows or a distance of values (of times
    microseconds, of dates days). None is unbounded; in a RANGE, 0 is the current row with all its
    peers.
    """

    is_rows: bool
    lower: float | None
    upper: float | None


@dataclass(frozen=True)
class WindowCall:
    function: str
    column: str | None
    result: pa.DataType
    frame: Frame
    number: int = 0  # rows of lag and lead, buckets of ntile, n of nth_value
    default: str | None = None  # the column that lag and lead give beyond the partition
    ignores_nulls: bool = False


def codes_of(column: pa.ChunkedArray, key: SortKey) -> Numbers:
    """Numbers that sort as the values do, nulls included."""
    array = column.combine_chunks()
    codes = value_codes(array)
    if key.is_descending:
        codes = -codes
    is_null = np.asarray(array.is_null())
    return np.where(is_null, _BEFORE_ALL if key.nulls_first else _AFTER_ALL, codes)


def value_codes(array: pa.Array) -> Numbers:
    """Numbers that sort as the values do. NaN is the greatest, -0.0 is 0.0, as in Spark."""
    if pat.is_floating(array.type):
        values = np.asarray(array.cast(pa.float64()).fill_null(0.0)) + 0.0
        return np.unique(values, return_inverse=True)[1].astype(np.int64)
    ranks = pc.rank(array, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(ranks).astype(np.int64)


class SortedPartitions:
    """Where the partition and the peers of each row begin and end."""

    def __init__(self, which: Numbers, codes: Sequence[Numbers]) -> None:
        self.size = len(which)
        self.row = np.arange(self.size)
        is_first = _changes([which])
        self.start, self.end = _ranges(is_first)
        is_peer_first = is_first | (_changes(codes) if codes else False)
        self.peer_start, self.peer_end = _ranges(is_peer_first)
        self.peer_number = np.cumsum(is_peer_first) - 1  # over all partitions


def _changes(columns: Sequence[Numbers]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(columns[0]), np.bool_)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def _ranges(is_first: npt.NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    begins = np.flatnonzero(is_first)
    ends = np.append(begins[1:], len(is_first))
    which = np.cumsum(is_first) - 1
    return begins[which], ends[which]


def window_column(
    call: WindowCall, partitions: SortedPartitions, rows: pa.Table, order: Sequence[SortKey]
) -> pa.Array:
    if not partitions.size:
        return pa.nulls(0, call.result)
    if call.function in _RANKING:
        return pa.array(_ranking(call, partitions))
    column = rows[call.column].combine_chunks() if call.column is not None else None
    if call.function in _SHIFTED:
        assert column is not None
        return _shifted(call, partitions, rows, column)
    if call.function == MERGED_SESSION:
        assert column is not None
        return _merged_sessions(partitions, column)
    low, high = _frame(call.frame, partitions, rows, order)
    return _in_frame(call, partitions, column, low, high)


def _ranking(call: WindowCall, on: SortedPartitions) -> npt.NDArray[Any]:
    within = on.row - on.start
    count = on.end - on.start
    match call.function:
        case "row_number":
            return within + 1
        case "rank":
            return on.peer_start - on.start + 1
        case "dense_rank":
            return on.peer_number - on.peer_number[on.start] + 1
        case "percent_rank":
            return np.where(count > 1, (on.peer_start - on.start) / np.maximum(count - 1, 1), 0.0)
        case "cume_dist":
            return (on.peer_end - on.start) / count
    small, larger = count // call.number, count % call.number  # ntile
    in_larger = larger * (small + 1)
    return np.where(
        within < in_larger,
        within // (small + 1) + 1,
        larger + (within - in_larger) // np.maximum(small, 1) + 1,
    )


def _shifted(call: WindowCall, on: SortedPartitions, rows: pa.Table, column: pa.Array) -> pa.Array:
    step = -call.number if call.function == "lag" else call.number
    if call.ignores_nulls and step:
        at = _nth_present(on, np.asarray(column.is_valid()), step)
    else:
        at = on.row + step
    is_inside = (at >= on.start) & (at < on.end)
    found = column.take(pa.array(np.where(is_inside, at, 0)))
    default = (
        rows[call.default].combine_chunks().cast(found.type)
        if call.default is not None
        else pa.scalar(None, found.type)
    )
    return pc.if_else(pa.array(is_inside), found, default)


def _nth_present(on: SortedPartitions, is_present: npt.NDArray[np.bool_], step: int) -> Numbers:
    """The row that is `step` rows with a value away; -1 if there is none."""
    present = np.flatnonzero(is_present)
    if not len(present):
        return np.full(on.size, -1)
    before = np.searchsorted(present, on.row)  # how many rows with a value come before
    at = before + step if step < 0 else before + step - 1 + is_present[on.row].astype(np.int64)
    is_there = (at >= 0) & (at < len(present))
    return np.where(is_there, present[np.clip(at, 0, len(present) - 1)], -1)


def _merged_sessions(on: SortedPartitions, column: pa.Array) -> pa.Array:
    """Of each row, from the first start to the last end of the sessions that overlap or touch its
    own. Rows come in the order of their starts. All of a partition have a session, or none.
    """
    starts, ends = (column.field(at) for at in (0, 1))
    start_us, end_us = (np.asarray(one.cast(pa.int64()).fill_null(0)) for one in (starts, ends))
    is_first = on.row == on.start
    last_us = np.empty(on.size, np.int64)  # the latest end of this partition's rows until here
    for begin in np.unique(on.start):
        inside = slice(begin, on.end[begin])
        last_us[inside] = np.maximum.accumulate(end_us[inside])
    is_first[1:] |= start_us[1:] > last_us[:-1]
    begins, stops = _ranges(is_first)
    kinds = [starts.type, ends.type]
    columns = [pa.array(start_us[begins]), pa.array(last_us[stops - 1])]
    arrays = [one.cast(kind) for one, kind in zip(columns, kinds, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(column.type), mask=column.is_null())


def _frame(
    frame: Frame, on: SortedPartitions, rows: pa.Table, order: Sequence[SortKey]
) -> tuple[Numbers, Numbers]:
    """The first row of each frame, and the one behind its last."""
    if frame.is_rows:
        low = on.start if frame.lower is None else on.row + int(frame.lower)
        high = on.end if frame.upper is None else on.row + int(frame.upper) + 1
    else:
        low = on.start if frame.lower is None else _by_value(frame.lower, on, rows, order, 0)
        high = on.end if frame.upper is None else _by_value(frame.upper, on, rows, order, 1)
    low = np.clip(low, on.start, on.end)
    return low, np.maximum(np.clip(high, on.start, on.end), low)


def _by_value(
    distance: float, on: SortedPartitions, rows: pa.Table, order: Sequence[SortKey], side: int
) -> Numbers:
    if not distance:
        return on.peer_end if side else on.peer_start
    (key,) = order
    array = rows[key.column].combine_chunks()
    values = _distances(array)
    if key.is_descending:
        values = -values
    is_null = np.asarray(array.is_null())
    found = np.empty(on.size, np.int64)
    for start in np.unique(on.start):
        end = on.end[start]
        inside = slice(start, end)
        present = np.flatnonzero(~is_null[inside]) + start
        if len(present):
            begin, stop = present[0], present[-1] + 1
            bounds = np.searchsorted(
                values[begin:stop],
                values[inside] + distance,
                side="right" if side else "left",
            )
            found[inside] = begin + bounds
    peers = on.peer_end if side else on.peer_start
    return np.where(is_null, peers, found)


def _distances(array: pa.Array) -> npt.NDArray[Any]:
    """Numbers whose differences are those of the values."""
    if pat.is_date(array.type):
        array = array.cast(pa.int32())
    elif pat.is_timestamp(array.type):
        return np.asarray(array.cast(pa.int64()).fill_null(0))
    return np.asarray(array.cast(pa.float64()).fill_null(0.0))


def _in_frame(
    call: WindowCall, on: SortedPartitions, column: pa.Array | None, low: Numbers, high: Numbers
) -> pa.Array:
    if column is None:
        return pa.array(high - low)  # count(*)
    is_present = np.asarray(column.is_valid())
    before = np.concatenate([[0], np.cumsum(is_present)])
    counts = before[high] - before[low]
    match call.function:
        case "count":
            return pa.array(counts)
        case "sum" | "avg":
            return _sums(call, on, column, low, high, counts)
        case "min" | "max":
            return _extremes(call.function, on, column, low, high)
    if call.ignores_nulls:
        present = np.flatnonzero(is_present)
        first, last = before[low], before[high] - 1
        at, is_there = (first, last), last >= first
        chosen = (
            at[0] + call.number - 1 if call.function == "nth_value" else at[call.function == "last"]
        )
        is_there &= (chosen <= last) & (chosen >= first)
        rows = present[np.clip(chosen, 0, max(len(present) - 1, 0))] if len(present) else on.row
    else:
        rows = high - 1 if call.function == "last" else low + max(call.number - 1, 0)
        is_there = (rows >= low) & (rows < high)
    return column.take(pa.array(np.where(is_there, rows, 0), mask=~is_there))


def _sums(
    call: WindowCall, on: SortedPartitions, column: pa.Array, low: Numbers, high: Numbers,
    counts: Numbers,
) -> pa.Array:  # fmt: skip
    is_empty = counts == 0
    divisor = np.maximum(counts, 1)
    if pat.is_floating(column.type):
        values = np.asarray(column.cast(pa.float64()).fill_null(0.0))
        sums = _float_sums(values, on, low, high)
        return pa.array(sums / divisor if call.function == "avg" else sums, mask=is_empty)
    if pat.is_decimal(column.type):
        return _decimal_sums(call, column, low, high, counts)
    integers = np.asarray(column.cast(pa.int64()).fill_null(0)).astype(object)
    before = np.concatenate([np.zeros(1, object), np.cumsum(integers)])
    totals = before[high] - before[low]
    if call.function == "avg":
        return pa.array((totals / divisor).astype(np.float64), mask=is_empty)
    try:
        return pa.array(totals.astype(np.int64), mask=is_empty)
    except OverflowError as error:
        raise PipelineError(
            "a sum of a window function is too large for a bigint",
            hint="sum decimals instead: CAST(… AS decimal(38,0))",
        ) from error


def _decimal_sums(
    call: WindowCall, column: pa.Array, low: Numbers, high: Numbers, counts: Numbers
) -> pa.Array:
    scale = column.type.scale
    units = [0 if value is None else int(value.scaleb(scale)) for value in column.to_pylist()]
    before = np.concatenate([np.zeros(1, object), np.cumsum(np.array(units, object))])
    totals = before[high] - before[low]
    if call.function == "avg":
        more = call.result.scale - scale
        totals = [_rounded(int(t) * 10**more, int(n)) for t, n in zip(totals, counts, strict=True)]
    digits = call.result.scale
    values = [
        _decimal(int(total), digits) if count else None
        for total, count in zip(totals, counts, strict=True)
    ]
    return pa.array(values, call.result)


def _rounded(total: int, count: int) -> int:
    if not count:
        return 0
    quotient, rest = divmod(abs(total), count)
    quotient += 2 * rest >= count
    return quotient if total >= 0 else -quotient


def _decimal(units: int, scale: int) -> Any:
    from decimal import Decimal

    return Decimal((units < 0, tuple(map(int, str(abs(units)))), -scale))


def _float_sums(
    values: npt.NDArray[np.float64], on: SortedPartitions, low: Numbers, high: Numbers
) -> npt.NDArray[np.float64]:
    """Frames that begin with their partition are summed from there on, others each by itself: a
    difference of two running sums would be of other digits, and NaN would never leave it.
    """
    sums = np.zeros(on.size)
    if (low == on.start).all():
        for start in np.unique(on.start):
            inside = slice(start, on.end[start])
            running = np.concatenate([[0.0], np.cumsum(values[inside])])
            sums[inside] = running[high[inside] - start]
        return sums
    for row in range(on.size):
        sums[row] = values[low[row] : high[row]].sum()
    return sums


def _extremes(
    function: str, on: SortedPartitions, column: pa.Array, low: Numbers, high: Numbers
) -> pa.Array:
    sign = 1 if function == "min" else -1
    codes = np.where(np.asarray(column.is_valid()), value_codes(column) * sign, _AFTER_ALL)
    at = np.zeros(on.size, np.int64)
    if (low == on.start).all():
        for start in np.unique(on.start):
            inside = slice(start, on.end[start])
            of_partition = codes[inside]
            least = np.minimum.accumulate(of_partition)
            is_new = np.concatenate([[True], least[1:] < least[:-1]])
            best = np.maximum.accumulate(np.where(is_new, np.arange(len(least)), 0))
            last = np.maximum(high[inside] - 1 - start, 0)
            at[inside] = best[last] + start
    else:
        for row in range(on.size):
            if low[row] < high[row]:
                at[row] = low[row] + int(np.argmin(codes[low[row] : high[row]]))
    is_there = (low < high) & (codes[at] != _AFTER_ALL)
    return column.take(pa.array(at, mask=~is_there))
