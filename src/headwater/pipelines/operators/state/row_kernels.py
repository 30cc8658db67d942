"""Numba kernels of `row_hashes` and `sorted_rows`: hashing, binary search, merging."""

import numpy as np

from headwater.jit import kernel


@kernel
def _mixed(word):
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@kernel
def hash_texts(found, begins, texts, is_null):
    """Eight bytes at a time, into both words in different ways; the length last."""
    for row in range(len(is_null)):
        one, two = found[row, 0], found[row, 1]
        begin = begins[row]
        end = begin if is_null[row] else begins[row + 1]
        for at in range(begin, end, 8):
            word = np.uint64(0)
            for byte in range(min(8, end - at)):
                word |= np.uint64(texts[at + byte]) << np.uint64(8 * byte)
            one = _mixed(one ^ word) + np.uint64(0x9E3779B97F4A7C15)
            two = _mixed(two + word * np.uint64(0xC2B2AE3D27D4EB4F)) ^ np.uint64(0x165667B19E3779F9)
        length = np.uint64(0xFFFFFFFFFFFFFFFF) if is_null[row] else np.uint64(end - begin)
        found[row, 0] = _mixed(one ^ length)
        found[row, 1] = _mixed(two + length * np.uint64(0xC2B2AE3D27D4EB4F))


@kernel
def _compared(one, at, other, by, words):
    for word in range(words):
        if one[at, word] < other[by, word]:
            return -1
        if one[at, word] > other[by, word]:
            return 1
    return 0


@kernel
def bounds(lines, sought, words):
    """The range of lines that begin with the first `words` of each sought one (binary search)."""
    begins = np.empty(len(sought), np.int64)
    ends = np.empty(len(sought), np.int64)
    for query in range(len(sought)):
        low, high = 0, len(lines)
        while low < high:
            middle = (low + high) >> 1
            if _compared(lines, middle, sought, query, words) < 0:
                low = middle + 1
            else:
                high = middle
        begins[query] = low
        # Most have few lines, so the end is found by galloping from the first (exponential search).
        step, high = 1, low
        while high < len(lines) and _compared(lines, high, sought, query, words) == 0:
            low = high + 1
            high += step
            step *= 2
        high = min(high, len(lines))
        while low < high:
            middle = (low + high) >> 1
            if _compared(lines, middle, sought, query, words) <= 0:
                low = middle + 1
            else:
                high = middle
        ends[query] = low
    return begins, ends


@kernel
def merged(one, other):
    """A merge of two sorted arrays: for each line of the result, its number in `one`, or
    len(one) + its number in `other`.
    """
    order = np.empty(len(one) + len(other), np.int64)
    words = one.shape[1]
    left, right = 0, 0
    for at in range(len(order)):
        is_left = right >= len(other) or (
            left < len(one) and _compared(one, left, other, right, words) <= 0
        )
        if is_left:
            order[at] = left
            left += 1
        else:
            order[at] = len(one) + right
            right += 1
    return order


@kernel
def expanded(begins, ends):
    """Every number of every range, and which range it is of."""
    total = 0
    for which in range(len(begins)):
        total += ends[which] - begins[which]
    ranges = np.empty(total, np.int64)
    numbers = np.empty(total, np.int64)
    at = 0
    for which in range(len(begins)):
        for number in range(begins[which], ends[which]):
            ranges[at] = which
            numbers[at] = number
            at += 1
    return ranges, numbers
