"""Columns that are new, wider, or do not fit; nested values as JSON and back."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headwater.errors import StoreRefused
from headwater.sinks.rows.nested import from_json, to_json
from headwater.sinks.rows.schema_evolution import evolved, fitted


def schema(**types):
    return pa.schema(list(types.items()))


def test_new_columns_come_last_and_old_ones_stay():
    result = evolved(schema(a=pa.int64(), b=pa.string()), schema(c=pa.bool_(), a=pa.int64()))
    assert result.fields.names == ["a", "b", "c"]
    assert [field.name for field in result.added] == ["c"]
    assert result.widened == ()


@pytest.mark.parametrize(
    ("before", "now", "then"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int8(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(6, 4), pa.decimal128(7, 4)),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.string(), pa.large_string(), pa.string()),
        (
            pa.struct([("a", pa.int32())]),
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
    ],
)
def test_a_type_that_holds_both(before, now, then):
    result = evolved(schema(a=before), schema(a=now))
    assert result.fields.field("a").type == then
    assert bool(result.widened) == (before != then)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (pa.string(), pa.int64()),
        (pa.int64(), pa.float64()),
        (pa.decimal128(38, 0), pa.decimal128(10, 5)),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.string())])),
    ],
)
def test_a_type_that_does_not(before, now):
    with pytest.raises(StoreRefused, match="column a was"):
        evolved(schema(a=before), schema(a=now))


def test_a_store_that_cannot_widen():
    with pytest.raises(StoreRefused, match="column a"):
        evolved(schema(a=pa.int32()), schema(a=pa.int64()), can_widen=False)
    evolved(schema(a=pa.int64()), schema(a=pa.int32()), can_widen=False)


def test_rows_are_fitted_to_the_columns():
    rows = pa.table({"b": pa.array([1, None], pa.int32())})
    made = fitted(rows, schema(a=pa.string(), b=pa.int64()))
    assert made.to_pylist() == [{"a": None, "b": 1}, {"a": None, "b": None}]


def test_nested_values_survive_json():
    type_ = pa.list_(
        pa.struct(
            [
                ("exact", pa.decimal128(38, 10)),
                ("bytes", pa.binary()),
                ("by_text", pa.map_(pa.string(), pa.float64())),
                ("by_number", pa.map_(pa.int32(), pa.timestamp("us", "UTC"))),
                ("day", pa.date32()),
                ("plain", pa.list_(pa.int64())),
            ]
        )
    )
    whole = {
        "exact": Decimal("-0.0000000001"),
        "bytes": b"\0\xff",
        "by_text": [("x", 1.0), ("y", -math.inf)],
        "by_number": [(1, datetime(1, 1, 1, tzinfo=UTC)), (2, None)],
        "day": date(1, 1, 1),
        "plain": [2**63 - 1, None],
    }
    column = pa.array([None, [], [None, whole], [{}]], type_)
    assert from_json(to_json(column), type_).equals(column)
