"""Ids of schemas in a batch's records, without decoding them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from headwater.errors import MalformedMessage
from headwater.protocol.record_scan import KEYLESS
from headwater.protocol.records import HEADER_BYTES, Record, build_batch
from headwater.protocol.schema_id_scan import SchemaIdRule, SchemaIdScan

VALUES = SchemaIdRule("t", None, frozenset({7}))
GOOD = b"\x00\x00\x00\x00\x07x"


def body_of(*pairs, headers=()):
    records = [Record(n, 1_700_000_000_000 + n, *pair, headers) for n, pair in enumerate(pairs)]
    return bytes(build_batch(records)[HEADER_BYTES:])


def refused(rule, *pairs, needs_keys=False, headers=()):
    body = body_of(*pairs, headers=headers)
    scan = SchemaIdScan(body, len(pairs), rule, needs_keys=needs_keys)
    while not scan.step(3):
        pass
    return dict(scan.refused)


def test_each_part_is_checked_by_its_own_ids():
    both = SchemaIdRule("t", frozenset({1}), frozenset({7}))
    key = b"\x00\x00\x00\x00\x01"
    found = refused(both, (key, GOOD), (GOOD, GOOD), (key, key), (None, None), (b"", GOOD))
    assert set(found) == {1, 2, 4}
    assert found[1] == "the key has the id 7, which is none of t-key"
    assert found[2] == "the value has the id 1, which is none of t-value"
    assert found[4] == "the key does not begin with 0 and the id of a schema"


@pytest.mark.parametrize("size_bytes", [0, 1, 59, 60, 8000, 70_000])
def test_sizes_whose_lengths_take_several_bytes(size_bytes):
    more = bytes(size_bytes)
    pairs = [(more, GOOD + more), (None, b"\x01" + more), (more, None)] * 50
    found = refused(VALUES, *pairs, headers=(("h", more), ("n", None)))
    assert sorted(found) == list(range(1, 150, 3))


def test_a_compacted_topic_needs_keys_too():
    assert refused(VALUES, (None, GOOD), (b"k", GOOD), needs_keys=True) == {0: KEYLESS}


@settings(max_examples=examples(2000), deadline=None)
@given(
    st.integers(0, 400),
    st.binary(min_size=1, max_size=4),
    st.integers(1, 12),
    st.booleans(),
)
def test_broken_bytes_are_malformed_and_nothing_else(at, damage, count, is_cut):
    body = bytearray(body_of(*[(b"key", GOOD)] * 10, headers=(("h", b"v"),)))
    at %= len(body)
    body[at : at + len(damage)] = b"" if is_cut else damage
    scan = SchemaIdScan(bytes(body), count, VALUES)
    try:
        while not scan.step(4):
            pass
    except MalformedMessage:
        pass
    assert all(0 <= number < count for number, _ in scan.refused)
