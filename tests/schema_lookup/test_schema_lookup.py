"""Values behind the id of a schema, decoded by the topic and by a registry over HTTP."""

import http.server
import io
import json
import threading

import fastavro
import pytest
from google.protobuf import message_factory
from support.gateway.serving import serving
from support.shared_broker import shared_broker

from headwater.errors import BrokerUnreachable, RequestRefused, SchemaRefused
from headwater.inspect.decoding.forms import preview, shown
from headwater.inspect.decoding.part import Part
from headwater.schema_lookup.lookup import SchemaLookup, looks_framed
from headwater.schema_lookup.sources import HttpSource, TopicSource
from headwater.schemas.protobuf.schema import parse_protobuf
from headwater.schemas.registry.registry import Registry
from headwater.schemas.schema import Reference, Schema
from headwater.schemas.wire_format import framed, message_indexes, unframed
from headwater.settings import ClientSettings

PART = '{"type":"record","name":"Part","fields":[{"name":"sku","type":"string"}]}'
ORDER = """{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},
           {"name":"price","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}},
           {"name":"part","type":["null","Part"]}]}"""
CHANGE = """{"type":"record","name":"Envelope","fields":[{"name":"op","type":"string"},
  {"name":"before","type":["null",{"type":"record","name":"Row","fields":[
     {"name":"id","type":"int"},{"name":"city","type":"string"}]}]},
  {"name":"after","type":["null","Row"]}]}"""
