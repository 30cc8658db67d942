"""Values as exact text, for SQL literals and text columns, and back.

Texts of one type sort like their values, except decimals.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.sinks.rows.nested import from_json, is_nested, to_json


def to_texts(column: pa.Array) -> pa.Array:
    """For decimals, dates, times and nested values. Instants are in UTC, without a Z."""
    type_ = column.type
    if is_nested(type_):
        return to_json(column)
    if pa.types.is_decimal(type_) and type_.scale > 6:  # Arrow would write 1E-9
        texts = [None if value is None else format(value, "f") for value in column.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_timestamp(type_) and type_.tz:
        column = column.cast(
            pa.timestamp(type_.unit)
        )  # otherwise Arrow looks up the zone for every row
    return column.cast(pa.string())


def from_texts(stored: Iterable[Any], type_: pa.DataType) -> pa.Array:
    texts = pa.array(stored, pa.string())
    if is_nested(type_):
        return from_json(texts, type_)
    if pa.types.is_time(type_):  # Arrow parses timestamps only
        days = pc.binary_join_element_wise("1970-01-01", texts, " ")
        unit = "ns" if type_.unit == "ns" else "us"  # in which they were written
        return days.cast(pa.timestamp(unit)).cast(pa.time64(unit)).cast(type_)
    if pa.types.is_timestamp(type_) and type_.tz:
        return pc.replace_substring(texts, "Z", "").cast(pa.timestamp(type_.unit)).cast(type_)
    return texts.cast(type_)
