"""Avro's binary encoding of values that are JSON, compiled from their Kafka Connect schema.

The bytes are those of the Avro schema that `avro_schemas.schema_text` makes of the same Connect
schema: fields in their order, a union as the index of its branch and the value. An encoder for each
type is made once; a value that is not of its type is an `Unfit` with the names that lead to it.
`source` is the same for many changes, so its bytes are made again only if it differs. (Compiled so,
an event takes a third of the time that a general writer needs, which looks for the branches of
unions by trying them.)
"""

import base64
import struct
from collections.abc import Callable
from typing import Any, Final

import orjson

from headwater.capture.records.avro_schemas import ANY
from headwater.capture.records.connect_schemas import Schema

Encode = Callable[[Any], bytes]

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_SMALL: Final = 1 << 13  # numbers whose bytes are made beforehand
_NULL: Final = b"\x00"  # the first branch of a union; the second one is 1, in zigzag 2
_float = struct.Struct("<f").pack
_double = struct.Struct("<d").pack


class Unfit(ValueError):
    """A value that is not of its column's type: the names of the fields that lead to it."""


def encoder(connect: Schema) -> Encode:
    """Of values that are not null."""
    kind = connect["type"]
    if kind == "struct":
        return _struct(connect)
    if kind == "array":
        return _array(_nullable(connect["items"]))
    if kind == "map":
        return _map(_nullable(connect["values"]))
    return _ENCODERS[kind]


def _nullable(connect: Schema) -> Encode:
    """Of values that may be null, if the schema says so; as the union of Avro's schema."""
    encode = encoder(connect)
    if not connect.get("optional"):
        return encode
    if connect.get("default") is not None:  # the default's branch is the first
        return lambda value: b"\x02" if value is None else b"\x00" + encode(value)
    if connect["type"] == ANY:
        return lambda value: _NULL if value is None else _anything(value, 1)
    return lambda value: _NULL if value is None else b"\x02" + encode(value)


def _struct(connect: Schema) -> Encode:
    fields = [
        (field["field"], _remembered(_nullable(field)) if field["field"] == "source" and
         field["type"] == "struct" else _nullable(field))
        for field in connect["fields"]
    ]  # fmt: skip

    def encode(value: dict[str, Any]) -> bytes:
        get, parts = value.get, []
        for name, encode_field in fields:
            try:
                parts.append(encode_field(get(name)))
            except Unfit as error:
                raise Unfit(f"{name}.{error}") from None
            except (TypeError, ValueError, AttributeError, OverflowError, struct.error):
                raise Unfit(name) from None
        return b"".join(parts)

    return encode


def _remembered(encode: Encode) -> Encode:
    """The bytes of the last value, if the next one is equal."""
    last: tuple[Any, bytes] = (None, b"")

    def encode_once(value: Any) -> bytes:
        nonlocal last
        known, found = last  # together, for several threads
        if known != value or known is None:
            found = encode(value)
            last = (value, found)
        return found

    return encode_once


def _array(item: Encode) -> Encode:
    def encode(values: list[Any]) -> bytes:
        if not isinstance(values, list):
            raise TypeError
        if not values:
            return b"\x00"
        return _long(len(values)) + b"".join(map(item, values)) + b"\x00"

    return encode


def _map(item: Encode) -> Encode:
    def encode(values: dict[str, Any]) -> bytes:
        if not values:
            return b"\x00"
        pairs = [_string(name) + item(value) for name, value in values.items()]
        return _long(len(values)) + b"".join(pairs) + b"\x00"

    return encode


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_NUMBERS: Final = tuple(_varint(number << 1) for number in range(_SMALL))


def _long(number: Any) -> bytes:
    if type(number) is not int or not _LONG_MIN <= number <= _LONG_MAX:
        raise TypeError
    if 0 <= number < _SMALL:
        return _NUMBERS[number]
    return _varint((number << 1) ^ (number >> 63))


def _integer(number: Any) -> bytes:
    if type(number) is not int or not _INT_MIN <= number <= _INT_MAX:
        raise TypeError
    return _long(number)


def _boolean(value: Any) -> bytes:
    if type(value) is not bool:
        raise TypeError
    return b"\x01" if value else b"\x00"


def _number(value: Any) -> float:
    if type(value) is bool:
        raise TypeError
    return float(value)  # also the texts NaN and Infinity, which JSON needs


def _string(value: Any) -> bytes:
    """SQLite stores numbers in columns that declare texts."""
    data = value.encode() if type(value) is str else orjson.dumps(value)
    return _long(len(data)) + data


def _binary(value: Any) -> bytes:
    data = base64.b64decode(value, validate=True)
    return _long(len(data)) + data


def _anything(value: Any, first: int = 0) -> bytes:
    """Of the union of long, double and string, whose first branch has this index."""
    if type(value) is int:
        return _long(first) + _long(value)
    if type(value) is float:
        return _long(first + 1) + _double(value)
    return _long(first + 2) + _string(value)


_ENCODERS: Final[dict[str, Encode]] = {
    "boolean": _boolean, "int8": _integer, "int16": _integer, "int32": _integer,
    "int64": _long, "string": _string, "bytes": _binary, ANY: _anything,
    "float": lambda value: _float(_number(value)),
    "float32": lambda value: _float(_number(value)),
    "double": lambda value: _double(_number(value)),
    "float64": lambda value: _double(_number(value)),
}  # fmt: skip
