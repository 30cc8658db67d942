"""Transactions with confluent-kafka (librdkafka), whose requests are those from before KIP-890."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from support import SUPPORT
from support.clients.broker_process import BrokerProcess
from support.clients.confluent_wire import (
    WAIT_S,
    consumer,
    create_topic,
    dotted,
    produce,
    take,
    values,
    wait_for,
)
from support.readable import readable
from tiers import kills

COPIER = SUPPORT / "clients" / "exactly_once_copier.py"
PARTITIONS = 2
KILLS = kills(quick=2, full=6)  # of each, client and broker
PER_KILL = 150  # records written before it


def transactional(address: str, transactional_id: str | None = None, **config: Any) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": transactional_id or f"id-{uuid4().hex[:8]}",
            "linger.ms": 0,
            **dotted(config),
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def write(producer: Producer, topic: str, *written: bytes, partition: int = 0) -> None:
    for value in written:
        producer.produce(topic, value, partition=partition)
    producer.flush(WAIT_S)


def committed(address: str, topic: str, partition: int = 0) -> list[bytes | None]:
    """All that a read_committed consumer finds up to the last stable offset."""
    with consumer(address, isolation_level="read_committed") as reader:
        partition_from_start = TopicPartition(topic, partition, 0)
        reader.assign([partition_from_start])
        found: list[bytes | None] = []
        _, end = reader.get_watermark_offsets(partition_from_start, WAIT_S)
        deadline_s = time.monotonic() + WAIT_S
        while reader.position([partition_from_start])[0].offset < end and end > 0:
            assert time.monotonic() < deadline_s, f"{found} up to {end}"
            found += [
                message.value() for message in reader.consume(100, 0.1) if message.error() is None
            ]
        return found


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(broker_address: str) -> None:
    topic = create_topic(broker_address, 2)
    producer = transactional(broker_address)
    for number in range(6):
        producer.begin_transaction()
        write(producer, topic, b"%d" % number)
        write(producer, topic, b"%d" % number, partition=1)
        if number % 3 == 1:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    for partition in (0, 1):
        wait_for(
            lambda p=partition: committed(broker_address, topic, p) == [b"0", b"2", b"3", b"5"]
        )


def test_a_reader_waits_for_an_open_transaction(broker_address: str) -> None:
    topic = create_topic(broker_address)
    slow, quick = transactional(broker_address), transactional(broker_address)
    slow.begin_transaction()
    write(slow, topic, b"slow")
    quick.begin_transaction()
    write(quick, topic, b"quick")
    quick.commit_transaction(WAIT_S)
    with consumer(broker_address, isolation_level="read_committed") as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert [m for m in reader.consume(1, 1.0) if m.error() is None] == []
        slow.commit_transaction(WAIT_S)
        assert values(take(reader, 2)) == [b"slow", b"quick"]
    with consumer(broker_address, isolation_level="read_uncommitted") as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert values(take(reader, 2)) == [b"slow", b"quick"]


def test_a_zombie_is_fenced(broker_address: str) -> None:
    topic, transactional_id = create_topic(broker_address), f"id-{uuid4().hex[:8]}"
    zombie = transactional(broker_address, transactional_id)
    zombie.begin_transaction()
    write(zombie, topic, b"zombie")
    heir = transactional(broker_address, transactional_id)
    heir.begin_transaction()
    write(heir, topic, b"heir")
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(WAIT_S)
    assert refused.value.args[0].code() == KafkaError._FENCED
    assert refused.value.args[0].fatal()
    heir.commit_transaction(WAIT_S)
    wait_for(lambda: committed(broker_address, topic) == [b"heir"])


def test_a_hanging_transaction_is_aborted(broker_address: str) -> None:
    topic = create_topic(broker_address)
    producer = transactional(broker_address, transaction_timeout_ms=1500, message_timeout_ms=1500)
    producer.begin_transaction()
    write(producer, topic, b"forgotten")
    other = transactional(broker_address)
    other.begin_transaction()
    write(other, topic, b"behind it")
    other.commit_transaction(WAIT_S)
    # Kafka looks for hanging transactions every ten seconds.
    with consumer(broker_address, isolation_level="read_committed") as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert values(take(reader, 1, timeout_s=30)) == [b"behind it"]
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_S)


def test_a_timeout_above_the_maximum_is_refused(broker_address: str) -> None:
    with pytest.raises(KafkaException) as refused:
        transactional(broker_address, transaction_timeout_ms=900_001)
    assert refused.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_go_with_the_transaction(broker_address: str, commits: bool) -> None:
    source, target = create_topic(broker_address), create_topic(broker_address)
    produce(broker_address, source, [{"value": b"%d" % n} for n in range(5)])
    group = f"g-{uuid4().hex[:8]}"
    producer = transactional(broker_address)
    # Who reads uncommitted records does not ask for stable offsets either.
    with consumer(broker_address, group_id=group, isolation_level="read_uncommitted") as reader:
        reader.subscribe([source])
        taken = take(reader, 5)
        producer.begin_transaction()
        write(producer, target, *(m.value() + b"!" for m in taken))
        producer.send_offsets_to_transaction(
            reader.position(reader.assignment()), reader.consumer_group_metadata(), WAIT_S
        )
        assert _position(reader, source) < 0
        if commits:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
        wait_for(lambda: (_position(reader, source) == 5) == commits)


def _position(reader: Consumer, topic: str) -> int:
    return reader.committed([TopicPartition(topic, 0)], WAIT_S)[0].offset


def test_offsets_of_an_earlier_generation_are_refused(broker_address: str) -> None:
    source = create_topic(broker_address, 2)
    producer = transactional(broker_address)
    config: dict[str, Any] = {"group_id": f"g-{uuid4().hex[:8]}"}
    with consumer(broker_address, **config) as first, consumer(broker_address, **config) as second:
        first.subscribe([source])
        wait_for(lambda: first.poll(0.1) is None and len(first.assignment()) == 2)
        earlier = first.consumer_group_metadata()
        second.subscribe([source])
        wait_for(
            lambda: (
                first.poll(0.1) is None
                and second.poll(0.1) is None
                and len(first.assignment()) == len(second.assignment()) == 1
            )
        )
        producer.begin_transaction()
        offsets = [TopicPartition(source, 0, 1)]
        with pytest.raises(KafkaException) as refused:
            producer.send_offsets_to_transaction(offsets, earlier, WAIT_S)
        assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction(WAIT_S)
        producer.begin_transaction()
        producer.send_offsets_to_transaction(offsets, first.consumer_group_metadata(), WAIT_S)
        producer.commit_transaction(WAIT_S)
        wait_for(lambda: _position(first, source) == 1)


class Copier:
    """A copier in a process of its own; what it complains of is in a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        self._arguments = arguments
        self._child: subprocess.Popen[bytes] | None = None
        self._fatal_errors = 0

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, COPIER, *self._arguments], stdout=subprocess.PIPE, stderr=log
            )

    def progressed(self, timeout_s: float) -> bool:
        """Whether it commits a transaction within the time. If it ended, it is started again."""
        assert self._child is not None
        assert self._child.stdout is not None
        if not readable(self._child.stdout, timeout_s=timeout_s):
            return False
        if self._child.stdout.readline():
            return True
        self.kill()
        self._fatal_errors += 1
        assert self._fatal_errors < 20, self._log.read_text()[-3000:]
        self.start()
        return False

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait(WAIT_S)
            assert self._child.stdout is not None
            self._child.stdout.close()
            self._child = None


