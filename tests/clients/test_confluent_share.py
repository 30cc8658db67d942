"""librdkafka's share consumer (KIP-932)."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from tiers import long

TIMEOUT_S = 60.0
HOLDER = """
import json, sys, time
from confluent_kafka import ShareConsumer
address, name = sys.argv[1:]
consumer = ShareConsumer({"bootstrap.servers": address, "group.id": name, "log_level": 0,
                          "share.acknowledgement.mode": "explicit"})
consumer.subscribe([name])
while True:
    taken = [message.offset() for message in consumer.poll(0.5) if message.error() is None]
    if taken:
        print(json.dumps(taken), flush=True)
        time.sleep(60)
"""


def queue_with(address: str, records: int) -> str:
    """A topic with that many records, each a batch; a group of that name begins at the first."""
    name = f"share-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    earliest = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    group = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=[earliest])
    admin.incremental_alter_configs([group])[group].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": address})
    for number in range(records):
        producer.produce(name, str(number))
        assert producer.flush(TIMEOUT_S) == 0
    return name


@contextmanager
def member(address: str, name: str, **config: object) -> Iterator[Any]:
    consumer: Any = ShareConsumer(
        {
            "bootstrap.servers": address,
            "group.id": name,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
            **config,
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
        taken += [message for message in consumer.poll(0.5) if message.error() is None]
    return taken


def test_accept_and_release(broker_address: str) -> None:
    name = queue_with(broker_address, 10)
    with member(broker_address, name) as consumer:
        for message in take(consumer, 10):
            kind = AcknowledgeType.ACCEPT if message.offset() < 7 else AcknowledgeType.RELEASE
            consumer.acknowledge(message, kind)
        consumer.commit_sync()
        released_s = time.monotonic()
        again = take(consumer, 3)
        assert time.monotonic() - released_s < 25  # not because their locks of 30 s ended
        assert [message.offset() for message in again] == [7, 8, 9]
        for message in again:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        consumer.commit_sync()


def test_what_a_killed_consumer_held_goes_to_another(broker_address: str) -> None:
    """At once, because its connection ended: long before its lock of 30 s would."""
    name = queue_with(broker_address, 10)
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
        assert [message.offset() for message in again] == list(range(10))
        for message in again:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        consumer.commit_sync()


def test_a_share_group_goes_on_beside_a_slow_record(broker_address: str) -> None:
    """What a queue is for; the next test shows a classic group."""
    name = queue_with(broker_address, 20)
    with member(broker_address, name, **{"max.poll.records": 1}) as slow:
        held = {message.offset() for message in take(slow, 1)}
        assert 0 in held  # and it works on that for a long time
        with member(broker_address, name, **{"max.poll.records": 1}) as fast:
            done: list[int] = []
            while len(done) < 20 - len(held):
                for message in take(fast, 1):
                    fast.acknowledge(message, AcknowledgeType.ACCEPT)
                    done.append(message.offset())
                fast.commit_sync()
            assert sorted(done) == sorted(set(range(20)) - held)


@long
def test_a_classic_group_waits_behind_it(broker_address: str) -> None:
    name = queue_with(broker_address, 20)
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
