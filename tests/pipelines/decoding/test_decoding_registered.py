"""Avro values by the schemas of a registry: versions, references, columns, and what goes wrong."""

import io
import json
import pickle
from datetime import date
from decimal import Decimal
from functools import partial

import fastavro
import pyarrow as pa
import pytest
from support.pipelines.raw_records import FIRST, raw
from support.shared_broker import shared_broker

from headwater.errors import ConfigError, PipelineError
from headwater.pipelines.decoding import decoder
from headwater.pipelines.decoding.avro.registered import latest_schema, registered_columns
from headwater.schema_lookup.sources import TopicSource
from headwater.schemas.registry.registry import Registry
from headwater.schemas.schema import Reference, Schema
from headwater.schemas.wire_format import framed
from headwater.settings import ClientSettings

COLUMNS = pa.schema([("id", pa.int64()), ("note", pa.string())])


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("registered")) as address:
        yield address


@pytest.fixture(scope="module")
def registry(broker):
    opened = Registry(broker, ClientSettings())
    opened.open()
    yield opened
    opened.close()


def record(*fields, name="R"):
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


def register(registry, subject, schema, *references):
    return registry.register(subject, Schema(json.dumps(schema), references=references)).id


def written(schema_id, value, *schemas):
    named = {}
    for other in schemas[:-1]:
        fastavro.parse_schema(other, named)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schemas[-1], named), value)
    return framed(schema_id, out.getvalue())


def made(broker, columns=COLUMNS, **options):
    given = {"registry": "log", **options}
    return decoder("avro", columns, given, partial(TopicSource, broker, ClientSettings()))


def test_every_value_is_read_by_the_schema_that_it_was_written_with(broker, registry):
    first = record(field("id", "int"), field("old", "string"))
    second = record(field("note", ["null", "string"], default=None), field("id", "long"))
    registry.set_config("evolving-value", {"compatibility": "NONE"})
    ids = [register(registry, "evolving-value", item) for item in (first, second)]
    values = [
        written(ids[0], {"id": 1, "old": "x"}, first),
        written(ids[1], {"id": 1 << 40, "note": "y"}, second),
        framed(1 << 30, b"?"),
        b"no frame",
        framed(ids[0], b"\x02"),
    ]
    one = pickle.loads(pickle.dumps(made(broker)))
    decoded = one.decode(raw(values), "evolving", 0)
    rows = [{name: row[name] for name in ("id", "note")} for row in decoded.rows.to_pylist()]
    assert rows == [{"id": 1, "note": None}, {"id": 1 << 40, "note": "y"}]
    assert [item.offset for item in decoded.rejected] == [FIRST + 2, FIRST + 3, FIRST + 4]
    assert "no schema 1073741824" in decoded.rejected[0].cause


def test_references_and_types_within_themselves_are_read(broker, registry):
    part = record(field("sku", "string"), name="Part")
    order = record(field("id", "long"), field("part", "Part"), name="Order")
    register(registry, "part", part)
    schema_id = register(registry, "order-value", order, Reference("Part", "part", 1))
    columns = pa.schema([("id", pa.int64()), ("part", pa.struct([("sku", pa.string())]))])
    value = written(schema_id, {"id": 7, "part": {"sku": "x"}}, part, order)
    rows = made(broker, columns).decode(raw([value]), "order", 0).rows.to_pylist()
    assert (rows[0]["id"], rows[0]["part"]) == (7, {"sku": "x"})
    tree = record(field("id", "long"), field("next", ["null", "Tree"]), name="Tree")
    schema_id = register(registry, "tree-value", tree)
    value = written(schema_id, {"id": 1, "next": {"id": 2, "next": None}}, tree)
    bomb = framed(schema_id, b"\x00\x02" * 100_000)
    decoded = made(broker).decode(raw([value, bomb]), "tree", 0)
    assert [row["id"] for row in decoded.rows.to_pylist()] == [1]
    assert [item.offset for item in decoded.rejected] == [FIRST + 1]


def test_a_registry_that_does_not_answer_makes_no_dead_letters(broker):
    one = made(broker, registry="http://127.0.0.1:1")
    with pytest.raises(PipelineError, match="cannot be looked up"):
        one.decode(raw([framed(1, b"x")]), "t", 0)


def test_addresses_that_are_none(broker):
    with pytest.raises(ConfigError, match="somewhere"):
        made(broker, registry="somewhere")
    with pytest.raises(ConfigError, match="needs a broker"):
        decoder("avro", COLUMNS, {"registry": "log"})
    with pytest.raises(ConfigError) as caught:
        decoder("avro", COLUMNS, {"framing": "confluent"})
    assert "avro.registry" in caught.value.hint


def test_the_columns_of_a_topic_are_those_of_the_last_version(broker, registry):
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    every = record(
        field("id", "long"),
        field("note", ["null", "string"]),
        field("price", decimal),
        field("day", {"type": "int", "logicalType": "date"}),
        field("at", {"type": "long", "logicalType": "timestamp-millis"}),
        field("tags", {"type": "map", "values": "int"}),
        field("lines", {"type": "array", "items": record(field("n", "int"), name="Line")}),
        field("state", {"type": "enum", "name": "State", "symbols": ["A", "B"]}),
        field("raw", {"type": "fixed", "name": "Raw", "size": 2}),
        field("ratio", "float"),
        name="Every",
    )
    schema_id = register(registry, "every-value", every)
    source = TopicSource(broker, ClientSettings())
    columns = registered_columns(latest_schema(source, "every"), "every")
    assert columns == pa.schema(
        [
            ("id", pa.int64()),
            ("note", pa.string()),
            ("price", pa.decimal128(9, 2)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.map_(pa.string(), pa.int32())),
            ("lines", pa.list_(pa.struct([("n", pa.int32())]))),
            ("state", pa.string()),
            ("raw", pa.binary()),
            ("ratio", pa.float32()),
        ]
    )
    value = {
        "id": 1, "note": None, "price": Decimal("1.50"), "day": date(2026, 1, 2), "at": 0,
        "tags": {"a": 1}, "lines": [{"n": 3}], "state": "B", "raw": b"ab", "ratio": 0.5,
    }  # fmt: skip
    decoded = made(broker, columns).decode(raw([written(schema_id, value, every)]), "every", 0)
    assert not decoded.rejected
    (row,) = decoded.rows.to_pylist()
    assert (row["price"], row["day"], row["lines"]) == (
        Decimal("1.50"),
        date(2026, 1, 2),
        [{"n": 3}],
    )
    with pytest.raises(ConfigError, match=r"the columns of none are unknown"):
        registered_columns(latest_schema(source, "none"), "none")
    register(registry, "union-value", record(field("u", ["int", "string"]), name="U"))
    with pytest.raises(ConfigError, match="a union of several types"):
        registered_columns(latest_schema(source, "union"), "union")
    registry.register("text-value", Schema('"string"'))
    with pytest.raises(ConfigError, match="is no record"):
        registered_columns(latest_schema(source, "text"), "text")
    source.close()
