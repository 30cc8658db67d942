"""Numba kernels of `hash_sets`: sorted hashes, Bloom filters and HyperLogLog registers.

A set is some words of 64 bits: fewer than `size` are its hashes in ascending order; `size` of them
are its full form, which does not grow any more. With `probes` it is the bits of a
Bloom filter, and without them the registers of a HyperLogLog, of one byte each.
"""

import math

import numpy as np

from headwater.jit import kernel

_FEW = 32  # insertion sort is fastest for so many


@kernel
def unite(group, groups, words, offsets, size, probes):
    """The union of all sets of each group: where its words begin, and the words."""
    starts = np.zeros(groups + 1, np.int64)
    is_full = np.zeros(groups, np.bool_)
    for entry in range(len(group)):
        length = offsets[entry + 1] - offsets[entry]
        if length == size:
            is_full[group[entry]] = True
        else:
            starts[group[entry] + 1] += length
    room = 0
    for at in range(groups):
        room += size if is_full[at] else min(starts[at + 1], size)
        starts[at + 1] += starts[at]
    hashes = _by_group(group, words, offsets, size, starts)
    slots = 2
    while slots < 2 * size:
        slots *= 2
    table = np.zeros(slots, np.uint64)
    out = np.empty(room, np.uint64)
    ends = np.zeros(groups + 1, np.int64)
    for at in range(groups):
        some = hashes[starts[at] : starts[at + 1]]
        start = ends[at]
        if is_full[at]:
            ends[at + 1] = start + size
            out[start : start + size] = 0
            for hashed in some:
                _add(out[start : start + size], hashed, probes)
        elif len(some) < size:
            out[start : start + len(some)] = some
            ends[at + 1] = _distinct(out, start, start + len(some))
        else:
            ends[at + 1] = _write_many(some, out, start, size, probes, table)
    for entry in range(len(group)):
        if offsets[entry + 1] - offsets[entry] == size:
            start = ends[group[entry]]
            other = words[offsets[entry] : offsets[entry + 1]]
            _combine(out[start : start + size], other, probes)
    return ends, out[: ends[groups]].copy()


@kernel
def _by_group(group, words, offsets, size, starts):
    """The hashes of all sets that have them."""
    hashes = np.empty(starts[-1], np.uint64)
    cursors = starts.copy()
    for entry in range(len(group)):
        if offsets[entry + 1] - offsets[entry] != size:
            to = cursors[group[entry]]
            for word in range(offsets[entry], offsets[entry + 1]):
                hashes[to] = words[word]
                to += 1
            cursors[group[entry]] = to
    return hashes


@kernel
def _distinct(out, start, end):
    """In order, each once. The new end."""
    if end - start > _FEW:
        out[start:end].sort()
    else:
        for at in range(start + 1, end):
            hashed = out[at]
            to = at
            while to > start and out[to - 1] > hashed:
                out[to] = out[to - 1]
                to -= 1
            out[to] = hashed
    to = start
    for at in range(start, end):
        if to == start or out[at] != out[to - 1]:
            out[to] = out[at]
            to += 1
    return to


@kernel
def _write_many(hashes, out, start, size, probes, table):
    """Of more hashes than have room, counted by a hash table: many may be duplicates."""
    full = out[start : start + size]
    held = 0
    for hashed in hashes:
        if held == size:
            _add(full, hashed, probes)
            continue
        held += _put(table, hashed)
        if held == size:
            full[:] = 0
            for slot in range(len(table)):
                if table[slot] != 0:
                    _add(full, table[slot], probes)
    to = start
    for slot in range(len(table)):
        if table[slot] != 0:
            if held < size:
                out[to] = table[slot]
                to += 1
            table[slot] = 0
    return start + size if held == size else _distinct(out, start, to)


