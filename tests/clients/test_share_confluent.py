"""What a queue is for: one slow record holds up a classic group, and not a share group."""

import time
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

TIMEOUT_S = 30.0
RECORDS = 20


@pytest.fixture
def name(broker_address: str) -> str:
    """A topic with one partition of twenty records, each a batch of its own; the group's name."""
    name = f"slow-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    earliest = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    group = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=[earliest])
    admin.incremental_alter_configs([group])[group].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker_address})
    for number in range(RECORDS):
        producer.produce(name, str(number))
        assert producer.flush(TIMEOUT_S) == 0
    return name


def poll(consumer: Any, seconds: float) -> list[int]:
    """Offsets of a share consumer's next records."""
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        messages = [each for each in consumer.poll(0.5) if each.error() is None]
        if messages:
            for each in messages:
                if each.offset() != 0:
                    consumer.acknowledge(each, AcknowledgeType.ACCEPT)
            return [each.offset() for each in messages]
    return []


def test_a_share_group_goes_on_beside_a_slow_record(broker_address: str, name: str) -> None:
    config = {
        "bootstrap.servers": broker_address,
        "group.id": name,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 1,
        "log_level": 0,
    }
    slow: Any = ShareConsumer(config)
    slow.subscribe([name])
    fast: Any = ShareConsumer(config)
    try:
        first = poll(slow, TIMEOUT_S)
        assert first[0] == 0  # and it works on that for a long time
        fast.subscribe([name])
        done: list[int] = []
        while len(done) < RECORDS - len(first):
            got = poll(fast, TIMEOUT_S)
            assert got, f"only {done} came"
            done += got
            fast.commit_sync()
        assert sorted(done) == list(range(len(first), RECORDS))
    finally:
        fast.close()
        slow.close()


def test_a_classic_group_waits_behind_it(broker_address: str, name: str) -> None:
    config = {
        "bootstrap.servers": broker_address,
        "group.id": f"{name}-classic",
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    slow, fast = Consumer(config), Consumer(config)
    try:
        slow.subscribe([name])
        message = slow.poll(TIMEOUT_S)
        assert message is not None
        assert message.offset() == 0  # and it works on that for a long time
        fast.subscribe([name])
        assert fast.poll(3.0) is None  # the partition is the other's, with all that is in it
    finally:
        fast.close()
        slow.close()
