"""The tail of the log: what arrives is there for all readers, once, and within bounds."""

import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.pipelines.project import wait_for

from headwater.client import cluster
from headwater.client.reading import tailing
from headwater.client.reading.arrow import to_arrow
from headwater.client.reading.tailing import Tail
from headwater.errors import MalformedMessage
from headwater.settings import ClientSettings


@pytest.fixture
def tail(headwater_broker):
    tail = Tail(headwater_broker.bootstrap, ClientSettings())
    yield tail
    tail.close()


@pytest.fixture
def produce(headwater_broker):
    admin = AdminClient({"bootstrap.servers": headwater_broker.bootstrap})
    admin.create_topics([NewTopic("orders", 2)])["orders"].result()
    producer = Producer({"bootstrap.servers": headwater_broker.bootstrap, "linger.ms": 0})

    def produce(*values, partition=0):
        for value in values:
            producer.produce("orders", value, partition=partition)
            producer.flush()

    return produce


def values(chunks, start, end):
    return [
        value
        for chunk in chunks
        for batch in to_arrow(chunk.data, chunk.batches, start, end, ["value"])
        for value in batch.column("value").to_pylist()
    ]


def arrived(tail, end, partition=0):
    wait_for(lambda: tail.ends([("orders", partition)])["orders", partition][0] >= end, "records")


def test_records_are_there_as_they_arrive(tail, produce):
    tail.follow({("orders", 0): 0, ("orders", 1): 0})
    produce(b"a", b"b")
    arrived(tail, 2)
    produce(b"c")
    produce(b"x", partition=1)
    arrived(tail, 3)
    arrived(tail, 1, partition=1)
    assert values(tail.chunks("orders", 0, 0, 3), 0, 3) == [b"a", b"b", b"c"]
    assert values(tail.chunks("orders", 0, 1, 3), 1, 3) == [b"b", b"c"]
    assert values(tail.chunks("orders", 1, 0, 1), 0, 1) == [b"x"]
    assert tail.ends([("orders", 0), ("orders", 7)]) == {("orders", 0): (3, 3)}


def test_a_range_that_is_not_held_is_none(tail, produce):
    produce(b"a", b"b")
    tail.follow({("orders", 0): 2})
    produce(b"c")
    arrived(tail, 3)
    assert tail.chunks("orders", 0, 1, 3) is None, "fetched before it was followed"
    assert tail.chunks("orders", 0, 2, 4) is None, "not yet written"
    assert tail.chunks("orders", 1, 0, 1) is None, "not followed"
    assert values(tail.chunks("orders", 0, 2, 3), 2, 3) == [b"c"]


def test_old_and_too_many_bytes_are_dropped(tail, produce, monkeypatch):
    monkeypatch.setattr(tailing, "_HELD_BYTES", 3000)
    tail.follow({("orders", 0): 0})
    for number in range(6):
        produce(bytes(1000))
        arrived(tail, number + 1)
    assert tail.chunks("orders", 0, 0, 6) is None
    assert len(values(tail.chunks("orders", 0, 5, 6), 5, 6)) == 1
    monkeypatch.setattr(tailing, "_HELD_S", -1.0)
    produce(b"new")
    arrived(tail, 7)
    assert tail.chunks("orders", 0, 6, 7) is None


def test_who_waits_is_woken_by_a_record(tail, produce):
    tail.follow({("orders", 0): 0})
    version = tail.version
    found = []
    waiting = threading.Thread(target=lambda: found.append(tail.wait(version, 60.0)))
    waiting.start()
    produce(b"a")
    waiting.join(60)
    assert found != []
    assert found[0] != version


def test_a_deleted_topic_delays_no_other(tail, headwater_broker, produce, monkeypatch):
    monkeypatch.setattr(cluster, "_UNKNOWN_TOPIC_PATIENCE_S", 600.0)
    admin = AdminClient({"bootstrap.servers": headwater_broker.bootstrap})
    admin.create_topics([NewTopic("gone", 1)])["gone"].result()
    tail.follow({("orders", 0): 0, ("gone", 0): 0})
    produce(b"a")
    arrived(tail, 1)
    admin.delete_topics(["gone"])["gone"].result()
    wait_for(lambda: not tail.ends([("gone", 0)]), "the topic is dropped")
    produce(b"b")
    arrived(tail, 2)
    assert values(tail.chunks("orders", 0, 0, 2), 0, 2) == [b"a", b"b"]


def test_a_transaction_counts_when_it_is_committed(tail, headwater_broker, produce):
    tail.follow({("orders", 0): 0})
    producer = Producer(
        {"bootstrap.servers": headwater_broker.bootstrap, "transactional.id": "t", "linger.ms": 0}
    )
    producer.init_transactions()
    for is_committed in (True, False):
        producer.begin_transaction()
        producer.produce("orders", b"in it" if is_committed else b"aborted", partition=0)
        producer.flush()
        if is_committed:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    produce(b"last")
    arrived(tail, 5)
    assert values(tail.chunks("orders", 0, 0, 5), 0, 5) == [b"in it", b"last"]


