"""Transactions as share groups see them."""

import pytest
from confluent_kafka import Producer
from support.broker.queue_harness import ACCEPT, GROUP, RELEASE, acquired, queue_broker

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
    producer.flush(60)


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
    assert status.start_offset == log.high_watermark == 7  # markers are delivered to no consumer


def test_an_aborted_record_at_the_end_of_a_segment_never_comes(broker, producer):
    """What was read ahead ends there: its marker is in the next segment."""
    jobs = broker.topic(**COMMITTED)
    consumer = broker.consumer(jobs)
    assert consumer.take() == []
    producer.begin_transaction()
    send(producer, "aborted")
    log = broker.broker.running.broker.store.partitions["jobs", 0]
    broker.broker._loop.call_soon_threadsafe(log.roll, lambda _: None)
    producer.abort_transaction(30)
    broker.produce(b"after")
    assert len(log.segments) == 2
    assert consumer.values(max_wait_ms=5_000) == [b"after"]


def test_uncommitted_records_come_at_once_and_markers_do_not(broker, producer):
    jobs = broker.topic()
    consumer = broker.consumer(jobs)
    producer.begin_transaction()
    send(producer, "a")
    assert consumer.values() == [b"a"]
    producer.abort_transaction(30)
    broker.produce(b"b")
    assert consumer.values() == [b"b"]


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_marker_inside_the_window_is_passed_over_after_a_crash(broker, producer, order):
    jobs = broker.topic(**{"headwater.share.order": order})
    broker.produce(b"slow")
    producer.begin_transaction()
    send(producer, "b")
    producer.commit_transaction(30)
    broker.produce(b"c")
    consumer = broker.consumer(jobs)
    got = [*consumer.take(), *consumer.take()]
    assert got == [0, 1, 3]
    assert consumer.acknowledge((1, 1, ACCEPT), (3, 3, ACCEPT)) == 0
    broker.restart(crash=True)
    consumer = broker.consumer(jobs)
    assert [*consumer.take(), *consumer.take(), *consumer.take(max_wait_ms=100)] == [0]
    assert consumer.acknowledge((0, 0, ACCEPT)) == 0
    assert consumer.take() == []
    [status] = broker.broker.running.broker.queues.describe(GROUP)
    assert status.start_offset == 4


def test_a_group_may_change_its_mind_about_open_transactions(broker, producer):
    jobs = broker.topic()
    producer.begin_transaction()
    send(producer, "open")
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0]
    assert consumer.acknowledge((0, 0, RELEASE)) == 0
    broker.set(COMMITTED)
    assert consumer.take(max_wait_ms=100) == []  # and the broker does not look for it in a circle
    producer.commit_transaction(30)
    assert consumer.take() == [0]
