"""The loops of sums and extremes, compiled by numba. Values are never null."""

from headwater.compiled import kernel


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
