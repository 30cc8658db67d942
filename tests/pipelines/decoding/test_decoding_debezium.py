"""Change events: rows as captures write them come out as they were."""

# ruff: noqa: DTZ001 (columns without a zone)
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.raw_records import AT_MS, FIRST, raw
from tiers import examples

from headwater.capture.contract import UNAVAILABLE, Begin, Change, Column, Table
from headwater.capture.mysql.columns import connect_type, parse
from headwater.capture.postgres.values import array_codec, base_codec
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError
from headwater.pipelines.decoding import decoder
from headwater.pipelines.decoding.captured import connect_option, schema_of
from headwater.settings import Secret

COMMITTED_MS = 1_700_000_000_500
COMMITTED = datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)


def typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


# PostgreSQL's types with a value as its protocol writes it, and what it is to become.
VALUES = {
    "id": ("integer", ("int4", -1), "1", 1),
    "small": ("smallint", ("int2", -1), "-5", -5),
    "big": ("bigint", ("int8", -1), "9223372036854775807", 2**63 - 1),
    "flag": ("boolean", ("bool", -1), "t", True),
    "ratio": ("double precision", ("float8", -1), "0.1", 0.1),
    "price": ("numeric(10,2)", ("numeric", typmod(10, 2)), "-12.50", Decimal("-12.50")),
    "wide": ("numeric(38,0)", ("numeric", typmod(38, 0)), "9" * 38, Decimal("9" * 38)),
    "any_number": ("numeric", ("numeric", -1), "1234.5", "1234.5"),
    "cash": ("money", ("money", -1), "-$1,234.11", Decimal("-1234.11")),
    "name": ("text", ("text", -1), 'a "b" \\ ü\n😀', 'a "b" \\ ü\n😀'),
    "data": ("bytea", ("bytea", -1), "\\x00ff10", b"\x00\xff\x10"),
    "day": ("date", ("date", -1), "2024-02-29", date(2024, 2, 29)),
    "early": ("date", ("date", -1), "1500-03-01", date(1500, 3, 1)),
    "clock": ("time without time zone", ("time", -1), "13:51:30.5", "13:51:30.500000"),
    "clock_ms": ("time(3) without time zone", ("time", 3), "13:51:30.5", "13:51:30.500000"),
    "local": ("timestamp without time zone", ("timestamp", -1), "2024-02-29 13:51:30.123456",
              datetime(2024, 2, 29, 13, 51, 30, 123456)),
    "local_ms": ("timestamp(3) without time zone", ("timestamp", 3), "1969-02-28 13:51:30.123",
                 datetime(1969, 2, 28, 13, 51, 30, 123000)),
    "instant": ("timestamp with time zone", ("timestamptz", -1), "2024-02-29 13:51:30.12+00",
                datetime(2024, 2, 29, 13, 51, 30, 120000, tzinfo=UTC)),
    "uid": ("uuid", ("uuid", -1), "c6c1b6d8-8ac4-4a3b-9f0e-6a1f3d3b2a10",
            "c6c1b6d8-8ac4-4a3b-9f0e-6a1f3d3b2a10"),
    "doc": ("jsonb", ("jsonb", -1), '{"a": [1, null]}', '{"a": [1, null]}'),
    "bits": ("bit(9)", ("bit", 9), "000000101", b"\x05\x00"),
    "place": ("point", ("point", -1), "(1.5,-2)", {"x": 1.5, "y": -2.0, "srid": None}),
    "address": ("inet", ("inet", -1), "10.0.0.1", "10.0.0.1"),
}  # fmt: skip
ARRAYS = {
    "ints": ("integer[]", ("int4", -1), "{1,NULL,3}", [1, None, 3]),
    "prices": ("numeric(5,1)[]", ("numeric", typmod(5, 1)), "{1.5,NULL}", [Decimal("1.5"), None]),
    "days": ("date[]", ("date", -1), "{2024-02-29}", [date(2024, 2, 29)]),
    "texts": ("text[]", ("text", -1), '{a,"b c"}', ["a", "b c"]),
}


