import asyncio
import os
import threading
from pathlib import Path

from written import NOBODY, batch, new_topic, producer

from headwater.client.batches import BatchBuilder
from headwater.client.compacted import read_committed_latest
from headwater.client.topics import NewTopic, ensure_topics
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
        latest = read_committed_latest(address, NOBODY, topic)
    assert latest == {b"a": b"2", b"c": b"1", b"d": b"2"}


def test_a_topic_that_is_empty_or_does_not_exist(address: str) -> None:
    assert read_committed_latest(address, NOBODY, new_topic(address, 3)) == {}
    assert read_committed_latest(address, NOBODY, "nowhere") == {}
    with producer(address) as writer:  # looking for it has not made it
        assert writer._cluster.find_partitions("nowhere") is None


def test_only_markers_and_aborted_records(address: str) -> None:
    topic = new_topic(address)
    with producer(address) as writer:
        for _ in range(3):
            writer.send({(topic, 0): [batch(b"v")]})
            writer.abort()
        assert read_committed_latest(address, NOBODY, topic) == {}


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
            future.result(10)
        assert read_committed_latest(broker.bootstrap, NOBODY, topic) == {}


def test_everything_has_been_compacted_away(tmp_path, monkeypatch) -> None:
    """Tombstones, values and markers of all but the last segment are gone."""
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
        assert read_committed_latest(broker.bootstrap, NOBODY, topic, patience_s=10) == {}


def test_topics_are_made_once(address: str) -> None:
    wanted = [NewTopic(f"made-{n}", n, {"retention.ms": "60000"}) for n in (1, 2, 3)]
    makers = [
        threading.Thread(target=ensure_topics, args=(address, NOBODY, wanted)) for _ in range(3)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    ensure_topics(address, NOBODY, [NewTopic("made-3", 9)])
    with producer(address) as writer:
        assert [writer.partitions(f"made-{n}") for n in (1, 2, 3)] == [1, 2, 3]
