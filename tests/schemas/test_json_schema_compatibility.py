"""Compatibility of JSON Schemas, change by change, and validation of values."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import count

from headwater.errors import SchemaRefused
from headwater.schemas.compatibility import Older, incompatibilities
from headwater.schemas.json_schema.matching import matching
from headwater.schemas.json_schema.parsing import parse_json_schema


def schema(document, **references):
    given_ = {name: json.dumps(each) for name, each in references.items()}
    return parse_json_schema(json.dumps(document), given_)


def whole(old, new, **options):
    return incompatibilities(schema(new), [Older(1, schema(old))], "BACKWARD", **options)


def obj(required=(), closed=True, **properties):
    made = {"type": "object", "properties": properties, "required": list(required)}
    return made | ({"additionalProperties": False} if closed else {})


TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
ITEMS = {"type": "array", "items": WHOLE}
TREE = {
    "definitions": {"node": obj(next={"$ref": "#/definitions/node"}, a=WHOLE)},
    "$ref": "#/definitions/node",
}
WIDE_TREE = json.loads(json.dumps(TREE).replace("integer", "number"))

READABLE = [
    (TEXT, {}),
    (False, TEXT),
    (WHOLE, NUMBER),
    (TEXT | {"maxLength": 3}, TEXT | {"maxLength": 4}),
    (TEXT | {"minLength": 3}, TEXT),
    (TEXT | {"pattern": "a"}, TEXT),
    (NUMBER | {"minimum": 3, "multipleOf": 4}, NUMBER | {"minimum": 2, "multipleOf": 2}),
    (obj(a=TEXT), obj(a=TEXT, b=TEXT)),
    (obj(a=TEXT), obj(["b"], a=TEXT, b=TEXT | {"default": ""})),
    (obj(["a"], a=TEXT), obj(a=TEXT)),
    (obj(closed=False, a=TEXT), obj(closed=False)),
    (obj(a=TEXT), obj(closed=False, a=TEXT)),
    (obj(a=WHOLE), obj(a=NUMBER)),
    (ITEMS, {"type": "array", "items": NUMBER}),
    (ITEMS | {"uniqueItems": True, "maxItems": 3}, ITEMS | {"maxItems": 5}),
    ({"enum": [1, 2]}, {"enum": [1, 2, 3]}),
    (TEXT, {"oneOf": [WHOLE, TEXT]}),
    ({"oneOf": [TEXT]}, {"anyOf": [TEXT, WHOLE]}),
    ({"allOf": [obj(a=TEXT), obj(b=TEXT)]}, {"allOf": [obj(a=TEXT)]}),
    ({"type": ["string", "integer"]}, {"type": ["integer", "string", "null"]}),
    ({"not": NUMBER}, {"not": WHOLE}),
    (TREE, WIDE_TREE),
    (obj(a=TEXT) | {"title": "x"}, obj(a=TEXT) | {"title": "y", "description": "z"}),
]
UNREADABLE = [
    (TEXT, WHOLE, "TYPE_CHANGED", "#/"),
    (NUMBER, WHOLE, "TYPE_NARROWED", "#/"),
    (TEXT, TEXT | {"maxLength": 4}, "MAX_LENGTH_ADDED", "#/maxLength"),
    (TEXT | {"pattern": "a"}, TEXT | {"pattern": "b"}, "PATTERN_CHANGED", "#/pattern"),
    (obj(closed=False, a=TEXT), obj(closed=False, a=TEXT, b=TEXT),
     "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", "#/properties/b"),
    (obj(a=TEXT), obj(["b"], a=TEXT, b=TEXT), "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
     "#/properties/b"),
    (obj(a=TEXT, b=TEXT), obj(a=TEXT), "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
     "#/properties/b"),
    (obj(a=TEXT), obj(["a"], a=TEXT), "REQUIRED_ATTRIBUTE_ADDED", "#/required/a"),
    (obj(a=obj(b=TEXT)), obj(a=obj(b=WHOLE)), "TYPE_CHANGED", "#/properties/a/properties/b"),
    (obj(closed=False), obj(), "ADDITIONAL_PROPERTIES_REMOVED", "#/additionalProperties"),
    ({"enum": [1, 2]}, {"enum": [1]}, "ENUM_ARRAY_NARROWED", "#/enum"),
    ({"oneOf": [TEXT, WHOLE]}, {"oneOf": [TEXT]}, "SUM_TYPE_NARROWED", "#/"),
    ({"not": WHOLE}, {"not": NUMBER}, "NOT_TYPE_EXTENDED", "#/not"),
    (ITEMS, {"type": "array", "items": TEXT}, "TYPE_CHANGED", "#/items"),
    (WIDE_TREE, TREE, "TYPE_NARROWED", "#/properties/a"),
    ({"const": 1}, {"const": 2}, "ENUM_ARRAY_CHANGED", "#/const"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), READABLE)
def test_readable(old, new):
    assert whole(old, new) == []


@pytest.mark.parametrize(("old", "new", "kind", "path"), UNREADABLE)
def test_unreadable_with_what_and_where(old, new, kind, path):
    messages = whole(old, new)
    assert any(f"'{kind}'" in text and f"'{path}'" in text for text in messages), messages


def test_a_lenient_policy_lets_properties_come_and_go():
    old, new = obj(closed=False, a=TEXT), obj(closed=False, a=TEXT, b=TEXT)
    assert whole(old, new)
    assert whole(old, new, is_lenient=True) == []


def test_a_property_that_a_pattern_covers_has_to_fit_it():
    old = {"type": "object", "patternProperties": {"^n_": NUMBER}, "additionalProperties": False}
    fitting = old | {"properties": {"n_a": NUMBER}}
    other = old | {"properties": {"n_a": TEXT}}
    assert whole(old, fitting) == []
    assert "PROPERTY_ADDED_NOT_COVERED" in " ".join(whole(old, other))


def test_references_lead_to_other_schemas():
    part = {"$id": "http://shop.example/part.json", "type": "string", "maxLength": 3}
    referring = {"type": "object", "properties": {"p": {"$ref": "part.json"}}}
    referring["$id"] = "http://shop.example/whole.json"
    found = schema(referring, **{"http://shop.example/part.json": part})
    check = found.validator()
    assert check({"p": "abc"}) is None
    assert "longer than 3" in check({"p": "abcd"})
    with pytest.raises(SchemaRefused, match="there is no such schema"):
        schema(referring)


INVALID = [
    "{",
    "3",
    '{"type": "strin"}',
    '{"type": "string", "pattern": "("}',
    '{"$ref": "http://127.0.0.1:1/x"}',
    '{"$schema": "http://127.0.0.1:1/x"}',
    '{"$ref": "#/definitions/none"}',
    '{"definitions": {"a": {"$ref": "#/definitions/a"}}, "$ref": "#/definitions/a"}',
    '{"properties": 3}',
    '{"minimum": "a"}',
    '{"not":' * 900 + "{}" + "}" * 900,
]


@pytest.mark.parametrize("text", INVALID, ids=range(len(INVALID)))
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(SchemaRefused) as caught:
        parse_json_schema(text, {})
    assert caught.value.code == 42201


@pytest.mark.parametrize(
    "draft",
    ["http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-06/schema",
     "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema",
     "https://json-schema.org/draft/2020-12/schema"],
)  # fmt: skip
def test_every_draft_validates(draft):
    check = schema({"$schema": draft, "type": "object", "required": ["a"]}).validator()
    assert check({"a": 1}) is None
    assert '"a" is a required property' in check({})


def test_schemas_that_would_take_for_ever_are_refused():
    """Each of a hundred alternatives is compared with each, on several levels."""

    def nested(depth):
        if not depth:
            return TEXT
        return {"anyOf": [{"type": "object", "title": str(n), "properties": {
            "p": nested(depth - 1)}} for n in range(12)]}  # fmt: skip

    with pytest.raises(SchemaRefused, match="too complex"):
        whole(nested(3), nested(3))


def test_normalized_has_the_order_of_names():
    assert schema({"type": "object", "additionalProperties": False}).normalized() == (
        '{"additionalProperties":false,"type":"object"}'
    )


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_a_matching_uses_each_side_once_and_cannot_be_extended(edges):
    found = matching(edges, 7)
    assert set(found) <= edges
    assert len({left for left, _ in found}) == len({right for _, right in found}) == len(found)
    free = {(left, right) for left, right in edges
            if all(left != a and right != b for a, b in found)}  # fmt: skip
    assert not free


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
_small = st.recursive(
    st.sampled_from([TEXT, WHOLE, NUMBER, {"type": "null"}, {"type": "boolean"}, {},
                     {"enum": [1, "a"]}, TEXT | {"maxLength": 2}, NUMBER | {"minimum": 0}]),
    lambda inner: st.one_of(
        st.builds(lambda a, required, closed: obj(["a"] if required else [], closed, a=a),
                  inner, st.booleans(), st.booleans()),
        inner.map(lambda items: {"type": "array", "items": items}),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts}),
    ),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=count(300, 5000), deadline=None)
@given(st.data())
def test_what_backward_accepts_stays_valid(data):
    """A value of the old schema is one of the new schema. (Defaults are promises of readers.)"""
    old, new = data.draw(_small), data.draw(_small)
    if whole(old, new):
        return
    check_old, check_new = schema(old).validator(), schema(new).validator()
    value = data.draw(st.one_of(_json, st.builds(lambda a: {"a": a}, _json), st.lists(_json)))
    if check_old(value) is None:
        assert check_new(value) is None
