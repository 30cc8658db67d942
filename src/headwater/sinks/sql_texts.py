"""Values as text that says them exactly, for SQL literals and for columns that are text; and back.

Texts of one type sort as their values do, but for exact numbers.
"""

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.sinks.nested import from_json, is_nested, to_json

_FIRST_SECOND: Final = -62135596800  # of the year 1
_LAST_SECOND: Final = 253402300799  # of the year 9999


def to_texts(column: pa.Array) -> pa.Array:
    """For exact numbers, dates, times and whatever is nested. Instants are in UTC, without a Z."""
    type_ = column.type
    if is_nested(type_):
        return to_json(column)
    if pa.types.is_decimal(type_) and type_.scale > 6:  # Arrow would write 1E-9
        texts = [None if each is None else format(each, "f") for each in column.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_timestamp(type_) and type_.tz:
        column = column.cast(pa.timestamp(type_.unit))  # otherwise it looks the zone up per row
    return column.cast(pa.string())


def from_texts(stored: Iterable[Any], type_: pa.DataType) -> pa.Array:
    texts = pa.array(stored, pa.string())
    if is_nested(type_):
        return from_json(texts, type_)
    if pa.types.is_time(type_):  # Arrow reads no times, but timestamps
        days = pc.binary_join_element_wise("1970-01-01", texts, " ")
        return days.cast(pa.timestamp(type_.unit)).cast(type_)
    if pa.types.is_timestamp(type_) and type_.tz:
        return pc.replace_substring(texts, "Z", "").cast(pa.timestamp(type_.unit)).cast(type_)
    return texts.cast(type_)


def is_beyond_years(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Of dates and timestamps those that have no year of four digits."""
    seconds = column.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    return pc.or_(pc.less(seconds, _FIRST_SECOND), pc.greater(seconds, _LAST_SECOND))