def table_of(decimals: str, times: str) -> tuple[Table, dict, dict]:
    """A table with all of them, a row as a capture has it, and as the pipeline shall."""
    columns, row, wanted = [], {}, {}
    for name, (declared, (base, modifier), text, value) in (VALUES | ARRAYS).items():
        codec = base_codec("pg_catalog", base, modifier, decimals, times == "iso")
        if name in ARRAYS:
            codec = array_codec(codec, ",")
        columns.append(Column(name, declared, codec.connect))
        row[name] = codec.convert(text)
        wanted[name] = value
    return Table("public", "things", tuple(columns), ("id",)), row, wanted


def shaper(**given) -> Shaper:
    settings = CaptureSettings(name="shop", source=Secret("sqlite:///x"), **given)
    return Shaper(settings, "postgresql", "shop")


def shaped(shaper: Shaper, *changes: tuple) -> tuple[list, list, list]:
    """Keys, values and headers of (table, op, before, after)."""
    shaper.begin(Begin({}, "7", COMMITTED_MS, {}))
    records = [
        record
        for ordinal, (table, op, before, after) in enumerate(changes)
        for record in shaper.change(Change(table, op, before, after, ordinal, {"lsn": ordinal}))
    ]
    return [key for _, key, _, _ in records], [value for _, _, value, _ in records]


def decoded(schema, values, keys=None, **options):
    result = decoder("debezium", schema, options).decode(raw(values, keys), "shop.public.t", 0)
    result.rows.validate(full=True)
    return result


@pytest.mark.parametrize("schemas", [False, True])
@pytest.mark.parametrize("times", ["debezium", "iso"])
@pytest.mark.parametrize("decimals", ["string", "precise"])
def test_every_type_comes_out_as_it_was(decimals, times, schemas):
    table, row, wanted = table_of(decimals, times)
    schema = schema_of(table.columns)
    writer = shaper(decimals=decimals, times=times, schemas=schemas)
    nulls = dict.fromkeys(row) | {"id": 2}
    keys, values = shaped(
        writer,
        (table, "c", None, row),
        (table, "u", row, row | {"name": "new"}),
        (table, "d", row, None),
        (table, "c", None, nulls),
        (table, "t", None, None),
    )
    assert values.count(None) == 1  # the tombstone
    for given_schema, options in (
        (schema, {}),
        (schema.remove_metadata(), {"connect": connect_option(schema)}),
        *([(_bare(schema), {})] if schemas else []),
    ):
        result = decoded(given_schema, values, keys, **options)
        assert result.rejected == []
        created, updated, deleted, empty, truncated = result.rows.to_pylist()
        for found in (created, deleted):
            for name, value in wanted.items():
                ours = found[name]
                if name == "place":
                    del ours["wkb"]
                assert ours == value, name
        assert updated["name"] == "new"
        assert [row["_op"] for row in (created, updated, deleted, empty, truncated)] == [*"cudct"]
        assert {name for name in wanted if empty[name] is not None} == {"id"}
        assert not any(truncated[name] for name in wanted)
        assert created["_at"] == COMMITTED


