"""confluent-kafka, that is librdkafka: producing and reading."""

import json
import time
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from support.clients.confluent_wire import (
    AN_HOUR_AGO_MS,
    WAIT_S,
    consumer,
    create_topic,
    numbered,
    produce,
    read,
    take,
    values,
)


@pytest.fixture
def topic(broker_address: str) -> str:
    return create_topic(broker_address)


# ── producing ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(broker_address: str, topic: str, acks: str | int) -> None:
    produce(broker_address, topic, numbered(100), acks=acks)
    assert values(read(broker_address, topic, 100)) == [b"v%d" % n for n in range(100)]


def test_an_idempotent_producer(broker_address: str, topic: str) -> None:
    reports = produce(
        broker_address, topic, numbered(2000), enable_idempotence=True, batch_num_messages=10
    )
    assert [report.offset() for report in reports] == list(range(2000))
    assert values(read(broker_address, topic, 2000)) == [b"v%d" % n for n in range(2000)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(broker_address: str, topic: str, codec: str) -> None:
    produce(broker_address, topic, numbered(1000), compression_type=codec, linger_ms=50)
    assert values(read(broker_address, topic, 1000)) == [b"v%d" % n for n in range(1000)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_not_stored_unpacked(
    broker_address: str, topic: str, codec: str
) -> None:
    # 2 MB that compress well fit into a batch only if librdkafka really compresses (KAFKA-18659)
    # and the broker really stores what it was sent.
    records = [{"value": b"a" * 1000} for _ in range(2000)]
    produce(broker_address, topic, records, compression_type=codec, linger_ms=200)
    seen: list[int] = []
    statistics = {
        "statistics.interval.ms": 20,
        "stats_cb": lambda text: seen.append(_rxbytes(text)),
    }
    with consumer(broker_address, **statistics) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        take(reader, 2000)
        end_s = time.monotonic() + 5
        while not any(seen) and time.monotonic() < end_s:
            reader.poll(0.05)
    assert 0 < max(seen) < 500_000


def _rxbytes(text: str) -> int:
    return sum(load["rxbytes"] for load in json.loads(text)["brokers"].values())


def test_headers_null_key_and_null_value(broker_address: str, topic: str) -> None:
    headers = [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b""), ("ünï", "→".encode())]
    records: list[dict[str, Any]] = [
        {"key": None, "value": None},
        {"key": b"", "value": b""},
        {"key": b"k", "value": None, "headers": headers},
    ]
    produce(broker_address, topic, records)
    found = read(broker_address, topic, 3)
    assert [(message.key(), message.value()) for message in found] == [
        (None, None),
        (b"", b""),
        (b"k", None),
    ]
    assert found[0].headers() is None
    assert found[2].headers() == headers


def test_a_message_of_the_largest_size_and_one_above(broker_address: str) -> None:
    topic = create_topic(broker_address, max_message_bytes=100_000)
    overhead = 61 + 5 + 3 + 3 + 2  # batch header, then varints of one record
    fits = b"x" * (100_000 - overhead - 10)
    produce(broker_address, topic, [{"value": fits}])
    assert values(read(broker_address, topic, 1)) == [fits]

    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker_address})
    producer.produce(topic, b"x" * 100_000, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert not errors[0].retriable()


def test_a_batch_of_megabytes(
    broker_address: str,
) -> None:
    topic = create_topic(broker_address, max_message_bytes=20_000_000)
    big = bytes(range(256)) * 60_000  # 15 MB
    produce(broker_address, topic, [{"value": big}], message_max_bytes=20_000_000)
    # The reader's limits are far smaller: it gets the batch all the same (KIP-74).
    found = read(
        broker_address, topic, 1,
        max_partition_fetch_bytes=1000, fetch_max_bytes=1000, message_max_bytes=1000,
        receive_message_max_bytes=30_000_000,
    )  # fmt: skip
    assert values(found) == [big]


def test_timestamps(broker_address: str, topic: str) -> None:
    produce(broker_address, topic, [{"value": b"a", "timestamp": AN_HOUR_AGO_MS}])
    assert read(broker_address, topic, 1)[0].timestamp() == (
        TIMESTAMP_CREATE_TIME,
        AN_HOUR_AGO_MS,
    )


def test_log_append_time(
    broker_address: str,
) -> None:
    topic = create_topic(broker_address, message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    records = [{"value": b"a", "timestamp": AN_HOUR_AGO_MS}] * 3
    reports = produce(broker_address, topic, records)
    after_ms = int(time.time() * 1000)
    for message in reports + read(broker_address, topic, 3):
        kind, timestamp_ms = message.timestamp()
        assert kind == TIMESTAMP_LOG_APPEND_TIME
        assert before_ms <= timestamp_ms <= after_ms


def test_a_timestamp_too_far_ahead_is_refused(broker_address: str, topic: str) -> None:
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker_address})
    tomorrow_ms = int(time.time() * 1000) + 24 * 3600 * 1000
    producer.produce(topic, b"x", timestamp=tomorrow_ms, on_delivery=lambda e, _: errors.append(e))
    producer.flush(WAIT_S)
    assert errors[0].code() == KafkaError.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_compacted_topic_refuses_a_batch_with_a_keyless_record(
    broker_address: str, codec: str
) -> None:
    topic = create_topic(broker_address, cleanup_policy="compact")
    produce(broker_address, topic, numbered(2))
    errors: list[KafkaError | None] = []
    producer = Producer(
        {"bootstrap.servers": broker_address, "linger.ms": 100, "compression.type": codec}
    )
    for key in (b"k", None, b"k", None):
        producer.produce(topic, b"x", key, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    codes = [error.code() for error in errors if error is not None]
    # Reported by record (KIP-467): those without a key, and those that were beside them.
    beside = KafkaError._INVALID_DIFFERENT_RECORD
    assert codes == [beside, KafkaError.INVALID_RECORD, beside, KafkaError.INVALID_RECORD]
    assert values(read(broker_address, topic, 2)) == [b"v0", b"v1"]


def test_the_partitioner_decides(
    broker_address: str,
) -> None:
    topic = create_topic(broker_address, partitions=4)
    reports = produce(broker_address, topic, numbered(200), partitioner="murmur2_random")
    assert {report.partition() for report in reports} == {0, 1, 2, 3}
    again = produce(broker_address, topic, numbered(200), partitioner="murmur2_random")
    where = {report.key(): report.partition() for report in reports}
    assert {report.key(): report.partition() for report in again} == where
    [named] = produce(broker_address, topic, [{"value": b"x", "partition": 2}])
    assert named.partition() == 2


def test_a_topic_is_created_by_writing_to_it(broker_address: str) -> None:
    topic = f"auto-{uuid4().hex[:8]}"
    produce(broker_address, topic, numbered(3))
    assert values(read(broker_address, topic, 3)) == [b"v0", b"v1", b"v2"]


def test_a_topic_is_not_created_by_reading(broker_address: str) -> None:
    absent = f"absent-{uuid4().hex[:8]}"
    with consumer(broker_address, topic_metadata_propagation_max_ms=0) as reader:
        reader.subscribe([absent])
        message = reader.poll(WAIT_S)
        assert message is not None
        assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def test_from_start_end_offset_and_the_middle_of_a_batch(broker_address: str, topic: str) -> None:
    produce(broker_address, topic, numbered(100), linger_ms=200)  # one batch
    assert values(read(broker_address, topic, 1, OFFSET_BEGINNING)) == [b"v0"]
    for start in (1, 42, 99):
        found = read(broker_address, topic, 100 - start, start)
        assert [message.offset() for message in found] == list(range(start, 100))
    with consumer(broker_address, enable_partition_eof=True) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_END)])
        assert reader.poll(WAIT_S).error().code() == KafkaError._PARTITION_EOF
        produce(broker_address, topic, [{"value": b"later"}])
        assert values(take(reader, 1)) == [b"later"]


