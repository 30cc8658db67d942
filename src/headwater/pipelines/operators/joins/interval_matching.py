"""Numba kernel of the interval join: a sort-merge join of two runs by hash and time."""

import numpy as np
import numpy.typing as npt

from headwater.jit import kernel

Int64s = npt.NDArray[np.int64]


@kernel
def _first_at(hashes: Int64s, times: Int64s, start: int, wanted: int, time_us: int) -> int:
    """The first row from `start` on that is not before (wanted, time_us), by galloping (exponential
    search): with sorted queries it costs the logarithm of the distance.
    """
    low, step, count = start, 1, len(hashes)
    while low < count and (
        hashes[low] < wanted or (hashes[low] == wanted and times[low] < time_us)
    ):
        start = low + 1
        low += step
        step *= 2
    high = min(low, count)
    while start < high:
        middle = (start + high) // 2
        if hashes[middle] < wanted or (hashes[middle] == wanted and times[middle] < time_us):
            start = middle + 1
        else:
            high = middle
    return start


@kernel
def matching(
    asking_hashes: Int64s,
    asking_times: Int64s,
    hashes: Int64s,
    times: Int64s,
    back_us: int,
    ahead_us: int,
) -> tuple[Int64s, Int64s]:
    """All pairs, as row numbers: an asking row at t meets rows of its hash from t - back_us to
    t + ahead_us, both included. Both runs are sorted by hash, then time.
    """
    asking = len(asking_hashes)
    first, count = np.empty(asking, np.int64), np.empty(asking, np.int64)
    at, pairs = 0, 0
    for row in range(asking):
        wanted, time_us = asking_hashes[row], asking_times[row]
        at = _first_at(hashes, times, at, wanted, time_us - back_us)
        end = at
        if at < len(hashes) and hashes[at] == wanted:
            end = _first_at(hashes, times, at, wanted, time_us + ahead_us + 1)
        first[row], count[row] = at, end - at
        pairs += end - at
    asked, met = np.empty(pairs, np.int64), np.empty(pairs, np.int64)
    pair = 0
    for row in range(asking):
        for partner in range(first[row], first[row] + count[row]):
            asked[pair], met[pair] = row, partner
            pair += 1
    return asked, met