@kernel
def _put(table, hashed):
    """1 if it was not there."""
    last = np.uint64(len(table) - 1)
    slot = hashed & last
    while table[slot] != 0:
        if table[slot] == hashed:
            return 0
        slot = (slot + np.uint64(1)) & last
    table[slot] = hashed
    return 1


@kernel
def _combine(full, other, probes):
    if probes:
        for word in range(len(full)):
            full[word] |= other[word]
    else:
        registers, others = full.view(np.uint8), other.view(np.uint8)
        for at in range(len(registers)):
            registers[at] = max(registers[at], others[at])


@kernel
def _add(full, hashed, probes):
    if probes:
        bits = np.uint64(len(full) * 64)
        for probe in range(probes):
            bit = _bit(hashed, probe, bits)
            full[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
        return
    registers = full.view(np.uint8)
    index_bits = 0
    while 1 << index_bits < len(registers):
        index_bits += 1
    index = hashed >> np.uint64(64 - index_bits)
    rest = hashed << np.uint64(index_bits)
    rank = 1
    while rank <= 64 - index_bits and not rest >> np.uint64(63):
        rest <<= np.uint64(1)
        rank += 1
    registers[index] = max(registers[index], rank)


@kernel
def _bit(hashed, probe, bits):
    """Two hashes give all others (Kirsch and Mitzenmacher, 2006)."""
    step = hashed << np.uint64(32) | hashed >> np.uint64(32)
    return (hashed + np.uint64(probe) * (step | np.uint64(1))) % bits


@kernel
def cardinalities(words, offsets, size):
    """Of sets whose full form are registers: by Ertl's estimator ("New cardinality estimation
    algorithms for HyperLogLog sketches", 2017), which is without bias over the whole range.
    """
    found = np.empty(len(offsets) - 1, np.int64)
    for at in range(len(found)):
        found[at] = offsets[at + 1] - offsets[at]
        if found[at] == size:
            found[at] = _estimate(words[offsets[at] : offsets[at + 1]].view(np.uint8))
    return found


@kernel
def _estimate(registers):
    number = len(registers)
    index_bits = 0
    while 1 << index_bits < number:
        index_bits += 1
    highest = 64 - index_bits
    counts = np.zeros(highest + 2, np.int64)
    for rank in registers:
        counts[rank] += 1
    total = number * _tau(1.0 - counts[highest + 1] / number)
    for rank in range(highest, 0, -1):
        total = 0.5 * (total + counts[rank])
    total += number * _sigma(counts[0] / number)
    return np.int64(round(number * number / (2.0 * math.log(2.0) * total)))


@kernel
def _sigma(share):
    if share == 1.0:
        return np.inf
    weight, total, before = 1.0, share, -1.0
    while total != before:
        share *= share
        before = total
        total += share * weight
        weight += weight
    return total


@kernel
def _tau(share):
    if share in (0.0, 1.0):
        return 0.0
    weight, total, before = 1.0, 1.0 - share, -1.0
    while total != before:
        share = math.sqrt(share)
        before = total
        weight *= 0.5
        total -= (1.0 - share) ** 2 * weight
    return total / 3.0


@kernel
def contained(words, offsets, hashes):
    """Whether the filter of each row (a header, then its words; bloom.py) may have the hash."""
    found = np.zeros(len(hashes), np.bool_)
    for row in range(len(hashes)):
        header = words[offsets[row]]
        size = np.int64(header >> np.uint64(32))
        probes = np.int64(header & np.uint64(0xFF))
        start, end = offsets[row] + 1, offsets[row + 1]
        if end - start == size:
            bits = np.uint64(size * 64)
            is_in = True
            for probe in range(probes):
                bit = _bit(hashes[row], probe, bits)
                word = words[start + np.int64(bit >> np.uint64(6))]
                is_in &= (word >> (bit & np.uint64(63)) & np.uint64(1)) == 1
            found[row] = is_in
        else:
            at = start + np.searchsorted(words[start:end], hashes[row])
            found[row] = at < end and words[at] == hashes[row]
    return found
