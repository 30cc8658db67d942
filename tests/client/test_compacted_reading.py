import asyncio
import os
import random
import threading
from pathlib import Path

import pytest
from support.client.written import ANONYMOUS, batch, messages, new_topic, producer
from support.wire import wait_until as eventually
from tiers import representative

from headwater.client.reading.compacted import CommittedLatest, read_committed_latest
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import BatchBuilder
from headwater.client.writing.transactions import TransactionalProducer
from headwater.testing import InProcessBroker

NUMBA_CACHE = str(Path(__file__).parents[2] / ".work" / "numba-cache")


def entries(*pairs: tuple[bytes | None, bytes | None]) -> BatchBuilder:
    builder = BatchBuilder()
    for key, value in pairs:
        assert builder.append(key, value, (), 1_763_222_400_000)
    return builder


def test_the_latest_of_each_key(address: str) -> None:
    topic = new_topic(address, 2)
    with producer(address) as writer:
        writer.send({(topic, 0): [entries((b"a", b"1"), (b"b", b"1"), (None, b"no key"))]})
        writer.send({(topic, 1): [entries((b"c", b"1"), (b"d", b"1"))]})
        writer.commit()
        writer.send({(topic, 0): [entries((b"a", b"2"), (b"b", None))]})
        writer.commit()
        writer.send({(topic, 0): [entries((b"a", b"aborted"))]})
        writer.abort()
        # Kafka answers before readers see the end; the next transaction has to wait for it.
        writer.send({(topic, 1): [entries((b"d", b"2"))]})
        writer.commit()
        writer.send({(topic, 1): [entries((b"d", b"still open"))]})
        latest = read_committed_latest(address, ANONYMOUS, topic)
    assert latest == {b"a": b"2", b"c": b"1", b"d": b"2"}


def test_reading_on_gives_what_reading_from_the_start_gives(address: str) -> None:
    topic = new_topic(address, 2)
    followed = CommittedLatest(address, ANONYMOUS, topic)

    def becomes(latest: dict[bytes, bytes]) -> None:
        # Kafka answers a commit before readers see it.
        eventually(lambda: followed.read() == latest)

    try:
        with producer(address) as writer, producer(address) as other:
            assert followed.read() == {}
            writer.send({(topic, 0): [entries((b"a", b"1"), (b"b", b"1"))]})
            writer.commit()
            becomes({b"a": b"1", b"b": b"1"})
            other.send({(topic, 0): [entries((b"other", b"open"), (b"a", b"open"))]})
            writer.send({(topic, 0): [entries((b"b", None))], (topic, 1): [entries((b"c", b"2"))]})
            writer.commit()
            becomes({b"a": b"1", b"c": b"2"})
            other.abort()
            writer.send({(topic, 0): [entries((b"a", b"3"))]})
            writer.commit()
            becomes({b"a": b"3", b"c": b"2"})
            assert followed.read() == read_committed_latest(address, ANONYMOUS, topic)
    finally:
        followed.close()


@representative
def test_what_is_committed_behind_an_open_transaction_of_another(address: str) -> None:
    """Who looks for its own must not be held up, or misled, by one that has crashed."""
    topic = new_topic(address)

    def write(writer: TransactionalProducer, key: bytes, value: bytes | None) -> None:
        writer.send({(topic, 0): [entries((key, value))]})

    with producer(address) as crashed, producer(address) as mine, producer(address) as other:
        write(mine, b"mine", b"begun before")
        write(crashed, b"crashed", b"open")
        write(mine, b"later", b"with it")
        mine.commit()
        for number in range(5):
            write(mine, b"mine", b"%d" % number)
            write(other, b"other", b"%d" % number)
            mine.commit()
            other.abort() if number == 4 else other.commit()
        write(mine, b"mine", b"aborted")
        mine.abort()
        write(mine, b"later", None)
        mine.commit()
        write(other, b"other", b"open, too")
        mine.fence()  # Kafka answers a commit before its markers are written, this not
        found = read_committed_latest(address, ANONYMOUS, topic)
        assert found == {b"mine": b"4", b"other": b"3"}
        crashed.commit()
        eventually(lambda: b"crashed" in read_committed_latest(address, ANONYMOUS, topic))


