"""Bytes as people can read them."""

import io
import json
from decimal import Decimal

import fastavro
import pytest

from headwater.inspect.decoding.forms import preview, shown
from headwater.inspect.decoding.part import Part
from headwater.schemas.avro import values as avro_values

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "country", "type": "string"}],
}


def part(data, *, cut=False):
    return Part(data, (len(data) if data else 0) + (1000 if cut else 0))


def avro(record):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), record)
    return out.getvalue()


def envelope(operation, before, after):
    event = {"before": before, "after": after, "op": operation, "source": {"table": "orders"}}
    return json.dumps(event).encode()


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (None, "null"),
        (b"", "empty"),
        (b'{"a": [1, 2]}', "json"),
        (b"12", "json"),
        (b"hello\nworld", "text"),
        ("grüße".encode(), "text"),
        (b"{not json", "text"),
        (b"\x00\x01\x02", "hex"),
        (b"\xff\xfe", "hex"),
        (b"bell\x07", "hex"),
        (envelope("c", None, {"id": 1}), "debezium"),
        (json.dumps({"op": "c", "kind": "no change event"}).encode(), "json"),
    ],
)
def test_the_form_is_the_first_that_fits(data, form):
    assert shown(part(data)).form == form


def test_a_change_event_shows_which_columns_differ():
    event = shown(
        part(
            envelope(
                "u", {"id": 1, "city": "Wien", "old": 1}, {"id": 1, "city": "Graz", "new": None}
            )
        )
    )
    assert event.operation == "updated"
    assert [
        (change.column, change.before, change.after, change.is_changed) for change in event.changes
    ] == [
        ("id", "1", "1", False),
        ("city", '"Wien"', '"Graz"', True),
        ("old", "1", None, True),
        ("new", None, "null", True),
    ]


def test_a_change_event_beside_its_schema():
    payload = json.loads(envelope("d", {"id": 7}, None))
    event = shown(part(json.dumps({"schema": {}, "payload": payload}).encode()))
    assert (event.form, event.operation) == ("debezium", "deleted")
    assert not event.has_after


def test_a_form_that_does_not_fit_says_so_and_another_is_taken():
    value = shown(part(b"hello"), "json")
    assert value.form == "text"
    assert value.note.startswith("not json: ")
    assert shown(part(b"{}"), "hex").text.startswith("00000000  7b 7d")
    assert shown(part(b"{}"), "text").text == "{}"


@pytest.mark.parametrize("framing", [b"", b"\x00\x00\x00\x00\x07"])
def test_avro_of_a_configured_schema(tmp_path, framing):
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(SCHEMA))
    data = framing + avro({"id": 7, "country": "AT"})
    value = shown(part(data), avro_schema=str(file))
    assert value.form == "avro"
    assert json.loads(value.text) == {"id": 7, "country": "AT"}
    assert preview(part(data), str(file)) == '{"id":7,"country":"AT"}'
    assert shown(part(data + b"x"), "avro", avro_schema=str(file)).note.startswith("not avro")
    assert "[console.avro_schemas]" in shown(part(data), "avro").note


def test_avro_that_carries_its_schema():
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(SCHEMA), [{"id": 1, "country": "DE"}])
    assert json.loads(shown(part(out.getvalue())).text) == [{"id": 1, "country": "DE"}]


def test_previews_are_one_line():
    assert preview(part(b"a\n  b")) == "a b"
    assert preview(part(b"x" * 5000)).endswith("x…")
    assert preview(part("ä".encode() * 10 + b"\xc3", cut=True)) == "ä" * 10 + "…"
    assert preview(part(b"\x00\xff")) == "00 ff"
    event = envelope("u", {"id": 1, "city": "Wien"}, {"id": 1, "city": "Graz"})
    assert preview(part(event)) == 'updated city "Wien" → "Graz"'


