"""Compatibility of Avro schemas: the rules one by one, and against fastavro's own resolution."""

import io
import json

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import count

from headwater.errors import SchemaRefused
from headwater.schemas.compatibility import Older, incompatibilities
from headwater.schemas.schema import Schema, parse


def unresolved(reference):
    raise AssertionError(reference)


def avro(schema):
    is_text = isinstance(schema, str) and not schema.isalpha()
    text = schema if is_text else json.dumps(schema)
    return parse(Schema(text), unresolved)


def record(*fields, name="R", **more):
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


def enum(*symbols, **more):
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size, name="F"):
    return {"type": "fixed", "name": name, "size": size}


A = field("a", "int")
B = field("b", "string")
B_OR_NONE = field("b", "string", default="")
LIST = record(field("next", ["null", "R"]))

READABLE = [
    (record(A), record(A)),
    ("long", "int"),
    ("float", "long"),
    ("double", "float"),
    ("string", "bytes"),
    ("bytes", "string"),
    (record(A, B_OR_NONE), record(A)),
    (record(A), record(A, B)),
    (record(field("z", "int", aliases=["a"])), record(A)),
    (record(A, name="S", aliases=["R"]), record(A)),
    (record(A, namespace="other"), record(A)),
    (enum("a", "b"), enum("a")),
    (enum("a", default="a"), enum("a", "b")),
    (["null", "int"], "int"),
    (["null", "long"], ["null", "int"]),
    ("int", ["int"]),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
    ({"type": "map", "values": "double"}, {"type": "map", "values": "int"}),
    (fixed(4), fixed(4)),
    (LIST, LIST),
    ({"type": "long", "logicalType": "timestamp-millis"}, "long"),
]
UNREADABLE = [
    ("int", "long", "TYPE_MISMATCH", "/"),
    ("int", "string", "TYPE_MISMATCH", "/"),
    (record(A, B), record(A), "READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/1"),
    (record(field("a", "string")), record(A), "TYPE_MISMATCH", "/fields/0/type"),
    (record(A, name="S"), record(A), "NAME_MISMATCH", "/name"),
    (enum("a"), enum("a", "b"), "MISSING_ENUM_SYMBOLS", "/symbols"),
    (fixed(4), fixed(5), "FIXED_SIZE_MISMATCH", "/size"),
    (["null", "int"], "string", "MISSING_UNION_BRANCH", "/"),
    (["null", "int"], ["null", "string"], "MISSING_UNION_BRANCH", "/1"),
    ("int", ["int", "null"], "TYPE_MISMATCH", "/"),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "TYPE_MISMATCH",
     "/items"),
    (record(field("next", ["null", "R"]), B), LIST, "READER_FIELD_MISSING_DEFAULT_VALUE",
     "/fields/1"),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer"), READABLE)
def test_readable(reader, writer):
    assert incompatibilities(avro(reader), [Older(1, avro(writer))], "BACKWARD") == []


@pytest.mark.parametrize(("reader", "writer", "kind", "path"), UNREADABLE)
def test_unreadable_with_what_and_where(reader, writer, kind, path):
    messages = incompatibilities(avro(reader), [Older(3, avro(writer))], "BACKWARD")
    assert kind in messages[0]
    assert f"'{path}'" in messages[0]
    assert "{oldSchemaVersion: 3}" in messages


LEVELS = {
    # level: whether it takes {a}, {a, b with a default}, {a, b without}, after {a} and {a, b = ""}
    "NONE": (True, True, True),
    "BACKWARD": (True, True, True),
    "BACKWARD_TRANSITIVE": (True, True, False),
    "FORWARD": (True, True, True),
    "FORWARD_TRANSITIVE": (True, True, True),
    "FULL": (True, True, True),
    "FULL_TRANSITIVE": (True, True, False),
}


@pytest.mark.parametrize("level", LEVELS)
def test_levels_compare_with_the_last_or_with_all(level):
    older = [Older(1, avro(record(A))), Older(2, avro(record(A, B_OR_NONE)))]
    candidates = (record(A), record(A, B_OR_NONE), record(A, B))
    taken = tuple(not incompatibilities(avro(new), older, level) for new in candidates)
    assert taken == LEVELS[level]


def test_forward_says_the_words_the_other_way_round():
    older = [Older(1, avro(record(A, B)))]
    (message, *_) = incompatibilities(avro(record(A)), older, "FORWARD")
    assert "in the old schema has no default value and is missing in the new schema" in message
    assert incompatibilities(avro(record(A)), older, "BACKWARD") == []


INVALID = [
    "{",
    "3",
    " null",
    '"nothing"',
    '{"type": "record", "name": "R"}',
    '{"type": "record", "name": "1", "fields": []}',
    '{"type": "record", "name": "R", "fields": [{"name": "a"}]}',
    '{"type": "array"}',
    '["int", "int"]',
    '[["int"]]',
    '{"type": "fixed", "name": "F", "size": -1}',
    '{"type": "enum", "name": "E", "symbols": ["a", "a"]}',
    json.dumps(record(A, A)),
    json.dumps(record(field("a", "int", default="x"))),
    "[" * 100_000,
    '{"type":' * 500 + '"int"' + "}" * 500,
]


