"""Documents as extended JSON, and as the envelope holds them."""

import json
import uuid

import bson
import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from hypothesis import given
from hypothesis import strategies as st

from headwater.capture.contract import Table
from headwater.capture.mongo import shape
from headwater.capture.mongo.documents import CODEC, extended
from headwater.capture.rules.column_rules import column_rule
from headwater.capture.rules.document_rules import DocumentRules

OID = "65a1b2c3d4e5f60718293a4b"


def stored(document):
    """As it comes back from a server."""
    return bson.decode(bson.encode(document), codec_options=CODEC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5),
        (Int64(5), {"$numberLong": "5"}),
        (2**62, {"$numberLong": "4611686018427387904"}),
        (1.5, 1.5),
        (float("nan"), {"$numberDouble": "NaN"}),
        (float("inf"), {"$numberDouble": "Infinity"}),
        (float("-inf"), {"$numberDouble": "-Infinity"}),
        (Decimal128("1.50"), {"$numberDecimal": "1.50"}),
        (Decimal128("NaN"), {"$numberDecimal": "NaN"}),
        (True, True),
        (None, None),
        ("ü\u2028\U0001f600", "ü\u2028\U0001f600"),
        (ObjectId(OID), {"$oid": OID}),
        (DatetimeMS(1700000000123), {"$date": 1700000000123}),
        (DatetimeMS(-(2**62)), {"$date": -(2**62)}),  # long before the year 1
        (b"abc", {"$binary": "YWJj", "$type": "00"}),
        (Binary(b"abc", 128), {"$binary": "YWJj", "$type": "80"}),
        (
            Binary.from_uuid(uuid.UUID(int=1)),
            {"$binary": "AAAAAAAAAAAAAAAAAAAAAQ==", "$type": "04"},
        ),
        (Timestamp(1, 2), {"$timestamp": {"t": 1, "i": 2}}),
        (Regex("^a", "xmi"), {"$regex": "^a", "$options": "imx"}),
        (Code("f()"), {"$code": "f()"}),
        (Code("f()", {"n": Int64(1)}), {"$code": "f()", "$scope": {"n": {"$numberLong": "1"}}}),
        (DBRef("c", ObjectId(OID)), {"$ref": "c", "$id": {"$oid": OID}}),
        (MinKey(), {"$minKey": 1}),
        (MaxKey(), {"$maxKey": 1}),
        ([Int64(1), {"a": [None]}], [{"$numberLong": "1"}, {"a": [None]}]),
        ({"a.b": 1, "$c": {"": 2}}, {"a.b": 1, "$c": {"": 2}}),
    ],
)
def test_every_type_has_its_form(value, expected):
    assert extended(stored({"v": value})) == {"v": expected}
    assert json.loads(shape.text(extended(stored({"v": value})))) == {"v": expected}


bson_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)  # which has many, and one form
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
    | st.binary(max_size=20)
    | st.binary(min_size=12, max_size=12).map(ObjectId)
    | st.integers(-(2**63), 2**63 - 1).map(DatetimeMS)
    | st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(st.text("abcxyz.", max_size=5), children, max_size=4)
    ),
    max_leaves=15,
)


@given(st.dictionaries(st.text("abc", max_size=5), bson_values, max_size=5))
def test_nothing_is_lost_on_the_way(document):
    """The driver's own reader of extended JSON gives the same BSON back."""
    document = stored(document)
    options = json_util.JSONOptions(
        datetime_conversion=CODEC.datetime_conversion, tz_aware=False, tzinfo=None
    )
    read = json_util.loads(shape.text(extended(document)), json_options=options)
    assert bson.encode(read) == bson.encode(document)


def test_bytes_that_are_no_text_do_not_end_anything():
    raw = bson.encode({"v": "abc"}).replace(b"abc", b"a\xffc")
    assert extended(bson.decode(raw, codec_options=CODEC)) == {"v": "a\ufffdc"}


@pytest.mark.parametrize(
    ("document_id", "expected"),
    [
        (1, "1"),
        (Int64(1), "1"),
        (1.5, "1.5"),
        ("a", '"a"'),
        (ObjectId(OID), f'{{"$oid": "{OID}"}}'),
        (DatetimeMS(0), '{"$date": "1970-01-01T00:00:00Z"}'),
        (DatetimeMS(1), '{"$date": "1970-01-01T00:00:00.001Z"}'),
        (DatetimeMS(-1), '{"$date": {"$numberLong": "-1"}}'),
        (b"abc", '{"$binary": {"base64": "YWJj","subType": "00"}}'),
        (
            {"a": Int64(1), "b": [DatetimeMS(0)]},
            '{"a": 1,"b": [{"$date": "1970-01-01T00:00:00Z"}]}',
        ),
        (None, "null"),
    ],
)
def test_a_key_is_as_debezium_writes_it(document_id, expected):
    assert shape.key(extended(stored({"_id": document_id}))) == {"id": expected}


def test_an_image_of_the_key_alone_is_none():
    assert shape.before({"_id": 1}) is None
    assert shape.before(None) is None
    assert shape.before({"_id": 1, "a": 2}) == '{"_id":1,"a":2}'
    assert shape.after({"_id": 1}) == '{"_id":1}'
    assert shape.after(None) is None


DESCRIPTION = {
    "updateDescription": {
        "updatedFields": {"name": "x", "card": "4111", "card.cvc": "1", "address.city": "y"},
        "removedFields": ["card.old", "note"],
        "truncatedArrays": [{"field": "tags", "newSize": 2}, {"field": "card.tries", "newSize": 0}],
    }
}


def test_an_update_is_described_as_debezium_does():
    assert shape.update_description(DESCRIPTION) == {
        "updatedFields": '{"name":"x","card":"4111","card.cvc":"1","address.city":"y"}',
        "removedFields": ["card.old", "note"],
        "truncatedArrays": [{"field": "tags", "size": 2}, {"field": "card.tries", "size": 0}],
    }
    empty = {"updateDescription": {"updatedFields": {}, "removedFields": []}}
    assert shape.update_description(empty) == {
        "updatedFields": "{}",
        "removedFields": None,
        "truncatedArrays": None,
    }
    assert shape.update_description(None) is None


def test_what_is_masked_or_dropped_does_not_show_in_the_description():
    rules = {
        "card": column_rule("*.card", "mask", ""),
        "note": column_rule("*.note", "drop", ""),
    }
    people = Table("app", "people", (), ("_id",), documents=True)
    assert shape.update_description(DESCRIPTION, DocumentRules(people, rules.get)) == {
        "updatedFields": '{"name":"x","card":"****","address.city":"y"}',
        "removedFields": None,
        "truncatedArrays": [{"field": "tags", "size": 2}],
    }
