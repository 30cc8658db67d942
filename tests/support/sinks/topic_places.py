"""What the tests of topics as stores share: reading and writing as others do."""

import time
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

WAIT_S = 60


def read_records(address: str, topic: str, partition: int = 0) -> list[tuple]:
    """Keys and values as librdkafka reads them, read_committed."""
    return [
        (message.key(), message.value()) for message in read_messages(address, topic, partition)
    ]


def read_messages(address: str, topic: str, partition: int = 0) -> list:
    """All, when no transaction is open any more: Kafka answers a commit before readers see it."""
    deadline_s = time.monotonic() + WAIT_S
    while _end(address, topic, partition, "read_committed") < (
        _end(address, topic, partition, "read_uncommitted")
    ):
        assert time.monotonic() < deadline_s, "a transaction stays open"
    reader = _reader(address, "read_committed")
    try:
        assigned = TopicPartition(topic, partition, 0)
        reader.assign([assigned])
        found: list = []
        _, end = reader.get_watermark_offsets(assigned, WAIT_S)
        while reader.position([assigned])[0].offset < end and end > 0:
            assert time.monotonic() < deadline_s, f"{len(found)} found up to {end}"
            found += [
                message for message in reader.consume(10_000, 0.05) if message.error() is None
            ]
        return found
    finally:
        reader.close()


def _end(address: str, topic: str, partition: int, isolation: str) -> int:
    reader = _reader(address, isolation)
    try:
        return reader.get_watermark_offsets(TopicPartition(topic, partition), WAIT_S)[1]
    finally:
        reader.close()


def _reader(address: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"g-{uuid4().hex[:8]}",
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
    )


def write_foreign(address: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": address})
    producer.produce(topic, b"theirs", b"k")
    producer.flush(WAIT_S)
