"""The loops of compaction over raw record batches, compiled by numba.

Nothing here raises and nothing checks bounds but the code itself: every length that comes from a
file is compared with the end of its buffer before it is used. Kernels return a code for why they
stopped, and by `state` how far they came.

The map from key to offset is an open-addressing table of three words a slot: 128 bits of hash, and
offset + 1 (0: empty). Keys are not stored, so two keys with one hash would lose a record. The
hash is SipHash-2-4 with 128 bits of output under a random key of this pass: no client can look for
collisions beforehand, and by chance two among n keys meet with a probability of n^2 / 2^129, for a
hundred million keys 10^-23.
"""

import secrets
from typing import Any, Final

import numpy as np

from headwater.jit import kernel
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
    OFFSET_ENTRIES,
    OUT_AT,
    RECORDS,
    RETAINED,
    SINCE_ENTRY,
    SIZE,
    SPECIAL,
    STATE_WORDS,
    TIME_ENTRIES,
    TOMBSTONES,
    TRANSACTIONAL,
)

SLOT_WORDS: Final = 3
# A slot is 24 bytes; while the table grows, a quarter as much again is in use.
BYTES_PER_SLOT: Final = 30
_SPECIAL: Final = COMPRESSION_MASK | TRANSACTIONAL | CONTROL
_MALFORMED: Final = -1

inlined = kernel


