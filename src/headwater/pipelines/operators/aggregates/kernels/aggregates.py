"""Numba kernels of sums, extremes and first/last values. Values are never null."""

import numpy as np

from headwater.jit import kernel


@kernel
def add_halves(high, low, is_present, group, high_sums, low_sums):
    """Integers as high · 2³² + low: neither half of a sum can overflow in 2³¹ rows."""
    for row in range(len(group)):
        at = group[row]
        is_present[at] = True
        high_sums[at] += high[row]
        low_sums[at] += low[row]
    for at in range(len(high_sums)):
        high_sums[at] += low_sums[at] >> 32
        low_sums[at] &= 0xFFFFFFFF


@kernel
def add_integers(values, is_present, group, high_sums, low_sums):
    for row in range(len(group)):
        at = group[row]
        is_present[at] = True
        high_sums[at] += values[row] >> 32
        low_sums[at] += values[row] & 0xFFFFFFFF
    for at in range(len(high_sums)):
        high_sums[at] += low_sums[at] >> 32
        low_sums[at] &= 0xFFFFFFFF


@kernel
def least(values, group, found, is_present):
    for row in range(len(group)):
        at = group[row]
        if not is_present[at] or values[row] < found[at]:
            is_present[at] = True
            found[at] = values[row]


@kernel
def greatest(values, group, found, is_present):
    for row in range(len(group)):
        at = group[row]
        if not is_present[at] or values[row] > found[at]:
            is_present[at] = True
            found[at] = values[row]


@kernel
def ends_of_order(group, groups, times, offsets, ranks, is_last):
    """The row of each group that is first, or last, by time, offset and rank; -1 if it has none.
    And whether two rows were equal in all three.
    """
    found = np.full(groups, -1, np.int64)
    are_equal = False
    for row in range(len(group)):
        best = found[group[row]]
        if best < 0:
            found[group[row]] = row
            continue
        is_less = times[row] < times[best]
        if times[row] == times[best]:
            is_less = offsets[row] < offsets[best]
            if offsets[row] == offsets[best]:
                is_less = ranks[row] < ranks[best]
                if ranks[row] == ranks[best]:
                    are_equal = True
                    continue
        if is_less != is_last:
            found[group[row]] = row
    return found, are_equal
