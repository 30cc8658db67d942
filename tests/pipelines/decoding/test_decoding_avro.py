"""Avro records: logical types, Confluent's framing, and bytes that are none."""

# ruff: noqa: DTZ001 (columns without a zone)
import json
import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.raw_records import FIRST, raw
from tiers import examples

from headwater.errors import ConfigError
from headwater.pipelines.decoding import decoder

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": {
            "type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exact", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "blob", "type": "bytes"},
        {"name": "ignored", "type": "double"},
    ],
}  # fmt: skip
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("exact", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("clock", pa.string()),
        ("uid", pa.string()),
        ("tags", pa.map_(pa.string(), pa.int32())),
        ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
        ("colour", pa.string()),
        ("blob", pa.binary()),
    ]
)
RECURSIVE = AVRO | {"fields": [*AVRO["fields"], {"name": "next", "type": ["null", "Order"]}]}
NOTHING = {"name": "nothing", "type": {"type": "array", "items": "null"}}
NOTHINGS = AVRO | {"fields": [*AVRO["fields"], NOTHING]}
EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "a", "type": {"type": "null"}}]}
ITEMS_OF_NO_BYTES = [
    {"type": "null"},
    EMPTY,
    {"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": EMPTY}]},
    {"type": "fixed", "name": "None", "size": 0},
]
MOMENT = datetime(2024, 2, 29, 13, 51, 30, 123000, tzinfo=UTC)
ORDER = {
    "id": 7,
    "name": None,
    "price": Decimal("-12.50"),
    "day": date(2024, 2, 29),
    "at": MOMENT,
    "exact": MOMENT.replace(microsecond=123456),
    "local": datetime(2024, 2, 29, 13, 51, 30, 5),
    "clock": time(13, 51, 30, 5),
    "uid": UUID(int=5),
    "tags": {"a": 1},
    "lines": [{"sku": "x"}],
    "colour": "BLUE",
    "blob": b"\x00\xff",
    "ignored": 1.5,
}
WANTED = ORDER | {
    "clock": "13:51:30.000005",
    "uid": "00000000-0000-0000-0000-000000000005",
    "tags": [("a", 1)],
}


def written(record: dict, schema: dict = AVRO) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


def decoded(values, schema=SCHEMA, keys=None, options=None):
    options = {"schema": json.dumps(AVRO)} | (options or {})
    one = pickle.loads(pickle.dumps(decoder("avro", schema, options)))
    result = one.decode(raw(values, keys), "orders", 0)
    result.rows.validate(full=True)
    return result


def test_every_type_comes_out_as_it_was_written():
    (row,) = decoded([written(ORDER)]).rows.to_pylist()
    assert {name: row[name] for name in SCHEMA.names} == {
        name: WANTED[name] for name in SCHEMA.names
    }
    assert row["_op"] == "u"


def test_a_schema_may_be_in_a_file(tmp_path):
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(AVRO))
    assert decoded([written(ORDER)], options={"schema": str(file)}).rows.num_rows == 1


def test_bad_records_are_rejected_and_the_others_go_on():
    good = written(ORDER)
    short = pa.schema([("id", pa.int8()), pa.field("name", pa.string(), nullable=False)])
    values = [good, good[:5], good + b"x", b"", None, written(ORDER | {"id": 300, "name": "n"}),
              written(ORDER | {"name": "n"})]  # fmt: skip
    result = decoded(values, short, [None] * 4 + [b'{"id":9}'] + [None] * 2)
    rows = [(row["_op"], row["id"], row["name"]) for row in result.rows.to_pylist()]
    assert rows == [("d", 9, None), ("u", 7, "n")]
    causes = {record.offset - FIRST: record.cause for record in result.rejected}
    assert set(causes) == {0, 1, 2, 3, 5}
    assert causes[0] == "field name: it is null or missing, and must not be"
    assert causes[2] == "no Avro of this schema: 1 bytes are left behind it"
    assert causes[5].startswith("field id: ")


def test_confluents_framing_and_schemas_by_id():
    old = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    schema = pa.schema([("id", pa.string())])
    new = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "x", "type": "int"}, *old["fields"]],
    }
    values = [
        b"\0\0\0\0\x05" + written({"id": "a"}, old),
        b"\0\0\0\0\x06" + written({"id": "b", "x": 1}, new),
        written({"id": "c"}, old),
    ]
    options = {
        "framing": "confluent",
        "schema": json.dumps(old),
        "schema.6": json.dumps(new),
    }
    result = decoded(values, schema, options=options)
    assert result.rows.column("id").to_pylist() == ["a", "b"]
    assert [record.offset - FIRST for record in result.rejected] == [2]


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=80), st.just(written(ORDER))), max_size=5))
def test_no_bytes_do_harm(values):
    good = written(ORDER)
    result = decoded(values)
    assert result.rows.num_rows + len(result.rejected) == len(values)
    offsets = [row["_position"]["offset"] - FIRST for row in result.rows.to_pylist()]
    assert {n for n, value in enumerate(values) if value == good} <= set(offsets)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schema": "/no/such/file"},
        {"schema": "{"},
        {"schema": '{"type": "nonsense"}'},
        {"schema": '"int"'},
        {"schema": json.dumps(AVRO | {"fields": AVRO["fields"][1:]})},
        {"schema": json.dumps(AVRO), "framing": "xml"},
        {"schema": json.dumps(AVRO), "schema.x": "{}"},
        {"schema": json.dumps(RECURSIVE)},
        {"schema": json.dumps(NOTHINGS)},
    ],
)  # fmt: skip
def test_schemas_that_cannot_be(options):
    with pytest.raises(ConfigError):
        decoder("avro", SCHEMA, options)


@pytest.mark.parametrize("items", ITEMS_OF_NO_BYTES)
def test_arrays_whose_items_take_no_bytes_are_refused(items):
    """Two bytes of a record could ask for any number of them."""
    field = {"name": "many", "type": ["null", {"type": "array", "items": items}]}
    options = {"schema": json.dumps(AVRO | {"fields": [*AVRO["fields"], field]})}
    with pytest.raises(ConfigError):
        decoder("avro", SCHEMA, options)