def _crc_tables() -> Any:
    """For CRC-32C (Castagnoli), eight bytes at a time."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for byte in range(256):
        for table in range(1, 8):
            before = int(tables[table - 1, byte])
            tables[table, byte] = before >> 8 ^ int(tables[0, before & 255])
    return tables


_CRC: Final = _crc_tables()


@kernel
def crc32c(data, start, end):
    crc = np.uint32(0xFFFFFFFF)
    at = start
    while at + 8 <= end:
        crc = (
            _CRC[7, data[at] ^ (crc & np.uint32(255))]
            ^ _CRC[6, data[at + 1] ^ (crc >> np.uint32(8) & np.uint32(255))]
            ^ _CRC[5, data[at + 2] ^ (crc >> np.uint32(16) & np.uint32(255))]
            ^ _CRC[4, data[at + 3] ^ (crc >> np.uint32(24))]
            ^ _CRC[3, data[at + 4]]
            ^ _CRC[2, data[at + 5]]
            ^ _CRC[1, data[at + 6]]
            ^ _CRC[0, data[at + 7]]
        )
        at += 8
    while at < end:
        crc = _CRC[0, (crc ^ np.uint32(data[at])) & np.uint32(255)] ^ (crc >> np.uint32(8))
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@inlined
def _rotated(word, bits):
    return word << np.uint64(bits) | word >> np.uint64(64 - bits)


@inlined
def _sip_round(v0, v1, v2, v3):
    v0 += v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 += v3
    v3 = _rotated(v3, 16) ^ v2
    v0 += v3
    v3 = _rotated(v3, 21) ^ v0
    v2 += v1
    v1 = _rotated(v1, 17) ^ v2
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@kernel
def siphash(data, start, end, k0, k1):
    """SipHash-2-4 with 128 bits of output, of data[start:end]."""
    v0 = k0 ^ np.uint64(0x736F6D6570736575)
    v1 = k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = k0 ^ np.uint64(0x6C7967656E657261)
    v3 = k1 ^ np.uint64(0x7465646279746573)
    at = start
    while at + 8 <= end:
        word = np.uint64(0)
        for byte in range(8):
            word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        v3 ^= word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 ^= word
        at += 8
    word = np.uint64((end - start) & 255) << np.uint64(56)
    for byte in range(end - at):
        word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
    v3 ^= word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


# ── the map ───────────────────────────────────────────────────────────────────────────────────────


@kernel
def find_slot(table, h0, h1):
    """The first word of the key's slot, or of the empty one where it would go."""
    slots = np.uint64(len(table) // SLOT_WORDS)
    slot = np.int64(h0 % slots)
    while True:
        at = slot * SLOT_WORDS
        if table[at + 2] == np.uint64(0) or (table[at] == h0 and table[at + 1] == h1):
            return at
        slot += 1
        if slot == np.int64(slots):
            slot = np.int64(0)


@kernel
def grow(table, larger):
    """Takes all entries over into a larger, empty table."""
    for at in range(0, len(table), SLOT_WORDS):
        if table[at + 2] != np.uint64(0):
            slot = find_slot(larger, table[at], table[at + 1])
            larger[slot] = table[at]
            larger[slot + 1] = table[at + 1]
            larger[slot + 2] = table[at + 2]


# ── batches and records ───────────────────────────────────────────────────────────────────────────


@inlined
def _int(data, at, size):
    """A big-endian number of `size` bytes, signed."""
    value = np.int64(np.int8(data[at]))
    for byte in range(1, size):
        value = value << 8 | np.int64(data[at + byte])
    return value


@inlined
def _put(data, at, value, size):
    for byte in range(size):
        data[at + byte] = np.uint8(value >> (8 * (size - 1 - byte)) & 255)


@inlined
def _varlong(data, at, end):
    """(value, the position behind it), the position being -1 if there is no whole one."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), _MALFORMED


@inlined
def _put_varlong(data, at, value):
    rest = np.uint64(value << 1) ^ np.uint64(value >> 63)
    while rest >= np.uint64(128):
        data[at] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        rest >>= np.uint64(7)
        at += 1
    data[at] = np.uint8(rest)
    return at + 1


@inlined
def _varlong_bytes(value):
    rest = np.uint64(value << 1) ^ np.uint64(value >> 63)
    size = 1
    while rest >= np.uint64(128):
        rest >>= np.uint64(7)
        size += 1
    return size


@inlined
def _copy(source, start, end, target, at):
    for byte in range(end - start):
        target[at + byte] = source[start + byte]


@inlined
def _read_record(data, at, end):
    """(end of the record or -1, where its timestamp is, behind its offset, timestamp delta,
    offset delta, where the key is, its length, length of the value)
    """
    bad = np.int64(_MALFORMED)
    size, at = _varlong(data, at, end)
    if at < 0 or size < 1 or size > end - at:
        return bad, bad, bad, bad, bad, bad, bad, bad
    record_end = at + size
    timestamp_at = at + 1
    timestamp, at = _varlong(data, timestamp_at, record_end)
    if at < 0:
        return bad, bad, bad, bad, bad, bad, bad, bad
    delta, at = _varlong(data, at, record_end)
    if at < 0:
        return bad, bad, bad, bad, bad, bad, bad, bad
    rest_at = at
    key_bytes, at = _varlong(data, at, record_end)
    if at < 0 or key_bytes > record_end - at:
        return bad, bad, bad, bad, bad, bad, bad, bad
    key_at = at
    if key_bytes > 0:
        at += key_bytes
    value_bytes, at = _varlong(data, at, record_end)
    if at < 0 or value_bytes > record_end - at:
        return bad, bad, bad, bad, bad, bad, bad, bad
    return record_end, timestamp_at, rest_at, timestamp, delta, key_at, key_bytes, value_bytes


@inlined
def check_batch(window, at, end, next_offset):
    """DONE if a whole batch, as it was written, lies at `at`."""
    if end - at < HEADER_BYTES:
        return MORE_INPUT
    length = _int(window, at + 8, 4)
    if (
        window[at + 16] != 2
        or length < HEADER_BYTES - 12
        or _int(window, at, 8) < next_offset
        or _int(window, at + 23, 4) < 0
        or _int(window, at + 57, 4) < 0
    ):
        return DAMAGED
    if length + 12 > end - at:
        return MORE_INPUT
    if crc32c(window, at + 21, at + 12 + length) != np.uint32(_int(window, at + 17, 4)):
        return DAMAGED
    return DONE


@kernel
def map_records(
    data, at, end, base_offset, last_delta, count, first_dirty, table, limit, k0, k1, state
):
    """Enters the keys of one batch's records. FULL: up to and with LATEST they are in the map."""
    before = np.int64(-1)
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
            h0, h1 = siphash(data, key_at, key_at + key_bytes, k0, k1)
            slot = find_slot(table, h0, h1)
            if table[slot + 2] == np.uint64(0):
                if state[ENTRIES] >= limit:
                    return FULL
                state[ENTRIES] += 1
                table[slot] = h0
                table[slot + 1] = h1
            table[slot + 2] = np.uint64(offset + 1)
        state[LATEST] = offset
    if at != end:
        return DAMAGED
    state[LATEST] = base_offset + last_delta
    return DONE


@kernel
def map_window(window, end, first_dirty, table, limit, k0, k1, state):
    """Enters the keys of the plain batches in window[AT:end], up to one that is not plain."""
    at = state[AT]
    while at < end:
        code = check_batch(window, at, end, state[NEXT_OFFSET])
        if code != DONE:
            return code
        if _int(window, at + 21, 2) & _SPECIAL:
            return SPECIAL
        base_offset, last_delta = _int(window, at, 8), _int(window, at + 23, 4)
        batch_end = at + 12 + _int(window, at + 8, 4)
        if base_offset + last_delta >= first_dirty:
            count = _int(window, at + 57, 4)
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


@kernel
def filter_records(
    data, at, end, base_offset, last_delta, count, base_timestamp, keeps_deletes, shift,
    table, k0, k1, out, state,
):  # fmt: skip
    """Writes what stays of one batch's records to out[OUT_AT:]; `shift` moves their timestamps.

    RETAINED of them stay; MAX_TIMESTAMP and TOMBSTONES are of these. The caller has made sure that
    `out` has room for all of them, grown.
    """
    before = np.int64(-1)
    out_at = state[OUT_AT]
    latest = state[LATEST]
    retained, tombstones = 0, 0
    max_timestamp = np.int64(-1)
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
                h0, h1 = siphash(data, key_at, key_at + key_bytes, k0, k1)
                found = np.int64(table[find_slot(table, h0, h1) + 2]) - 1
                stays = offset >= found
            if stays and value_bytes < 0:
                tombstones += 1
        if stays:
            retained += 1
            max_timestamp = max(max_timestamp, base_timestamp + timestamp)
            if shift != 0:
                moved = timestamp + shift
                size = 1 + _varlong_bytes(moved) + _varlong_bytes(delta) + record_end - rest_at
                out_at = _put_varlong(out, out_at, size)
                out[out_at] = data[timestamp_at - 1]
                out_at = _put_varlong(out, out_at + 1, moved)
                out_at = _put_varlong(out, out_at, delta)
                _copy(data, rest_at, record_end, out, out_at)
                out_at += record_end - rest_at
        if not stays or shift != 0:
            if shift == 0 and run_from < at:
                _copy(data, run_from, at, out, out_at)
                out_at += at - run_from
            run_from = record_end
        at = record_end
    if at != end:
        return DAMAGED
    if shift == 0 and run_from < at:
        _copy(data, run_from, at, out, out_at)
        out_at += at - run_from
    state[OUT_AT] = out_at
    state[RETAINED] = retained
    state[MAX_TIMESTAMP] = max_timestamp
    state[TOMBSTONES] = tombstones
    return DONE


@kernel
def filter_window(window, end, now, horizon, table, k0, k1, out, state):
    """Writes what stays of the plain batches in window[AT:end] to out[OUT_AT:].

    `now`: tombstones whose horizon has passed go. `horizon`: what the others get (KIP-534).
    """
    at = state[AT]
    while at < end:
        code = check_batch(window, at, end, state[NEXT_OFFSET])
        if code != DONE:
            return code
        attributes = _int(window, at + 21, 2)
        if attributes & _SPECIAL:
            return SPECIAL
        base_offset, last_delta = _int(window, at, 8), _int(window, at + 23, 4)
        count = _int(window, at + 57, 4)
        batch_end = at + 12 + _int(window, at + 8, 4)
        out_from = state[OUT_AT]
        if len(out) - out_from < batch_end - at + GROWTH_BYTES * count:
            return MORE_OUTPUT
        if base_offset > state[LATEST]:
            _copy(window, at, batch_end, out, out_from)
            state[OUT_AT] = out_from + batch_end - at
        else:
            base_timestamp = _int(window, at + 27, 8)
            has_horizon = attributes & DELETE_HORIZON != 0
            keeps_deletes = not has_horizon or now < base_timestamp
            state[OUT_AT] = out_from + HEADER_BYTES
            code = filter_records(
                window, at + HEADER_BYTES, batch_end, base_offset, last_delta, count,
                base_timestamp, keeps_deletes, 0, table, k0, k1, out, state,
            )  # fmt: skip
            if code != DONE:
                state[OUT_AT] = out_from
                return code
            sets_horizon = state[TOMBSTONES] > 0 and not has_horizon
            if sets_horizon:
                state[OUT_AT] = out_from + HEADER_BYTES
                filter_records(
                    window, at + HEADER_BYTES, batch_end, base_offset, last_delta, count,
                    base_timestamp, keeps_deletes, base_timestamp - horizon, table, k0, k1, out,
                    state,
                )  # fmt: skip
            if state[RETAINED] == 0:
                state[OUT_AT] = out_from
            elif state[RETAINED] == count and not sets_horizon:
                _copy(window, at, batch_end, out, out_from)
                state[OUT_AT] = out_from + batch_end - at
            else:
                out_end = state[OUT_AT]
                _copy(window, at, at + HEADER_BYTES, out, out_from)
                _put(out, out_from + 8, out_end - out_from - 12, 4)
                if sets_horizon:
                    _put(out, out_from + 21, attributes | DELETE_HORIZON, 2)
                    _put(out, out_from + 27, horizon, 8)
                if not attributes & LOG_APPEND_TIME:
                    _put(out, out_from + 35, state[MAX_TIMESTAMP], 8)
                _put(out, out_from + 57, state[RETAINED], 4)
                _put(out, out_from + 17, np.int64(crc32c(out, out_from + 21, out_end)), 4)
            if state[RETAINED] < count or sets_horizon:
                state[CHANGED] += 1
            state[RECORDS] += state[RETAINED]
        at = batch_end
        state[AT] = at
        state[NEXT_OFFSET] = base_offset + last_delta + 1
    return DONE


# ── indexes ───────────────────────────────────────────────────────────────────────────────────────


@kernel
def index_batches(data, end, base_offset, interval, offsets, times, state):
    """Makes the index entries of the batches in data[:end], which go behind SIZE bytes."""
    at = 0
    state[OFFSET_ENTRIES] = 0
    state[TIME_ENTRIES] = 0
    while at < end:
        size = _int(data, at + 8, 4) + 12
        batch_offset, timestamp = _int(data, at, 8), _int(data, at + 35, 8)
        if state[SINCE_ENTRY] > interval:
            entry = state[OFFSET_ENTRIES]
            offsets[entry, 0] = batch_offset - base_offset
            offsets[entry, 1] = state[SIZE]
            state[OFFSET_ENTRIES] += 1
            state[SINCE_ENTRY] = 0
            if state[MAX_MS] > state[INDEXED_MS]:
                entry = state[TIME_ENTRIES]
                times[entry, 0] = state[MAX_MS]
                times[entry, 1] = state[MAX_MS_OFFSET] - base_offset
                state[TIME_ENTRIES] += 1
                state[INDEXED_MS] = state[MAX_MS]
        if timestamp > state[MAX_MS]:
            state[MAX_MS] = timestamp
            state[MAX_MS_OFFSET] = batch_offset + _int(data, at + 23, 4)
        state[SIZE] += size
        state[SINCE_ENTRY] += size
        at += size


def index_entries(
    data: Any, end: int, base_offset: int, interval: int, state: Any
) -> tuple[bytes, list[tuple[int, int]]]:
    """The index entries of the batches in data[:end], which go behind SIZE bytes: those of the
    offset index as they are stored, and (timestamp, relative offset) of the time index.
    """
    most = end // HEADER_BYTES + 1
    offsets, times = np.empty((most, 2), np.int64), np.empty((most, 2), np.int64)
    index_batches(data, end, base_offset, interval, offsets, times, state)
    return (
        offsets[: state[OFFSET_ENTRIES]].astype(">i4").tobytes(),
        [(at_ms, relative) for at_ms, relative in times[: state[TIME_ENTRIES]].tolist()],
    )


# ── what the loops work on ────────────────────────────────────────────────────────────────────────


def buffer(size_bytes: int) -> Any:
    return np.empty(size_bytes, np.uint8)


def view(data: Any) -> Any:
    array = np.frombuffer(data, np.uint8)
    # Arrays that cannot be written to are another type, for which all would be compiled again.
    return array if array.flags.writeable else array.copy()


def words(count: int) -> Any:
    return np.zeros(count, np.int64)


def hash_key() -> Any:
    return np.uint64(secrets.randbits(64)), np.uint64(secrets.randbits(64))


def new_table(slots: int) -> Any:
    return np.zeros(slots * SLOT_WORDS, np.uint64)


def slots_of(table: Any) -> int:
    return len(table) // SLOT_WORDS


def load() -> None:
    """Compiles what a pass needs, or finds it compiled, so that the first one is not held up."""
    nothing, key = np.empty(0, np.uint8), np.uint64(0)
    table, state = np.zeros(SLOT_WORDS, np.uint64), np.zeros(STATE_WORDS, np.int64)
    entries = np.empty((0, 2), np.int64)
    map_window(nothing, 0, 0, table, 1, key, key, state)
    map_records(nothing, 0, 0, 0, 0, 0, 0, table, 1, key, key, state)
    filter_window(nothing, 0, 0, 0, table, key, key, nothing, state)
    filter_records(
        nothing, 0, 0, 0, 0, 0, 0, True, 0, table, key, key, nothing, state
    )  # fmt: skip
    index_batches(nothing, 0, 0, 0, entries, entries, state)
    grow(table, table.copy())
