"""Lists, structs and maps as JSON, for stores that have no such types; and back, exactly.

Structs and maps with text keys are objects; other maps are lists of [key, value]. Text represents
what JSON lacks: decimals ("1.50"), bytes (base64), dates and times (ISO 8601), NaN and infinities.
Durations are whole microseconds.
"""

import base64
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import orjson
import pyarrow as pa

_Convert = Callable[[Any], Any]
_MICROSECOND: Final = timedelta(microseconds=1)
_NO_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def is_nested(type_: pa.DataType) -> bool:
    return bool(pa.types.is_nested(type_))


def to_json(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Texts; null for null."""
    convert = _to_json(column.type)
    return pa.array(
        [
            None if value is None else orjson.dumps(convert(value) if convert else value).decode()
            for value in column.to_pylist()
        ],
        pa.string(),
    )


def from_json(texts: pa.ChunkedArray | pa.Array, type_: pa.DataType) -> pa.Array:
    """The inverse of `to_json`, with that type. Maps may have another order."""
    convert = _from_json(type_)
    values = (text if text is None else orjson.loads(text) for text in texts.to_pylist())
    return pa.array(
        [value if value is None or convert is None else convert(value) for value in values], type_
    )


def _to_json(type_: pa.DataType) -> _Convert | None:
    """None: unchanged."""
    if pa.types.is_floating(type_):
        return _number_to_json
    if pa.types.is_decimal(type_):
        return lambda value: format(value, "f")
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_duration(type_):
        return lambda value: value // _MICROSECOND
    return _inside(type_, _to_json, writes=True)


def _from_json(type_: pa.DataType) -> _Convert | None:
    if pa.types.is_floating(type_):
        return lambda value: _NO_NUMBERS[value] if isinstance(value, str) else float(value)
    if pa.types.is_decimal(type_):
        return Decimal
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return base64.b64decode
    if pa.types.is_date(type_):
        return date.fromisoformat
    if pa.types.is_timestamp(type_):
        return datetime.fromisoformat
    if pa.types.is_time(type_):
        return time.fromisoformat
    if pa.types.is_duration(type_):
        return lambda value: value * _MICROSECOND
    return _inside(type_, _from_json, writes=False)


def _inside(
    type_: pa.DataType, of: Callable[[pa.DataType], _Convert | None], *, writes: bool
) -> _Convert | None:
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        item = of(type_.value_type)
        return None if item is None else lambda values: [_or_null(item, value) for value in values]
    if pa.types.is_struct(type_):
        members = [(field.name, of(field.type)) for field in type_]
        if not any(convert for _, convert in members):
            return None
        return lambda value: {
            name: _or_null(convert, value.get(name)) if convert else value.get(name)
            for name, convert in members
        }
    if pa.types.is_map(type_):
        return _map(type_, of, writes)
    return None


def _map(
    type_: pa.DataType, of: Callable[[pa.DataType], _Convert | None], writes: bool
) -> _Convert:
    key, item = of(type_.key_type), of(type_.item_type)
    has_text_keys = type_.key_type in (pa.string(), pa.large_string())

    def pairs(value: Any) -> list[tuple[Any, Any]]:
        found = value.items() if isinstance(value, dict) else value
        return [(key(name) if key else name, _or_null(item, value)) for name, value in found]

    return (lambda value: dict(pairs(value))) if has_text_keys and writes else pairs


def _or_null(convert: _Convert | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)


def _number_to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
