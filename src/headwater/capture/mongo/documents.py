"""From BSON to extended JSON, as Debezium writes documents by default.

That is MongoDB's "strict" form: {"$oid": "…"}, {"$date": milliseconds}, {"$numberLong": "5"},
{"$numberDecimal": "1.50"}, {"$binary": "base64", "$type": "00"}. It loses no type that a document
of today can have, and every MongoDB driver reads it. In keys Debezium writes the *relaxed* form,
where numbers are plain and dates are ISO texts (`relaxed`).

Two deviations, both from what could not be read: NaN and the infinities are
{"$numberDouble": "NaN"}, for a bare NaN is no JSON; and BSON's long deprecated `undefined`,
`symbol` and `DBPointer` are what the driver makes of them (null, text, DBRef).
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import isfinite, isnan
from typing import Any, Final

from bson.binary import Binary
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from headwater.capture.contract import Row

# Dates as numbers, since BSON's reach far beyond datetime's; bytes that are no UTF-8 (old drivers
# wrote such) become U+FFFD, as in the Java driver, and do not end the capture.
CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
LAST_ISO_MS: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z


def extended(document: Mapping[str, Any]) -> Row:
    """The document's fields, with values as JSON shall have them."""
    converters = _CONVERTERS
    return {
        name: value if (convert := converters.get(type(value))) is None else convert(value)
        for name, value in document.items()
    }


def extended_value(value: Any) -> Any:
    convert = _CONVERTERS.get(type(value))
    return value if convert is None else convert(value)


def relaxed(value: Any) -> Any:
    """The same value (as `extended` made it) in the relaxed form."""
    if isinstance(value, list):
        return [relaxed(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$numberLong": str(digits)} if len(value) == 1:
            return int(digits)
        case {"$date": int(milliseconds)} if len(value) == 1:
            return {"$date": _relaxed_date(milliseconds)}
        case {"$binary": str(data), "$type": str(subtype)} if len(value) == 2:
            return {"$binary": {"base64": data, "subType": subtype}}
        case {"$regex": str(pattern), "$options": str(options)} if len(value) == 2:
            return {"$regularExpression": {"pattern": pattern, "options": options}}
    return {name: relaxed(field) for name, field in value.items()}


def _relaxed_date(milliseconds: int) -> Any:
    if not 0 <= milliseconds <= LAST_ISO_MS:
        return {"$numberLong": str(milliseconds)}
    seconds, fraction = divmod(milliseconds, 1000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{fraction:03}Z" if fraction else f"{text}Z"


def _array(values: list[Any]) -> list[Any]:
    converters = _CONVERTERS
    return [
        value if (convert := converters.get(type(value))) is None else convert(value)
        for value in values
    ]


def _double(value: float) -> Any:
    if isfinite(value):
        return value
    return {"$numberDouble": "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"}


def _binary(value: bytes) -> dict[str, str]:
    subtype = value.subtype if isinstance(value, Binary) else 0
    return {"$binary": b64encode(value).decode(), "$type": f"{subtype:02x}"}


def _regex(value: Regex[Any]) -> dict[str, str]:
    # In this order MongoDB sorts them; the driver holds them as Python's flags.
    letters = (("i", 2), ("l", 4), ("m", 8), ("s", 16), ("u", 32), ("x", 64))
    options = "".join(letter for letter, flag in letters if value.flags & flag)
    pattern = value.pattern
    return {
        "$regex": pattern if isinstance(pattern, str) else pattern.decode(errors="replace"),
        "$options": options,
    }


def _code(value: Code) -> dict[str, Any]:
    if value.scope is None:
        return {"$code": str(value)}
    return {"$code": str(value), "$scope": extended(value.scope)}


_CONVERTERS: Final[dict[type, Callable[[Any], Any]]] = {
    dict: extended,
    list: _array,
    float: _double,
    Int64: lambda value: {"$numberLong": int.__repr__(value)},
    ObjectId: lambda value: {"$oid": str(value)},
    DatetimeMS: lambda value: {"$date": int(value)},
    Decimal128: lambda value: {"$numberDecimal": str(value)},
    bytes: _binary,
    Binary: _binary,
    Timestamp: lambda value: {"$timestamp": {"t": value.time, "i": value.inc}},
    Regex: _regex,
    Code: _code,
    DBRef: lambda value: extended(value.as_doc()),
    MinKey: lambda _: {"$minKey": 1},
    MaxKey: lambda _: {"$maxKey": 1},
}