def number(value):
    """As Avro writes a long."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    return out.getvalue()


def container(schema, count, block):
    """A container file whose writer says what it likes."""
    text = json.dumps(schema).encode()
    head = b"Obj\x01" + number(1) + number(11) + b"avro.schema" + number(len(text)) + text
    return head + number(0) + bytes(16) + number(count) + number(len(block)) + block + bytes(16)


MANY = 300_000
NOTHING = {"type": "record", "name": "Nothing", "fields": [{"name": "a", "type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "count", "block"),
    [
        ("null", MANY, b""),
        (NOTHING, MANY, b""),
        ({"type": "fixed", "name": "F", "size": 0}, MANY, b""),
        ({"type": "array", "items": "null"}, 1, number(MANY) + number(0)),
        ({"type": "map", "values": {"type": "array", "items": NOTHING}}, 1,
         number(1) + number(1) + b"k" + number(MANY) + number(0) + number(0)),
        (["null", {"type": "array", "items": "null"}], 1, number(1) + number(MANY) + number(0)),
    ],
)  # fmt: skip
def test_a_container_does_not_become_more_than_it_is(schema, count, block):
    data = container(schema, count, block)
    assert len(list(fastavro.reader(io.BytesIO(data)))) == count  # it can be read
    found = shown(part(data), "avro")
    assert (found.form, "too many values" in found.note) == ("hex", True)
    assert len(preview(part(data))) < 1000


def within_itself(kind):
    return {"type": "record", "name": "R", "fields": [{"name": "r", "type": kind}]}


DEEP = 1_000_000


@pytest.mark.parametrize(
    ("schema", "block"),
    [
        (within_itself("R"), b""),  # 125 bytes, and it never ends
        (within_itself(["null", "R"]), number(1) * DEEP + number(0)),
        (within_itself({"type": "array", "items": "R"}), number(1) * DEEP + number(0)),
        (within_itself({"type": "map", "values": "R"}), (number(1) + number(0)) * DEEP),
    ],
)
def test_a_container_whose_schema_refers_to_itself_is_read_to_a_bounded_depth(schema, block):
    data = container(schema, 1, block)
    found = shown(part(data), "avro")
    assert (found.form, "more than 64 values deep" in found.note) == ("hex", True)
    assert len(preview(part(data))) < 1000


def test_a_container_whose_schema_is_deep_is_not_read():
    schema = "long"
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    assert "schema is too deep" in shown(part(container(schema, 0, b"")), "avro").note


def test_records_that_double_at_every_level_do_not_become_more_than_they_are():
    """One byte, and 2^30 nulls beside it."""
    kind = "null"
    for level in range(30):
        name = f"L{level}"
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"L{level - 1}"}]
        if level == 0:
            fields = [{"name": "a", "type": "null"}, {"name": "b", "type": "null"}]
        kind = {"type": "record", "name": name, "fields": fields}
    schema = {"type": "record", "name": "Top", "fields": [
        {"name": "byte", "type": "boolean"}, {"name": "bomb", "type": kind}]}  # fmt: skip
    assert "too many values" in shown(part(container(schema, 1, b"\x01")), "avro").note


def test_hostile_schemas_and_bytes_are_only_unreadable():
    huge = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    digits = shown(part(container(huge, 1, number(200_000) + b"\x7f" * 200_000)), "avro")
    assert digits.form == "avro"  # as bytes: its digits would take minutes
    for schema, block in [
        ("long", b"\xff" * 20),
        ("string", number(-1)),
        ("bytes", number(1 << 62)),
        (["null"], number(7)),
        ({"type": "fixed", "name": "F", "size": -1}, b""),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, number(-1)),
        ({"type": "record", "name": "R", "__fastavro_parsed": True, "__named_schemas": {"X": "X"},
          "fields": [{"name": "x", "type": "X"}]}, b""),
        ({"type": "array", "items": "long"}, number(-(1 << 63)) + number(0)),
    ]:  # fmt: skip
        assert shown(part(container(schema, 1, block)), "avro").note.startswith("not avro: ")


def test_values_are_read_as_fastavro_reads_them():
    schema = {
        "type": "record", "name": "Every", "namespace": "n", "fields": [
            {"name": "b", "type": "boolean"}, {"name": "i", "type": "int"},
            {"name": "l", "type": "long"}, {"name": "f", "type": "float"},
            {"name": "d", "type": "double"}, {"name": "s", "type": "string"},
            {"name": "raw", "type": "bytes"}, {"name": "u", "type": ["null", "string"]},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
            {"name": "again", "type": ["E", "null"]},
            {"name": "x", "type": {"type": "fixed", "name": "X", "size": 2}},
            {"name": "m", "type": {"type": "map", "values": "long"}},
            {"name": "a", "type": {"type": "array", "items": ["null", "n.X"]}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "on", "type": {"type": "int", "logicalType": "date"}},
            {"name": "price", "type":
                {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        ],
    }  # fmt: skip
    row = {
        "b": True, "i": -3, "l": 1 << 62, "f": 0.5, "d": -1.25, "s": "grüße", "raw": b"\x00\xff",
        "u": None, "e": "B", "again": "A", "x": b"xy", "m": {"k": 1, "j": -2},
        "a": [None, b"ab"], "at": 1_700_000_000_123, "on": 19_000, "price": Decimal("12.34"),
    }  # fmt: skip
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), [row, row])
    data = out.getvalue()
    assert avro_values.read_container(data) == list(fastavro.reader(io.BytesIO(data)))


def test_indentation_does_not_become_most_of_the_text():
    deep = b"[" * 250 + b",".join([b"1"] * 100_000) + b"]" * 250
    found = shown(part(deep))
    assert found.form == "json"
    assert len(found.text) < 2 * len(deep)
    wide = json.dumps([{"a": {"b": number}} for number in range(10_000)]).encode()
    assert "\n    " in shown(part(wide)).text


def test_a_container_is_not_unpacked():
    out = io.BytesIO()
    row = {"id": 1, "country": "x" * 1_000_000}
    fastavro.writer(out, fastavro.parse_schema(SCHEMA), [row], codec="deflate")
    assert "compressed" in shown(part(out.getvalue()), "avro").note


def test_a_container_of_trees_is_read():
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [{"name": "inside", "type": {"type": "array", "items": "Tree"}}],
    }
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(tree), [{"inside": [{"inside": []}]}])
    found = shown(part(out.getvalue()))
    assert (found.form, json.loads(found.text)) == ("avro", [{"inside": [{"inside": []}]}])


def test_what_is_too_deep_to_be_written_is_shown_as_text():
    deep = b"[" * 400 + b"]" * 400
    assert shown(part(deep)).form == "text"
    event = b'{"op": "c", "before": null, "after": {"a": ' + deep + b"}}"
    assert shown(part(event)).form == "text"
    assert preview(part(event)).startswith('{"op": "c"')
