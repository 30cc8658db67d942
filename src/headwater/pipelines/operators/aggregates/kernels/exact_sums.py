"""Numba kernels of `exact_sums`: a superaccumulator for doubles.

A sum is an integer in units of 2⁻¹⁰⁷⁴, the least double, in limbs of 32 bits: the limbs from the
first to the last that is not zero, all with the sign of the sum. So each sum is written in one way
only. While doubles are added, a limb of 64 bits has room for 2³⁰ of them.
"""

import math

import numpy as np

from headwater.jit import kernel

PRESENT, PLUS_INFINITY, MINUS_INFINITY, NAN = 1, 2, 4, 8  # marks
_MASK = 0xFFFFFFFF
_NONE = 1 << 14  # higher than the limbs of any sum
_LEAST = -1074


@kernel
def add_doubles(bits, group, groups):
    """Sums of the doubles with these bits: the number of its first limb, where its limbs begin, the
    limbs, and the marks.
    """
    lows, highs = np.full(groups, _NONE, np.int16), np.full(groups, -1, np.int16)
    marks = np.zeros(groups, np.int8)
    for row in range(len(bits)):
        at = group[row]
        exponent = bits[row] >> 52 & 0x7FF
        if exponent == 0x7FF:
            if bits[row] & 0xFFFFFFFFFFFFF:
                marks[at] |= NAN
            else:
                marks[at] |= PLUS_INFINITY if bits[row] >= 0 else MINUS_INFINITY
        elif bits[row] << 1 != 0:  # a zero would have limbs, far from those of the others
            limb = max(exponent - 1, 0) >> 5
            lows[at] = min(lows[at], limb)
            highs[at] = max(highs[at], limb + 2)
        marks[at] |= PRESENT
    starts = _starts(lows, highs)
    bases = starts[:groups] - lows
    sums = np.zeros(starts[groups], np.int64)
    for row in range(len(bits)):
        exponent = bits[row] >> 52 & 0x7FF
        if exponent == 0x7FF or bits[row] << 1 == 0:
            continue
        mantissa = bits[row] & 0xFFFFFFFFFFFFF
        if exponent:
            mantissa |= 1 << 52
        shift = max(exponent - 1, 0)
        low = (mantissa & _MASK) << (shift & 31)
        high = (mantissa >> 32) << (shift & 31)
        sign = 1 - 2 * (bits[row] < 0)
        at = bases[group[row]] + (shift >> 5)
        sums[at] += sign * (low & _MASK)
        sums[at + 1] += sign * ((low >> 32) + (high & _MASK))
        sums[at + 2] += sign * (high >> 32)
    firsts, offsets, limbs = _in_one_way(lows, starts, sums)
    return firsts, offsets, limbs, marks


@kernel
def add_sums(firsts, offsets, limbs, marks, group, groups):
    united = np.zeros(groups, np.int8)
    lows, highs = np.full(groups, _NONE, np.int16), np.full(groups, -1, np.int16)
    for entry in range(len(group)):
        at, length = group[entry], offsets[entry + 1] - offsets[entry]
        united[at] |= marks[entry]
        if length:
            lows[at] = min(lows[at], firsts[entry])
            highs[at] = max(highs[at], firsts[entry] + length - 1)
    starts = _starts(lows, highs)
    sums = np.zeros(starts[groups], np.int64)
    for entry in range(len(group)):
        at = starts[group[entry]] + firsts[entry] - lows[group[entry]]
        for limb in range(offsets[entry], offsets[entry + 1]):
            sums[at] += limbs[limb]
            at += 1
    new_firsts, new_offsets, new_limbs = _in_one_way(lows, starts, sums)
    return new_firsts, new_offsets, new_limbs, united


@kernel
def _starts(lows, highs):
    """With a limb more for what is carried over."""
    starts = np.zeros(len(lows) + 1, np.int64)
    for at in range(len(lows)):
        starts[at + 1] = starts[at] + (highs[at] - lows[at] + 2 if highs[at] >= 0 else 0)
    return starts


@kernel
def _in_one_way(lows, starts, sums):
    groups = len(lows)
    firsts, offsets = np.zeros(groups, np.int16), np.zeros(groups + 1, np.int64)
    end = 0
    for at in range(groups):
        limbs = sums[starts[at] : starts[at + 1]]
        sign = 1
        if _carry(limbs) < 0:  # 2³²ⁿ was added to what is negative
            sign = -1
            for limb in range(len(limbs)):
                limbs[limb] = -limbs[limb]
            _carry(limbs)
        first, last = 0, len(limbs)
        while last > 0 and limbs[last - 1] == 0:
            last -= 1
        while first < last and limbs[first] == 0:
            first += 1
        if last > first:
            firsts[at] = lows[at] + first
        for limb in range(first, last):  # what was read is overwritten
            sums[end] = sign * limbs[limb]
            end += 1
        offsets[at + 1] = end
    return firsts, offsets, sums[:end].copy()


@kernel
def _carry(limbs):
    carried = 0
    for limb in range(len(limbs)):
        value = limbs[limb] + carried
        limbs[limb] = value & _MASK
        carried = value >> 32
    return carried


@kernel
def round_sums(firsts, offsets, limbs, marks):
    """The nearest doubles; of two that are as near, the even one."""
    found = np.zeros(len(firsts), np.float64)
    for at in range(len(firsts)):
        if marks[at] > PRESENT:
            if marks[at] == PRESENT | PLUS_INFINITY:
                found[at] = np.inf
            elif marks[at] == PRESENT | MINUS_INFINITY:
                found[at] = -np.inf
            else:
                found[at] = np.nan
        elif offsets[at + 1] > offsets[at]:
            found[at] = _rounded(firsts[at], limbs[offsets[at] : offsets[at + 1]])
    return found


@kernel
def _rounded(first, limbs):
    top, length = abs(limbs[-1]), 32 * (first + len(limbs) - 1)
    while top:
        top >>= 1
        length += 1
    dropped = max(length - 53, 0)  # bits
    mantissa, half, rest = 0, 0, 0
    for limb in range(len(limbs)):
        value, shift = abs(limbs[limb]), 32 * (first + limb)
        if shift >= dropped:
            mantissa |= value << (shift - dropped)
        else:
            if shift + 32 > dropped:
                mantissa |= value >> (dropped - shift)
            below = dropped - 1 - shift
            if below < 32:
                half = value >> below & 1
                rest |= value & ((1 << below) - 1)
            else:
                rest |= value
    if half and (rest or mantissa & 1):
        mantissa += 1
    rounded = math.ldexp(float(mantissa), dropped + _LEAST)
    return rounded if limbs[-1] > 0 else -rounded