def test_the_last_records(broker_address: str, topic: str) -> None:
    produce(broker_address, topic, numbered(10))
    with consumer(broker_address) as reader:
        low, high = reader.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S)
        assert (low, high) == (0, 10)
        reader.assign([TopicPartition(topic, 0, high - 3)])
        assert values(take(reader, 3)) == [b"v7", b"v8", b"v9"]


def test_seek_pause_and_resume(
    broker_address: str,
) -> None:
    topic = create_topic(broker_address, partitions=2)
    for partition in (0, 1):
        records = [{**record, "partition": partition} for record in numbered(50)]
        produce(broker_address, topic, records)
    with consumer(broker_address) as reader:
        parts = [TopicPartition(topic, partition, 0) for partition in (0, 1)]
        reader.assign(parts)
        take(reader, 100)
        reader.pause([parts[0]])
        reader.seek(TopicPartition(topic, 0, 10))
        reader.seek(TopicPartition(topic, 1, 45))
        found = take(reader, 5)
        assert [(message.partition(), message.offset()) for message in found] == [
            (1, n) for n in range(45, 50)
        ]
        assert reader.poll(0.2) is None
        reader.resume([parts[0]])
        found = take(reader, 40)
        assert [(message.partition(), message.offset()) for message in found] == [
            (0, n) for n in range(10, 50)
        ]


