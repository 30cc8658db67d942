"""Our encoding of Avro, read by fastavro with the schema that goes with it."""

import base64
import io
import json
import math

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from headwater.capture.records.avro_encoding import Unfit, encoder
from headwater.capture.records.avro_schemas import ANY, schema_text

INTS = st.integers(-(1 << 31), (1 << 31) - 1)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(width=32, allow_nan=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
# Kafka Connect's type, and values as JSON has them.
TYPES = {
    "boolean": st.booleans(), "int8": INTS, "int16": INTS, "int32": INTS, "int64": LONGS,
    "float": FLOATS, "double": st.floats(allow_nan=False), "string": TEXTS,
    "bytes": st.binary().map(lambda data: base64.b64encode(data).decode()),
    ANY: st.one_of(LONGS, st.floats(allow_nan=False), TEXTS),
}  # fmt: skip


@st.composite
def rows(draw):
    """A struct, and a value of it."""
    fields, value = [], {}
    for number in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from([*TYPES, "array", "map", "struct"]))
        optional = draw(st.booleans())
        name = f"f{number}"
        if kind == "array":
            field = {"type": kind, "items": {"type": "int64", "optional": True}}
            content = draw(st.lists(st.none() | LONGS, max_size=4))
        elif kind == "map":
            field = {"type": kind, "values": {"type": "string", "optional": False}}
            content = draw(st.dictionaries(TEXTS, TEXTS, max_size=3))
        elif kind == "struct":
            inner = [{"type": "int32", "optional": False, "field": "x"}]
            field = {"type": kind, "name": f"S{number}", "fields": inner}
            content = {"x": draw(INTS)}
        else:
            field, content = {"type": kind}, draw(TYPES[kind])
        fields.append({**field, "optional": optional, "field": name})
        value[name] = draw(st.none() | st.just(content)) if optional else content
    return {"type": "struct", "name": "t.Row", "fields": fields}, value


def as_json(value):
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return {k: as_json(v) for k, v in value.items()} if isinstance(value, dict) else value


@settings(max_examples=examples(1500), deadline=None)
@given(rows())
def test_whatever_is_written_is_read_again(row):
    connect, value = row
    schema = fastavro.parse_schema(json.loads(schema_text(connect)))
    data = io.BytesIO(encoder(connect)(value))
    found = fastavro.schemaless_reader(data, schema, None)
    assert not data.read(), "bytes are left"
    assert as_json(found) == value


def test_texts_for_numbers_that_json_has_not():
    encode = encoder({"type": "double"})
    for text in ("NaN", "Infinity", "-Infinity"):
        (found,) = [fastavro.schemaless_reader(io.BytesIO(encode(text)), "double", None)]
        assert math.isnan(found) if text == "NaN" else found == float(text)


def test_a_default_has_the_first_branch_and_a_source_may_repeat():
    field = {"type": "string", "optional": True, "default": "x", "field": "s"}
    source = {"type": "struct", "name": "Source", "fields": [field], "field": "source"}
    connect = {"type": "struct", "name": "E", "fields": [source]}
    schema = fastavro.parse_schema(json.loads(schema_text(connect)))
    encode = encoder(connect)
    for value in ("a", "a", None, "b", "a"):
        event = {"source": {"s": value}}
        assert fastavro.schemaless_reader(io.BytesIO(encode(event)), schema, None) == event


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int64", "1"), ("int64", 1.5), ("int64", True), ("int64", 1 << 63), ("int32", 1 << 31),
     ("boolean", 1), ("double", "x"), ("double", True), ("bytes", "no base64!"), ("bytes", 7),
     ("string", "\ud800"), ("int64", None)],
)  # fmt: skip
def test_values_of_other_types_are_named_and_not_quoted(kind, value):
    inner = {"type": "struct", "name": "R", "fields": [{"type": kind, "field": "column"}]}
    connect = {"type": "struct", "name": "E", "fields": [{**inner, "field": "after"}]}
    with pytest.raises(Unfit) as caught:
        encoder(connect)({"after": {"column": value}})
    assert str(caught.value) == "after.column"
