"""What the tests of confluent-kafka share: a topic, a producer's reports, a reader."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from confluent_kafka import (
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S = 60
# Retention counts from a record's own time, so an old one would be deleted soon.
AN_HOUR_AGO_MS = int(time.time() * 1000) - 3_600_000


def create_topic(address: str, partitions: int = 1, **configs: Any) -> str:
    """A topic with a name of its own."""
    name = f"topic-{uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": address})
    given = {key: str(value) for key, value in dotted(configs).items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=given)])[name].result(WAIT_S)
    return name


def dotted(config: dict[str, Any]) -> dict[str, Any]:
    """librdkafka's names of settings; callbacks have the same names."""
    return {k if k.endswith("_cb") else k.replace("_", "."): v for k, v in config.items()}


def produce(
    address: str, topic: str, records: list[dict[str, Any]], **config: Any
) -> list[Message]:
    """Writes all, and returns what the delivery reports say, in the order written."""
    reports: list[tuple[KafkaError | None, Message]] = []
    producer = Producer({"bootstrap.servers": address, "linger.ms": 1, **dotted(config)})
    for record in records:
        producer.produce(topic, on_delivery=lambda *report: reports.append(report), **record)
    assert producer.flush(WAIT_S) == 0
    assert [error for error, _ in reports if error is not None] == []
    return [message for _, message in reports]


@contextmanager
def consumer(address: str, **config: Any) -> Iterator[Consumer]:
    reader = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"g-{uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **dotted(config),
        }
    )
    try:
        yield reader
    finally:
        reader.close()


def take(reader: Consumer, count: int, timeout_s: float = WAIT_S) -> list[Message]:
    """Exactly so many messages; errors fail the test."""
    taken: list[Message] = []
    end_s = time.monotonic() + timeout_s
    while len(taken) < count:
        left_s = end_s - time.monotonic()
        assert left_s > 0, f"{len(taken)} of {count} messages came"
        for message in reader.consume(count - len(taken), timeout=min(left_s, 0.5)):
            assert message.error() is None, message.error()
            taken.append(message)
    return taken


def read(address: str, topic: str, count: int, start: int = 0, **config: Any) -> list[Message]:
    with consumer(address, **config) as reader:
        reader.assign([TopicPartition(topic, 0, start)])
        return take(reader, count)


def wait_for(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, "not reached"
        time.sleep(0.01)


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"key": f"k{number}", "value": f"v{number}"} for number in range(count)]


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.value() for message in messages]
