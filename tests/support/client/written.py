"""What the tests of writing share: filled batches, and what readers find."""

import random
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

from headwater.client.cluster import Cluster
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import BatchBuilder
from headwater.client.writing.transactions import TransactionalProducer
from headwater.settings import ClientSettings

ANONYMOUS = ClientSettings()
WAIT_S = 60


def new_topic(address: str, partitions: int = 1, **configs: str) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    # Retained indefinitely: some records here are of years ago, and retention (every five minutes)
    # would delete them at once.
    given = {"retention.ms": "-1"}
    given |= {key.replace("_", "."): value for key, value in configs.items()}
    ensure_topics(address, ANONYMOUS, [NewTopic(name, partitions, given)])
    _wait_until_visible(address, name)
    return name


def _wait_until_visible(address: str, topic: str) -> None:
    """Apache Kafka's controller answers before the broker has the topic in its metadata."""
    cluster = Cluster(address, ANONYMOUS)
    patience = cluster.patience(f"{topic} is not in the broker's metadata")
    with closing(cluster):
        while cluster.find_partitions(topic) is None:
            patience.wait("unknown topic")


def producer(address: str, name: str | None = None, **options: Any) -> TransactionalProducer:
    """Fenced, and impatient enough for a test."""
    made = TransactionalProducer(
        address,
        name or f"id-{uuid4().hex[:8]}",
        **{"login": ANONYMOUS, "patience_s": 30, **options},
    )
    made.fence()
    return made


def batch(*values: bytes | None) -> BatchBuilder:
    builder = BatchBuilder()
    for value in values:
        assert builder.append(b"k", value, (), int(time.time() * 1000))
    return builder


def committed(
    address: str, topic: str, partition: int = 0, **properties: Any
) -> list[bytes | None]:
    """All that a read_committed reader finds up to the last stable offset."""
    return [message.value() for message in messages(address, topic, partition, **properties)]


def messages(address: str, topic: str, partition: int = 0, **properties: Any) -> list[Any]:
    reader = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"g-{uuid4().hex[:8]}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
    )
    try:
        place = TopicPartition(topic, partition, 0)
        reader.assign([place])
        found: list[Any] = []
        _, end = reader.get_watermark_offsets(place, WAIT_S)
        deadline_s = time.monotonic() + WAIT_S
        while reader.position([place])[0].offset < end and end > 0:
            assert time.monotonic() < deadline_s, f"{len(found)} found up to {end}"
            found += [
                message for message in reader.consume(10_000, 0.05) if message.error() is None
            ]
        return found
    finally:
        reader.close()


def eventually_committed(
    address: str, topic: str, expected: Iterable[bytes | None], partition: int = 0
) -> None:
    """Apache Kafka answers EndTxn before readers see its effect."""
    expected = list(expected)
    deadline_s = time.monotonic() + WAIT_S
    while (found := committed(address, topic, partition)) != expected:
        assert len(found) <= len(expected), f"{len(found)} found of {len(expected)}"
        missing = [value for value in expected if value not in found]
        assert time.monotonic() < deadline_s, f"{missing} missing of {expected}"


def committed_exactly(address: str, topic: str, expected: dict[int, list[bytes]]) -> None:
    for partition, values in expected.items():
        eventually_committed(address, topic, values, partition)


def write_somehow(
    writer: TransactionalProducer,
    topic: str,
    rng: random.Random,
    number: int,
    expected: dict[int, list[bytes]],
) -> None:
    """One transaction of a few sends, most of them committed."""
    written: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for part in range(rng.randint(1, 3)):
        sent = {}
        for partition in rng.sample(range(3), rng.randint(1, 3)):
            values = [b"%d.%d.%d" % (number, part, n) for n in range(rng.randint(1, 8))]
            written[partition] += values
            sent[topic, partition] = [batch(value) for value in values]
        writer.send(sent)
    if rng.random() < 0.2:
        writer.abort()
        return
    writer.commit()
    for partition, values in written.items():
        expected[partition] += values
