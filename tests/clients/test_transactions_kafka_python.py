"""Transactions with kafka-python."""

import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4

import pytest

with warnings.catch_warnings():  # importing it reads files in a deprecated way
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka.admin import NewTopic
    from kafka.errors import KafkaError, ProducerFencedError
    from kafka.structs import OffsetAndMetadata, TopicPartition

WAIT_S = 60


@pytest.fixture
def topic(broker_address: str) -> str:
    name = f"topic-{uuid4().hex[:12]}"
    with closing(KafkaAdminClient(bootstrap_servers=broker_address)) as admin:
        admin.create_topics([NewTopic(name, 2, 1)])
    return name


@contextmanager
def transactional(
    address: str, transactional_id: str | None = None, **config: Any
) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(
        bootstrap_servers=address,
        transactional_id=transactional_id or f"id-{uuid4().hex[:8]}",
        **config,
    )
    producer.init_transactions()
    try:
        yield producer
    finally:
        producer.close(timeout=1)


def write(producer: KafkaProducer, topic: str, value: bytes, partition: int = 0) -> None:
    producer.send(topic, value, partition=partition).get(WAIT_S)


def sees(address: str, topic: str, expected: list[bytes], partition: int = 0) -> None:
    """A read_committed consumer gets exactly these."""
    with closing(
        KafkaConsumer(
            bootstrap_servers=address,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
    ) as consumer:
        topic_partition = TopicPartition(topic, partition)
        consumer.assign([topic_partition])
        found: list[bytes] = []
        end_s = time.monotonic() + WAIT_S
        while len(found) < len(expected) and time.monotonic() < end_s:
            for records in consumer.poll(200).values():
                found += [record.value for record in records]
        assert found == expected
        assert not consumer.poll(300)


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(
    broker_address: str, topic: str
) -> None:
    with transactional(broker_address) as producer:
        for number in range(6):
            producer.begin_transaction()
            for partition in (0, 1):
                write(producer, topic, b"%d" % number, partition)
            if number % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    for partition in (0, 1):
        sees(broker_address, topic, [b"0", b"2", b"3", b"5"], partition)


def test_a_zombie_is_fenced(broker_address: str, topic: str) -> None:
    transactional_id = f"id-{uuid4().hex[:8]}"
    with transactional(broker_address, transactional_id) as zombie:
        zombie.begin_transaction()
        write(zombie, topic, b"zombie")
        with transactional(broker_address, transactional_id) as heir:
            heir.begin_transaction()
            write(heir, topic, b"heir")
            with pytest.raises(ProducerFencedError):
                zombie.commit_transaction()
            heir.commit_transaction()
    sees(broker_address, topic, [b"heir"])


def test_a_hanging_transaction_is_aborted(broker_address: str, topic: str) -> None:
    with (
        transactional(broker_address, transaction_timeout_ms=1500) as hanging,
        transactional(broker_address) as other,
    ):
        hanging.begin_transaction()
        write(hanging, topic, b"forgotten")
        other.begin_transaction()
        write(other, topic, b"behind it")
        other.commit_transaction()
        sees(broker_address, topic, [b"behind it"])
        with pytest.raises(KafkaError):
            hanging.commit_transaction()


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_go_with_the_transaction(broker_address: str, topic: str, commits: bool) -> None:
    group, topic_partition = f"g-{uuid4().hex[:8]}", TopicPartition(topic, 0)
    with (
        transactional(broker_address) as producer,
        closing(KafkaConsumer(bootstrap_servers=broker_address, group_id=group)) as consumer,
    ):
        producer.begin_transaction()
        write(producer, topic, b"x")
        producer.send_offsets_to_transaction({topic_partition: OffsetAndMetadata(7, "", -1)}, group)
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        end_s = time.monotonic() + WAIT_S
        while consumer.committed(topic_partition) != (7 if commits else None):
            assert time.monotonic() < end_s
    sees(broker_address, topic, [b"x"] if commits else [])