@contextmanager
def copying(log: Path, *arguments: str) -> Iterator[Copier]:
    copier = Copier(log, *arguments)
    copier.start()
    try:
        yield copier
    finally:
        copier.kill()


@pytest.mark.timeout(180)
def test_exactly_once_through_kills_of_client_and_broker(tmp_path: Path) -> None:
    """From topic to topic with offsets in the transaction: each record there once, in order."""
    rng = random.Random(4)
    with BrokerProcess(tmp_path / "data") as broker:
        source = create_topic(broker.address, PARTITIONS)
        target = create_topic(broker.address, PARTITIONS)
        expected: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
        log = tmp_path / "copier.log"
        with copying(log, broker.address, source, target, "copiers", "copier") as copier:
            victims = ["client", "broker"] * KILLS
            rng.shuffle(victims)
            for number, victim in enumerate(victims):
                _feed(broker.address, source, expected, number)
                _eventually(lambda: copier.progressed(1))  # then at some point of the next ones
                time.sleep(rng.random() * 0.02)
                if victim == "client":
                    copier.kill()
                    copier.start()
                else:
                    broker.kill()
                    broker.start()
                _nothing_twice(broker.address, target, expected)

            def is_all_there() -> bool:
                copier.progressed(0.1)  # starts it again if it has given up
                return all(committed(broker.address, target, p) == expected[p] for p in expected)

            _eventually(is_all_there)


def _eventually(condition: Callable[[], bool]) -> None:
    """A client may sit out a timeout of its own after a kill."""
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, "not reached"


def _feed(address: str, topic: str, expected: dict[int, list[bytes]], number: int) -> None:
    added = [(n % PARTITIONS, b"%d.%d" % (number, n)) for n in range(PER_KILL)]
    produce(address, topic, [{"partition": p, "value": value} for p, value in added])
    for partition, value in added:
        expected[partition].append(value)


def _nothing_twice(address: str, target: str, expected: dict[int, list[bytes]]) -> None:
    for partition, values_ in expected.items():
        found = committed(address, target, partition)
        assert found == values_[: len(found)]


def test_a_reader_never_sees_half_a_transaction(broker_address: str) -> None:
    """Several producers at once over two topics; a reader of both at any time."""
    one, two = create_topic(broker_address), create_topic(broker_address)
    producers = [transactional(broker_address) for _ in range(4)]
    rng = random.Random(7)
    expected: set[bytes] = set()
    for round_ in range(12):
        for number, producer in enumerate(producers):
            producer.begin_transaction()
            for topic in rng.sample([one, two], 2):
                producer.produce(topic, b"%d.%d" % (number, round_), partition=0)
        for number, producer in rng.sample(list(enumerate(producers)), 4):
            if rng.random() < 0.4:
                producer.abort_transaction(WAIT_S)
            else:
                producer.commit_transaction(WAIT_S)
                expected.add(b"%d.%d" % (number, round_))
        for topic in (one, two):
            seen = committed(broker_address, topic)
            assert len(seen) == len(set(seen))
            assert set(seen) <= expected
    for topic in (one, two):
        wait_for(lambda topic=topic: set(committed(broker_address, topic)) == expected)