def test_from_a_time(broker_address: str, topic: str) -> None:
    base_ms = AN_HOUR_AGO_MS
    for number in range(10):  # ten batches, one record each; and one of ten records
        produce(broker_address, topic, [{"value": b"x", "timestamp": base_ms + number * 1000}])
    batch = [{"value": b"y", "timestamp": base_ms + 10_000 + n * 1000} for n in range(10)]
    produce(broker_address, topic, batch, linger_ms=200)
    wanted = {0: 0, base_ms: 0, base_ms + 1: 1, base_ms + 7000: 7, base_ms + 14_500: 15}
    with consumer(broker_address) as reader:
        for time_ms, offset in wanted.items():
            [found] = reader.offsets_for_times([TopicPartition(topic, 0, time_ms)], WAIT_S)
            assert found.offset == offset, time_ms
        [found] = reader.offsets_for_times([TopicPartition(topic, 0, base_ms + 99_000)], WAIT_S)
        assert found.offset == OFFSET_END


def test_a_fetch_limit_below_the_size_of_a_batch(broker_address: str, topic: str) -> None:
    produce(broker_address, topic, [{"value": bytes(1000)} for _ in range(500)], linger_ms=200)
    found = read(broker_address, topic, 500, max_partition_fetch_bytes=500)
    assert [message.offset() for message in found] == list(range(500))


def test_fetch_limits_over_many_partitions_starve_none(broker_address: str) -> None:
    topic = create_topic(broker_address, partitions=8)
    for partition in range(8):
        records = [{"value": bytes(1000), "partition": partition} for _ in range(100)]
        produce(broker_address, topic, records, batch_num_messages=5)
    with consumer(
        broker_address, fetch_max_bytes=12_000, message_max_bytes=10_000,
        max_partition_fetch_bytes=10_000, queued_min_messages=1, fetch_queue_backoff_ms=0,
    ) as reader:  # fmt: skip
        reader.assign([TopicPartition(topic, partition, 0) for partition in range(8)])
        found = take(reader, 800)
    offsets = {partition: [] for partition in range(8)}
    for message in found:
        offsets[message.partition()].append(message.offset())
    assert offsets == {partition: list(range(100)) for partition in range(8)}
    # Every partition has been served before any was read to its end.
    assert len({message.partition() for message in found[:400]}) == 8


def test_a_waiting_fetch_wakes_on_append(broker_address: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker_address, "linger.ms": 0})
    with consumer(broker_address, fetch_wait_max_ms=10_000) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert reader.poll(0.3) is None
        waits_s = []
        for _ in range(5):
            sent_s = time.monotonic()
            producer.produce(topic, b"x")
            producer.flush(WAIT_S)
            take(reader, 1)
            waits_s.append(time.monotonic() - sent_s)
    assert max(waits_s) < 2, waits_s  # and not 10


def test_a_fetch_waits_for_its_least_bytes(broker_address: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker_address, "linger.ms": 0})
    with consumer(
        broker_address, fetch_wait_max_ms=60_000, fetch_min_bytes=10_000, socket_timeout_ms=61_000
    ) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert reader.poll(0.2) is None
        producer.produce(topic, bytes(2_000))
        producer.flush(WAIT_S)
        assert reader.poll(0.5) is None
        producer.produce(topic, bytes(12_000))
        producer.flush(WAIT_S)
        assert [len(message.value()) for message in take(reader, 2)] == [2_000, 12_000]


def test_offset_out_of_range_resets_or_raises(broker_address: str, topic: str) -> None:
    produce(broker_address, topic, numbered(10), batch_num_messages=1)
    admin = AdminClient({"bootstrap.servers": broker_address})
    part = TopicPartition(topic, 0, 6)
    assert admin.delete_records([part])[part].result(WAIT_S).low_watermark == 6
    # Deleted records: earliest means what is left.
    assert [m.offset() for m in read(broker_address, topic, 4, 2)] == [6, 7, 8, 9]
    assert [m.offset() for m in read(broker_address, topic, 4, 10**6)] == [6, 7, 8, 9]
    with consumer(broker_address, auto_offset_reset="error") as reader:
        reader.assign([TopicPartition(topic, 0, 2)])
        message = reader.poll(WAIT_S)
        assert message is not None
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    with consumer(broker_address, auto_offset_reset="latest", enable_partition_eof=True) as reader:
        reader.assign([TopicPartition(topic, 0, 2)])
        assert reader.poll(WAIT_S).error().code() == KafkaError._PARTITION_EOF
        produce(broker_address, topic, [{"value": b"later"}])
        assert [m.offset() for m in take(reader, 1)] == [10]


def test_the_end_of_a_partition_is_reported(broker_address: str, topic: str) -> None:
    produce(broker_address, topic, numbered(3))
    with consumer(broker_address, enable_partition_eof=True) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        found = [reader.poll(WAIT_S) for _ in range(4)]
    assert found[3].error().code() == KafkaError._PARTITION_EOF
    assert found[3].offset() == 3


def test_a_topic_deleted_and_made_again_is_empty(broker_address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker_address})
    produce(broker_address, topic, numbered(5))
    admin.delete_topics([topic])[topic].result(WAIT_S)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
    produce(broker_address, topic, [{"value": b"new"}])
    assert [(m.offset(), m.value()) for m in read(broker_address, topic, 1)] == [(0, b"new")]
