"""The loops over the records of fetched batches, compiled by numba.

Nothing here raises and nothing checks bounds but the code itself: every length that comes from a
broker is compared with the end of its record before it is used. A record is (numbers are zigzag
varints, a length of -1 is null):

    length │ int8 attributes │ timestamp delta │ offset delta │ key length │ key
           │ value length │ value │ number of headers │ (name length, name, length, value)…

All in one file, for numba's cache of compiled code does not see changes in another one.
"""

from typing import Final

import numpy as np

from headwater.jit import kernel

BROKEN: Final = -1
NO_TIME: Final = -(1 << 63)
MIN_RECORD_BYTES: Final = 7  # each of the seven fields takes at least one byte
_NO_TIMESTAMP_MS: Final = -1
_MAX_TIME_MS: Final = (1 << 63) // 1000 - 1  # what fits as microseconds


# Places that are used as an index are unsigned: numba would look for negative ones, which count
# from the end, and LLVM would not make vectors of the loop.


@kernel
def _varlong(data, at, end):
    """(value, the position behind it), the position being -1 if there is no whole one."""
    if at < end:  # most of them are one byte
        first = np.int64(data[np.uint64(at)])
        if first < 128:
            return (first >> 1) ^ -(first & 1), at + 1
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[np.uint64(at)])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            break  # more than 64 bits
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(BROKEN)


@kernel
def _skip_headers(data, at, end):
    """(how many, position of the first or -1 unless they end where the record does)."""
    count, at = _varlong(data, at, end)
    if at < 0 or count > end - at:
        return np.int64(0), np.int64(BROKEN)
    first_at = at
    for _ in range(2 * count):
        size, at = _varlong(data, at, end)
        if at < 0 or size > end - at:
            return np.int64(0), np.int64(BROKEN)
        at += max(size, 0)
    if at != end:
        return np.int64(0), np.int64(BROKEN)
    return max(count, 0), first_at


@kernel
def index_records(
    data, at, end, count, base_offset, last_delta, base_ms, is_append, append_ms, start, stop,
    row, offsets, times, key_at, key_bytes, value_at, value_bytes, header_at, headers,
):  # fmt: skip
    """Finds the records of data[at:end] that have start <= offset < stop: their positions go to the
    arrays from `row` on, times in microseconds. Gives the row behind the last, or BROKEN.

    `is_append`: all of them have the time `append_ms`.
    """
    before = np.int64(-1)
    for _ in range(count):
        size, at = _varlong(data, at, end)
        if at < 0 or size < MIN_RECORD_BYTES - 1 or size > end - at:
            return BROKEN
        record_end = at + size
        delta_ms, at = _varlong(data, at + 1, record_end)
        if at < 0:
            return BROKEN
        delta, at = _varlong(data, at, record_end)
        # Offsets rise: otherwise a record would be read twice, or not in its order.
        if at < 0 or delta <= before or delta > last_delta:
            return BROKEN
        before = delta
        key_size, at = _varlong(data, at, record_end)
        if at < 0 or key_size > record_end - at:
            return BROKEN
        key_from = at
        at += max(key_size, 0)
        value_size, at = _varlong(data, at, record_end)
        if at < 0 or value_size > record_end - at:
            return BROKEN
        value_from = at
        at += max(value_size, 0)
        header_count, header_from = _skip_headers(data, at, record_end)
        if header_from < 0:
            return BROKEN
        at = record_end
        time_ms = base_ms + delta_ms
        if (base_ms ^ time_ms) & (delta_ms ^ time_ms) < 0:  # more than 64 bits
            return BROKEN
        offset = base_offset + delta
        if offset < start or offset >= stop:
            continue
        if is_append:
            time_ms = append_ms
        offsets[row] = offset
        if time_ms == _NO_TIMESTAMP_MS or time_ms > _MAX_TIME_MS or time_ms < -_MAX_TIME_MS:
            times[row] = NO_TIME
        else:
            times[row] = time_ms * 1000
        key_at[row] = key_from
        key_bytes[row] = max(key_size, -1)
        value_at[row] = value_from
        value_bytes[row] = max(value_size, -1)
        header_at[row] = header_from
        headers[row] = header_count
        row += 1
    return row if at == end else BROKEN


@kernel
def index_headers(data, first, last, header_at, headers, to, name_at, name_bytes, at_, size_):
    """The positions of the names and values of the headers of the rows from `first` to `last`;
    index_records has found these whole. Gives the position behind the last header.
    """
    for row in range(first, last):
        at = np.int64(header_at[row])
        for _ in range(headers[row]):
            size, at = _varlong(data, at, len(data))
            name_at[to] = at
            name_bytes[to] = max(size, 0)
            at += max(size, 0)
            size, at = _varlong(data, at, len(data))
            at_[to] = at
            size_[to] = max(size, -1)
            at += max(size, 0)
            to += 1
    return to


@kernel
def gather(data, first, last, starts, sizes, ends, out):
    """Copies the parts of `data` of the rows from `first` to `last` to `out`, one behind another;
    ends[row + 1] is where each ends, ends[first] where they begin.
    """
    to = np.uint64(ends[first])
    for row in range(first, last):
        size = np.int64(sizes[row])
        if size > 0:
            start = np.uint64(starts[row])
            for byte in range(np.uint64(size)):
                out[to + byte] = data[start + byte]
            to += np.uint64(size)
        ends[row + 1] = to
