"""The loops of compaction over raw record batches in plain Python, where numba is not installed.

Function for function, and byte for byte in what they write, those of kernels.py. A window is a
memoryview of bytes, the state a list of integers.

The map from key to offset is a dict. Its keys are BLAKE2b digests of 128 bits under a random key
of this pass, for the reasons given in kernels.py; so a key costs the same memory whatever its
length is.
"""

import secrets
import struct
from hashlib import blake2b
from typing import Any, Final

from headwater.log.compaction.pass_state import (
    AT,
    CHANGED,
    COMPRESSION_MASK,
    CONTROL,
    DAMAGED,
    DELETE_HORIZON,
    DONE,
    ENTRIES,
    FULL,
    GROWTH_BYTES,
    HEADER_BYTES,
    INDEXED_MS,
    LATEST,
    LOG_APPEND_TIME,
    MAX_MS,
    MAX_MS_OFFSET,
    MAX_TIMESTAMP,
    MORE_INPUT,
    MORE_OUTPUT,
    NEXT_OFFSET,
    OUT_AT,
    RECORDS,
    RETAINED,
    SINCE_ENTRY,
    SIZE,
    SPECIAL,
    TOMBSTONES,
    TRANSACTIONAL,
)
from headwater.protocol.records import HEADER, crc32c

# A digest (49 bytes), an offset (32), and a dict's slot, of which a third and more are empty.
BYTES_PER_SLOT: Final = 200
_SPECIAL: Final = COMPRESSION_MASK | TRANSACTIONAL | CONTROL
_UINT64: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63
_MALFORMED: Final = -1
_NO_RECORD: Final = (_MALFORMED, 0, 0, 0, 0, 0, 0, 0)
_OFFSET_ENTRY: Final = struct.Struct(">ii")


class Table(dict[bytes, int]):
    """Offset by digest. `slots` bounds it, as a table of fixed size is bounded."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots


def buffer(size_bytes: int) -> memoryview:
    return memoryview(bytearray(size_bytes))


def view(data: Any) -> memoryview:
    return memoryview(data)


def words(count: int) -> list[int]:
    return [0] * count


def hash_key() -> tuple[bytes, bytes]:
    return secrets.token_bytes(8), secrets.token_bytes(8)


def new_table(slots: int) -> Table:
    return Table(slots)


def slots_of(table: Table) -> int:
    return table.slots


def grow(table: Table, larger: Table) -> None:
    larger.update(table)


def load() -> None:
    """Nothing has to be compiled."""


def map_records(
    data: memoryview,
    at: int,
    end: int,
    base_offset: int,
    last_delta: int,
    count: int,
    first_dirty: int,
    table: Table,
    limit: int,
    k0: bytes,
    k1: bytes,
    state: list[int],
) -> int:
    """Enters the keys of one batch's records. FULL: up to and with LATEST they are in the map."""
    before = -1
    secret = k0 + k1
    for _ in range(count):
        record_end, _t, _r, _ts, delta, key_at, key_bytes, _v = _read_record(data, at, end)
        if record_end < 0 or delta <= before or delta > last_delta:
            return DAMAGED
        before = delta
        at = record_end
        offset = base_offset + delta
        if offset < first_dirty:
            continue
        if key_bytes >= 0:
            digest = _digest(data[key_at : key_at + key_bytes], secret)
            if digest not in table:
                if state[ENTRIES] >= limit:
                    return FULL
                state[ENTRIES] += 1
            table[digest] = offset
        state[LATEST] = offset
    if at != end:
        return DAMAGED
    state[LATEST] = base_offset + last_delta
    return DONE


def map_window(
    window: memoryview,
    end: int,
    first_dirty: int,
    table: Table,
    limit: int,
    k0: bytes,
    k1: bytes,
    state: list[int],
) -> int:
    """Enters the keys of the plain batches in window[AT:end], up to one that is not plain."""
    at = state[AT]
    while at < end:
        code = _check_batch(window, at, end, state[NEXT_OFFSET])
        if code != DONE:
            return code
        (base_offset, length, _, _, _, attributes, last_delta, _, _, _, _, _, count) = (
            HEADER.unpack_from(window, at)
        )
        if attributes & _SPECIAL:
            return SPECIAL
        batch_end = at + 12 + length
        if base_offset + last_delta >= first_dirty:
            code = map_records(
                window, at + HEADER_BYTES, batch_end, base_offset, last_delta, count, first_dirty,
                table, limit, k0, k1, state,
            )  # fmt: skip
            if code != DONE:
                return code
        at = batch_end
        state[AT] = at
        state[NEXT_OFFSET] = base_offset + last_delta + 1
    return DONE


