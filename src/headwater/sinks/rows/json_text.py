"""Arrow columns as JSON text, one object for each row, without a Python object for each value.

    int, bool            as they are             float       a number; "NaN", "Infinity"
    text                 a string                decimal     a string: a number would be rounded
    date, time           "2026-01-02", "03:04:05.000006"
    timestamp            "2026-01-02T03:04:05.000006Z"; without "Z" if it has no time zone
    bytes                base64                  duration    a number, in its unit
    list, struct, map    arrays, and objects (the keys of a map as texts)

Arrow converts each column to texts; then `json_kernels` writes them column by column into one
buffer, each text at the cursor of its row.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import StoreRefused
from headwater.sinks.rows import json_kernels as kernels

_TOKEN, _STRING, _TIME = kernels.TOKEN, kernels.STRING, kernels.TIME
_NOTHING: Final = np.empty(0, np.uint8)


class Ready(NamedTuple):
    """Texts (large_binary) that are JSON already."""

    texts: pa.Array


def objects(columns: Sequence[pa.Array], names: Sequence[str]) -> pa.Array:
    """`{"name": value, …}` of each row, as large_binary."""
    rows = len(columns[0])
    before = [
        (b"," if number else b"{") + orjson.dumps(name) + b":" for number, name in enumerate(names)
    ]
    return joined(rows, list(zip(before, columns, strict=True)), b"}")


def is_supported(kind: pa.DataType) -> bool:
    try:
        _text(pa.array([], kind))
    except (StoreRefused, pa.ArrowNotImplementedError):
        return False
    return True


def joined(rows: int, parts: Sequence[tuple[bytes, pa.Array | Ready]], end: bytes) -> pa.Array:
    """Of each row: each part's bytes and the JSON of its column, then `end`; as large_binary."""
    texts = [
        (np.frombuffer(before, np.uint8), *_layout(*_text(column))) for before, column in parts
    ]
    sizes = np.full(rows, len(end), np.int64)
    for before, data, starts, lengths, kind in texts:
        kernels.add_sizes(sizes, len(before), data, starts, lengths, kind)
    bounds = np.concatenate(([0], np.cumsum(sizes)))
    out = np.empty(int(bounds[-1]), np.uint8)
    cursors = bounds[:-1].copy()
    for before, data, starts, lengths, kind in texts:
        kernels.write(out, cursors, before, data, starts, lengths, kind)
    kernels.write_end(out, cursors, np.frombuffer(end, np.uint8))
    return pa.Array.from_buffers(
        pa.large_binary(), rows, [None, pa.py_buffer(bounds), pa.py_buffer(out)]
    )


def _text(column: pa.Array | Ready) -> tuple[pa.Array, int]:
    """The column's texts, large_string or large_binary, and their kind (json_kernels.py)."""
    if isinstance(column, Ready):
        return column.texts, _TOKEN
    kind = column.type
    is_ = pa.types
    if is_.is_dictionary(kind):
        return _text(column.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        return _text(column.storage)
    if is_.is_null(kind):
        return pa.nulls(len(column), pa.large_string()), _TOKEN
    if is_.is_integer(kind) or is_.is_boolean(kind):
        return column.cast(pa.large_string()), _TOKEN
    if is_.is_floating(kind):
        return _floats(column), _TOKEN
    if is_.is_string(kind) or is_.is_large_string(kind) or kind == pa.string_view():
        return column.cast(pa.large_string()), _STRING
    if is_.is_decimal(kind) or is_.is_date(kind) or is_.is_time(kind):
        return column.cast(pa.large_string()), _STRING
    if is_.is_timestamp(kind):
        if kind.tz is not None:
            column = column.cast(pa.timestamp(kind.unit, "UTC"))
        return column.cast(pa.large_string()), _TIME
    if is_.is_duration(kind):
        return column.cast(pa.int64()).cast(pa.large_string()), _TOKEN
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        coded = [None if value is None else b64encode(value) for value in column.to_pylist()]
        return pa.array(coded, pa.large_binary()), _STRING
    if is_.is_struct(kind):
        return _but_null(objects(column.flatten(), kind.names), column), _TOKEN
    if is_.is_map(kind):
        return _map(column), _TOKEN
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return _list(column), _TOKEN
    raise StoreRefused("a column has a type that JSON cannot represent", detail=str(kind))


def _floats(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.float32() if column.type == pa.float16() else column.type)
    texts = texts.cast(pa.string())
    # 1.0 stays a float for readers that infer the type from the text.
    is_whole = pc.match_substring_regex(texts, "^-?[0-9]+$")
    texts = pc.if_else(is_whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    if pc.any(pc.invert(pc.is_finite(column))).as_py():
        for found, text in (
            ("nan", '"NaN"'),
            ("-nan", '"NaN"'),
            ("inf", '"Infinity"'),
            ("-inf", '"-Infinity"'),
        ):
            texts = pc.if_else(pc.equal(texts, found), text, texts)
    return texts.cast(pa.large_string())


def _list(column: pa.Array) -> pa.Array:
    values = column.flatten()  # without values behind nulls
    return _arrays(column, joined(len(values), [(b"", values)], b""), "[", "]")


def _map(column: pa.Array) -> pa.Array:
    pairs = column.cast(pa.list_(pa.struct([column.type.key_field, column.type.item_field])))
    keys, items = pairs.flatten().flatten()
    texts = joined(len(keys), [(b"", keys.cast(pa.large_string())), (b":", items)], b"")
    return _arrays(pairs, texts, "{", "}")


def _arrays(column: pa.Array, texts: pa.Array, begin: str, end: str) -> pa.Array:
    """The texts of each list's values; null for a null list."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    bounds = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    # Binary, as binary_join does not support large lists of large strings.
    parts = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), texts.cast(pa.binary()))
    inside = pc.binary_join(parts, b",")
    whole = pc.binary_join_element_wise(begin.encode(), inside, end.encode(), b"")
    return _but_null(whole, column).cast(pa.large_binary())


def _but_null(texts: pa.Array, column: pa.Array) -> pa.Array:
    if not column.null_count:
        return texts
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, texts.type))


def _layout(texts: pa.Array, kind: int) -> tuple[Any, Any, Any, int]:
    """Bytes of the texts, the start and length of each (-1: null)."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)
    lengths = np.diff(bounds)
    if texts.null_count:
        lengths[texts.is_null().to_numpy(zero_copy_only=False)] = -1
    return (
        _NOTHING if data is None else np.frombuffer(data, np.uint8),
        bounds[:-1].copy(),
        lengths,
        kind,
    )
