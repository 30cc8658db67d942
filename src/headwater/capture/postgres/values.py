"""Codecs of values, type by type: from PostgreSQL's text to JSON as Debezium writes it.

Stream and snapshot both carry PostgreSQL's text output, made under the same session settings
(connection.SESSION), and both use the codecs of this module: a row is the same from either.
"""

import binascii
import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headwater.capture.postgres import times

Convert = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """How one type is read. `inline` names what the generated decoders write in place of a call:
    "int", "float", "bool" or "text"; "call" is `convert` itself.
    """

    connect: Mapping[str, Any]
    convert: Convert
    inline: str = "call"


def plain(kind: str, convert: Convert, inline: str = "call") -> Codec:
    return Codec({"type": kind}, convert, inline)


def named(kind: str, name: str, convert: Convert = str, inline: str = "call") -> Codec:
    return Codec({"type": kind, "name": name, "version": 1}, convert, inline)


def number(text: str | bytes) -> float | str:
    """JSON has no NaN and no infinity: they are the texts that Connect's JSON converter writes."""
    value = float(text)
    if value - value == 0.0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124


def boolean(text: str) -> bool:
    return text == "t"


def base64_of_bytea(text: str) -> str:
    return _base64(bytes.fromhex(text[2:]))


def base64_of_bits(text: str) -> str:
    """Little-endian, as java.util.BitSet has it."""
    return _base64(int(text or "0", 2).to_bytes((len(text) + 7) // 8, "little"))


def point(text: str) -> dict[str, Any]:
    x, y = (number(part) for part in text[1:-1].split(","))
    wkb = struct.pack("<BIdd", 1, 1, float(x), float(y))
    return {"x": x, "y": y, "wkb": _base64(wkb), "srid": None}


def money(text: str) -> str:
    """-$1,234.11 (lc_monetary is C): -1234.11."""
    return text.translate(_MONEY)


def vector(text: str) -> list[Any]:
    return [number(part) for part in text[1:-1].split(",")]


def json_of_hstore(text: str) -> str:
    """From "a"=>"1", "b"=>NULL to {"a":"1","b":null}."""
    pairs = {
        _unescaped(key): _unescaped(value) if quoted else None
        for key, quoted, value in _HSTORE_PAIR.findall(text)
    }
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))