def filter_records(
    data: memoryview,
    at: int,
    end: int,
    base_offset: int,
    last_delta: int,
    count: int,
    base_timestamp: int,
    keeps_deletes: bool,
    shift: int,
    table: Table,
    k0: bytes,
    k1: bytes,
    out: memoryview,
    state: list[int],
) -> int:
    """Writes what stays of one batch's records to out[OUT_AT:]; `shift` moves their timestamps.

    RETAINED of them stay; MAX_TIMESTAMP and TOMBSTONES are of these. The caller has made sure that
    `out` has room for all of them, grown.
    """
    before = -1
    secret = k0 + k1
    out_at = state[OUT_AT]
    latest = state[LATEST]
    retained, tombstones = 0, 0
    max_timestamp = -1
    run_from = at  # records from here on stay and are not yet copied
    for _ in range(count):
        record_end, timestamp_at, rest_at, timestamp, delta, key_at, key_bytes, value_bytes = (
            _read_record(data, at, end)
        )
        if record_end < 0 or delta <= before or delta > last_delta:
            return DAMAGED
        before = delta
        offset = base_offset + delta
        stays = True
        if offset <= latest:
            stays = key_bytes >= 0 and (value_bytes >= 0 or keeps_deletes)
            if stays:
                digest = _digest(data[key_at : key_at + key_bytes], secret)
                stays = offset >= table.get(digest, -1)
            if stays and value_bytes < 0:
                tombstones += 1
        if stays:
            retained += 1
            max_timestamp = max(max_timestamp, _int64(base_timestamp + timestamp))
            if shift != 0:
                moved = _varlong_of(_int64(timestamp + shift))
                deltas = _varlong_of(delta)
                rest = record_end - rest_at
                head = _varlong_of(1 + len(moved) + len(deltas) + rest)
                head += bytes((data[timestamp_at - 1],)) + moved + deltas
                out[out_at : out_at + len(head)] = head
                out_at += len(head)
                out[out_at : out_at + rest] = data[rest_at:record_end]
                out_at += rest
        if not stays or shift != 0:
            if shift == 0 and run_from < at:
                out[out_at : out_at + at - run_from] = data[run_from:at]
                out_at += at - run_from
            run_from = record_end
        at = record_end
    if at != end:
        return DAMAGED
    if shift == 0 and run_from < at:
        out[out_at : out_at + at - run_from] = data[run_from:at]
        out_at += at - run_from
    state[OUT_AT] = out_at
    state[RETAINED] = retained
    state[MAX_TIMESTAMP] = max_timestamp
    state[TOMBSTONES] = tombstones
    return DONE


def filter_window(
    window: memoryview,
    end: int,
    now: int,
    horizon: int,
    table: Table,
    k0: bytes,
    k1: bytes,
    out: memoryview,
    state: list[int],
) -> int:
    """Writes what stays of the plain batches in window[AT:end] to out[OUT_AT:].

    `now`: tombstones whose horizon has passed go. `horizon`: what the others get (KIP-534).
    """
    at = state[AT]
    while at < end:
        code = _check_batch(window, at, end, state[NEXT_OFFSET])
        if code != DONE:
            return code
        (
            base_offset,
            length,
            _,
            _,
            _,
            attributes,
            last_delta,
            base_timestamp,
            _,
            _,
            _,
            _,
            count,
        ) = HEADER.unpack_from(window, at)
        if attributes & _SPECIAL:
            return SPECIAL
        batch_end = at + 12 + length
        size_bytes = batch_end - at
        out_from = state[OUT_AT]
        if len(out) - out_from < size_bytes + GROWTH_BYTES * count:
            return MORE_OUTPUT
        if base_offset > state[LATEST]:
            out[out_from : out_from + size_bytes] = window[at:batch_end]
            state[OUT_AT] = out_from + size_bytes
        else:
            has_horizon = attributes & DELETE_HORIZON != 0
            keeps_deletes = not has_horizon or now < base_timestamp
            records = (window, at + HEADER_BYTES, batch_end, base_offset, last_delta, count)
            state[OUT_AT] = out_from + HEADER_BYTES
            code = filter_records(
                *records, base_timestamp, keeps_deletes, 0, table, k0, k1, out, state
            )
            if code != DONE:
                state[OUT_AT] = out_from
                return code
            sets_horizon = state[TOMBSTONES] > 0 and not has_horizon
            if sets_horizon:
                state[OUT_AT] = out_from + HEADER_BYTES
                shift = _int64(base_timestamp - horizon)
                filter_records(
                    *records, base_timestamp, keeps_deletes, shift, table, k0, k1, out, state
                )
            if state[RETAINED] == 0:
                state[OUT_AT] = out_from
            elif state[RETAINED] == count and not sets_horizon:
                out[out_from : out_from + size_bytes] = window[at:batch_end]
                state[OUT_AT] = out_from + size_bytes
            else:
                out_end = state[OUT_AT]
                out[out_from : out_from + HEADER_BYTES] = window[at : at + HEADER_BYTES]
                _put(out, out_from + 8, out_end - out_from - 12, 4)
                if sets_horizon:
                    _put(out, out_from + 21, attributes | DELETE_HORIZON, 2)
                    _put(out, out_from + 27, horizon, 8)
                if not attributes & LOG_APPEND_TIME:
                    _put(out, out_from + 35, state[MAX_TIMESTAMP], 8)
                _put(out, out_from + 57, state[RETAINED], 4)
                _put(out, out_from + 17, crc32c(out[out_from + 21 : out_end]), 4)
            if state[RETAINED] < count or sets_horizon:
                state[CHANGED] += 1
            state[RECORDS] += state[RETAINED]
        at = batch_end
        state[AT] = at
        state[NEXT_OFFSET] = base_offset + last_delta + 1
    return DONE


