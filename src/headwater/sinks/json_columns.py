"""JSON objects back into Arrow columns: what `json_text` wrote, exactly as it was.

For stores that keep a row as one document. Columns are known by their types, so that texts become
the decimals, times and bytes again which they were. A column that an object lacks is null: it was
added later.
"""

from base64 import b64decode
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc


def rows_from(documents: Iterable[bytes | str], fields: pa.Schema) -> pa.RecordBatch:
    objects = [orjson.loads(document) for document in documents]
    columns = [_column([row.get(field.name) for row in objects], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(columns, schema=fields)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    is_ = pa.types
    if is_.is_floating(kind):  # also "NaN", "Infinity", and whole numbers above 2^53
        floats = [None if value is None else float(value) for value in values]
        return pa.array(floats, pa.float64()).cast(kind, safe=False)
    if is_.is_decimal(kind) or is_.is_date(kind) or is_.is_timestamp(kind):
        return pa.array(values, pa.large_string()).cast(kind)
    if is_.is_time(kind):  # Arrow reads no times of day; a moment of the first day has one
        texts = pc.binary_join_element_wise("1970-01-01T", pa.array(values, pa.string()), "")
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)
    if is_.is_duration(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return pa.array([None if value is None else b64decode(value) for value in values], kind)
    if is_.is_map(kind):
        return _maps(values, kind)
    if is_.is_struct(kind):
        return _structs(values, kind)
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        inside = list(chain.from_iterable(value for value in values if value is not None))
        lists = pa.LargeListArray.from_arrays(_bounds(values), _column(inside, kind.value_type))
        return lists.cast(kind)
    return pa.array(values, kind)


def _structs(values: list[Any], kind: pa.DataType) -> pa.Array:
    members = [
        _column([None if value is None else value.get(each.name) for value in values], each.type)
        for each in kind
    ]
    is_null = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(members, fields=list(kind), mask=is_null)


def _maps(values: list[Any], kind: pa.DataType) -> pa.Array:
    """JSON's names are texts; Arrow makes of them what the keys were."""
    keys = [name for value in values if value is not None for name in value]
    items = [item for value in values if value is not None for item in value.values()]
    return pa.MapArray.from_arrays(
        _bounds(values, pa.int32()),
        pa.array(keys, pa.large_string()).cast(kind.key_type),
        _column(items, kind.item_type),
        type=kind,
    )


def _bounds(values: Sequence[Any], kind: pa.DataType = pa.int64()) -> pa.Array:  # noqa: B008
    """Where each list begins; null for a list that is null, as Arrow wants it."""
    ends = np.cumsum([0 if value is None else len(value) for value in values], dtype=np.int64)
    bounds = np.concatenate(([0], ends))
    is_null = np.array([value is None for value in values] + [False])
    return pa.array(bounds, kind, mask=is_null)
