"""Aggregate functions that are computed from all values of a group: they cannot subtract.

Values come with the number of times that they are there, without nulls. The order in which rows
came is not stored: lists have their values in order, and "first" is the least value.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.views.nodes.deltas import Weights
from headwater.pipelines.views.nodes.inverses import Average, Count, Groups, Sum

EXTREMES: Final = ("min", "max")
BY: Final = ("min_by", "max_by")  # their values are structs: what decides, and the result
ASCENDING, DESCENDING = "asc", "desc"  # of string_agg
_INVERSES: Final = {"sum": Sum, "avg": Average, "count": Count}


def computed(
    function: str,
    group: Groups,
    values: pa.Array,
    times: Weights,
    groups: int,
    result: pa.DataType,
    parameters: tuple[float | str, ...],
) -> pa.Array:
    """The result of each group; null for one without values, or 0 where they are counted."""
    if function in _INVERSES:  # of distinct values
        inverse: Any = _INVERSES[function]("value", values.type)
        nothing = [pa.nulls(groups, kind) for kind in inverse.accumulators]
        rows = pa.table({"value": values})
        return inverse.result(inverse.after(nothing, rows, times, group, groups)).cast(result)
    if function in BY:
        return _by(function, group, values, groups).cast(result)
    order = _sorted(group, values)
    group, values, times = group[order], values.take(pa.array(order)), times[order]
    begins = np.searchsorted(group, np.arange(groups))
    ends = np.searchsorted(group, np.arange(groups), side="right")
    if function in _CHOSEN:
        return _chosen(function, values, begins, ends).cast(result)
    if function == "string_agg":
        return _texts(values, times, begins, ends, *map(str, parameters)).cast(result)
    if function in _LISTS:
        return _lists(function, values, times, begins, ends, result)
    numbers = np.asarray(values.cast(pa.float64()))
    results = [
        _NUMBERS[function](numbers[begin:end], times[begin:end], tuple(map(float, parameters)))
        if end > begin
        else None
        for begin, end in zip(begins, ends, strict=True)
    ]
    return pa.array(results, pa.float64()).cast(result)


_CHOSEN: Final = ("min", "max", "first", "last", "any_value")
_LISTS: Final = ("collect_list", "collect_set")


def _sorted(group: Groups, values: pa.Array) -> npt.NDArray[np.int64]:
    """By group and value. NaN comes after all numbers, as in Spark."""
    keys = [("group", "ascending"), ("value", "ascending")]
    table = pa.table({"group": group, "value": values})
    return np.asarray(pc.sort_indices(table, sort_keys=keys)).astype(np.int64)


def _chosen(
    function: str, values: pa.Array, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> pa.Array:
    at = ends - 1 if function in ("max", "last") else begins
    return values.take(pa.array(at, mask=begins == ends))


def _by(function: str, group: Groups, values: pa.Array, groups: int) -> pa.Array:
    """Of several rows with the extreme, the one with the greatest (or least) result."""
    decisive, results = values.flatten()
    keys = [("group", "ascending"), ("decisive", "ascending"), ("result", "ascending")]
    table = pa.table({"group": group, "decisive": decisive, "result": results})
    order = np.asarray(pc.sort_indices(table, sort_keys=keys)).astype(np.int64)
    begins = np.searchsorted(group[order], np.arange(groups))
    ends = np.searchsorted(group[order], np.arange(groups), side="right")
    at = ends - 1 if function == "max_by" else begins
    return results.take(pa.array(order)).take(pa.array(at, mask=begins == ends))


def _lists(
    function: str,
    values: pa.Array,
    times: Weights,
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    result: pa.DataType,
) -> pa.Array:
    if function == "collect_set":
        times = np.ones_like(times)
    repeated = values.take(pa.array(np.repeat(np.arange(len(values)), times)))
    before = np.concatenate([[0], np.cumsum(times)])
    offsets = np.concatenate([before[begins], before[ends[-1:]]]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), repeated).cast(result)


def _texts(
    values: pa.Array,
    times: Weights,
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    delimiter: str = "",
    order: str = ASCENDING,
) -> pa.Array:
    repeated = values.take(pa.array(np.repeat(np.arange(len(values)), times))).to_pylist()
    before = np.concatenate([[0], np.cumsum(times)])
    step = -1 if order == DESCENDING else 1
    return pa.array(
        delimiter.join(repeated[before[begin] : before[end]][::step]) if end > begin else None
        for begin, end in zip(begins, ends, strict=True)
    )


Numbers = npt.NDArray[np.float64]


def _moments(values: Numbers, times: Weights) -> tuple[float, float, Numbers]:
    count = float(times.sum())
    mean = float((values * times).sum()) / count
    return count, mean, values - mean


def _variance(values: Numbers, times: Weights, *, is_sample: bool) -> float | None:
    count, _, away = _moments(values, times)
    if is_sample and count < 2:
        return None
    return float((away**2 * times).sum()) / (count - is_sample)


def _deviation(values: Numbers, times: Weights, *, is_sample: bool) -> float | None:
    variance = _variance(values, times, is_sample=is_sample)
    return None if variance is None else float(np.sqrt(variance))


def _percentile(values: Numbers, times: Weights, parameters: tuple[float, ...]) -> float:
    """By linear interpolation between the two nearest values."""
    ends = np.cumsum(times)
    at = parameters[0] * (ends[-1] - 1)
    lower, upper = (
        values[np.searchsorted(ends, np.floor(at) + up, side="right")]
        for up in (0, 1 if at % 1 else 0)
    )
    return float(lower + (upper - lower) * (at % 1))


_NUMBERS: Final[Mapping[str, Callable[[Numbers, Weights, tuple[float, ...]], float | None]]] = {
    "stddev_samp": lambda values, times, _: _deviation(values, times, is_sample=True),
    "stddev_pop": lambda values, times, _: _deviation(values, times, is_sample=False),
    "var_samp": lambda values, times, _: _variance(values, times, is_sample=True),
    "var_pop": lambda values, times, _: _variance(values, times, is_sample=False),
    "percentile": _percentile,
}
FUNCTIONS: Final = frozenset({*_INVERSES, *_CHOSEN, *BY, *_LISTS, *_NUMBERS, "string_agg"})