PROTO = """syntax = "proto3"; package shop; message Other {}
           message Outer { message Inner { int64 id = 1; string name = 2; } }"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("lookup-broker")) as address:
        yield address


@pytest.fixture(scope="module")
def ids(broker):
    """Ids of a part, an order that refers to it, a change event, a JSON Schema and Protobuf."""
    registry = Registry(broker, ClientSettings())
    registry.open()
    found = {
        "part": registry.register("part", Schema(PART)).id,
        "order": registry.register(
            "order", Schema(ORDER, references=(Reference("Part", "part", 1),))
        ).id,
        "change": registry.register("change", Schema(CHANGE)).id,
        "json": registry.register("json", Schema('{"type": "object"}', "JSON")).id,
        "proto": registry.register("proto", Schema(PROTO, "PROTOBUF")).id,
    }
    registry.close()
    return found


@pytest.fixture(scope="module", params=["topic", "http"])
def lookup(request, broker, ids, tmp_path_factory):
    if request.param == "topic":
        made = SchemaLookup(TopicSource(broker, ClientSettings()))
        yield made
        made.close()
        return
    with serving(tmp_path_factory.mktemp("lookup"), broker__bootstrap=broker) as served:
        yield SchemaLookup(HttpSource(served.url + "/", None, ""))


def avro(value, *schemas):
    named = {}
    for text in schemas[:-1]:
        fastavro.parse_schema(json.loads(text), named)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schemas[-1]), named), value)
    return out.getvalue()


def test_avro_with_references_and_logical_types(lookup, ids):
    value = avro({"id": 7, "price": b"\x04\xe2", "part": {"sku": "x"}}, PART, ORDER)
    decoded = lookup.decode(framed(ids["order"], value))
    assert decoded.json() == b'{"id":7,"price":"12.50","part":{"sku":"x"}}'
    with pytest.raises(ValueError, match="left behind"):
        lookup.decode(framed(ids["order"], value + b"x"))
    with pytest.raises(ValueError, match="too early"):
        lookup.decode(framed(ids["order"], value[:-1]))


def test_json(lookup, ids):
    assert lookup.decode(framed(ids["json"], b'{"a": 1}')).value == {"a": 1}
    with pytest.raises(ValueError, match="no JSON"):
        lookup.decode(framed(ids["json"], b"{"))


def test_protobuf_by_its_message_indexes(lookup, ids):
    pool = parse_protobuf(PROTO, {}).pool
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Outer.Inner"))
    body = kind(id=5, name="x").SerializeToString()
    value = framed(ids["proto"], b"\x04\x02\x00" + body)  # two of them: 1, 0
    assert lookup.decode(value).value == {"id": "5", "name": "x"}
    assert lookup.decode(framed(ids["proto"], b"\x00")).value == {}
    for indexes in (b"\x02\x08", b"\x01", b"\xff\xff\xff\xff\xff\xff", b"", b"\x02"):
        with pytest.raises(ValueError):
            lookup.decode(framed(ids["proto"], indexes + body))


def test_what_is_not_there_is_remembered(lookup):
    value = framed(1_000_000, b"x")
    for _ in range(2):
        with pytest.raises(SchemaRefused) as caught:
            lookup.decode(value)
        assert caught.value.code == 40403
    with pytest.raises(ValueError):
        lookup.decode(b"\x00\x00\x00\x00\x00x")
    assert not looks_framed(b"\x00\x00")
    assert not looks_framed(None)
    with pytest.raises(ValueError):
        unframed(b"\x01aaaa")
    assert message_indexes(b"\x04\x02\x06", 0) == ([1, 3], 3)


def test_the_last_schema_of_a_subject(lookup, ids):
    assert lookup.source.latest("order")[0] == ids["order"]
    with pytest.raises(SchemaRefused) as caught:
        lookup.source.latest("none")
    assert caught.value.code == 40401


def part(data):
    return Part(data, len(data))


def test_the_console_shows_what_the_registry_explains(lookup, ids):
    value = part(framed(ids["part"], avro({"sku": "x"}, PART)))
    assert preview(value, None, lookup) == '{"sku":"x"}'
    found = shown(value, lookup=lookup)
    assert (found.form, found.note) == ("schema", f"schema {ids['part']} of the registry, AVRO")
    assert shown(value, "hex", lookup=lookup).form == "hex"
    assert "not schema" in shown(part(b"hello"), "schema", lookup=lookup).note
    unknown = part(framed(999_999, b"\xff"))
    assert shown(unknown, lookup=lookup).form == "hex"
    assert "not found" in shown(unknown, "schema", lookup=lookup).note
    row = {"id": 1, "city": "Wien"}
    event = avro({"op": "u", "before": row, "after": row | {"city": "Graz"}}, CHANGE)
    change = part(framed(ids["change"], event))
    assert preview(change, None, lookup) == 'updated city "Wien" → "Graz"'
    assert shown(change, lookup=lookup).form == "debezium"


def test_no_registry_at_all(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("no-registry")) as address:
        source = TopicSource(address, ClientSettings())
        with pytest.raises(RequestRefused, match="no schema registry"):
            source.of_id(1)
        source.close()
    with pytest.raises(BrokerUnreachable, match="no schema registry answers"):
        HttpSource("http://127.0.0.1:1", None, "").of_id(1)


class _Odd(http.server.BaseHTTPRequestHandler):
    """A server that is no registry: the id says how it answers."""

    def do_GET(self):
        kind = self.path.rpartition("/")[2]
        self.send_response({"1": 200, "2": 200, "3": 302, "4": 500, "5": 200}[kind])
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.wfile.write({"1": b"<html>", "2": b"[]", "4": b"oops", "5": b"{}"}.get(kind, b""))

    def log_message(self, *_):
        pass


def test_what_is_no_registry_is_an_error_and_gets_no_password_elsewhere():
    with http.server.HTTPServer(("127.0.0.1", 0), _Odd) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        source = HttpSource(f"http://127.0.0.1:{server.server_port}", "ada", "secret")
        codes = []
        for schema_id in range(1, 6):
            with pytest.raises(SchemaRefused) as caught:
                source.of_id(schema_id)
            codes.append(caught.value.code)
        server.shutdown()
        thread.join()
    assert codes == [50001, 50001, 30200, 50000, 50001]
