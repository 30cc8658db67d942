"""Rows for the tests of sinks: types with their odd values, and comparing what was read."""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headwater.sinks.contract import OP, Batch, Offsets, Position, Store

QUERY = "11111111-2222-3333-4444-555555555555"
TOPIC = "shop.public.orders"

_INSTANTS = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1582, 10, 10, 1, 2, 3, 4, UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2024, 2, 29, 12, 30, 0, 1, UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
]
_LIST = pa.list_(pa.int64())
_STRUCT = pa.struct(
    [("n", pa.int64()), ("s", pa.string()), ("l", _LIST), ("d", pa.decimal128(38, 9))]
)
NUL = "a\0b"

# name: type and values. Every column of every row can be null besides.
VALUES: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 0, 127]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    "float32": (pa.float32(), [0.0, 1.5, -3.4028234663852886e38, 1.401298464324817e-45]),
    "float64": (pa.float64(), [0.1, -1e300, 5e-324, 1.7976931348623157e308, 123456789.123456789]),
    "nan": (pa.float64(), [math.nan, math.inf, -math.inf]),
    "nan32": (pa.float32(), [math.nan, math.inf, -math.inf]),
    "decimal": (
        pa.decimal128(38, 10),
        [Decimal(0), Decimal("1.5"), Decimal("-0.0000000001"), Decimal("9" * 28 + ".9999999999")],
    ),
    "integral": (pa.decimal128(38, 0), [Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(1)]),
    "fraction": (pa.decimal128(5, 5), [Decimal("0.00001"), Decimal("-0.99999")]),
    "string": (
        pa.string(),
        ["", " ", "a", "null", "NULL", r"\N", "\\", "\\.", "'\"`", "a\tb\r\nc\n", "ä\u00df\u8868",
         "\U0001f60a", "\U0010ffff", "\ufeff", "e\u0301", "x" * 1_000_000, "%s %(a)s {}", NUL],
    ),
    "binary": (pa.binary(), [b"", b"\0", bytes(range(256)), b"\\x00", b"\xff" * 70_000]),
    "date": (
        pa.date32(),
        [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)],
    ),
    "timestamp": (pa.timestamp("us"), [value.replace(tzinfo=None) for value in _INSTANTS]),
    "instant": (pa.timestamp("us", "UTC"), _INSTANTS),
    "list": (_LIST, [[], [1, 2, 2], [None], [-(2**63), 2**63 - 1]]),
    "strings": (pa.list_(pa.string()), [[], ["", None, "'\"\\,{}"], ["\U0001f60a\n"]]),
    "struct": (
        _STRUCT,
        [
            {"n": 1, "s": "a", "l": [1], "d": Decimal("1." + "1" * 9)},
            {"n": None, "s": None, "l": None, "d": None},
        ],
    ),
    "structs": (pa.list_(_STRUCT), [[{"n": 2, "s": "", "l": [], "d": None}, None], []]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1), ("b b", None), ("", 3)]]),
    "times": (
        pa.struct([("t", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("b", pa.binary())]),
        [{"t": _INSTANTS[1], "d": date(1, 1, 1), "b": b"\0\xff"}],
    ),
    "numbers": (pa.map_(pa.int32(), pa.list_(pa.float64())), [[(1, [0.5, math.nan]), (2, None)]]),
}  # fmt: skip

_MOMENTS = pa.array([0, 2**62, -(2**62), -62_135_596_800_000_001], pa.int64())
_BYTES = pa.array([b"a", b"\xff", b"\xed\xa0\x80", b"a\xc3"])  # the third: half of a surrogate pair
# name: a valid value, and some invalid ones.
UNREADABLE: Mapping[str, pa.Array] = {
    "timestamp": _MOMENTS.cast(pa.timestamp("us")),
    "instant": _MOMENTS.cast(pa.timestamp("us", "UTC")),
    "date": pa.array([0, 2**30, -(2**30), -719_163], pa.int32()).cast(pa.date32()),
    "string": _BYTES.view(pa.string()),
    "struct": pa.StructArray.from_arrays([_MOMENTS.cast(pa.timestamp("us"))], ["at"]),
    "strings": pa.ListArray.from_arrays(pa.array(range(5), pa.int32()), _BYTES.view(pa.string())),
}


def offsets(end: int) -> Offsets:
    return {TOPIC: {0: end, 1: end * 2}}


def batch(number: int, rows: pa.Table, *, query: str = QUERY) -> Batch:
    """The batch of that number; each one reads the next range of the log."""
    starts = offsets(number * 10) if number else {}
    return Batch(query, number, starts, offsets(number * 10 + 10), rows)


def position(number: int) -> Position:
    """Behind the batch of that number."""
    return Position(QUERY, number, offsets(number * 10 + 10))


def table(
    fields: pa.Schema, rows: Iterable[Mapping[str, Any]], ops: Iterable[str] = ()
) -> pa.Table:
    """With `ops` the column OP; a row without an entry was created."""
    rows = list(rows)
    made = pa.Table.from_pylist(rows, schema=fields)
    if ops:
        made = made.append_column(OP, pa.array(list(ops), pa.string()))
    return made


def contents(store: Store, version: int = 1) -> tuple[Position | None, pa.Table]:
    """All that is there, in one read."""
    with store.read(version) as read:
        batches = list(read.rows)
        if batches:
            return read.position, pa.Table.from_batches(batches)
    [fields] = [found.fields for found in store.versions() if found.number == version]
    return read.position, fields.empty_table()


def rows_of(store: Store, version: int = 1) -> list[dict[str, Any]]:
    return comparable(contents(store, version)[1].to_pylist())


def comparable(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sorted; NaN equal to itself, maps without an order."""
    plain = [{name: _comparable(value) for name, value in row.items()} for row in rows]
    return sorted(plain, key=lambda row: [repr(row[name]) for name in sorted(row)])


def _comparable(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return {name: _comparable(item) for name, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):
            value = sorted(value)
        return [_comparable(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_comparable(item) for item in value)
    return value


def applied_to(
    state: dict[Any, dict[str, Any]], rows: pa.Table, key: tuple[str, ...]
) -> dict[Any, dict[str, Any]]:
    """What a batch makes of a dictionary of rows: row by row, in its plainest form."""
    for row in rows.to_pylist():
        op = row.pop(OP, None)
        if op == "t":
            state.clear()
            continue
        identity = tuple(row[column] for column in key)
        with suppress(KeyError):
            del state[identity]
        if op != "d":
            state[identity] = row
    return state