def _bare(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def test_double_decimals_are_doubles():
    table, row, _ = table_of("double", "debezium")
    schema = schema_of(table.columns)
    assert schema.field("price").type == pa.float64()
    (found,) = decoded(schema, shaped(shaper(), (table, "c", None, row))[1]).rows.to_pylist()
    assert found["price"] == -12.5


def test_types_of_mysql():
    values = {
        "unsigned": ("bigint unsigned", 2**64 - 1, Decimal(2**64 - 1)),
        "price": ("decimal(10,2)", "12.50", Decimal("12.50")),
        "long_time": ("time", -3_020_399_000_000, "-838:59:59.000000"),
        "at": ("datetime", 1_700_000_000_000, datetime(2023, 11, 14, 22, 13, 20)),
        "exact": ("datetime(6)", 1_700_000_000_000_001, datetime(2023, 11, 14, 22, 13, 20, 1)),
        "instant": (
            "timestamp",
            "2024-02-29T12:34:56Z",
            datetime(2024, 2, 29, 12, 34, 56, tzinfo=UTC),
        ),
        "year": ("year", 2024, 2024),
        "flag": ("bit(1)", True, True),
        "colour": ("enum('red','blue')", "red", "red"),
        "data": ("varbinary(9)", "AP8=", b"\x00\xff"),
    }
    given = CaptureSettings(name="shop", source=Secret("mysql://x/y"))
    columns = [
        Column(name, declared, connect_type(parse(declared), given))
        for name, (declared, _, _) in values.items()
    ]
    table = Table("shop", "things", tuple(columns), ())
    row = {name: value for name, (_, value, _) in values.items()}
    (found,) = decoded(
        schema_of(columns), shaped(shaper(), (table, "c", None, row))[1]
    ).rows.to_pylist()
    assert {name: found[name] for name in values} == {
        name: column[2] for name, column in values.items()
    }


CUSTOMERS = Table(
    "public",
    "customers",
    (
        Column("id", "integer", {"type": "int32"}, optional=False),
        Column("name", "text", {"type": "string"}),
        Column("photo", "bytea", {"type": "bytes"}),
        Column("scores", "integer[]", {"type": "array", "items": {"type": "int32"}}),
    ),
    ("id",),
)
ANNE = {"id": 1, "name": "Anne", "photo": "QQ==", "scores": [1]}


def test_a_delete_has_the_row_before_it_or_its_key():
    schema = schema_of(CUSTOMERS.columns)
    for schemas in (False, True):
        keys, values = shaped(
            shaper(schemas=schemas),
            (CUSTOMERS, "d", ANNE, None),
            (CUSTOMERS, "d", {"id": 2}, None),
        )
        whole, partial = decoded(schema, values, keys).rows.to_pylist()
        assert (whole["id"], whole["name"], whole["photo"]) == (1, "Anne", b"A")
        assert (partial["id"], partial["name"]) == (2, None)
        without = [json.loads(value) if value else None for value in values]
        for change in without:
            if change is not None:
                (change["payload"] if schemas else change)["before"] = None
        values = [json.dumps(change).encode() if change else None for change in without]
        rows = decoded(schema, values, keys).rows.to_pylist()
        assert [(row["id"], row["name"], row["_op"]) for row in rows] == [
            (1, None, "d"),
            (2, None, "d"),
        ]


def test_a_changed_key_is_a_delete_and_a_create():
    schema = schema_of(CUSTOMERS.columns)
    keys, values = shaped(shaper(), (CUSTOMERS, "u", ANNE, ANNE | {"id": 9}))
    rows = decoded(schema, values, keys).rows.to_pylist()
    assert [(row["id"], row["_op"]) for row in rows] == [(1, "d"), (9, "c")]


def test_a_value_that_the_log_left_out_comes_from_the_row_before_or_is_rejected():
    schema = schema_of(CUSTOMERS.columns)
    left_out = ANNE | {"name": UNAVAILABLE, "photo": UNAVAILABLE, "scores": UNAVAILABLE}
    _, values = shaped(
        shaper(),
        (CUSTOMERS, "u", ANNE, left_out),
        (CUSTOMERS, "u", None, left_out),
        (CUSTOMERS, "u", None, ANNE | {"photo": UNAVAILABLE}),
        (CUSTOMERS, "c", None, ANNE | {"name": f"says {UNAVAILABLE}"}),
    )
    result = decoded(schema, values)
    first, last = result.rows.to_pylist()
    assert (first["name"], first["photo"], first["scores"]) == ("Anne", b"A", [1])
    assert last["name"] == f"says {UNAVAILABLE}"
    assert [record.offset - FIRST for record in result.rejected] == [1, 2]
    assert result.rejected[0].cause.startswith("column name, photo, scores: ")
    assert "ALTER TABLE … REPLICA IDENTITY FULL" in result.rejected[1].cause
    only_ids = pa.schema([("id", pa.int32())])
    assert decoded(only_ids, values).rows.num_rows == 4  # what is not asked for may be missing


def test_columns_that_were_added_dropped_or_changed():
    schema = schema_of(CUSTOMERS.columns)
    old = Table("public", "customers", (CUSTOMERS.columns[0], Column("gone", "text")), ("id",))
    changed = Table(
        "public", "customers",
        (CUSTOMERS.columns[0], Column("name", "integer", {"type": "int32"})), ("id",),
    )  # fmt: skip
    impossible = Table("public", "customers", (Column("id", "text"),), ("id",))
    _, values = shaped(
        shaper(),
        (old, "c", None, {"id": 1, "gone": "x"}),
        (changed, "c", None, {"id": 2, "name": 17}),
        (impossible, "c", None, {"id": "three"}),
    )
    result = decoded(schema, values)
    assert [(row["id"], row["name"]) for row in result.rows.to_pylist()] == [(1, None), (2, "17")]
    assert [record.cause for record in result.rejected] == [
        'field id: expected an integer, got "three"'
    ]


def test_what_is_no_change_event_is_rejected():
    schema = schema_of(CUSTOMERS.columns)
    values = [
        b"{}",
        b'{"op":"m"}',
        b'{"op":"c","after":null}',
        b'{"op":"d","before":null}',
        b'{"op":"c","after":[]}',
        b'{"op":5}',
        b"nonsense",
        b'{"schema":null,"payload":null}',
        b'{"op":"c","after":{"id":1}}',
    ]
    result = decoded(schema, values, [None] * 9)
    assert [record.cause for record in result.rejected] == [
        "no change event: it has no op",
        'no change event: its op is "m"',
        "a change (op c) without the row after it",
        "a delete with neither the row before it nor a key",
        "a change (op c) without the row after it",
        "no change event: its op is 5",
        "no JSON: unexpected 'nonsense' at byte 0",
        "no change event: it has no op",
    ]
    (row,) = result.rows.to_pylist()
    assert row["_at"] == datetime.fromtimestamp(AT_MS / 1000, UTC)  # of the record: no source


def test_documents_are_texts_in_the_envelope():
    schema = pa.schema([("_id", pa.string()), ("name", pa.string()), ("n", pa.int32())])
    inner = json.dumps({"_id": {"$oid": "6ab"}, "name": "Anne", "n": 5}, separators=(",", ":"))
    (row,) = decoded(schema, [json.dumps({"op": "c", "after": inner}).encode()]).rows.to_pylist()
    assert (row["_id"], row["name"], row["n"]) == ('{"$oid":"6ab"}', "Anne", 5)


names = st.sampled_from(["Anne", "ü😀", '"', "\\", "\n", UNAVAILABLE, ""])
rows = st.fixed_dictionaries({
    "id": st.integers(-(2**31), 2**31 - 1),
    "name": st.none() | names,
    "photo": st.none() | st.sampled_from(["", "QQ=="]),
    "scores": st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3),
})  # fmt: skip
events = st.one_of(
    st.tuples(st.just("c"), st.none(), rows),
    st.tuples(st.just("u"), st.none() | rows, rows),
    st.tuples(st.just("d"), rows, st.none()),
    st.tuples(st.just("t"), st.none(), st.none()),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.one_of(events, st.binary(max_size=9))), max_size=10))
