"""Transactions as share groups see them."""

import pytest
from confluent_kafka import Producer
from queue_harness import ACCEPT, GROUP, acquired, queue_broker

COMMITTED = {"share.isolation.level": "read_committed"}


@pytest.fixture
def broker(tmp_path):
    with queue_broker(tmp_path) as broker:
        yield broker


@pytest.fixture
def producer(broker):
    producer = Producer(
        {
            "bootstrap.servers": broker.broker.bootstrap,
            "transactional.id": "tx",
            "linger.ms": 0,
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(30)
    return producer


def send(producer, *values: str) -> None:
    for value in values:
        producer.produce("jobs", value, partition=0)
    producer.flush(30)


@pytest.mark.parametrize("order", ["none", "key"])
def test_committed_records_come_with_the_commit_and_aborted_ones_never(broker, producer, order):
    jobs = broker.topic(**COMMITTED, **{"headwater.share.order": order})
    consumer = broker.consumer(jobs)
    assert consumer.take() == []
    broker.produce(b"before")
    producer.begin_transaction()
    send(producer, "aborted 1", "aborted 2")
    broker.produce(b"between")
    assert consumer.values() == [b"before"]
    assert consumer.take() == []  # the transaction is open: what is behind it waits
    consumer.send_fetch(max_wait_ms=20_000)
    producer.abort_transaction(30)
    assert acquired(consumer.receive_fetch()) == [3]
    producer.begin_transaction()
    send(producer, "committed")
    producer.commit_transaction(30)
    assert consumer.values(max_wait_ms=5_000) == [b"committed"]
    assert consumer.acknowledge((0, 0, ACCEPT), (3, 3, ACCEPT), (5, 5, ACCEPT)) == 0
    consumer.take()
    [status] = broker.broker.running.broker.queues.describe(GROUP)
    log = broker.broker.running.broker.store.partitions["jobs", 0]
    assert status.start_offset == log.high_watermark == 7  # markers are nobody's work


def test_uncommitted_records_come_at_once_and_markers_do_not(broker, producer):
    jobs = broker.topic()
    consumer = broker.consumer(jobs)
    producer.begin_transaction()
    send(producer, "a")
    assert consumer.values() == [b"a"]
    producer.abort_transaction(30)
    broker.produce(b"b")
    assert consumer.values() == [b"b"]
