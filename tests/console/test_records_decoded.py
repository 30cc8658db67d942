"""Bytes as people can read them."""

import io
import json

import fastavro
import pytest

from headwater.console.decoding import preview, shown
from headwater.console.records import Part

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


def test_a_change_event_tells_which_columns_differ():
    event = shown(
        part(
            envelope(
                "u", {"id": 1, "city": "Wien", "old": 1}, {"id": 1, "city": "Graz", "new": None}
            )
        )
    )
    assert event.operation == "updated"
    assert [(each.column, each.before, each.after, each.is_changed) for each in event.changes] == [
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
def test_avro_of_a_known_schema(tmp_path, framing):
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
    assert (found.form, "no bytes" in found.note) == ("hex", True)
    assert len(preview(part(data))) < 1000


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
