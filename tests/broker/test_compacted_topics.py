"""Compaction as clients see it: the child process works while they produce and consume."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tiers import long

from headwater.client.erasing import erase_records
from headwater.settings import BrokerSettings, ClientSettings
from headwater.testing import InProcessBroker

ROOT = Path(__file__).parents[2]
KEYS = 50
PATIENCE_S = 300  # compaction has a low priority: on a busy machine it waits


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = os.environ.get("NUMBA_CACHE_DIR", str(ROOT / ".work" / "numba-cache"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", cache)


@pytest.fixture
def broker(tmp_path: Path):
    settings = BrokerSettings(listen="127.0.0.1:0", compaction_bytes_per_s=1 << 20)
    with InProcessBroker.serving(str(tmp_path), settings) as broker:
        yield broker


def create_topic(broker: InProcessBroker, name: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    texts = {key.replace("_", "."): value for key, value in configs.items()}
    admin.create_topics([NewTopic(name, 1, 1, config=texts)])[name].result(60)


def compacting(broker: InProcessBroker):
    """One round of compaction under way, on the broker's own loop."""
    assert broker.running is not None
    assert broker._loop is not None
    return asyncio.run_coroutine_threadsafe(broker.running.broker.compactor.run(), broker._loop)


def produce(producer: Producer, topic: str, numbers: range, state: dict[bytes, bytes]) -> None:
    for number in numbers:
        key, value = b"key %d" % (number % KEYS), b"%d " % number + b"x" * 200
        producer.produce(topic, value, key)
        state[key] = value
        if number % 20 == 0:
            producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def consume(broker: InProcessBroker, topic: str) -> list[tuple[int, bytes, bytes]]:
    """Everything from the start to the end, as (offset, key, value)."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    try:
        partition = TopicPartition(topic, 0, 0)
        consumer.assign([partition])
        _, end = consumer.get_watermark_offsets(partition, timeout=60)
        found: list[tuple[int, bytes, bytes]] = []
        deadline = time.monotonic() + PATIENCE_S
        while not found or found[-1][0] < end - 1:
            assert time.monotonic() < deadline, "the end is not reached"
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None
                found.append((message.offset(), message.key(), message.value()))
        return found
    finally:
        consumer.close()


def test_clients_go_on_while_segments_are_replaced(broker: InProcessBroker) -> None:
    create_topic(
        broker,
        "table",
        cleanup_policy="compact",
        segment_bytes="16384",
        min_cleanable_dirty_ratio="0.01",
    )
    state: dict[bytes, bytes] = {}
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "batch.size": 4096,
            "log_level": 0,
        }
    )
    produce(producer, "table", range(2000), state)
    running = compacting(broker)
    sent = 2000
    for _ in range(8):
        if running.done():
            break
        produce(producer, "table", range(sent, sent + 200), state)
        sent += 200
        found = consume(broker, "table")
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        assert {key: value for _, key, value in found} == state
    running.result(PATIENCE_S)
    assert broker.running is not None
    numbers = broker.running.broker.compactor.numbers
    assert numbers.passes >= 1
    assert numbers.failures == 0
    found = consume(broker, "table")
    assert {key: value for _, key, value in found} == state
    assert found[0][0] > 0  # what was in front is deleted
    broker.restart(crash=True)
    assert consume(broker, "table") == found


def test_committed_offsets_survive_compaction(broker: InProcessBroker) -> None:
    assert broker.running is not None
    create_topic(broker, "t")
    partition = TopicPartition("t", 0)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    try:
        for number in range(300):
            partition.offset = number
            deadline = time.monotonic() + PATIENCE_S
            while True:  # the coordinator may still be loading
                try:
                    consumer.commit(offsets=[partition], asynchronous=False)
                    break
                except Exception:
                    if time.monotonic() > deadline:
                        raise
    finally:
        consumer.close()
    store = broker.running.store
    used = [p for p in store.partitions.values() if p.topic == "__consumer_offsets" and p.segments]
    before = sum(p.size_bytes for p in used)

    async def seal() -> None:
        for partition in used:
            partition.roll(lambda _: None)

    assert broker._loop is not None
    asyncio.run_coroutine_threadsafe(seal(), broker._loop).result(60)
    deadline = time.monotonic() + PATIENCE_S
    while any(len(p.segments) < 2 for p in used):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    compacting(broker).result(PATIENCE_S)
    assert sum(p.size_bytes for p in used) < before / 20
    broker.restart(crash=True)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    try:
        assert consumer.committed([TopicPartition("t", 0)], timeout=30)[0].offset == 299
    finally:
        consumer.close()


@long
def test_records_are_erased_while_the_topic_is_compacted(
    broker: InProcessBroker, tmp_path: Path
) -> None:
    """Both rewrite the same segments, in turns. The key whose records were erased is gone; no
    older value of it comes back, and no other key is lost.
    """
    create_topic(
        broker,
        "table",
        cleanup_policy="compact",
        segment_bytes="16384",
        min_cleanable_dirty_ratio="0.01",
    )
    state: dict[bytes, bytes] = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 4096, "log_level": 0})
    secrets: list[bytes] = []
    running, sent = None, 0
    for number in range(6):
        produce(producer, "table", range(sent, sent + 300), state)
        sent += 300
        secret = b"secret of alice %d " % number + b"y" * 50
        secrets.append(secret)
        offsets: list[int] = []
        producer.produce(
            "table", secret, b"alice", on_delivery=lambda _, it, to=offsets: to.append(it.offset())
        )
        assert producer.flush(PATIENCE_S) == 0
        if running is None or running.done():
            running = compacting(broker)
        erased = erase_records(broker.bootstrap, ClientSettings(), {("table", 0): offsets})
        assert erased.erased == 1
        found = [(key, value) for _, key, value in consume(broker, "table") if key is not None]
        assert dict(found) == state
    assert running is not None
    running.result(PATIENCE_S)
    assert broker.running is not None
    assert broker.running.broker.compactor.numbers.failures == 0
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*.log"))
    assert not [secret for secret in secrets if secret in stored]
    assert b"alice" not in stored
