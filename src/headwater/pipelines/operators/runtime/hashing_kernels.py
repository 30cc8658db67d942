"""Numba kernels of XXH64 with the seed 42, equal to Spark's `xxhash64`.

They give what Spark gives for texts, bigints and doubles. The hash 0, which marks empty slots of
hash tables, becomes 1.
"""

import numpy as np

from headwater.jit import kernel

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_SEED = np.uint64(42)


@kernel
def hash_words(words):
    """Of 8 bytes each."""
    hashes = np.empty(len(words), np.uint64)
    for row in range(len(words)):
        hashes[row] = _finished(_with_word(_SEED + _P5 + np.uint64(8), words[row]))
    return hashes


@kernel
def hash_bytes(data, offsets):
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for row in range(len(hashes)):
        hashes[row] = _hash(data, offsets[row], offsets[row + 1])
    return hashes


@kernel
def _hash(data, start, end):
    at = start
    if end - start >= 32:
        one, two = _SEED + _P1 + _P2, _SEED + _P2
        three, four = _SEED, _SEED - _P1
        while at + 32 <= end:
            one = _round(one, _word(data, at))
            two = _round(two, _word(data, at + 8))
            three = _round(three, _word(data, at + 16))
            four = _round(four, _word(data, at + 24))
            at += 32
        mixed = _turned(one, 1) + _turned(two, 7) + _turned(three, 12) + _turned(four, 18)
        mixed = _joined(_joined(_joined(_joined(mixed, one), two), three), four)
    else:
        mixed = _SEED + _P5
    mixed += np.uint64(end - start)
    while at + 8 <= end:
        mixed = _with_word(mixed, _word(data, at))
        at += 8
    if at + 4 <= end:
        half = np.uint64(0)
        for byte in range(4):
            half |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        mixed = _turned(mixed ^ half * _P1, 23) * _P2 + _P3
        at += 4
    while at < end:
        mixed = _turned(mixed ^ np.uint64(data[at]) * _P5, 11) * _P1
        at += 1
    return _finished(mixed)


@kernel
def _word(data, at):
    word = np.uint64(0)
    for byte in range(8):
        word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
    return word


@kernel
def _turned(word, bits):
    return word << np.uint64(bits) | word >> np.uint64(64 - bits)


@kernel
def _round(lane, word):
    return _turned(lane + word * _P2, 31) * _P1


@kernel
def _joined(mixed, lane):
    return (mixed ^ _round(np.uint64(0), lane)) * _P1 + _P4


@kernel
def _with_word(mixed, word):
    return _turned(mixed ^ _round(np.uint64(0), word), 27) * _P1 + _P4


@kernel
def _finished(mixed):
    mixed = (mixed ^ mixed >> np.uint64(33)) * _P2
    mixed = (mixed ^ mixed >> np.uint64(29)) * _P3
    mixed ^= mixed >> np.uint64(32)
    return mixed if mixed != 0 else np.uint64(1)