@pytest.mark.parametrize("text", INVALID, ids=range(len(INVALID)))
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(SchemaRefused) as caught:
        avro(text)
    assert caught.value.code == 42201


def test_the_canonical_text_keeps_what_has_a_meaning():
    text = """{"namespace": "x", "name": "R", "doc": "d", "type": "record", "fields": [
        {"default": null, "name": "a", "type": ["null", {"type": "string"}], "unit": "EUR"},
        {"name": "r", "type": ["null", "x.R"]},
        {"name": "t", "type": {"logicalType": "date", "type": "int"}},
        {"name": "o", "type": {"type": "fixed", "name": "y.F", "size": 2}}]}"""
    assert avro(text).text == (
        '{"type":"record","name":"R","namespace":"x","doc":"d","fields":['
        '{"name":"a","type":["null","string"],"default":null,"unit":"EUR"},'
        '{"name":"r","type":["null","R"]},'
        '{"name":"t","type":{"type":"int","logicalType":"date"}},'
        '{"name":"o","type":{"type":"fixed","name":"F","namespace":"y","size":2}}]}'
    )
    assert avro(avro(text).text).text == avro(text).text


# Against fastavro: what we call readable, it reads.

_primitive = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "string"])
_names = st.sampled_from(["a", "b", "c"])


def _records(inner):
    fields = st.lists(
        st.builds(
            lambda name, kind, has_default: (name, kind, has_default), _names, inner, st.booleans()
        ),
        max_size=3,
        unique_by=lambda field: field[0],
    )
    return st.builds(_record_of, fields, st.sampled_from(["P", "Q"]))


_DEFAULTS = {
    "null": None, "boolean": True, "int": 1, "long": 2, "float": 1.5, "double": 2.5, "string": "s",
}  # fmt: skip


def _record_of(fields, name):
    made = []
    for field, kind, has_default in fields:
        first = kind[0] if isinstance(kind, list) else kind
        more = {}
        if has_default and isinstance(first, str):
            more["default"] = _DEFAULTS[first]
        made.append({"name": field, "type": kind, **more})
    return {"type": "record", "name": name, "fields": made}


_flat = st.one_of(
    _primitive,
    st.lists(_primitive, min_size=1, max_size=3, unique=True),
    _primitive.map(lambda kind: {"type": "array", "items": kind}),
    _primitive.map(lambda kind: {"type": "map", "values": kind}),
)
_schemas = st.one_of(_flat, _records(_flat))


def _values(schema):
    """A strategy of values of a schema."""
    if isinstance(schema, list):
        return st.one_of(*map(_values, schema))
    match schema if isinstance(schema, str) else schema["type"]:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "int":
            return st.integers(-(1 << 31), (1 << 31) - 1)
        case "long":
            return st.integers(-(1 << 53), 1 << 53)
        case "float" | "double":
            return st.sampled_from([0.0, 1.5, -2.25])
        case "string":
            return st.text(max_size=3)
        case "array":
            return st.lists(_values(schema["items"]), max_size=2)
        case "map":
            return st.dictionaries(st.text(max_size=2), _values(schema["values"]), max_size=2)
    return st.fixed_dictionaries(
        {field["name"]: _values(field["type"]) for field in schema["fields"]}
    )


@settings(max_examples=count(300, 5000), deadline=None)
@given(st.data())
def test_what_backward_accepts_fastavro_reads(data):
    writer = data.draw(_schemas)
    reader = data.draw(st.one_of(_schemas, _changed(writer)))
    if incompatibilities(avro(reader), [Older(1, avro(writer))], "BACKWARD"):
        return
    value = data.draw(_values(writer))
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(writer), value)
    written.seek(0)
    fastavro.schemaless_reader(
        written, fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    )
    assert not written.read()


def _changed(schema):
    """The same, with fields added, removed and widened."""
    if not isinstance(schema, dict) or schema["type"] != "record":
        return st.just(schema)
    more = st.lists(
        st.tuples(st.sampled_from(["x", "y"]), _flat, st.booleans()),
        max_size=2,
        unique_by=lambda field: field[0],
    )
    left = st.lists(st.booleans(), min_size=len(schema["fields"]), max_size=len(schema["fields"]))
    return st.builds(
        lambda new, stays: {
            **schema,
            "fields": [field for field, keep in zip(schema["fields"], stays, strict=True) if keep]
            + _record_of(new, "P")["fields"],
        },
        more,
        left,
    )


@settings(max_examples=count(200, 3000), deadline=None)
@given(_schemas)
def test_every_schema_reads_itself_and_its_canonical_text_is_stable(schema):
    parsed = avro(schema)
    assert incompatibilities(parsed, [Older(1, parsed)], "FULL_TRANSITIVE") == []
    assert avro(parsed.text).text == parsed.text
