"""librdkafka's share consumer (KIP-932)."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

TIMEOUT_S = 30.0
HOLDER = """
import json, sys, time
from confluent_kafka import ShareConsumer
address, name = sys.argv[1:]
consumer = ShareConsumer({"bootstrap.servers": address, "group.id": name, "log_level": 0,
                          "share.acknowledgement.mode": "explicit"})
consumer.subscribe([name])
while True:
    taken = [each.offset() for each in consumer.poll(0.5) if each.error() is None]
    if taken:
        print(json.dumps(taken), flush=True)
        time.sleep(60)
"""


@pytest.fixture
def name(broker_address: str) -> str:
    """A topic with ten records, and a group of the same name that begins at the first."""
    name = f"share-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    earliest = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    group = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=[earliest])
    admin.incremental_alter_configs([group])[group].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker_address})
    for number in range(10):
        producer.produce(name, str(number))
    assert producer.flush(TIMEOUT_S) == 0
    return name


@contextmanager
def member(address: str, name: str) -> Iterator[Any]:
    consumer: Any = ShareConsumer(
        {
            "bootstrap.servers": address,
            "group.id": name,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    consumer.subscribe([name])
    try:
        yield consumer
    finally:
        consumer.close()


def take(consumer: Any, count: int) -> list[Any]:
    taken: list[Any] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(taken) < count:
        assert time.monotonic() < deadline_s, f"only {len(taken)} of {count} records came"
        taken += [each for each in consumer.poll(0.5) if each.error() is None]
    return taken


def test_accept_and_release(broker_address: str, name: str) -> None:
    with member(broker_address, name) as consumer:
        for each in take(consumer, 10):
            kind = AcknowledgeType.ACCEPT if each.offset() < 7 else AcknowledgeType.RELEASE
            consumer.acknowledge(each, kind)
        consumer.commit_sync()
        again = take(consumer, 3)
        assert [each.offset() for each in again] == [7, 8, 9]
        for each in again:
            consumer.acknowledge(each, AcknowledgeType.ACCEPT)
        consumer.commit_sync()


def test_what_a_killed_consumer_held_goes_to_another(broker_address: str, name: str) -> None:
    """At once, because its connection ended: long before its lock of 30 s would."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, broker_address, name], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert json.loads(holder.stdout.readline()) == list(range(10))
    finally:
        holder.kill()
        holder.communicate()
    began_s = time.monotonic()
    with member(broker_address, name) as consumer:
        again = take(consumer, 10)
        assert time.monotonic() - began_s < 15
        assert [each.offset() for each in again] == list(range(10))
        for each in again:
            consumer.acknowledge(each, AcknowledgeType.ACCEPT)
        consumer.commit_sync()