def precise(scale: int) -> Convert:
    """For numeric(p, scale): the unscaled number, big-endian two's complement (Connect's)."""

    def convert(text: str) -> str:
        whole, _, fraction = text.partition(".")
        if scale < 0:  # since PostgreSQL 15; the text ends with that many zeros
            return _unscaled(_integer(whole) // 10**-scale)
        return _unscaled(_integer(whole + fraction.ljust(scale, "0")))

    return convert


def variable_scale(text: str) -> dict[str, Any]:
    """For numeric without a scale: io.debezium.data.VariableScaleDecimal."""
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    return {"scale": len(fraction), "value": _unscaled(_integer(whole + fraction))}


def array(element: Convert, delimiter: str = ",") -> Convert:
    """{1,NULL,"a b"}, {{1,2},{3,4}}, [0:1]={5,6}: lists, nested as the array is."""
    bare = rf'(?:[^"\\{{}}{re.escape(delimiter)}]|\\.)+'
    token = re.compile(rf'([{{}}])|"((?:[^"\\]|\\.)*)"|({bare})', re.DOTALL)

    def convert(text: str) -> list[Any]:
        if text[0] == "[":  # bounds that do not begin at 1
            text = text[text.index("=") + 1 :]
        if '"' not in text and "\\" not in text and text.find("{", 1) < 0:
            inner = text[1:-1]
            parts = inner.split(delimiter) if inner else []
            return [None if part == "NULL" else element(part) for part in parts]
        stack: list[list[Any]] = [[]]
        for brace, quoted, unquoted in token.findall(text):
            if brace == "{":
                inner_list: list[Any] = []
                stack[-1].append(inner_list)
                stack.append(inner_list)
            elif brace:
                stack.pop()
            elif unquoted:
                value = None if unquoted == "NULL" else element(_unescaped(unquoted))
                stack[-1].append(value)
            else:
                stack[-1].append(element(_unescaped(quoted)))
        whole: list[Any] = stack[0][0]
        return whole

    return convert


TEXT: Final = plain("string", str, "text")
_POINT: Final = Codec(
    {
        "type": "struct",
        "name": "io.debezium.data.geometry.Point",
        "version": 1,
        "doc": "Geometry (POINT)",
        "fields": [
            {"type": "double", "optional": False, "field": "x"},
            {"type": "double", "optional": False, "field": "y"},
            {"type": "bytes", "optional": True, "field": "wkb"},
            {"type": "int32", "optional": True, "field": "srid"},
        ],
    },
    point,
)

# By name in pg_catalog. What is not here (ranges, composites, geometry but points, …) is text.
_CODECS: Final[Mapping[str, Codec]] = {
    "bool": plain("boolean", boolean, "bool"),
    "int2": plain("int16", int, "int"),
    "int4": plain("int32", int, "int"),
    "int8": plain("int64", int, "int"),
    "oid": plain("int64", int, "int"),
    "float4": plain("float", number, "float"),
    "float8": plain("double", number, "float"),
    "bytea": plain("bytes", base64_of_bytea),
    "uuid": named("string", "io.debezium.data.Uuid", inline="text"),
    "json": named("string", "io.debezium.data.Json", inline="text"),
    "jsonb": named("string", "io.debezium.data.Json", inline="text"),
    "xml": named("string", "io.debezium.data.Xml", inline="text"),
    "tsvector": named("string", "io.debezium.data.Tsvector", inline="text"),
    "timestamptz": named("string", "io.debezium.time.ZonedTimestamp", times.zoned),
    "timetz": named("string", "io.debezium.time.ZonedTime", times.utc_time),
    "point": _POINT,
}
# Of extensions, in whatever schema they were installed.
_EXTENSION_CODECS: Final[Mapping[str, Codec]] = {
    "hstore": named("string", "io.debezium.data.Json", json_of_hstore),
    "ltree": named("string", "io.debezium.data.Ltree", inline="text"),
    "vector": Codec(
        {
            "type": "array",
            "items": {"type": "double", "optional": False},
            "name": "io.debezium.data.DoubleVector",
            "version": 1,
        },
        vector,
    ),
}


def base_codec(schema: str, name: str, typmod: int, decimals: str, iso_times: bool) -> Codec:
    """The codec of a type that is no array, domain or enum."""
    if schema != "pg_catalog":
        return _EXTENSION_CODECS.get(name, TEXT)
    if name == "numeric":
        return _numeric(typmod, decimals)
    if name == "money":
        return _money(decimals)
    if name in ("bit", "varbit"):
        return _bits(typmod)
    if name in ("date", "time", "timestamp", "interval"):
        return _time(name, typmod, iso_times)
    return _CODECS.get(name, TEXT)


def enum_codec(labels: tuple[str, ...]) -> Codec:
    return Codec(
        {
            "type": "string",
            "name": "io.debezium.data.Enum",
            "version": 1,
            "parameters": {"allowed": ",".join(labels)},
        },
        str,
        "text",
    )


def array_codec(element: Codec, delimiter: str) -> Codec:
    items = {**element.connect, "optional": True}
    return Codec({"type": "array", "items": items}, array(element.convert, delimiter))


def _numeric(typmod: int, decimals: str) -> Codec:
    if decimals == "double":
        return plain("double", number, "float")
    if decimals == "string":
        return TEXT
    if typmod < 4:
        fields = [
            {"type": "int32", "optional": False, "field": "scale"},
            {"type": "bytes", "optional": False, "field": "value"},
        ]
        name = "io.debezium.data.VariableScaleDecimal"
        return Codec(
            {
                "type": "struct",
                "name": name,
                "version": 1,
                "doc": "Variable scaled decimal",
                "fields": fields,
            },
            variable_scale,
        )
    # typmod - 4 = precision in the upper 16 bits, scale as 11 bits with a sign below
    precision, scale = (typmod - 4) >> 16 & 0xFFFF, ((typmod - 4 & 0x7FF) ^ 0x400) - 0x400
    return _decimal(scale, precise(scale), {"connect.decimal.precision": str(precision)})


def _money(decimals: str) -> Codec:
    if decimals == "string":
        return plain("string", money)
    if decimals == "double":
        return plain("double", lambda text: number(money(text)))
    exact = precise(2)
    return _decimal(2, lambda text: exact(money(text)), {})


def _decimal(scale: int, convert: Convert, parameters: Mapping[str, str]) -> Codec:
    return Codec(
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "version": 1,
            "parameters": {"scale": str(scale), **parameters},
        },
        convert,
    )


def _bits(typmod: int) -> Codec:
    if typmod == 1:
        return plain("boolean", lambda text: text == "1")
    length = typmod if typmod > 0 else 2**31 - 1
    return Codec(
        {
            "type": "bytes",
            "name": "io.debezium.data.Bits",
            "version": 1,
            "parameters": {"length": str(length)},
        },
        base64_of_bits,
    )


def _time(name: str, typmod: int, iso_times: bool) -> Codec:
    millis = 0 <= typmod <= 3  # timestamp(3): Debezium's "adaptive" follows the precision
    match name, iso_times:
        case "date", True:
            return named("string", "io.debezium.time.IsoDate", times.iso_date)
        case "date", False:
            return named("int32", "io.debezium.time.Date", times.epoch_days)
        case "time", True:
            return named("string", "io.debezium.time.IsoTime", times.iso_time)
        case "time", False if millis:
            return named("int32", "io.debezium.time.Time", times.day_ms)
        case "time", False:
            return named("int64", "io.debezium.time.MicroTime", times.day_us)
        case "timestamp", True:
            return named("string", "io.debezium.time.IsoTimestamp", times.iso_timestamp)
        case "timestamp", False if millis:
            return named("int64", "io.debezium.time.Timestamp", times.epoch_ms)
        case "timestamp", False:
            return named("int64", "io.debezium.time.MicroTimestamp", times.epoch_us)
        case _, True:
            return named("string", "io.debezium.time.Interval", inline="text")
        case _:
            return named("int64", "io.debezium.time.MicroDuration", times.duration_us)


_MONEY: Final = str.maketrans("", "", "$,")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_HSTORE_PAIR: Final = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|(")((?:[^"\\]|\\.)*)")', re.DOTALL)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(r"\1", text) if "\\" in text else text


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # NaN, Infinity
        raise ValueError(
            f"{text} has no place in a decimal of Connect: set decimals to string"
        ) from None


def _unscaled(value: int) -> str:
    size_bytes = (value if value >= 0 else ~value).bit_length() // 8 + 1
    return _base64(value.to_bytes(size_bytes, "big", signed=True))


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()
