"""Protobuf records: every kind of field, presence, Confluent's framing, and bytes that are none."""

import json
import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.raw_records import FIRST, raw
from tiers import examples

from headwater.errors import ConfigError
from headwater.pipelines.decoding import decoder

F = descriptor_pb2.FieldDescriptorProto


def _file() -> descriptor_pb2.FileDescriptorProto:
    """
    package shop;
    enum Colour { NONE = 0; RED = 1; }
    message Line { string sku = 1; }
    message Order { int64 id = 1; optional string name = 2; double total = 3; bytes blob = 4;
      Colour colour = 5; repeated int32 numbers = 6; repeated Line lines = 7; Line first = 8;
      map<string, int32> tags = 9; google.protobuf.Timestamp at = 10;
      google.protobuf.StringValue note = 11; uint64 big = 12; bool flag = 13; }
    """
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
    )
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="NONE", number=0)
    colour.value.add(name="RED", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    order.oneof_decl.add(name="_name")
    once, many, message = F.LABEL_OPTIONAL, F.LABEL_REPEATED, F.TYPE_MESSAGE
    add = order.field.add
    add(name="id", number=1, type=F.TYPE_INT64, label=once)
    add(name="name", number=2, type=F.TYPE_STRING, label=once, proto3_optional=True, oneof_index=0)
    add(name="total", number=3, type=F.TYPE_DOUBLE, label=once)
    add(name="blob", number=4, type=F.TYPE_BYTES, label=once)
    add(name="colour", number=5, type=F.TYPE_ENUM, type_name=".shop.Colour", label=once)
    add(name="numbers", number=6, type=F.TYPE_INT32, label=many)
    add(name="lines", number=7, type=message, type_name=".shop.Line", label=many)
    add(name="first", number=8, type=message, type_name=".shop.Line", label=once)
    add(name="tags", number=9, type=message, type_name=".shop.Order.TagsEntry", label=many)
    add(name="at", number=10, type=message, type_name=".google.protobuf.Timestamp", label=once)
    add(name="note", number=11, type=message, type_name=".google.protobuf.StringValue", label=once)
    add(name="big", number=12, type=F.TYPE_UINT64, label=once)
    add(name="flag", number=13, type=F.TYPE_BOOL, label=once)
    return file


def _set() -> descriptor_pb2.FileDescriptorSet:
    files = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.append(_file())
    return files


def _order_class():
    pool = DescriptorPool()
    for file in _set().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


Order = _order_class()
LINE = pa.struct([("sku", pa.string())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("total", pa.float64()),
        ("blob", pa.binary()),
        ("colour", pa.string()),
        ("numbers", pa.list_(pa.int32())),
        ("lines", pa.list_(LINE)),
        ("first", LINE),
        ("tags", pa.map_(pa.string(), pa.int32())),
        ("at", pa.timestamp("us", tz="UTC")),
        ("note", pa.string()),
        ("big", pa.decimal128(20, 0)),
        ("flag", pa.bool_()),
    ]
)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    file = tmp_path_factory.mktemp("protobuf") / "shop.pb"
    file.write_bytes(_set().SerializeToString())
    return {"descriptors": str(file), "message": "shop.Order"}


def decoded(values, options, schema=SCHEMA, keys=None):
    one = pickle.loads(pickle.dumps(decoder("protobuf", schema, options)))
    result = one.decode(raw(values, keys), "orders", 0)
    result.rows.validate(full=True)
    return result


def full() -> bytes:
    order = Order(
        id=7,
        name="Anne",
        total=1.5,
        blob=b"\xff",
        colour=1,
        numbers=[1, 2],
        big=2**64 - 1,
        flag=True,
    )
    order.lines.add(sku="x")
    order.first.sku = "y"
    order.tags["a"] = 1
    order.at.FromDatetime(datetime(2024, 2, 29, 13, 51, 30, 5, tzinfo=UTC))
    order.note.value = "n"
    return order.SerializeToString()


def test_every_kind_of_field(options):
    (row,) = decoded([full()], options).rows.to_pylist()
    assert {name: row[name] for name in SCHEMA.names} == {
        "id": 7,
        "name": "Anne",
        "total": 1.5,
        "blob": b"\xff",
        "colour": "RED",
        "numbers": [1, 2],
        "lines": [{"sku": "x"}],
        "first": {"sku": "y"},
        "tags": [("a", 1)],
        "at": datetime(2024, 2, 29, 13, 51, 30, 5, tzinfo=UTC),
        "note": "n",
        "big": 2**64 - 1,
        "flag": True,
    }


def test_what_is_not_set_is_null_or_the_default(options):
    (row,) = decoded([b""], options).rows.to_pylist()
    assert {name for name in SCHEMA.names if row[name] is None} == {"name", "first", "at", "note"}
    assert (row["id"], row["colour"], row["numbers"]) == (0, "NONE", [])


def test_bad_records_are_rejected_and_the_others_go_on(options):
    must = pa.field("name", pa.string(), nullable=False)
    schema = pa.schema([("big", pa.int64()), must, ("first", pa.string())])
    good = Order(name="n", big=5)
    good.first.sku = "s"
    values = [
        good.SerializeToString(),
        b"\xff",
        b"",
        Order(name="n", big=2**63).SerializeToString(),
        None,
    ]
    result = decoded(values, options, schema, [None] * 4 + [b'{"big":3}'])
    rows = [(row["_op"], row["big"], row["name"], row["first"]) for row in result.rows.to_pylist()]
    assert rows == [("u", 5, "n", json.dumps({"sku": "s"})), ("d", 3, None, None)]
    causes = {record.offset - FIRST: record.cause for record in result.rejected}
    assert set(causes) == {1, 2, 3}
    assert causes[1].startswith("no message shop.Order: ")
    assert causes[2] == "field name: it is null or missing, and must not be"


def test_a_value_that_has_no_json_rejects_its_record_only(options):
    late = Order(id=1)
    late.at.seconds = 10**15
    schema = pa.schema([("id", pa.int64()), ("at", pa.string())])
    result = decoded([full(), late.SerializeToString()], options, schema)
    assert result.rows.column("at").to_pylist() == ['"2024-02-29T13:51:30.000005Z"']
    assert [record.offset - FIRST for record in result.rejected] == [1]


@pytest.mark.parametrize("indexes", [b"\x00", b"\x02\x02", b"\x04\x00\x02"])
def test_confluents_framing(options, indexes):
    framed = b"\0\0\0\0\x05" + indexes + full()
    result = decoded([framed, full(), b"\0\0\0\0\x05"], options | {"framing": "confluent"})
    assert result.rows.column("id").to_pylist() == [7]
    assert [record.offset - FIRST for record in result.rejected] == [1, 2]


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), st.just(full())), max_size=5))
def test_no_bytes_do_harm(options, values):
    result = decoded(values, options)
    assert result.rows.num_rows + len(result.rejected) == len(values)
    offsets = [row["_position"]["offset"] - FIRST for row in result.rows.to_pylist()]
    assert {n for n, value in enumerate(values) if value == full()} <= set(offsets)


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        (("missing", pa.int8()), {}),
        (("numbers", pa.int32()), {}),
        (("first", pa.int32()), {}),
        (("id", pa.int64()), {"message": "Order"}),
        (("id", pa.int64()), {"descriptors": "/no/such/file"}),
        (("id", pa.int64()), {"descriptors": __file__}),
        (("id", pa.int64()), {"framing": "x"}),
    ],
)
def test_what_cannot_be(options, column, changes):
    with pytest.raises(ConfigError):
        decoder("protobuf", pa.schema([column]), options | changes)
    with pytest.raises(ConfigError):
        decoder("protobuf", pa.schema([column]), {})
