# ruff: noqa: DTZ001 (columns without a zone)
"""JSON records: what becomes of each type, and that no record spoils another."""

import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from support.pipelines.json_reference import SCHEMA, agrees, record, reference
from support.pipelines.raw_records import AT_MS, FIRST, raw
from tiers import examples

from headwater.errors import ConfigError
from headwater.pipelines.decoding import decoder
from headwater.pipelines.decoding.json.rows import RowReader


def decoded(values, schema=SCHEMA, keys=None, **options):
    result = decoder("json", schema, options).decode(raw(values, keys), "orders", 3)
    result.rows.validate(full=True)
    return result


def rows_of(values, schema=SCHEMA, **options):
    rows = decoded(values, schema, **options).rows.to_pylist()
    return [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]


def causes_of(values, schema=SCHEMA, **options):
    return {
        record.offset - FIRST: record.cause
        for record in decoded(values, schema, **options).rejected
    }


def as_python(result):
    try:
        return result.rows.to_pylist()
    except (OverflowError, ValueError):  # a year that Arrow has and Python has not
        reject()


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(record, max_size=12))
@example([b'{"text":"a', b'b"}', b'{"big":1} {"big":2}'])
@example(
    [b'{"at":5}', b'{"at":"2024-01-01T00:00:00Z"}', b'{"day":3,"inner":{"x":1,"d":"2024-01-01"}}']
)
def test_many_at_once_give_what_each_gives_alone(values):
    together = decoded(values)
    alone = [decoded([value]) for value in values]
    rows = [row for single in alone for row in as_python(single)]
    offsets = [FIRST + n for n, single in enumerate(alone) if single.rows.num_rows]
    assert [row["_position"]["offset"] for row in as_python(together)] == offsets
    assert [rejection.offset - FIRST for rejection in together.rejected] == [
        n for n, single in enumerate(alone) if single.rejected
    ]
    for ours, theirs in zip(as_python(together), rows, strict=True):
        names = SCHEMA.names
        assert agrees({n: ours[n] for n in names}, {n: theirs[n] for n in names}), (ours, theirs)
    assert [record.cause for record in together.rejected] == [
        record.cause for one in alone for record in one.rejected
    ]


@settings(max_examples=examples(250), deadline=None)
@given(record)
def test_each_record_is_read_as_plain_python_reads_it(value):
    result, expected = decoded([value]), reference(value)
    if expected is None:
        assert result.rejected, as_python(result)
        assert result.rejected[0].value == value
        assert len(result.rejected[0].cause) <= 300
    else:
        assert not result.rejected, (result.rejected, expected)
        assert agrees(as_python(result)[0], expected)


# Numbers and times in every way of writing them, right and wrong.
number_like = st.tuples(
    st.sampled_from(["", "+", "-"]),
    st.sampled_from(["", "0", "7", "12", "007", "99999999", "123456789", "9" * 30]),
    st.sampled_from(["", ".", ".5", ".250", ".125", ".000", "." + "0" * 250 + "1"]),
    st.sampled_from(["", "e1", "E-2", "e+3", "e", "e400", "e" + "9" * 20, "e-" + "9" * 20]),
).map("".join)
time_like = st.tuples(
    st.sampled_from(["2024", "0000", "9999", "10000", "-0044", "+12024", "24", "0001"]),
    st.sampled_from(["-01", "-2", "-13", "-00", "-02", "-12"]),
    st.sampled_from(["-01", "-29", "-30", "-31", "-00", "-1"]),
    st.sampled_from(["", "T03", " 23", "t24", "T3", "  03"]),
    st.sampled_from(["", ":04", ":60", "04"]),
    st.sampled_from(["", ":05", ":60", "05"]),
    st.sampled_from(["", ".1", ".123456", ".123456789", ".", ",5"]),
    st.sampled_from(["", "Z", "z", "+02", "+0200", "-23:59", "+24:00", " Z", "+02:60", "UTC"]),
).map("".join)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.sampled_from(["price", "day", "at", "local", "single", "double", "big"]),
    number_like | time_like,
    st.booleans(),
    st.booleans(),
)
@example("price", "+99999999.e1", True, False)
def test_both_ways_of_reading_agree(name, text, is_text, are_numbers):
    value = b'{"%b":%b}' % (name.encode(), (f'"{text}"' if is_text else text).encode())
    usual = decoded([b'{"at":5,"local":5,"day":5}' if are_numbers else b"{}", value])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowReader, "_read_at_once", lambda *_: False)
        singly = decoded([b"{}", value])
    assert usual.rows.column(name)[1:].equals(singly.rows.column(name)[1:])
    assert [record.cause for record in usual.rejected] == [
        record.cause for record in singly.rejected
    ]


