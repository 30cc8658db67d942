"""Protobuf values by the schemas of a registry: versions, nested messages, columns."""

import pickle
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from support.pipelines.raw_records import FIRST, raw
from support.shared_broker import shared_broker

from headwater.errors import ConfigError, PipelineError
from headwater.pipelines.decoding import decoder
from headwater.pipelines.decoding.avro.registered import latest_schema
from headwater.pipelines.decoding.protobuf.registered import message_columns
from headwater.schema_lookup.sources import TopicSource
from headwater.schemas.protobuf.schema import parse_protobuf
from headwater.schemas.registry.registry import Registry
from headwater.schemas.schema import Reference, Schema
from headwater.settings import ClientSettings

PART = 'syntax = "proto3"; package shop; message Part { string sku = 1; }'
ORDER = """
syntax = "proto3";
package shop;
import "part.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other { bool unused = 1; message Inner { int32 depth = 1; } }
message Order {
  enum Colour { NONE = 0; RED = 1; }
  int64 id = 1;
  optional string name = 2;
  Colour colour = 3;
  repeated int32 numbers = 4;
  repeated Part parts = 5;
  Part first = 6;
  map<string, int32> tags = 7;
  google.protobuf.Timestamp at = 8;
  google.protobuf.StringValue note = 9;
  uint64 big = 10;
  Order parent = 11;
  bytes blob = 12;
}
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("protobuf")) as address:
        yield address


@pytest.fixture(scope="module")
def registry(broker):
    opened = Registry(broker, ClientSettings())
    opened.open()
    opened.register("part", Schema(PART, "PROTOBUF"))
    yield opened
    opened.close()


@pytest.fixture
def source(broker):
    opened = TopicSource(broker, ClientSettings())
    yield opened
    opened.close()


def register(registry, subject, text, *references):
    return registry.register(subject, Schema(text, "PROTOBUF", references)).id


def message_class(text, name, **references):
    parsed = parse_protobuf(text, {f"{key}.proto": value for key, value in references.items()})
    return message_factory.GetMessageClass(parsed.pool.FindMessageTypeByName(name)), parsed


def framed(schema_id, indexes, message):
    zigzag = bytes([2 * len(indexes), *(2 * index for index in indexes)])
    return b"\x00" + schema_id.to_bytes(4, "big") + zigzag + message.SerializeToString()


def made(broker, columns, **options):
    given = {"registry": "log", **options}
    return decoder("protobuf", columns, given, partial(TopicSource, broker, ClientSettings()))


def test_columns_and_values_of_every_kind_of_field(broker, registry, source):
    schema_id = register(registry, "orders-value", ORDER, Reference("part.proto", "part", 1))
    columns = message_columns(latest_schema(source, "orders"), "shop.Order", "orders")
    assert columns.field("numbers").type == pa.list_(pa.int32())
    assert columns.field("first").type == pa.struct([("sku", pa.string())])
    assert columns.field("at").type == pa.timestamp("us", tz="UTC")
    order, _ = message_class(ORDER, "shop.Order", part=PART)
    at = datetime(2026, 2, 28, 13, 14, 15, tzinfo=UTC)
    value = order(
        id=7, colour=1, numbers=[1, 2], parts=[{"sku": "x"}], first={"sku": "y"},
        tags={"a": 1}, note={"value": "n"}, big=(1 << 64) - 1, blob=b"\x00", parent={"id": 3},
    )  # fmt: skip
    value.at.FromDatetime(at)
    one = pickle.loads(pickle.dumps(made(broker, columns)))
    decoded = one.decode(raw([framed(schema_id, [1], value)]), "orders", 0)
    assert decoded.rejected == []
    (row,) = decoded.rows.to_pylist()
    assert row["id"] == 7
    assert (row["name"], row["colour"], row["numbers"]) == (None, "RED", [1, 2])
    assert (row["parts"], row["first"]) == ([{"sku": "x"}], {"sku": "y"})
    assert (row["tags"], row["note"], row["at"]) == ([("a", 1)], "n", at)
    assert (row["big"], row["blob"]) == (Decimal((1 << 64) - 1), b"\x00")
    assert '"id"' in row["parent"], "a message within itself is JSON"


def test_each_value_is_read_by_its_own_version_and_message(broker, registry):
    head = 'syntax = "proto3"; message A { int64 id = 1; '
    first = register(registry, "versions-value", head + "}")
    second = register(registry, "versions-value", head + "string note = 2; }")
    old, _ = message_class(head + "}", "A")
    new, _ = message_class(head + "string note = 2; }", "A")
    columns = pa.schema([("id", pa.int64()), ("note", pa.string())])
    values = [
        framed(first, [0], old(id=1)),
        framed(second, [0], new(id=2, note="x")),
        framed(second, [5], new(id=3)),
        b"\x00" + (1 << 30).to_bytes(4, "big") + b"\x00",
        b"plain",
        framed(second, [0], new(id=4)) + b"\xff",
    ]
    decoded = made(broker, columns).decode(raw(values), "versions", 0)
    rows = [(row["id"], row["note"]) for row in decoded.rows.to_pylist()]
    assert rows == [(1, None), (2, "x")]
    assert [record.offset for record in decoded.rejected] == [FIRST + n for n in (2, 3, 4, 5)]
    assert "no schema 1073741824" in decoded.rejected[1].cause


def test_a_field_that_became_another_type_makes_dead_letters_of_old_values_only(broker, registry):
    registry.set_config("changed-value", {"compatibility": "NONE"})
    texts = [f'syntax = "proto3"; message A {{ {kind} id = 1; }}' for kind in ("B", "int64")]
    texts[0] += " message B { int32 x = 1; }"
    ids = [register(registry, "changed-value", text) for text in texts]
    old, new = (message_class(text, "A")[0] for text in texts)
    values = [framed(ids[0], [0], old(id={"x": 1})), framed(ids[1], [0], new(id=2))]
    columns = pa.schema([("id", pa.int64())])
    decoded = made(broker, columns).decode(raw(values), "changed", 0)
    assert [row["id"] for row in decoded.rows.to_pylist()] == [2]
    assert [record.offset for record in decoded.rejected] == [FIRST]


def test_what_cannot_be_columns_says_why(broker, registry, source):
    registry.register("avro-value", Schema('"string"'))
    register(registry, "empty-value", 'syntax = "proto3"; message Nothing {}')
    for topic, message, cause in (
        ("none", None, "unknown"),
        ("avro", None, "is AVRO"),
        ("empty", None, "no fields"),
        ("empty", "shop.Missing", "no message shop.Missing"),
    ):
        with pytest.raises(ConfigError) as caught:
            message_columns(latest_schema(source, topic), message, topic)
        assert cause in f"{caught.value.what} {caught.value.detail}"


def test_a_registry_that_does_not_answer_makes_no_dead_letters(broker):
    one = made(broker, pa.schema([("id", pa.int64())]), registry="http://127.0.0.1:1")
    with pytest.raises(PipelineError, match="cannot be looked up"):
        one.decode(raw([b"\x00\x00\x00\x00\x01\x00x"]), "t", 0)
