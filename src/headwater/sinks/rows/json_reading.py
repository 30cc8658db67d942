"""JSON objects of `json_text` back into Arrow columns of given types."""

from base64 import b64decode
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def rows(objects: Sequence[dict[str, Any]], fields: pa.Schema) -> pa.RecordBatch:
    """A name that an object lacks is null."""
    return pa.RecordBatch.from_arrays(
        [column([item.get(field.name) for item in objects], field.type) for field in fields],
        schema=fields,
    )


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    is_ = pa.types
    if is_.is_dictionary(kind):
        return column(values, kind.value_type).dictionary_encode().cast(kind)
    if is_.is_date(kind) or is_.is_time(kind) or is_.is_decimal(kind) or is_.is_timestamp(kind):
        return _from_texts(values, kind)
    if is_.is_floating(kind):  # "NaN", "Infinity"
        return pa.array([value if value is None else float(value) for value in values], kind)
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return pa.array([value if value is None else b64decode(value) for value in values], kind)
    if is_.is_duration(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if is_.is_struct(kind):
        children = [
            column(
                [None if value is None else value.get(child.name) for value in values], child.type
            )
            for child in kind.fields
        ]
        is_null = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=kind.fields, mask=is_null)
    if is_.is_map(kind):
        keys = column(list(chain.from_iterable(value or () for value in values)), pa.string())
        items = chain.from_iterable((value or {}).values() for value in values)
        return pa.MapArray.from_arrays(
            _bounds(values), keys.cast(kind.key_type), column(list(items), kind.item_type)
        ).cast(kind)
    if is_.is_list(kind) or is_.is_large_list(kind):
        flat = column(list(chain.from_iterable(value or () for value in values)), kind.value_type)
        return pa.ListArray.from_arrays(_bounds(values), flat).cast(kind)
    return pa.array(values, kind)


def _from_texts(values: list[Any], kind: pa.DataType) -> pa.Array:
    texts = pa.array(values, pa.string())
    if pa.types.is_time(kind):  # Arrow parses timestamps only: as one of the first day
        moments = pc.binary_join_element_wise("1970-01-01T", texts, "")
        return moments.cast(pa.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)


def _bounds(values: list[Any]) -> pa.Array:
    """The offset of each list, and the end; null for a null list."""
    starts = [0, *accumulate(len(value or ()) for value in values)]
    return pa.array(
        [start if value is not None else None for start, value in zip(starts, values, strict=False)]
        + starts[-1:],
        pa.int32(),
    )