def test_events_and_garbage_together_are_what_each_is_alone(given_events):
    schema = schema_of(CUSTOMERS.columns)
    writers = {True: shaper(schemas=True), False: shaper(schemas=False)}
    keys, values = [], []
    for has_schema, event in given_events:
        if isinstance(event, bytes):
            keys.append(None)
            values.append(event)
        else:
            more_keys, more_values = shaped(writers[has_schema], (CUSTOMERS, *event))
            keys += more_keys
            values += more_values
    together = decoded(schema, values, keys)
    alone = [decoded(schema, [value], [key]) for key, value in zip(keys, values, strict=True)]
    shown = [name for name in together.rows.schema.names if name != "_position"]
    assert together.rows.select(shown).to_pylist() == [
        row for result in alone for row in result.rows.select(shown).to_pylist()
    ]
    assert [record.cause for record in together.rejected] == [
        record.cause for one in alone for record in one.rejected
    ]
    offsets = [row["_position"]["offset"] for row in together.rows.to_pylist()]
    assert offsets == [FIRST + n for n, single in enumerate(alone) if single.rows.num_rows]
    for value, one in zip(values, alone, strict=True):
        if not one.rejected and value is not None:
            event = json.loads(value)
            event = event.get("payload", event)
            image = event["before"] if event["op"] == "d" else event["after"] or {}
            (row,) = one.rows.to_pylist()
            assert row["id"] == image.get("id")
            if event["op"] != "t" and image["name"] != UNAVAILABLE:
                assert row["name"] == image["name"]
            assert row["scores"] == image.get("scores")


def test_what_the_option_says_must_be_json():
    with pytest.raises(ConfigError):
        decoder("debezium", pa.schema([("a", pa.int8())]), {"connect": "{"})
