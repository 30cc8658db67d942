"""Kafka Connect's types: which Arrow type each becomes, and how its JSON is read."""

import re
from base64 import b64decode
from binascii import a2b_base64
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.pipelines.decoding.json.nodes import (
    Clock,
    Date,
    Listed,
    Mapped,
    Node,
    NotVectorised,
    Struct,
    Timestamp,
    Unreadable,
    base64_of,
    expected,
    fitted,
    node_of,
)

Connect = Mapping[str, Any]

CONNECT_METADATA: Final = b"connect"  # of a field: its type as Kafka Connect writes it, in JSON

INSTANT: Final = pa.timestamp("us", tz="UTC")
LOCAL: Final = pa.timestamp("us")
_MAX_PRECISION: Final = 38  # of Arrow's and Spark's decimals
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_VARIABLE: Final = "io.debezium.data.VariableScaleDecimal"
_STAMP_UNITS: Final = {
    "io.debezium.time.Timestamp": "ms",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
}
_CLOCK_UNITS: Final = {
    "io.debezium.time.Time": "ms",
    "org.apache.kafka.connect.data.Time": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.NanoTime": "ns",
    "io.debezium.time.IsoTime": "us",
}
_DATES: Final = {
    "io.debezium.time.Date": "number",
    "org.apache.kafka.connect.data.Date": "number",
    "io.debezium.time.IsoDate": "text",
}
_LOGICAL: Final = {
    **dict.fromkeys(_DATES, pa.date32()),
    **dict.fromkeys(_STAMP_UNITS, LOCAL),
    "io.debezium.time.IsoTimestamp": LOCAL,
    "io.debezium.time.ZonedTimestamp": INSTANT,
    **dict.fromkeys(_CLOCK_UNITS, pa.string()),
    _VARIABLE: pa.string(),
}
_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_NUMERIC: Final = re.compile(
    r"(?:numeric|decimal|dec|fixed|number)\((\d+)(?:\s*,\s*(-?\d+))?\)", re.IGNORECASE
)
_MONEY: Final = (19, 2)  # 64 bits, in cents


def arrow_type(connect: Connect, declared: str = "") -> pa.DataType:
    """The Arrow type of a column. `declared` is its type in the database's terms, "" if unknown:
    decimals that are written as texts have their precision only there.
    """
    kind, logical = connect.get("type"), connect.get("name")
    if logical == _DECIMAL:
        parameters = connect.get("parameters") or {}
        precision = parameters.get("connect.decimal.precision")
        if precision is None:
            return _decimal(*_MONEY) if declared == "money" else pa.string()
        return _decimal(int(precision), int(parameters.get("scale", 0)))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "string" and not logical:
        if declared == "money":
            return _decimal(*_MONEY)
        match = _NUMERIC.match(declared)
        return _decimal(int(match[1]), int(match[2] or 0)) if match else pa.string()
    if kind == "int64" and re.match(r"bigint\b.*\bunsigned", declared, re.IGNORECASE):
        return _decimal(20, 0)  # up to 2^64 - 1
    if kind == "array":
        return pa.list_(arrow_type(connect.get("items") or {}, declared.removesuffix("[]")))
    if kind == "map":
        return pa.map_(pa.string(), arrow_type(connect.get("values") or {}))
    if kind == "struct":
        return pa.struct([(field["field"], arrow_type(field)) for field in connect["fields"]])
    return _PLAIN.get(str(kind), pa.string())


def _decimal(precision: int, scale: int) -> pa.DataType:
    """Text where Arrow and Spark have no such decimal: PostgreSQL's go up to 1000 digits."""
    is_possible = 0 < precision <= _MAX_PRECISION and 0 <= scale <= precision
    return pa.decimal128(precision, scale) if is_possible else pa.string()


