"""Personal fields of JSON values, as produced records have them."""

import json

import pytest
from support.subjects.customers import customers

from headwater.errors import PersonalDataRefused
from headwater.subjects.personal import Marked, decrypted, plain_fields

TOPIC = "t"


@pytest.fixture
def personal(tmp_path):
    return customers(tmp_path, TOPIC, fields=("name", "total"))


def opened(personal, value):
    return decrypted(value, personal.keyring, None)


@pytest.mark.parametrize(
    "value",
    [
        b'{"id":1,"name":"Ann","total":12.10,"other":123456789012345678901234567890}',
        b'{"id":"a","name":{"first":"Ann"},"price":1.50,"x":[1, 2]}',
        b'{"op":"u","before":{"id":1,"name":"A"},"after":{"id":1,"name":"B","n":1e30},"ts":1.0}',
        '{"id":"Jürg","name":"\\u00e4","total":null}'.encode(),
        b'{"id":1}',
    ],
)
def test_what_is_not_personal_stays_as_it_was_written(personal, value):
    written = personal.value(TOPIC, value)
    assert b"Ann" not in written
    assert opened(personal, written) == value.replace(b" ", b"") or json.loads(
        opened(personal, written)
    ) == json.loads(value)
    for number in (b"12.10", b"123456789012345678901234567890", b"1.50", b"1e30", b"1.0"):
        assert (number in value) == (number in opened(personal, written))


def test_schemas_beside_payloads(personal):
    fields = [{"type": "int32", "field": "id"}, {"type": "double", "field": "total"}]
    schema = {"type": "struct", "fields": fields}
    value = json.dumps({"schema": schema, "payload": {"id": 1, "total": 2.5}}).encode()
    written = json.loads(personal.value(TOPIC, value))
    assert written["payload"]["total"].startswith("hw1:")
    assert [field["type"] for field in written["schema"]["fields"]] == ["int32", "string"]


def test_a_text_that_only_looks_encrypted_is_encrypted(personal):
    token = json.loads(personal.value(TOPIC, b'{"id":1,"name":"Ann"}'))["name"]
    again = json.loads(personal.value(TOPIC, json.dumps({"id": 1, "name": token}).encode()))
    assert again["name"] == token  # as from the event store
    other = json.dumps({"id": 2, "name": token}).encode()
    assert json.loads(personal.value(TOPIC, other))["name"] != token
    forged = "hw1:" + "A" * 16 + ":" + "B" * 60
    written = personal.value(TOPIC, json.dumps({"id": 1, "name": forged}).encode())
    assert json.loads(opened(personal, written))["name"] == forged


@pytest.mark.parametrize(
    "value",
    [b"", b"text", b"[]", b'{"name":"A"}', b'{"id":1.5,"name":"A"}', b'{"id":true,"name":"A"}',
     b'{"op":"u","after":"text"}', b"\xff", b'{"id":1,"name":"A"'],
)  # fmt: skip
def test_what_cannot_be_encrypted_is_refused(personal, value):
    with pytest.raises(PersonalDataRefused) as refused:
        personal.value(TOPIC, value)
    assert '"A"' not in str(refused.value)


def test_plain_fields_are_found_beside_numbers_that_only_some_can_read():
    mark = Marked("customer", "id", ("name",))
    value = b'{"id": 1, "name": "Ann", "n": 1e400, "m": NaN}'
    assert plain_fields(value, mark, "1") == ["name"]
    assert plain_fields(value, mark, "2") == []
    assert plain_fields(b"no JSON", mark, "1") == []