def test_a_row_has_its_change_its_time_and_its_position():
    result = decoded([b'{"big":5}', b"nonsense"])
    (row,) = result.rows.to_pylist()
    assert row["_op"] == "u"
    assert row["_at"] == datetime.fromtimestamp(AT_MS / 1000, UTC)
    assert row["_position"] == {"topic": "orders", "partition": 3, "offset": FIRST}
    (rejected,) = result.rejected
    assert (rejected.offset, rejected.value, rejected.timestamp_ms) == (
        FIRST + 1,
        b"nonsense",
        AT_MS,
    )


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (b'{"price":"abc"}', 'field price: expected a number, got "abc"'),
        (b'{"price":1.255}', "field price: expected decimal(10, 2), got 1.255"),
        (b'{"small":128}', "field small: expected int8, got 128"),
        (b'{"numbers":[1,"x"]}', 'field numbers.[1]: expected an integer, got "x"'),
        (b'{"inner":{}}', "field inner.x: it is null or missing, and must not be"),
        (b'{"data":"=="}', 'field data: expected bytes in Base64, got "=="'),
        (b'{"day":"2024-02-30"}', 'field day: expected a date, got "2024-02-30"'),
        (b"{} {}", "no JSON: unexpected '{}' at byte 3"),
        (b'{"a":', "no JSON: it ends too early"),
        (b"[1]", "JSON, but no object"),
        (b"", "the value is empty"),
        (b'{"text":"\xff"}', "no UTF-8: invalid start byte at byte 9"),
        (
            b'{"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "JSON that is nested more than 512 deep",
        ),
    ],
)
def test_the_cause_names_field_and_value(value, cause):
    assert causes_of([b"{}", value, b"{}"]) == {1: cause}


def test_deep_nesting_within_the_limit_is_read_also_beside_a_bad_record():
    deep = b'{"big":1,"z":' + b"[" * 511 + b"]" * 511 + b"}"
    assert [row["big"] for row in rows_of([deep, b'{"big":"x"}', deep])] == [1, 1]


def test_one_bad_record_among_many_leaves_the_others():
    values = [b'{"big":%d}' % n for n in range(5000)]
    values[77] = b'{"big":"x"}'
    values[4999] = b'{"big":1}{"big":2}'
    result = decoded(values)
    assert result.rows.column("big").to_pylist() == [n for n in range(4999) if n != 77]
    assert [record.offset - FIRST for record in result.rejected] == [77, 4999]


def test_a_text_column_keeps_what_is_no_text_as_json():
    values = [b'{"text":{"a": [1, 2]}}', b'{"text":1.50}', b'{"text":true}', b'{"text":"x"}']
    assert [row["text"] for row in rows_of(values)] == ['{"a": [1, 2]}', "1.50", "true", "x"]