def connect_node(type_: pa.DataType, connect: Connect, unit: str, column: str) -> Node:
    """The reader of a column with this Connect type into the Arrow type; by the Arrow type alone if
    they do not fit.
    """
    kind, logical = connect.get("type"), connect.get("name")
    is_ = pa.types
    is_text = is_.is_string(type_) or is_.is_large_string(type_)
    if is_.is_timestamp(type_) and logical in _STAMP_UNITS:
        stamp = Timestamp(type_, _STAMP_UNITS[logical])
        stamp.form = "number"
        return stamp
    if is_.is_date32(type_) and logical in _DATES:
        day = Date(type_)
        day.form = _DATES[logical]
        return day
    if is_text and logical in _CLOCK_UNITS:
        clock = Clock(type_, _CLOCK_UNITS[logical])
        clock.form = "text" if kind == "string" else "number"
        return clock
    if logical == _DECIMAL and (is_text or is_.is_decimal128(type_)):
        return Unscaled(type_, int((connect.get("parameters") or {}).get("scale", 0)))
    if logical == _VARIABLE and (is_text or is_.is_decimal128(type_)):
        return VariableScale(type_)
    if is_.is_list(type_) and kind == "array":
        return Listed(
            type_, connect_node(type_.value_type, connect.get("items") or {}, unit, column)
        )
    if is_.is_map(type_) and kind == "map":
        return Mapped(
            type_, connect_node(type_.item_type, connect.get("values") or {}, unit, column)
        )
    if is_.is_struct(type_) and kind == "struct":
        inner = {field.get("field"): field for field in connect.get("fields") or []}
        members = [
            (
                field.name,
                connect_node(field.type, inner.get(field.name) or {}, unit, column),
                field.nullable,
            )
            for field in type_
        ]
        return Struct(type_, members)
    return node_of(type_, unit, column)


class Unscaled(Node):
    """Connect's Decimal: the unscaled number, big-endian two's complement, in Base64."""

    def __init__(self, type_: pa.DataType, scale: int) -> None:
        super().__init__(type_)
        self._scale = scale

    def wire(self) -> pa.DataType:
        return pa.string()

    def cast(self, array: pa.Array) -> pa.Array:
        if not pa.types.is_decimal128(self.type) or self._scale != self.type.scale:
            raise NotVectorised
        try:
            words = b"".join([_word(text) for text in array.to_pylist()])
        except ValueError:
            raise NotVectorised from None
        widest = pa.decimal128(_MAX_PRECISION, self._scale)
        validity = array.is_valid().buffers()[1]
        numbers = pa.Array.from_buffers(widest, len(array), [validity, pa.py_buffer(words)])
        return numbers.cast(self.type)

    def read(self, raw: bytes) -> Any:
        return _exactly(
            int.from_bytes(base64_of(raw), "big", signed=True), self._scale, self.type, raw
        )


def _word(text: str | None) -> bytes:
    """The number as Arrow's decimal128 has it: 16 bytes, little-endian."""
    if text is None:
        return bytes(16)
    data = a2b_base64(text.encode(), strict_mode=True)
    if not 0 < len(data) <= 16:
        raise ValueError
    return data[::-1].ljust(16, b"\xff" if data[0] & 0x80 else b"\0")


class VariableScale(Node):
    """Debezium's decimal with its own scale: {"scale": 2, "value": Base64}."""

    def wire(self) -> pa.DataType:
        return pa.struct([("scale", pa.int32()), ("value", pa.string())])

    def cast(self, array: pa.Array) -> pa.Array:
        out: list[Any] = []
        for value in array.to_pylist():
            if value is None:
                out.append(None)
                continue
            try:
                number = int.from_bytes(
                    b64decode(value["value"], validate=True), "big", signed=True
                )
                out.append(_exactly(number, value["scale"], self.type, b""))
            except (TypeError, ValueError, Unreadable):
                raise NotVectorised from None
        return pa.array(out, self.type)

    def read(self, raw: bytes) -> Any:
        if raw[:1] == b"{":
            found = msgspec.json.decode(raw)
            scale, value = found.get("scale"), found.get("value")
            if isinstance(scale, int) and isinstance(value, str) and abs(scale) < 10_000:
                unscaled = base64_of(msgspec.json.encode(value))
                return _exactly(int.from_bytes(unscaled, "big", signed=True), scale, self.type, raw)
        raise expected("a decimal with its scale", raw)


def _exactly(unscaled: int, scale: int, type_: pa.DataType, raw: bytes) -> Any:
    number = Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))
    return fitted(number, type_, raw) if pa.types.is_decimal(type_) else f"{number:f}"