def index_entries(
    data: memoryview, end: int, base_offset: int, interval: int, state: list[int]
) -> tuple[bytes, list[tuple[int, int]]]:
    """The index entries of the batches in data[:end], which go behind SIZE bytes: those of the
    offset index as they are stored, and (timestamp, relative offset) of the time index.
    """
    offsets = bytearray()
    times: list[tuple[int, int]] = []
    at = 0
    while at < end:
        header = HEADER.unpack_from(data, at)
        batch_offset, length, last_delta, timestamp = header[0], header[1], header[6], header[8]
        if state[SINCE_ENTRY] > interval:
            offsets += _OFFSET_ENTRY.pack(batch_offset - base_offset, state[SIZE])
            state[SINCE_ENTRY] = 0
            if state[MAX_MS] > state[INDEXED_MS]:
                times.append((state[MAX_MS], state[MAX_MS_OFFSET] - base_offset))
                state[INDEXED_MS] = state[MAX_MS]
        if timestamp > state[MAX_MS]:
            state[MAX_MS] = timestamp
            state[MAX_MS_OFFSET] = batch_offset + last_delta
        state[SIZE] += length + 12
        state[SINCE_ENTRY] += length + 12
        at += length + 12
    return bytes(offsets), times


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────


def _check_batch(window: memoryview, at: int, end: int, next_offset: int) -> int:
    """DONE if a whole batch, as it was written, lies at `at`."""
    if end - at < HEADER_BYTES:
        return MORE_INPUT
    base_offset, length, _, magic, crc, _, last_delta, *_, count = HEADER.unpack_from(window, at)
    if (
        magic != 2
        or length < HEADER_BYTES - 12
        or base_offset < next_offset
        or last_delta < 0
        or count < 0
    ):
        return DAMAGED
    if length + 12 > end - at:
        return MORE_INPUT
    return DONE if crc32c(window[at + 21 : at + 12 + length]) == crc else DAMAGED


def _read_record(
    data: memoryview, at: int, end: int
) -> tuple[int, int, int, int, int, int, int, int]:
    """(end of the record or -1, where its timestamp is, behind its offset, timestamp delta,
    offset delta, where the key is, its length, length of the value)
    """
    size, at = _varlong(data, at, end)
    if at < 0 or size < 1 or size > end - at:
        return _NO_RECORD
    record_end = at + size
    timestamp_at = at + 1
    timestamp, at = _varlong(data, timestamp_at, record_end)
    if at < 0:
        return _NO_RECORD
    delta, rest_at = _varlong(data, at, record_end)
    if rest_at < 0:
        return _NO_RECORD
    key_bytes, key_at = _varlong(data, rest_at, record_end)
    if key_at < 0 or key_bytes > record_end - key_at:
        return _NO_RECORD
    value_bytes, at = _varlong(data, key_at + max(key_bytes, 0), record_end)
    if at < 0 or value_bytes > record_end - at:
        return _NO_RECORD
    return record_end, timestamp_at, rest_at, timestamp, delta, key_at, key_bytes, value_bytes


def _varlong(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """(value, the position behind it), the position being -1 if there is no whole one."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            value &= _UINT64
            return value >> 1 ^ -(value & 1), at
        shift += 7
    return 0, _MALFORMED


def _varlong_of(value: int) -> bytes:
    rest = (value << 1 ^ value >> 63) & _UINT64
    encoded = bytearray()
    while rest >= 128:
        encoded.append(rest & 127 | 128)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _put(out: memoryview, at: int, value: int, size: int) -> None:
    out[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "big")


def _int64(value: int) -> int:
    """Wraps around as the compiled loops do: a client may send any timestamp."""
    return (value + _SIGN & _UINT64) - _SIGN


def _digest(key: memoryview, secret: bytes) -> bytes:
    return blake2b(key, digest_size=16, key=secret).digest()