def test_maps_and_nested_types():
    schema = pa.schema(
        [
            ("tags", pa.map_(pa.string(), pa.decimal128(5, 1))),
            ("visits", pa.list_(pa.struct([("at", pa.timestamp("us")), ("raw", pa.binary())]))),
        ]
    )
    values = [
        b'{"tags":{"a":1.5,"b":null},"visits":[{"at":"2024-01-01T00:00:00","raw":"QQ=="},null]}',
        b'{"tags":{"a":"x"}}',
        b'{"visits":[{"at":0}]}',
    ]
    first, second = rows_of(values, schema)
    assert first["tags"] == [("a", Decimal("1.5")), ("b", None)]
    assert first["visits"] == [{"at": datetime(2024, 1, 1), "raw": b"A"}, None]
    assert second["visits"] == [{"at": datetime(1970, 1, 1), "raw": None}]
    assert causes_of(values, schema) == {1: 'field tags.a: expected a number, got "x"'}


@pytest.mark.parametrize(
    ("unit", "number"),
    [("s", 1_700_000_000), ("ms", AT_MS), ("us", AT_MS * 1000), ("ns", AT_MS * 10**6)],
)
def test_numbers_are_times_in_the_unit_of_the_option(unit, number):
    values = [b'{"at":%d}' % number, b'{"at":%d}' % -1, b'{"at":"2023-11-14T22:13:20.0000009Z"}']
    first, before, third = rows_of(values, **{"timestamp.unit": unit})
    assert first["at"] == third["at"] == datetime.fromtimestamp(AT_MS / 1000, UTC)
    per_s = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    assert before["at"] == datetime(1970, 1, 1, tzinfo=UTC) - timedelta(
        microseconds=max(1, 10**6 // per_s)
    )


def test_a_column_that_must_not_be_null_rejects_the_record_but_not_a_delete():
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)]
    )
    result = decoded(
        [b'{"id":1,"n":1}', b'{"id":2}', None, None], schema, [None, None, b'{"id":1}', b"x"]
    )
    assert [(row["id"], row["n"], row["_op"]) for row in result.rows.to_pylist()] == [
        (1, 1, "u"),
        (1, None, "d"),
    ]
    assert [(record.offset - FIRST, record.cause) for record in result.rejected] == [
        (1, "field n: it is null or missing, and must not be"),
        (3, "a tombstone whose key is no JSON object with a column of the schema"),
    ]


def test_headers_of_a_rejected_record_are_retained():
    one = decoder("json", SCHEMA, {})
    batch = raw([b"x"], [b"k"], [[("trace", b"1"), ("none", None)]])
    (rejected,) = one.decode(batch, "t", 0).rejected
    assert rejected.key == b"k"
    assert rejected.headers == [("trace", b"1"), ("none", None)]


def test_slices_and_empty_batches():
    values = [b'{"big":%d}' % n for n in range(10)]
    one = pickle.loads(pickle.dumps(decoder("json", SCHEMA, {})))
    rows = one.decode(raw(values).slice(3, 4), "t", 0).rows
    assert rows.column("big").to_pylist() == [3, 4, 5, 6]
    deletes = one.decode(raw([None, None], [b'{"big":1}', b'{"big":2}']), "t", 0)
    assert deletes.rows.column("big").to_pylist() == [1, 2]
    nothing = one.decode(raw([]), "t", 0)
    assert (nothing.rows.num_rows, nothing.rejected) == (0, [])
    assert nothing.rows.schema == one.schema


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("a", pa.int8()), ("a", pa.int8())]),
        pa.schema([("_op", pa.string())]),
        pa.schema([("a", pa.duration("s"))]),
        pa.schema([("a", pa.list_(pa.timestamp("ns")))]),
    ],
)
def test_a_schema_that_cannot_be_is_a_configuration_error(schema):
    with pytest.raises(ConfigError):
        decoder("json", schema, {})


def test_options_and_kinds_that_cannot_be():
    with pytest.raises(ConfigError):
        decoder("json", SCHEMA, {"timestamp.unit": "weeks"})
    with pytest.raises(ConfigError):
        decoder("xml", SCHEMA, {})
