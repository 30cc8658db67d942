"""Records as JSON: what is written can be read, and mistakes are named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cli.messages import FakeMessage

from headwater.errors import RequestRefused
from headwater.inspect.record_json import Record, dump_record, parse_record

data = st.none() | st.binary(max_size=20)


@given(
    key=data,
    value=data,
    headers=st.lists(st.tuples(st.text(max_size=5), data), max_size=3),
    partition=st.integers(0, 2**31 - 1),
    timestamp_ms=st.integers(0, 2**53),
)
def test_every_record_survives_the_way_through_json(key, value, headers, partition, timestamp_ms):
    message = FakeMessage("t", partition, 7, key, value, headers, timestamp_ms)
    line = dump_record(message)
    assert line.count(b"\n") == 1
    assert parse_record(line) == Record(key, value, headers, partition, timestamp_ms)


def test_what_consume_writes():
    message = FakeMessage("orders", 1, 42, b"7", b"\xff", [("a", b"b")], 5)
    assert json.loads(dump_record(message)) == {
        "topic": "orders",
        "partition": 1,
        "offset": 42,
        "timestamp": 5,
        "key": "7",
        "value": {"base64": "/w=="},
        "headers": [["a", "b"]],
    }


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ("{}", Record(None, None, [])),
        ('{"value": "a"}', Record(None, b"a", [])),
        ('{"value": {"total": 12}}', Record(None, b'{"total":12}', [])),
        ('{"value": 3, "key": false}', Record(b"false", b"3", [])),
        ('{"headers": {"a": "b", "c": null}}', Record(None, None, [("a", b"b"), ("c", None)])),
        ('{"headers": [["a", {"base64": "/w=="}]]}', Record(None, None, [("a", b"\xff")])),
    ],
)
def test_what_produce_reads(line, record):
    assert parse_record(line.encode()) == record


def test_a_tombstone():
    assert parse_record(b'{"key":"a","value":""}', tombstone=True).value is None
    assert parse_record(b'{"key":"a","value":""}').value == b""


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "it is not JSON: .* at column 2$"),
        ("[]", "it is no JSON object"),
        ('{"kex": 1}', "unknown field 'kex'"),
        ('{"value": {"base64": "?"}}', "value is not base64"),
        ('{"value": {"base64": 1}}', "value is not base64"),
        ('{"headers": "a"}', "headers are neither an object nor a list of pairs"),
        ('{"headers": [["a"]]}', "a header is no pair"),
        ('{"partition": -1}', "partition is no whole number from 0"),
        ('{"timestamp": "now"}', "timestamp is no whole number from 0"),
    ],
)
def test_what_it_refuses(line, what):
    with pytest.raises(RequestRefused, match=what):
        parse_record(line.encode())
