"""The reader's bounds: nothing is read, and nothing allocated, beyond the message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import MalformedMessage
from headwater.protocol import primitives as p
from headwater.protocol.primitives import Out, Reader, Splice


@given(st.integers(0, 2**32 - 1))
def test_uvarint(value: int):
    out = bytearray()
    p.write_uvarint(out, value)
    assert Reader(out).uvarint() == value
    with pytest.raises(MalformedMessage):
        Reader(out[:-1]).uvarint()


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong(value: int):
    out = bytearray()
    p.write_varlong(out, value)
    assert len(out) <= 10
    assert Reader(out).varlong() == value


@pytest.mark.parametrize("data", [b"\xff" * 4 + b"\x10", b"\x80" * 5 + b"\x01", b""])
def test_a_varint_of_more_than_32_bits_is_malformed(data: bytes):
    with pytest.raises(MalformedMessage):
        Reader(data).uvarint()


@pytest.mark.parametrize("data", [b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01", b"\x80"])
def test_a_varlong_of_more_than_64_bits_is_malformed(data: bytes):
    with pytest.raises(MalformedMessage):
        Reader(data).varlong()


@pytest.mark.parametrize(
    "read",
    [
        Reader.int8, Reader.int16, Reader.int32, Reader.int64, Reader.uint16, Reader.uint32,
        Reader.float64, Reader.boolean, Reader.uuid, Reader.string, Reader.compact_string,
        Reader.bytes, Reader.compact_bytes, Reader.count, Reader.compact_count,
        Reader.skip_tagged_fields,
    ],
)  # fmt: skip
def test_the_end_of_the_message_is_the_end(read):
    with pytest.raises(MalformedMessage):
        read(Reader(b""))


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (Reader.string, b"\x00\x05abc"),
        (Reader.compact_string, b"\x06abc"),
        (Reader.bytes, b"\x7f\xff\xff\xffabc"),
        (Reader.compact_bytes, b"\xff\xff\xff\xff\x0fabc"),
        (Reader.count, b"\x7f\xff\xff\xff"),
        (Reader.compact_count, b"\xff\xff\xff\xff\x0f"),
        (Reader.skip_tagged_fields, b"\x01\x00\x7f"),
        (Reader.string, b"\x00\x02\xff\xfe"),  # not UTF-8
    ],
)
def test_lengths_beyond_the_message(read, data: bytes):
    with pytest.raises(MalformedMessage):
        read(Reader(data))


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (Reader.string, b"\xff\xff"),
        (Reader.compact_string, b"\x00"),
        (Reader.bytes, b"\xff\xff\xff\xff"),
        (Reader.compact_bytes, b"\x00"),
        (Reader.count, b"\xff\xff\xff\xff"),
        (Reader.compact_count, b"\x00"),
    ],
)
def test_null(read, data: bytes):
    reader = Reader(data)
    assert read(reader) is None
    assert reader.remaining() == 0


class _Elsewhere(Splice):
    size_bytes = 300


def test_a_splice_leaves_its_length_and_its_place():
    for write, head in ((p.write_bytes, b"\0\0\1\x2c"), (p.write_compact_bytes, b"\xad\x02")):
        out, splice = Out(b"xy"), _Elsewhere()
        write(out, splice)
        assert out == b"xy" + head
        assert out.splices == [(len(out), splice)]
