"""Validation of rows for any store: texts are UTF-8, times lie in the years 1 to 9999.

Other values occur: Spark casts any bytes to text, and PostgreSQL's `infinity` comes as a number of
microseconds. Rows with them are refused like other rows that a store does not accept.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import RowRefused
from headwater.sinks.contract import DELETE, OP, TRUNCATE

_FIRST_S: Final = -62_135_596_800  # of the year 1
_END_S: Final = 253_402_300_800  # of the year 9999
_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def validated(
    rows: pa.Table, key: Sequence[str] | None, refused: list[RowRefused] | None
) -> pa.Table:
    """Raises RowRefused for an invalid row; with `refused` such rows are left out and added to it.
    Of deletions only the key counts, and one with an invalid key is silently left out: no store has
    a row of that key. (`key` is None: they count like any other row.)
    """
    for name in rows.column_names:
        is_bad = None if name == OP else _unreadable(rows[name])
        if is_bad is None:
            continue
        is_told = is_left_out = is_bad
        if key is not None and OP in rows.column_names:
            is_told = is_bad & ~_is(rows, DELETE) & ~_is(rows, TRUNCATE)
            is_left_out = is_told | (is_bad & _is(rows, DELETE) & (name in key))
        errors = [
            RowRefused(
                f"{name} of a row is no UTF-8, or lies outside of the years 1 to 9999",
                row=row,
                column=name,
                hint="filter such rows out, or bring them into bounds",
            )
            for row in shown(rows.filter(pa.array(is_told)))
        ]
        if errors and refused is None:
            raise errors[0]
        if refused is not None:
            refused += errors
        rows = rows.filter(pa.array(~is_left_out))
    return rows


def shown(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as Python values. A value that Python lacks becomes a number, or text with escapes:
    reporting a row must not fail.
    """
    try:
        return rows.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        columns = [[_shown(value) for value in column] for column in rows.columns]
        return [
            dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)
        ]


def _shown(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        if pa.types.is_struct(value.type):
            return {name: _shown(item) for name, item in value.items()}
        if pa.types.is_nested(value.type):
            return [_shown(item) for item in value.values]
        if pa.types.is_temporal(value.type):
            return value.value
        return value.as_buffer().to_pybytes().decode(errors="replace")


def _is(rows: pa.Table, op: str) -> np.ndarray:
    return pc.fill_null(pc.equal(rows[OP], op), fill_value=False).to_numpy()  # type: ignore[no-any-return]


def _unreadable(column: pa.ChunkedArray) -> np.ndarray | None:
    """A mask of invalid values; None if all are valid."""
    found = [_unreadable_in(chunk) for chunk in column.chunks]
    if all(mask is None for mask in found):
        return None
    return np.concatenate(
        [
            np.zeros(len(chunk), bool) if mask is None else mask
            for chunk, mask in zip(column.chunks, found, strict=True)
        ]
    )


def _unreadable_in(array: pa.Array) -> np.ndarray | None:
    kind, is_ = array.type, pa.types
    if is_.is_string(kind) or is_.is_large_string(kind) or kind == pa.string_view():
        return _not_utf8(array)
    if is_.is_date(kind) or is_.is_timestamp(kind):
        return _outside(array)
    if is_.is_dictionary(kind):
        return _unreadable_in(array.dictionary_decode())
    if is_.is_struct(kind):
        found = [mask for mask in map(_unreadable_in, array.flatten()) if mask is not None]
        return np.logical_or.reduce(found) if found else None
    if is_.is_map(kind):
        return _unreadable_in(array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        inside = _unreadable_in(array.flatten())
        if inside is None:
            return None
        is_bad = np.zeros(len(array), bool)
        is_bad[pc.list_parent_indices(array).to_numpy()[inside]] = True
        return is_bad
    return None


def _not_utf8(array: pa.Array) -> np.ndarray | None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        values = array.cast(pa.large_binary()).to_pylist()
        return np.array([value is not None and not _is_utf8(value) for value in values])
    return None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _outside(array: pa.Array) -> np.ndarray | None:
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("s"))
    scale = _UNITS[array.type.unit]
    first, end = (min(max(s * scale, -(2**63)), 2**63 - 1) for s in (_FIRST_S, _END_S))
    moments = array.cast(pa.int64())
    least, most = pc.min_max(moments).values()
    if not least.is_valid or (first <= least.as_py() and most.as_py() < end):
        return None
    is_outside = pc.or_(pc.less(moments, first), pc.greater_equal(moments, end))
    return pc.fill_null(is_outside, fill_value=False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
