"""SQLite's values as JSON has them, and its columns as Kafka Connect names them.

SQLite gives a type to each value, not to a column: a column's declared type is a preference. So a
value goes out as it is stored (integer and real as numbers, text, NULL) and only what JSON lacks is
turned into text: blobs into base64, infinities into "Infinity" and "-Infinity" as Connect does.
SQLite stores NaN as NULL.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

from headwater.capture.contract import Row

_INFINITIES: Final = frozenset({float("inf"), float("-inf")})
_JSON_TYPES: Final = frozenset({int, str, float, type(None)})


def row_maker(rows: Sequence[Sequence[Any]]) -> Callable[[Sequence[str], Sequence[Any]], Row]:
    """What makes a Row of names and values, for these rows: most need no conversion, and whether
    any of them does is asked once, at C speed.
    """
    kinds = set(map(type, chain.from_iterable(rows)))
    if not kinds <= _JSON_TYPES:
        return json_row
    if float in kinds and _has_infinity(chain.from_iterable(rows)):
        return json_row
    return _plain_row


def _plain_row(names: Sequence[str], values: Sequence[Any]) -> Row:
    return dict(zip(names, values))  # noqa: B905 (as long as each other; `strict` costs time)


def _has_infinity(values: Iterable[Any]) -> bool:
    return not _INFINITIES.isdisjoint(values)


def json_row(names: Sequence[str], values: Sequence[Any]) -> Row:
    return {name: json_value(value) for name, value in zip(names, values, strict=True)}


def json_value(value: Any) -> Any:
    kind = type(value)
    if kind is bytes:
        return b64encode(value).decode()
    if kind is float and value in _INFINITIES:
        return "Infinity" if value > 0 else "-Infinity"
    return value


def is_undecodable(error: Exception) -> bool:
    return "Could not decode" in str(error)


def lenient_text(data: bytes) -> str:
    """SQLite stores as text whatever bytes it is given; what is no UTF-8 becomes U+FFFD."""
    return data.decode("utf-8", "replace")


def connect_type(declared: str) -> dict[str, Any]:
    """By SQLite's own rules of affinity (datatype3.html, 3.1), in their order."""
    name = declared.upper()
    if "INT" in name or "BOOL" in name:
        return {"type": "int64"}
    if any(part in name for part in ("CHAR", "CLOB", "TEXT", "DATE", "TIME", "JSON", "UUID")):
        return {"type": "string"}  # dates are text as a rule: SQLite has no type for them
    if not name or "BLOB" in name:
        return {"type": "bytes"}
    return {"type": "double"}
