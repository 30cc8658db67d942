import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.writing.batches import DEFAULT_MAX_BYTES, BatchBuilder, partition_of
from headwater.protocol import compression, records
from headwater.protocol.records import Record

with warnings.catch_warnings():  # importing it reads files in a deprecated way
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2

NOW_MS = 1_763_222_400_000
nullable = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=20), nullable), max_size=3)
times_ms = st.integers(NOW_MS - 100_000, NOW_MS + 100_000) | st.integers(0, 2**62)


@given(
    written=st.lists(st.tuples(nullable, nullable, headers, times_ms), min_size=1, max_size=30),
    codec=st.sampled_from(range(5)),
)
def test_what_is_built_is_what_the_broker_reads(written, codec) -> None:
    builder = BatchBuilder()
    for record in written:
        assert builder.append(*record)
    batch = builder.build(codec)
    header = records.check_produced(memoryview(batch))
    assert header.max_timestamp == max(time_ms for *_, time_ms in written)
    found = list(records.records_of(batch))
    assert found == [
        Record(offset, time_ms, key, value, headers)
        for offset, (key, value, headers, time_ms) in enumerate(written)
    ]


@pytest.mark.parametrize("value_bytes", [0, 1, 63, 64, 8_191, 8_192, 16_383, 16_384, 3_000_000])
@pytest.mark.parametrize("key", [None, b"", b"k" * 64, b"k" * 20_000])
def test_the_same_bytes_as_by_the_book(key, value_bytes) -> None:
    value = b"v" * value_bytes
    written = [Record(0, NOW_MS, key, value), Record(1, NOW_MS + 7, key, value)]
    builder = BatchBuilder(max_bytes=10_000_000)
    for record in written:
        assert builder.append(record.key, record.value, record.headers, record.timestamp_ms)
    assert builder.build(compression.NONE) == records.build_batch(written)


def test_more_records_than_the_table_of_varints_has() -> None:
    builder = BatchBuilder()
    written = 0
    while builder.append(b"", b"", (), NOW_MS):
        written += 1
    assert written == builder.count > 20_000
    batch = builder.build()
    assert [record.offset for record in records.records_of(batch)] == list(range(written))


def test_who_wrote_it_stands_in_the_header() -> None:
    builder = BatchBuilder()
    builder.append(b"k", b"v", (), NOW_MS)
    built = builder.build(
        producer_id=7, producer_epoch=3, base_sequence=2**31 - 1, is_transactional=True
    )
    header = records.check_produced(memoryview(built))
    assert (header.producer_id, header.producer_epoch) == (7, 3)
    assert header.base_sequence == 2**31 - 1
    assert header.attributes == records.TRANSACTIONAL | compression.LZ4


def test_a_full_batch_takes_no_more_but_an_empty_one_takes_any_record() -> None:
    builder = BatchBuilder(max_bytes=1_000)
    assert builder.append(b"k", b"v" * 5_000, (), NOW_MS)
    size_bytes = builder.size_bytes
    assert size_bytes > 5_000
    assert not builder.append(b"k", b"v", (), NOW_MS + 1)
    assert not builder.append(None, b"v", [("h", b"")], NOW_MS + 1)
    assert (builder.count, builder.size_bytes) == (1, size_bytes)
    header = records.check_produced(memoryview(builder.build()))
    assert header.max_timestamp == NOW_MS  # not that of a record that is not in it


@given(st.lists(st.binary(max_size=4_000), min_size=1))
def test_a_batch_stays_within_its_limit(values) -> None:
    builder = BatchBuilder(max_bytes=5_000)
    for value in values:
        if builder.append(b"key", value, (), NOW_MS):
            assert builder.size_bytes <= 5_000


def test_what_does_not_compress_still_fits_into_a_topic_of_kafkas_defaults() -> None:
    import random

    rng = random.Random(1)
    builder = BatchBuilder()
    while builder.append(b"k", rng.randbytes(400), (), NOW_MS):
        pass
    assert builder.size_bytes > DEFAULT_MAX_BYTES - 500
    assert all(len(builder.build(codec)) < 1_048_588 for codec in range(5))


@given(key=st.binary(max_size=40), partitions=st.integers(2, 100))
def test_a_key_has_the_partition_that_kafkas_clients_give_it(key, partitions) -> None:
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


def test_partitions_that_need_no_hash() -> None:
    assert partition_of(b"any", 1) == 0
    assert partition_of(None, 8) == 0  # such records stay in order