def test_a_transaction_larger_than_a_response_arrives_whole(
    tail, headwater_broker, produce, monkeypatch
):
    monkeypatch.setattr(tailing, "_PARTITION_BYTES", 5000)
    producer = Producer(
        {
            "bootstrap.servers": headwater_broker.bootstrap,
            "transactional.id": "t",
            "batch.size": 1000,
        }
    )
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(40):
        producer.produce("orders", bytes(900), partition=0)
        producer.flush()
    seen = set()
    tail.follow({("orders", 0): 0})
    producer.commit_transaction()
    wait_for(
        lambda: seen.add(end := tail.ends([("orders", 0)])["orders", 0][0]) or end >= 41, "all"
    )
    assert seen <= {0, 41}


def test_a_broken_batch_of_one_partition_does_not_stop_the_others(tail, produce, monkeypatch):
    counting = tailing.counting_batches

    def broken(data, start, **given):
        if given["name"] == "orders-1" and data.records:
            raise MalformedMessage("broken")
        return counting(data, start, **given)

    monkeypatch.setattr(tailing, "counting_batches", broken)
    tail.follow({("orders", 0): 0, ("orders", 1): 0})
    produce(b"x", partition=1)
    produce(b"a")
    arrived(tail, 1)
    wait_for(lambda: not tail.ends([("orders", 1)]), "its reader fetches for itself")


def test_a_topic_that_is_deleted_is_no_longer_followed(tail, headwater_broker, produce):
    tail.follow({("orders", 0): 0})
    produce(b"a")
    arrived(tail, 1)
    admin = AdminClient({"bootstrap.servers": headwater_broker.bootstrap})
    admin.delete_topics(["orders"])["orders"].result()
    wait_for(lambda: not tail.ends([("orders", 0)]), "it is dropped")


def test_it_goes_on_after_a_restart_of_the_broker(tail, headwater_broker, produce):
    tail.follow({("orders", 0): 0})
    produce(b"a")
    arrived(tail, 1)
    headwater_broker.restart(crash=True)
    produce(b"b")
    arrived(tail, 2)
    assert values(tail.chunks("orders", 0, 0, 2), 0, 2) == [b"a", b"b"]


def test_a_partition_without_a_leader_is_followed_again(tail, produce, monkeypatch):
    """While it is elected: readers, who find the partition missing, ask for its end and follow."""
    leader = tail._cluster.leader
    monkeypatch.setattr(tail._cluster, "leader", lambda *_: None)
    tail.follow({("orders", 0): 0})
    assert tail.ends([("orders", 0)]) == {}
    monkeypatch.setattr(tail._cluster, "leader", leader)
    tail.follow({("orders", 0): 0})
    produce(b"a")
    arrived(tail, 1)
    assert values(tail.chunks("orders", 0, 0, 1), 0, 1) == [b"a"]


def test_a_leader_that_is_lost_while_it_is_followed(tail, headwater_broker, produce, monkeypatch):
    monkeypatch.setattr(tailing, "_LONGEST_PAUSE_S", 0.05)
    tail.follow({("orders", 0): 0, ("orders", 1): 0})
    produce(b"a")
    arrived(tail, 1)
    leader = tail._cluster.leader
    monkeypatch.setattr(
        tail._cluster,
        "leader",
        lambda topic, partition: leader(topic, partition) if partition else None,
    )
    headwater_broker.restart(crash=True)
    wait_for(lambda: not tail.ends([("orders", 0)]), "the loss")
    produce(b"x", partition=1)
    arrived(tail, 1, partition=1)
    monkeypatch.setattr(tail._cluster, "leader", leader)
    tail.follow({("orders", 0): 1})
    produce(b"b")
    arrived(tail, 2)
    assert values(tail.chunks("orders", 0, 1, 2), 1, 2) == [b"b"]


def test_readers_do_not_wait_while_leaders_are_asked_for(tail, produce, monkeypatch):
    tail.follow({("orders", 0): 0})
    produce(b"a")
    arrived(tail, 1)
    is_asking, answer = threading.Event(), threading.Event()
    find_all = tail._cluster.find_all_partitions

    def slow(topics):
        is_asking.set()
        assert answer.wait(120)
        return find_all(topics)

    monkeypatch.setattr(tail._cluster, "find_all_partitions", slow)
    following = threading.Thread(target=tail.follow, args=({("orders", 1): 0},))
    following.start()
    assert is_asking.wait(60)
    produce(b"b")
    arrived(tail, 2)
    assert values(tail.chunks("orders", 0, 0, 2), 0, 2) == [b"a", b"b"]
    version = tail.version
    tail.wake()
    assert tail.wait(version, 60.0) != version
    answer.set()
    following.join()
    produce(b"x", partition=1)
    arrived(tail, 1, partition=1)
