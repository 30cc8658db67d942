"""128-bit hashes of keys and rows of any type, by which stored rows are identified.

Two different keys collide by chance once in 10^26 tables of a million rows. A key that is one
integer cannot collide: its first word is a permutation of the value (splitmix64's finalizer). The
hash is not meant to resist deliberate collisions.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.state.row_kernels import hash_texts

Hashes = npt.NDArray[np.uint64]  # (rows, words)

WORDS: Final = 2
_NULL: Final = np.uint64(0x5851F42D4C957F2D)
_FIRST: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND: Final = np.uint64(0xC2B2AE3D27D4EB4F)


def hashes_of(columns: Sequence[pa.ChunkedArray | pa.Array]) -> Hashes:
    """(rows, 2). Null equals null, NaN equals NaN, -0.0 equals 0.0."""
    arrays = [_one(column) for column in columns]
    if len(arrays) == 1 and _is_integer(arrays[0].type):
        first, is_null = _integers(arrays[0])
        found = np.empty((len(first), WORDS), np.uint64)
        found[:, 0] = _mixed(first)
        found[:, 1] = is_null
        return found
    found = np.zeros((len(arrays[0]) if arrays else 0, WORDS), np.uint64)
    for array in arrays:
        _add(found, array)
    return found


def distinct(hashes: Hashes) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Each once, in order, and which of them each is."""
    # np.unique of both words as one value compares them by a call for each pair: four times slower.
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    in_turn = hashes[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (in_turn[1:] != in_turn[:-1]).any(axis=1)
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(is_first) - 1
    return in_turn[is_first], which


def as_one(hashes: Hashes) -> npt.NDArray[Any]:
    """The two words of each as one value, which can be compared."""
    return np.ascontiguousarray(hashes).view([("", np.uint64)] * WORDS).reshape(-1)


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _add(found: Hashes, array: pa.Array) -> None:
    kind = array.type
    if pa.types.is_dictionary(kind):
        _add(found, array.dictionary_decode())
    elif pa.types.is_struct(kind):
        _add_words(found, array.is_valid().cast(pa.uint64()).to_numpy(zero_copy_only=False))
        for field in array.flatten():
            _add(found, field)
    elif pa.types.is_null(kind):
        _add_words(found, np.full(len(array), _NULL))
    elif _is_integer(kind) or pa.types.is_floating(kind):
        words, is_null = _integers(array)
        words[is_null] = _NULL
        _add_words(found, words)
        _add_words(found, is_null.astype(np.uint64))
    elif pa.types.is_decimal128(kind):
        words = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)
        words = words[array.offset : array.offset + len(array)].copy()
        words[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
        _add_words(found, words[:, 0])
        _add_words(found, words[:, 1])
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        _add_texts(found, array.cast(pa.binary()), np.int32)
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        _add_texts(found, array.cast(pa.large_binary()), np.int64)
    else:  # lists and maps: slow, and right
        texts = pa.array([repr(value).encode() for value in array.to_pylist()], pa.binary())
        _add_texts(found, texts, np.int32)


def _is_integer(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
    )


def _integers(array: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Each value as one word; and which are null (as 0)."""
    if pa.types.is_floating(array.type):
        values = array.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0  # -0.0 to 0.0
        values[np.isnan(values)] = np.nan
        words = values.view(np.uint64)
    else:
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        elif pa.types.is_date32(array.type):
            array = array.cast(pa.int32())
        filled = array.fill_null(0) if pa.types.is_integer(array.type) else array.cast(pa.int64())
        filled = filled.fill_null(0)
        kind = np.uint64 if pa.types.is_uint64(filled.type) else np.int64
        words = filled.to_numpy().astype(kind).view(np.uint64)
    return words, array.is_null().to_numpy(zero_copy_only=False)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A permutation of all words (the end of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _add_words(found: Hashes, words: npt.NDArray[np.uint64]) -> None:
    found[:, 0] = _mixed((found[:, 0] ^ words) + _FIRST)
    found[:, 1] = _mixed((found[:, 1] + _FIRST) ^ _mixed(words * _SECOND + _FIRST))


def _add_texts(found: Hashes, array: pa.Array, kind: Any) -> None:
    _, offsets, data = array.buffers()
    begins = np.frombuffer(offsets, kind)[array.offset : array.offset + len(array) + 1]
    texts = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    is_null = pc.is_null(array).to_numpy(zero_copy_only=False)
    hash_texts(found, begins, texts, is_null)
