"""Record batches: built here, read elsewhere, and the other way round."""

import struct
import warnings

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import MalformedMessage
from headwater.protocol import compression
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.records import (
    CONTROL,
    CRC_FROM,
    LOG_APPEND_TIME,
    Record,
    assign,
    build_batch,
    check_produced,
    crc32c,
    read_header,
    records_of,
    stamp_append_time,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's, when it is imported
    from kafka.record import MemoryRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder

CODECS = range(5)
RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(0, 2**41),
        st.none() | st.binary(max_size=30),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


def _plain(records: list[Record]) -> list[tuple]:
    return [(r.timestamp_ms, r.key, r.value, list(r.headers)) for r in records]


@settings(deadline=None)
@given(RECORDS, st.sampled_from(CODECS), st.integers(0, 2**60))
def test_round_trip(records: list[Record], codec: int, base_offset: int):
    batch = build_batch(records, codec=codec)
    assert check_produced(memoryview(batch)).record_count == len(records)
    assign(memoryview(batch), base_offset, 3)
    assert check_produced(memoryview(batch)).leader_epoch == 3  # the CRC still holds
    found = list(records_of(batch))
    assert _plain(found) == _plain(records)
    assert [record.offset for record in found] == list(
        range(base_offset, base_offset + len(records))
    )


@settings(deadline=None)
@given(RECORDS, st.sampled_from([0, 1, 3, 4]))
def test_kafka_python_reads_ours(records: list[Record], codec: int):
    batches = MemoryRecords(bytes(build_batch(records, codec=codec, base_offset=40)))
    found = list(batches.next_batch())
    assert [(r.timestamp, r.key, r.value, r.headers) for r in found] == _plain(records)
    assert [r.offset for r in found] == list(range(40, 40 + len(records)))


@settings(deadline=None)
@given(RECORDS, st.sampled_from([0, 1, 3, 4]))
def test_ours_reads_kafka_python(records: list[Record], codec: int):
    builder = DefaultRecordBatchBuilder(2, codec, 0, 9, 1, 5, 1 << 20)
    for number, record in enumerate(records):
        builder.append(number, record.timestamp_ms, record.key, record.value, list(record.headers))
    batch = bytearray(builder.build())
    header = check_produced(memoryview(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 5)
    assert _plain(list(records_of(batch))) == _plain(records)


def _with_body(codec: int, packed: bytes, count: int = 1) -> bytearray:
    """A batch whose records are these compressed bytes."""
    batch = build_batch([Record(0, 5, None, None)] * count)[:61] + packed
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


def _plain_body(value: bytes) -> bytes:
    return bytes(build_batch([Record(0, 5, b"k", value)])[61:])


def _xerial(data: bytes, block_bytes: int) -> bytes:
    out = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for start in range(0, len(data), block_bytes):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + block_bytes]))
        out += struct.pack(">i", len(block)) + block
    return out


def _zstd_without_size(data: bytes) -> bytes:
    stream = cramjam.zstd.Compressor()
    stream.compress(data)
    return bytes(stream.finish())


def _lz4(data: bytes, *, store_size: bool) -> bytes:
    frame = pytest.importorskip("lz4.frame")
    return frame.compress(data, store_size=store_size)


@pytest.mark.parametrize("size", [0, 1, 1000, 70_000, 1_000_000])
@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        (compression.SNAPPY, lambda data: _xerial(data, 32 << 10)),
        (compression.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
        (compression.GZIP, lambda data: compression.compress(compression.GZIP, data)),
        (compression.LZ4, lambda data: _lz4(data, store_size=True)),
        (compression.LZ4, lambda data: _lz4(data, store_size=False)),
        (compression.ZSTD, lambda data: bytes(cramjam.zstd.compress(data))),
        (compression.ZSTD, _zstd_without_size),
    ],
    ids=["xerial", "snappy", "gzip", "lz4 size", "lz4", "zstd", "zstd stream"],
)
def test_framings_of_other_writers(codec: int, pack, size: int):
    value = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    batch = _with_body(codec, pack(_plain_body(value)))
    assert [record.value for record in records_of(batch)] == [value]


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_bomb_is_refused(codec: int):
    limit_bytes = 1 << 20
    bomb = compression.compress(codec, bytes(64 << 20))
    assert len(bomb) < 4 << 20
    with pytest.raises(MalformedMessage):
        compression.decompress(codec, bomb, limit_bytes)
    assert (
        len(compression.decompress(codec, compression.compress(codec, bytes(1000)), 1000)) == 1000
    )


def test_a_xerial_bomb_of_many_blocks_is_refused():
    bomb = _xerial(bytes(8 << 20), 1 << 16)
    with pytest.raises(MalformedMessage):
        compression.decompress(compression.SNAPPY, bomb, 1 << 20)


@pytest.mark.parametrize("codec", range(1, 5))
def test_every_cut_of_a_compressed_batch_is_malformed(codec: int):
    packed = compression.compress(codec, _plain_body(b"some value " * 20))
    for size in range(len(packed)):
        with pytest.raises(MalformedMessage):
            list(records_of(_with_body(codec, packed[:size])))


def test_a_second_gzip_member_is_refused_not_dropped():
    member = compression.compress(compression.GZIP, b"abc")
    with pytest.raises(MalformedMessage):
        compression.decompress(compression.GZIP, member + member, 100)


def _refusal(batch: bytearray) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        check_produced(memoryview(batch))
    return refused.value.code


def _patched(form: str, at: int, value: int, *, fix_crc: bool = True) -> bytearray:
    batch = build_batch([Record(0, 5, b"k", b"v")] * 3)
    struct.pack_into(form, batch, at, value)
    if fix_crc:
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (_patched(">b", 16, 1), ErrorCode.INVALID_RECORD),
        (_patched(">b", 16, 0), ErrorCode.INVALID_RECORD),
        (_patched(">I", 17, 1, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (_patched(">h", 21, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (_patched(">h", 21, CONTROL), ErrorCode.INVALID_RECORD),
        (_patched(">i", 23, 7), ErrorCode.INVALID_RECORD),
        (_patched(">i", 57, 0), ErrorCode.INVALID_RECORD),
        (_patched(">q", 43, 12), ErrorCode.INVALID_RECORD),  # an id, but no epoch or sequence
        (_patched(">q", 43, -2), ErrorCode.INVALID_RECORD),
        (_patched(">i", 8, 2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
        (_patched(">i", 8, -1), ErrorCode.CORRUPT_MESSAGE),
        (_patched(">i", 8, 49), ErrorCode.INVALID_RECORD),
        (bytearray(build_batch([Record(0, 5, b"k", b"v")]) * 2), ErrorCode.INVALID_RECORD),
        (bytearray(10), ErrorCode.CORRUPT_MESSAGE),
        (bytearray(), ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_refusals(batch: bytearray, code: ErrorCode):
    assert _refusal(batch) == code


def test_log_append_time():
    batch = build_batch([Record(0, 5, b"k", b"v"), Record(0, 9, b"k", b"w")], codec=3)
    stamp_append_time(memoryview(batch), read_header(batch).attributes, 777)
    header = check_produced(memoryview(batch))
    assert header.attributes & LOG_APPEND_TIME
    assert header.max_timestamp == 777
    assert [record.timestamp_ms for record in records_of(batch)] == [777, 777]


def test_sequences_wrap():
    batch = build_batch(
        [Record(0, 5, None, b"")] * 4, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2
    )
    assert read_header(batch).last_sequence == 1
