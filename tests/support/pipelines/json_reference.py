# ruff: noqa: DTZ001 (columns without a zone)
"""JSON records of many kinds, and what plain Python makes of one: no code of ours."""

import base64
import json
import math
import re
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation

import pyarrow as pa
from hypothesis import strategies as st

SCHEMA = pa.schema(
    [
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("big", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("data", pa.binary()),
        ("numbers", pa.list_(pa.int32())),
        ("inner", pa.struct([pa.field("x", pa.int16(), nullable=False), ("d", pa.date32())])),
    ]
)


class Wrong(Exception):
    pass


class Number(str):
    __slots__ = ()


def reference(value: bytes) -> dict | None:
    """The row, or None if it is to be rejected."""
    try:
        text = value.decode()
        document = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_refuse)
        json.dumps(document, ensure_ascii=False).encode()  # not so with half a surrogate pair
        if not isinstance(document, dict):
            return None
        return {field.name: _value(document.get(field.name), field.type) for field in SCHEMA}
    except (Wrong, ValueError, InvalidOperation, OverflowError):
        return None


def _refuse(_):
    raise Wrong


def _value(found, type_):
    if found is None:
        return None
    is_number, is_text = type(found) is Number, type(found) is str
    if pa.types.is_boolean(type_):
        return found if isinstance(found, bool) else _refuse(found)
    if pa.types.is_integer(type_):
        if not is_number or not re.fullmatch(r"-?\d+", found):
            raise Wrong
        number = int(found)
        return (
            number
            if -(2 ** (type_.bit_width - 1)) <= number < 2 ** (type_.bit_width - 1)
            else _refuse(0)
        )
    if pa.types.is_floating(type_):
        if is_text and found in ("NaN", "Infinity", "-Infinity"):
            return float(found)
        number = float(found) if is_number else _refuse(found)
        if type_ == pa.float32():
            number = struct.unpack("f", struct.pack("f", number))[0]
        return number if math.isfinite(number) else _refuse(0)
    if pa.types.is_string(type_):
        return found if is_text else ...  # the raw JSON: compared elsewhere
    if pa.types.is_decimal(type_):
        if not (is_number or is_text) or not re.fullmatch(
            r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", found
        ):
            raise Wrong
        number = Decimal(found)
        if (
            number.adjusted() > 20
            or number != number.quantize(Decimal("0.01"))
            or abs(number) >= 10**8
        ):
            raise Wrong
        return number.quantize(Decimal("0.01"))
    if pa.types.is_date(type_):
        if is_number:
            return date(1970, 1, 1) + timedelta(days=_value(found, pa.int32()))
        return date.fromisoformat(found) if is_text and len(found) == 10 else _refuse(0)
    if pa.types.is_timestamp(type_):
        if is_number:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
                milliseconds=_value(found, pa.int64())
            )
        else:
            moment = datetime.fromisoformat(found) if is_text else _refuse(0)
            moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment if type_.tz else moment.replace(tzinfo=None)
    if pa.types.is_binary(type_):
        return base64.b64decode(found, validate=True) if is_text else _refuse(0)
    if pa.types.is_list(type_):
        return (
            [_value(value, type_.value_type) for value in found]
            if isinstance(found, list)
            else _refuse(0)
        )
    if not isinstance(found, dict):
        raise Wrong
    inner = {field.name: _value(found.get(field.name), field.type) for field in type_}
    return inner if inner["x"] is not None else _refuse(0)


def agrees(ours, theirs) -> bool:
    if theirs is ...:
        return isinstance(ours, str)
    if isinstance(theirs, dict):
        return all(agrees(ours[name], theirs[name]) for name in theirs)
    if isinstance(theirs, float) and math.isnan(theirs):
        return math.isnan(ours)
    return ours == theirs


# What is generated: values that fit, values that do not, and bytes.

iso = st.one_of(
    st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9998, 1, 1)).map(
        datetime.isoformat
    ),
    st.datetimes(
        min_value=datetime(2, 1, 1),
        max_value=datetime(9000, 1, 1),
        timezones=st.sampled_from([UTC]),
    ).map(lambda at: at.isoformat().replace("+00:00", "Z")),
)
fitting = {
    "flag": st.booleans(),
    "small": st.integers(-128, 127),
    "big": st.integers(-(2**63), 2**63 - 1),
    "single": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "text": st.text(),
    "price": st.one_of(
        st.decimals(min_value=-99999999, max_value=99999999, places=2).map(str),
        st.integers(-99999999, 99999999),
    ),
    "day": st.one_of(st.dates().map(str), st.integers(-10000, 100000)),
    "at": st.one_of(iso, st.integers(0, 4 * 10**12)),
    "local": st.one_of(iso, st.integers(0, 4 * 10**12)),
    "data": st.binary().map(lambda data: base64.b64encode(data).decode()),
    "numbers": st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1))),
    "inner": st.fixed_dictionaries(
        {"x": st.integers(-32768, 32767)}, optional={"d": st.dates().map(str), "y": st.text()}
    ),
}
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "NaN",
            "Infinity",
            "1.255",
            "+5",
            "5.",
            ".5",
            "1e2",
            "2024-02-30",
            "2024-01-01",
            "=",
            "QQ==",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "y", "d"]), inner, max_size=3)
    ),
    max_leaves=5,
)
document = st.fixed_dictionaries(
    {}, optional={name: st.none() | one for name, one in fitting.items()} | {"other": anything}
)
odd_document = st.dictionaries(st.sampled_from([*SCHEMA.names, "zzz"]), anything, max_size=4)


def as_json(value) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


@st.composite
def damaged(draw):
    text = bytearray(as_json(draw(document)))
    at = draw(st.integers(0, len(text) - 1))
    match draw(st.integers(0, 3)):
        case 0:
            del text[at]
        case 1:
            text.insert(at, draw(st.integers(0, 255)))
        case 2:
            del text[at:]
        case _:
            text[at] = draw(st.integers(0, 255))
    return bytes(text)


record = st.one_of(
    document.map(as_json),
    document.map(lambda value: json.dumps(value, indent=1).encode()),
    odd_document.map(as_json),
    damaged(),
    st.binary(max_size=12),
    st.lists(document.map(as_json), min_size=2, max_size=2).map(b" ".join),
    st.sampled_from(
        [
            b"",
            b"null",
            b"{}",
            b"[]",
            b"{} null {}",
            b'{"double":NaN}',
            b'{"z":Infinity}',
            b"{}\x00",
            b'{"text":"a\nb"}',
            b'{"text":"\\ud83d\\ude00"}',
            b'{"text":"\\udc00"}',
            b'{"text":"\xff"}',
            b'{"text":"a',
            b'b"}',
            b'{"big":9223372036854775808}',
            b'{"big":' + b"9" * 5000 + b"}",
            b'{"double":1e999}',
            b'{"single":1e300}',
            b'{"big":1,"big":2}',
            b'{"big":1.0}',
            b'{"a":01}',
            b'\xef\xbb\xbf{"big":1}',
            b'{"big":-0}',
            b'{"text":"\\/\\b"}',
            b'{"text":"\\x"}',
            b'{"price":1e-1}',
            b'{"price":1e400}',
            b'{"price":1.10000}',
            b'{"price":"1.10000"}',
        ]
    ),
)