def test_a_topic_that_is_empty_or_does_not_exist(address: str) -> None:
    assert read_committed_latest(address, ANONYMOUS, new_topic(address, 3)) == {}
    assert read_committed_latest(address, ANONYMOUS, "nowhere") == {}
    with producer(address) as writer:  # looking for it has not made it
        assert writer._cluster.find_partitions("nowhere") is None


def test_only_markers_and_aborted_records(address: str) -> None:
    topic = new_topic(address)
    with producer(address) as writer:
        for _ in range(3):
            writer.send({(topic, 0): [batch(b"v")]})
            writer.abort()
        assert read_committed_latest(address, ANONYMOUS, topic) == {}


@pytest.mark.parametrize("seed", [1, 2])
def test_beside_a_reader_by_the_book(address: str, seed: int) -> None:
    """Several producers, commits and aborts; at the end none is open."""
    topic = new_topic(address)
    rng = random.Random(seed)
    writers = [producer(address) for _ in range(3)]
    for number in range(40):
        writer = rng.choice(writers)
        key = rng.choice([b"a", b"b", b"c"])
        value = rng.choice([None, b"%d" % number])
        writer.send({(topic, 0): [entries((key, value), (b"big", b"%d" % number * 999))]})
        if rng.random() < 0.5:
            rng.choice([writer.commit, writer.abort])()
    for writer in writers:
        writer.abort()
        writer.fence()
        writer.close()
    expected: dict[bytes, bytes | None] = {}
    for message in messages(address, topic):
        expected[message.key()] = message.value()
    found = read_committed_latest(address, ANONYMOUS, topic)
    assert found == {key: value for key, value in expected.items() if value is not None}


def test_everything_has_been_deleted(tmp_path) -> None:
    """The log begins where it ends."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    with InProcessBroker.serving(str(tmp_path)) as broker:
        topic = new_topic(broker.bootstrap)
        with producer(broker.bootstrap) as writer:
            writer.send({(topic, 0): [batch(b"v")]})
            writer.commit()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.delete_records([TopicPartition(topic, 0, -1)]).values():
            future.result(60)
        assert read_committed_latest(broker.bootstrap, ANONYMOUS, topic) == {}


def test_everything_has_been_compacted_away(tmp_path, monkeypatch) -> None:
    """Tombstones, values and markers of all but the last segment are removed."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.environ.get("NUMBA_CACHE_DIR", NUMBA_CACHE))
    with InProcessBroker.serving(str(tmp_path)) as broker:
        topic = new_topic(
            broker.bootstrap,
            cleanup_policy="compact",
            segment_bytes="16384",
            min_cleanable_dirty_ratio="0.01",
            delete_retention_ms="0",
        )
        with producer(broker.bootstrap, compression="none") as writer:
            for value in (b"v" * 20_000, None, None, b"last"):
                writer.send({(topic, 0): [entries((b"a", value), (b"b", value))]})
                writer.commit()
                writer.send({(topic, 0): [entries((b"a", b"aborted" * 3_000))]})
                writer.abort()
            writer.send({(topic, 0): [entries((b"a", None), (b"b", None))]})
            writer.commit()
        partition = broker.running.broker.partition(topic, 0)
        size_bytes = partition.size_bytes
        for _ in range(3):
            rounds = broker.running.broker.compactor.run()
            asyncio.run_coroutine_threadsafe(rounds, broker._loop).result(60)
        assert partition.size_bytes < size_bytes / 3
        assert read_committed_latest(broker.bootstrap, ANONYMOUS, topic, patience_s=10) == {}


def test_topics_are_made_once(address: str) -> None:
    wanted = [NewTopic(f"made-{n}", n, {"retention.ms": "60000"}) for n in (1, 2, 3)]
    makers = [
        threading.Thread(target=ensure_topics, args=(address, ANONYMOUS, wanted)) for _ in range(3)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    ensure_topics(address, ANONYMOUS, [NewTopic("made-3", 9)])
    with producer(address) as writer:
        assert [writer.partitions(f"made-{n}") for n in (1, 2, 3)] == [1, 2, 3]
