"""The loops of `encoding`, compiled by numba: the partitions of keys, and records into bytes.

A column of byte strings is the tuple (data, starts, lengths); a length of -1 is null. The layout of
a record stands in `batches`. The caller makes `out` large enough for anything.
"""

import numpy as np

from headwater.jit import kernel


@kernel
def _murmur2(data, start, size_bytes):
    """MurmurHash2 of 32 bits with Kafka's seed, in 64-bit words of which the lower half counts."""
    mask, mixer = np.uint64(0xFFFFFFFF), np.uint64(0x5BD1E995)
    hashed = np.uint64(0x9747B28C) ^ np.uint64(size_bytes)
    at, end = start, start + (size_bytes & ~3)
    while at < end:
        word = (
            np.uint64(data[at])
            | np.uint64(data[at + 1]) << np.uint64(8)
            | np.uint64(data[at + 2]) << np.uint64(16)
            | np.uint64(data[at + 3]) << np.uint64(24)
        )
        mixed = word * mixer & mask
        mixed = (mixed ^ mixed >> np.uint64(24)) * mixer & mask
        hashed = (hashed * mixer & mask) ^ mixed
        at += 4
    left = size_bytes & 3
    if left:
        for byte in range(left):
            hashed ^= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        hashed = hashed * mixer & mask
    hashed = (hashed ^ hashed >> np.uint64(13)) * mixer & mask
    return hashed ^ hashed >> np.uint64(15)


@kernel
def partitions_of_keys(keys, partitions):
    data, starts, lengths = keys
    found = np.zeros(len(starts), np.int64)
    if partitions > 1:
        for row in range(len(starts)):
            if lengths[row] >= 0:
                hashed = _murmur2(data, starts[row], lengths[row]) & np.uint64(0x7FFFFFFF)
                found[row] = np.int64(hashed) % partitions
    return found


@kernel
def _varint_bytes(number):
    """How many a zigzag varint of the number takes."""
    left = np.uint64((number << 1) ^ (number >> 63)) >> np.uint64(7)
    size_bytes = 1
    while left:
        left >>= np.uint64(7)
        size_bytes += 1
    return size_bytes


@kernel
def _write_varint(out, at, number):
    left = np.uint64((number << 1) ^ (number >> 63))
    while left > np.uint64(127):
        out[at] = np.uint8(left & np.uint64(127)) | np.uint8(128)
        left >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(left)
    return at + 1


@kernel
def _write_bytes(out, at, column, row):
    data, starts, lengths = column
    size_bytes, start = lengths[row], starts[row]
    at = _write_varint(out, at, size_bytes)
    for byte in range(size_bytes):
        out[at + byte] = data[start + byte]
    return at + max(size_bytes, 0)


@kernel
def _bytes_taken(column, row):
    size_bytes = column[2][row]
    return _varint_bytes(size_bytes) + max(size_bytes, 0)


@kernel
def _by_partition(partition_of_row, partitions):
    """The rows in the order of their partitions, those of one partition as they were."""
    ends = np.zeros(partitions + 1, np.int64)
    for partition in partition_of_row:
        ends[partition + 1] += 1
    for partition in range(partitions):
        ends[partition + 1] += ends[partition]
    order = np.empty(len(partition_of_row), np.int64)
    for row in range(len(partition_of_row)):
        partition = partition_of_row[row]
        order[ends[partition]] = row
        ends[partition] += 1
    return order


@kernel
def write_batches(
    partition_of_row,
    partitions,
    max_bytes,
    times_ms,
    keys,
    values,
    first_headers,
    names,
    contents,
    out,
):
    """Writes all records; of each batch its partition, start and end in `out`, number of records,
    first and greatest timestamp.
    """
    order = _by_partition(partition_of_row, partitions)
    # Two batches of a partition that follow each other are together larger than the limit.
    cuts = np.empty((partitions + 2 * len(out) // max_bytes + 1, 6), np.int64)
    batches = at = start = count = base_ms = max_ms = 0
    current = np.int64(-1)
    for row in order:
        partition, time_ms = partition_of_row[row], times_ms[row]
        first, end = first_headers[row], first_headers[row + 1]
        around = _bytes_taken(keys, row) + _bytes_taken(values, row) + _varint_bytes(end - first)
        for header in range(first, end):
            around += _bytes_taken(names, header) + _bytes_taken(contents, header)
        size_bytes = 1 + _varint_bytes(time_ms - base_ms) + _varint_bytes(count) + around
        is_full = at - start + size_bytes + _varint_bytes(size_bytes) > max_bytes
        if count == 0 or partition != current or is_full:
            if count:
                cuts[batches] = (current, start, at, count, base_ms, max_ms)
                batches += 1
            start, count, base_ms, max_ms, current = at, 0, time_ms, time_ms, partition
            size_bytes = 3 + around  # both deltas are 0
        at = _write_varint(out, at, size_bytes)
        out[at] = 0
        at = _write_varint(out, at + 1, time_ms - base_ms)
        at = _write_varint(out, at, count)
        at = _write_bytes(out, at, keys, row)
        at = _write_bytes(out, at, values, row)
        at = _write_varint(out, at, end - first)
        for header in range(first, end):
            at = _write_bytes(out, at, names, header)
            at = _write_bytes(out, at, contents, header)
        count += 1
        max_ms = max(max_ms, time_ms)
    if count:
        cuts[batches] = (current, start, at, count, base_ms, max_ms)
        batches += 1
    return cuts[:batches]
