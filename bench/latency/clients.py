"""The clients of the latency benchmark, each in a process of its own: one writes, one reads.

    python -m bench.latency.clients produce '{"address": …, "topic": …, "begin_s": …, …}'
    python -m bench.latency.clients consume '{"address": …, "topic": …, "output": …}'

The producer writes a record every 1/rate seconds. The consumer reads committed results as they come
and, at SIGTERM, writes what it has read and when: `{"at_s": […], "values": […]}`.
"""

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.clients.rdkafka import LoadFailedError
from bench.latency.events import event_record, key_of

RecordOf = Callable[[int, int], tuple[bytes, bytes, int]]  # of an event and its time in ms

_TOPIC_TIMEOUT_S = 500


def produce(
    address: str, topic: str, begin_s: float, count: int, rate_per_s: int, keys: int
) -> None:
    def record(event: int, at_ms: int) -> tuple[bytes, bytes, int]:
        return event_record(event, key_of(event, keys), at_ms, event)

    produce_paced(address, topic, begin_s, count, rate_per_s, record)


def produce_paced(
    address: str, topic: str, begin_s: float, count: int, rate_per_s: int, record: RecordOf
) -> None:
    """Prints by how much the latest record was late, in ms."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    latest_s = 0.0
    for event in range(count):
        due_s = begin_s + event / rate_per_s
        early_s = due_s - time.time()
        if early_s > 0:
            producer.poll(0)
            time.sleep(early_s)
        latest_s = max(latest_s, time.time() - due_s)
        at_ms = int(due_s * 1000)
        key, value, partition = record(event, at_ms)
        producer.produce(topic, value, key, partition, timestamp=at_ms)
    producer.flush()
    print(f"{latest_s * 1000:.1f}", flush=True)


class Results:
    """Committed records of a topic, from the first on; the topic may be created later."""

    def __init__(
        self, address: str, topic: str, *, check: Callable[[], None] = lambda: None
    ) -> None:
        """`check` raises if the system that creates the topic has ended."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": f"results-of-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "log_level": 2,
            }
        )
        deadline_s = time.monotonic() + _TOPIC_TIMEOUT_S
        while not (partitions := self._partitions(topic)):
            check()
            if time.monotonic() > deadline_s:
                raise LoadFailedError(f"there is no topic {topic}")
            time.sleep(0.02)
        self._consumer.assign([TopicPartition(topic, number, 0) for number in partitions])

    def _partitions(self, topic: str) -> list[int]:
        found = self._consumer.list_topics(timeout=10).topics.get(topic)
        return [] if found is None or found.error is not None else list(found.partitions)

    def next(self) -> bytes | None:
        """None if nothing comes for a moment, or the record is a tombstone."""
        message = self._consumer.poll(0.05)
        return None if message is None or message.error() else message.value()

    def several(self) -> list[bytes]:
        found = self._consumer.consume(5000, 0.1)
        return [
            value
            for message in found
            if message.error() is None and (value := message.value()) is not None
        ]


def consume(address: str, topic: str, output: str) -> None:
    """Prints the time of the first result."""
    is_stopped = False

    def stop(*_: object) -> None:
        nonlocal is_stopped
        is_stopped = True

    signal.signal(signal.SIGTERM, stop)
    at_s: list[float] = []
    values: list[bytes] = []
    results = Results(address, topic)
    while not is_stopped:
        value = results.next()
        if value is None:
            continue
        at_s.append(time.time())
        values.append(value)
        if len(at_s) == 1:
            print(at_s[0], flush=True)
    found = {"at_s": at_s, "values": [orjson.loads(value) for value in values]}
    Path(output).write_bytes(orjson.dumps(found))


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[2])
    {"produce": produce, "consume": consume}[sys.argv[1]](**given)


if __name__ == "__main__":
    main()
