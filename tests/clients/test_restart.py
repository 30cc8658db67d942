"""A broker that stops, or is killed, under running clients: nothing acknowledged is lost, and
nothing of an idempotent producer is there twice."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from support.clients.broker_process import BrokerProcess
from support.clients.confluent_wire import (
    WAIT_S,
    consumer,
    create_topic,
    numbered,
    produce,
    read,
    take,
    wait_for,
)
from tiers import in_full

RESTARTS = 3
PER_RESTART = 200  # acknowledged records between two restarts

Acked = list[bytes]
Write = Callable[[str, str, Acked, threading.Event], None]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


@pytest.fixture(params=["kill", *in_full("stop")])
def end(request: pytest.FixtureRequest) -> Callable[[BrokerProcess], None]:
    return {"stop": BrokerProcess.stop, "kill": BrokerProcess.kill}[request.param]


def with_confluent(address: str, topic: str, acked: Acked, enough: threading.Event) -> None:
    def reported(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        acked.append(message.value())

    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 200,
        }
    )
    number = 0
    while not enough.is_set():
        producer.produce(topic, b"%d" % number, on_delivery=reported)
        number += 1
        producer.poll(0.001)
    assert producer.flush(WAIT_S) == 0


def with_kafka_python(address: str, topic: str, acked: Acked, enough: threading.Event) -> None:
    # In its own process: it leaves the sockets of failed connections to the garbage collector,
    # whose warnings would fail whatever test comes next.
    command = [sys.executable, "-c", KAFKA_PYTHON_WRITER, address, topic]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for line in writer.stdout:
            acked.append(line.strip())
            if enough.is_set() and not writer.stdin.closed:
                writer.stdin.close()
    assert writer.returncode == 0


KAFKA_PYTHON_WRITER = """
import select, sys, time
from kafka import KafkaProducer

def acked(value):
    sys.stdout.write(f"{value}\\n")
    sys.stdout.flush()

producer = KafkaProducer(bootstrap_servers=sys.argv[1], reconnect_backoff_max_ms=200)
number = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    producer.send(sys.argv[2], b"%d" % number).add_callback(lambda _, v=number: acked(v))
    number += 1
    time.sleep(0.001)
producer.flush(60)
producer.close()
"""


def with_aiokafka(address: str, topic: str, acked: Acked, enough: threading.Event) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=address, enable_idempotence=True, retry_backoff_ms=50
        ) as producer:
            number = 0
            sent = []
            while not enough.is_set():
                value = b"%d" % number
                future = await producer.send(topic, value)
                future.add_done_callback(lambda done, v=value: done.result() and acked.append(v))
                sent.append(future)
                number += 1
                await asyncio.sleep(0.001)
            await asyncio.gather(*sent)

    asyncio.run(main())


@pytest.mark.parametrize(
    "write",
    [with_confluent, with_kafka_python, with_aiokafka],
    ids=["confluent", "kafka-python", "aiokafka"],
)
def test_an_idempotent_producer(
    broker: BrokerProcess, end: Callable[[BrokerProcess], None], write: Write
) -> None:
    topic = create_topic(broker.address)
    acked: Acked = []
    enough = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            write(broker.address, topic, acked, enough)
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=run)
    writer.start()
    try:
        for _ in range(RESTARTS):
            wanted = len(acked) + PER_RESTART
            wait_for(lambda wanted=wanted: len(acked) >= wanted or bool(failures))
            assert not failures, failures
            end(broker)
            broker.start()
    finally:
        enough.set()
        writer.join()
    assert not failures, failures
    # Everything sent was acknowledged in the end: it is there once, and in order.
    found = [message.value() for message in read(broker.address, topic, len(acked))]
    assert found == [b"%d" % number for number in range(len(acked))]
    assert sorted(acked, key=int) == found
    with consumer(broker.address) as reader:
        _, high = reader.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S)
    assert high == len(acked)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_on(
    broker: BrokerProcess, end: Callable[[BrokerProcess], None], protocol: str
) -> None:
    topic = create_topic(broker.address)
    group = f"group-{uuid4().hex[:12]}"
    produce(broker.address, topic, numbered(100))
    config: dict[str, Any] = {
        "group_id": group, "group_protocol": protocol, "reconnect_backoff_max_ms": 200,
    }  # fmt: skip
    with consumer(broker.address, **config) as reader:
        reader.subscribe([topic])
        assert len(take(reader, 100)) == 100
        reader.commit(asynchronous=False)
        end(broker)
        broker.start()
        produce(broker.address, topic, [{"value": b"later"}])
        # The same member goes on in the same group, and commits again.
        [later] = take(reader, 1, timeout_s=30)
        assert (later.offset(), later.value()) == (100, b"later")
        reader.commit(message=later, asynchronous=False)
    with consumer(broker.address, **config) as reader:
        assert reader.committed([TopicPartition(topic, 0)], WAIT_S)[0].offset == 101


def test_offsets_and_topics_outlive_several_crashes(broker: BrokerProcess) -> None:
    topic = create_topic(broker.address, 2, retention_ms=12345678)
    group = f"group-{uuid4().hex[:12]}"
    for crash in range(3):
        with consumer(broker.address, group_id=group) as reader:
            part = TopicPartition(topic, 1, crash, metadata=f"crash {crash}")
            reader.commit(offsets=[part], asynchronous=False)
        broker.kill()
        broker.start()
        with consumer(broker.address, group_id=group) as reader:
            [found] = reader.committed([TopicPartition(topic, 1)], WAIT_S)
            assert (found.offset, found.metadata) == (crash, f"crash {crash}")
            assert sorted(reader.list_topics(topic, WAIT_S).topics[topic].partitions) == [0, 1]
