import datetime as dt
import decimal
import math

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import StoreRefused
from headwater.sinks.rows import json_text

# What JSON represents as it is; the rest is below.
KINDS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint8(): st.integers(0, 255),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.string(): st.text(),
    pa.large_string(): st.text(),
    pa.list_(pa.string()): st.lists(st.none() | st.text(), max_size=3),
    pa.list_(pa.list_(pa.int32())): st.lists(
        st.none() | st.lists(st.none() | st.integers(0, 9), max_size=2), max_size=3
    ),
    pa.struct([("a\n", pa.int64()), ("b", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"a\n": st.none() | st.integers(-9, 9), "b": st.none() | st.lists(st.text(), max_size=2)}
    ),
}


@st.composite
def tables(draw) -> pa.Table:
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4, unique=True))
    rows = draw(st.integers(1, 12))
    columns = []
    for _ in names:
        kind, values = draw(st.sampled_from(list(KINDS.items())))
        given = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns.append(pa.array(given, kind))
    return pa.RecordBatch.from_arrays(columns, names)


@settings(deadline=None)
@given(rows=tables(), start=st.integers(0, 5))
def test_what_a_reader_of_json_finds_is_what_was_in_the_columns(rows, start) -> None:
    rows = rows.slice(min(start, rows.num_rows - 1))
    texts = json_text.objects(rows.columns, rows.schema.names)
    found = [orjson.loads(text) for text in texts.to_pylist()]
    assert found == rows.to_pylist()
    assert [list(row) for row in found] == [rows.schema.names] * rows.num_rows


def as_json(*values, kind: pa.DataType) -> list[bytes]:
    return json_text.joined(len(values), [(b"", pa.array(values, kind))], b"").to_pylist()


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.null(), None, "null"),
        (pa.float64(), 1.0, "1.0"),
        (pa.float64(), -0.0, "-0.0"),
        (pa.float64(), 1e22, "1e+22"),
        (pa.float32(), 0.1, "0.1"),
        (pa.float64(), math.nan, '"NaN"'),
        (pa.float64(), math.inf, '"Infinity"'),
        (pa.float64(), -math.inf, '"-Infinity"'),
        (
            pa.decimal128(38, 2),
            decimal.Decimal("12345678901234567890.10"),
            '"12345678901234567890.10"',
        ),
        (pa.date32(), dt.date(2026, 1, 2), '"2026-01-02"'),
        (pa.time64("us"), dt.time(3, 4, 5, 6), '"03:04:05.000006"'),
        (pa.timestamp("us"), 1_767_323_045_000_000, '"2026-01-02T03:04:05.000000"'),
        (
            pa.timestamp("ms", "Europe/Berlin"),
            dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
            '"2026-01-02T03:04:05.000Z"',
        ),
        (pa.duration("us"), dt.timedelta(seconds=1), "1000000"),
        (pa.binary(), b"\x00\xff", '"AP8="'),
        (pa.map_(pa.string(), pa.int64()), [("a", 1), ('"', None)], '{"a":1,"\\"":null}'),
        (pa.map_(pa.int32(), pa.string()), [(1, "x")], '{"1":"x"}'),
        (pa.map_(pa.string(), pa.int64()), [], "{}"),
        (pa.list_(pa.int64()), [], "[]"),
        (pa.dictionary(pa.int32(), pa.string()), "red", '"red"'),
    ],
)
def test_how_a_value_is_written(kind, value, text) -> None:
    assert as_json(value, None, value, kind=kind) == [text.encode(), b"null", text.encode()]


def test_a_type_that_json_cannot_represent_is_refused() -> None:
    column = pa.UnionArray.from_dense(
        pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]
    )
    with pytest.raises(StoreRefused, match="JSON cannot represent"):
        json_text.objects([column], ["u"])
