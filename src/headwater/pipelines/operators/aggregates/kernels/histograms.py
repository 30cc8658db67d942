"""Numba kernels of `histograms`: counts of keys by group, ranks, most frequent keys."""

import numpy as np

from headwater.jit import kernel

_FEW = 32  # insertion sort is fastest for so many


@kernel
def count_keys(group, groups, keys, weights):
    """Keys (any integers) in ascending order within each group, each once; the sums of their
    weights; where each group begins.
    """
    starts = np.zeros(groups + 1, np.int64)
    for row in range(len(group)):
        starts[group[row] + 1] += 1
    for at in range(groups):
        starts[at + 1] += starts[at]
    cursors = starts[:groups].copy()
    by_group = np.empty(len(group), np.int64)
    of_key = np.empty(len(group), np.int64)
    for row in range(len(group)):
        to = cursors[group[row]]
        by_group[to] = keys[row]
        of_key[to] = weights[row]
        cursors[group[row]] = to + 1
    scratch = np.zeros(0, np.int64)
    offsets = np.zeros(groups + 1, np.int64)
    end = 0
    for at in range(groups):
        start, stop = starts[at], starts[at + 1]
        some, of_some = by_group[start:stop], of_key[start:stop]
        if stop - start > _FEW:
            least, span = some.min(), some.max() - some.min() + 1
            if 0 < span <= 4 * len(some):  # it is negative if 64 bits are too few for it
                if len(scratch) < span:
                    scratch = np.zeros(span, np.int64)
                _tally(some, of_some, least, scratch)
                # What was read is overwritten: there are no more keys than rows.
                for offset in range(span):
                    if scratch[offset] != 0:
                        by_group[end] = least + offset
                        of_key[end] = scratch[offset]
                        scratch[offset] = 0
                        end += 1
                offsets[at + 1] = end
                continue
            order = np.argsort(some)
            some, of_some = some[order], of_some[order]
        else:
            _insertion_sort(some, of_some)
        first = end
        for row in range(len(some)):
            if end > first and by_group[end - 1] == some[row]:
                of_key[end - 1] += of_some[row]
            else:
                key, weight = some[row], of_some[row]
                by_group[end] = key
                of_key[end] = weight
                end += 1
        offsets[at + 1] = end
    return offsets, by_group[:end].copy(), of_key[:end].copy()


@kernel
def _tally(keys, weights, least, scratch):
    for row in range(len(keys)):
        scratch[keys[row] - least] += weights[row]


@kernel
def _insertion_sort(keys, weights):
    for row in range(1, len(keys)):
        key, weight = keys[row], weights[row]
        to = row
        while to > 0 and keys[to - 1] > key:
            keys[to] = keys[to - 1]
            weights[to] = weights[to - 1]
            to -= 1
        keys[to] = key
        weights[to] = weight


@kernel
def key_at_rank(offsets, keys, counts, ranks):
    """The key in which the value of a rank (from 1) lies, `ranks` by group; none if it is 0."""
    found = np.zeros(len(ranks), np.int64)
    for at in range(len(ranks)):
        passed = 0
        if ranks[at] > 0:
            for entry in range(offsets[at], offsets[at + 1]):
                passed += counts[entry]
                if passed >= ranks[at]:
                    found[at] = keys[entry]
                    break
    return found


@kernel
def most_frequent(offsets, counts, most):
    """The entries with the highest counts of each group, at most so many; of equal ones the first
    comes first. And where each group begins among them.
    """
    groups = len(offsets) - 1
    starts = np.zeros(groups + 1, np.int64)
    for at in range(groups):
        starts[at + 1] = starts[at] + min(most, offsets[at + 1] - offsets[at])
    chosen = np.empty(starts[groups], np.int64)
    for at in range(groups):
        start = starts[at]
        held = 0
        for entry in range(offsets[at], offsets[at + 1]):
            if held == most:
                if counts[entry] <= counts[chosen[start + held - 1]]:
                    continue
                held -= 1
            to = start + held
            while to > start and counts[chosen[to - 1]] < counts[entry]:
                chosen[to] = chosen[to - 1]
                to -= 1
            chosen[to] = entry
            held += 1
    return starts, chosen
