"""Reading in bulk, of our broker and of Apache Kafka; librdkafka says what is there."""

import asyncio
import os
import random
import re
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from support.client.written import ANONYMOUS, batch, messages, new_topic, producer
from support.wire import wait_until as eventually
from test_compacted_reading import NUMBA_CACHE
from tiers import representative

from bench.peers.kafka import run_tool
from bench.peers.provision import missing_tools
from headwater.client.reading.arrow import schema_of
from headwater.client.reading.fetching import DEFAULT_COLUMNS, EARLIEST, LATEST, Fetcher
from headwater.errors import DataLost, RequestRefused
from headwater.testing import InProcessBroker

ALL = ("key", "value", "offset", "timestamp", "headers")


def rows(
    fetcher: Fetcher,
    topic: str,
    start: int,
    end: int,
    columns: Sequence[str] = ALL,
    partition: int = 0,
) -> list[dict[str, Any]]:
    found = list(fetcher.read(topic, partition, start, end, columns=columns))
    for fetched in found:
        fetched.validate(full=True)
        assert fetched.num_rows
    return pa.Table.from_batches(found, schema_of(columns)).to_pylist()


def values(fetcher: Fetcher, topic: str, start: int, end: int) -> list[bytes | None]:
    return [row["value"] for row in rows(fetcher, topic, start, end, ("value",))]


def end_of(fetcher: Fetcher, topic: str, partition: int = 0) -> int:
    return fetcher.offsets([(topic, partition)], LATEST)[topic, partition]


def as_rows(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages of librdkafka's in our columns."""
    return [
        {
            "key": message.key(),
            "value": message.value(),
            "offset": message.offset(),
            "timestamp": message.timestamp()[1],
            "headers": [{"name": name, "value": value} for name, value in message.headers() or ()],
        }
        for message in found
    ]


def with_ms(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "timestamp": round(row["timestamp"].timestamp() * 1000)} for row in found]


@representative
def test_every_compression_and_every_kind_of_record(address: str) -> None:
    topic = new_topic(address)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        writer = Producer(
            {"bootstrap.servers": address, "compression.type": codec, "linger.ms": 50}
        )
        for number in range(700):
            writer.produce(
                topic,
                value=[None, b"", b"value " * (number % 60)][number % 3],
                key=[None, b"", b"%d" % number][number % 4 - 1],
                headers=[[], [("name", b"x"), ("null", None), ("", b"")]][number % 2],
                timestamp=1_700_000_000_000 + number,
            )
        writer.flush()
    with Fetcher(address, ANONYMOUS) as fetcher:
        end = end_of(fetcher, topic)
        assert with_ms(rows(fetcher, topic, 0, end)) == as_rows(messages(address, topic))
        assert [row["offset"] for row in rows(fetcher, topic, 5, 3001)] == list(range(5, 3001))


def test_topics_partitions_and_offsets(address: str) -> None:
    one, two = new_topic(address, 3), new_topic(address)
    with producer(address) as writer:
        writer.send({(one, 1): [batch(b"a", b"b")], (two, 0): [batch(b"c")]})
        writer.commit()
        writer.fence()
    with Fetcher(address, ANONYMOUS) as fetcher:
        assert (fetcher.partitions(one), fetcher.partitions(two)) == (3, 1)
        assert set(fetcher.topics_like(re.compile(f"({one}|{two}|_.*)"))) == {one, two}
        assert fetcher.topics_like(re.compile(one[:-1])) == []  # the whole name
        assert "__consumer_offsets" not in fetcher.topics_like(re.compile(".*"))
        places = [(one, 0), (one, 1), (one, 2), (two, 0)]
        zero = dict.fromkeys(places, 0)
        assert fetcher.offsets(places, EARLIEST) == zero
        ends = zero | {(one, 1): 3, (two, 0): 2}  # with the markers
        assert fetcher.offsets(places, LATEST) == ends
        assert fetcher.offsets(places, int(time.time() * 1000) + 60_000) == ends
        assert fetcher.offsets([(one, 1)], 5) == {(one, 1): 0}
        assert fetcher.offsets([], LATEST) == {}
        with pytest.raises(RequestRefused, match="there is no topic nowhere"):
            fetcher.partitions("nowhere")
        with pytest.raises(RequestRefused, match="has no partition 3"):
            fetcher.offsets([(one, 3)], LATEST)
        with pytest.raises(RequestRefused, match="has no partition 1"):
            list(fetcher.read(two, 1, 0, 1))


def test_only_what_is_committed(address: str) -> None:
    topic = new_topic(address)
    with (
        producer(address) as one,
        producer(address) as other,
        Fetcher(address, ANONYMOUS) as fetcher,
    ):
        one.send({(topic, 0): [batch(b"1"), batch(b"2")]})
        other.send({(topic, 0): [batch(b"aborted 1")]})
        one.send({(topic, 0): [batch(b"3")]})
        other.abort()
        one.commit()
        one.fence()
        other.fence()
        other.send({(topic, 0): [batch(b"open")]})
        assert values(fetcher, topic, 0, end_of(fetcher, topic)) == [b"1", b"2", b"3"]
        with Fetcher(address, ANONYMOUS, isolation="read_uncommitted") as dirty:
            assert values(dirty, topic, 0, end_of(dirty, topic)) == [
                b"1", b"2", b"aborted 1", b"3", b"open",
            ]  # fmt: skip
        before = end_of(fetcher, topic)
        other.abort()
        eventually(lambda: end_of(fetcher, topic) > before)
        # Nothing but aborted records and markers up to the end.
        assert values(fetcher, topic, before, end_of(fetcher, topic)) == []
        assert values(fetcher, topic, 3, 3) == []


def test_a_partition_that_was_added(address: str) -> None:
    topic = new_topic(address)
    with producer(address) as writer, Fetcher(address, ANONYMOUS) as fetcher:
        assert list(fetcher.read(topic, 0, 0, 0)) == []
        admin = AdminClient({"bootstrap.servers": address})
        for future in admin.create_partitions([NewPartitions(topic, 3)]).values():
            future.result(60)
        eventually(lambda: writer.partitions(topic) == 3 or writer._cluster.refresh([topic]))
        writer.send({(topic, 2): [batch(b"new")]})
        writer.commit()
        writer.fence()
        assert rows(fetcher, topic, 0, 1, ("value",), 2) == [{"value": b"new"}]
        assert fetcher.partitions(topic) == 3


def test_columns_are_those_asked_for(address: str) -> None:
    topic = new_topic(address)
    with producer(address) as writer, Fetcher(address, ANONYMOUS) as fetcher:
        writer.send({(topic, 0): [batch(b"a", None)]})
        writer.commit()
        writer.fence()
        assert rows(fetcher, topic, 0, 2, ("value",)) == [{"value": b"a"}, {"value": None}]
        assert rows(fetcher, topic, 0, 2, ("offset", "key")) == [
            {"offset": 0, "key": b"k"},
            {"offset": 1, "key": b"k"},
        ]
        assert set(rows(fetcher, topic, 0, 1, DEFAULT_COLUMNS)[0]) == set(DEFAULT_COLUMNS)


@pytest.mark.parametrize("seed", [1, 2])
def test_transactions_beside_a_reader_by_the_book(address: str, seed: int) -> None:
    """Several producers' transactions, one in another; both ways of reading them."""
    topic = new_topic(address)
    rng = random.Random(seed)
    writers = [producer(address) for _ in range(3)]
    plain = Producer({"bootstrap.servers": address})
    for number in range(60):
        if rng.random() < 0.2:
            plain.produce(topic, b"plain %d" % number)
            plain.flush()
        writer = rng.choice(writers)
        writer.send({(topic, 0): [batch(b"%d" % number, b"and %d" % number)]})
        if rng.random() < 0.4:
            rng.choice([writer.commit, writer.abort])()
    for writer in writers:
        writer.abort()
        writer.fence()
        writer.close()
    committed, everything = (
        as_rows(messages(address, topic, isolation_level=isolation))
        for isolation in ("read_committed", "read_uncommitted")
    )
    assert 20 < len(committed) < len(everything)
    with (
        Fetcher(address, ANONYMOUS) as fetcher,
        Fetcher(address, ANONYMOUS, isolation="read_uncommitted") as dirty,
    ):
        end = end_of(fetcher, topic)
        assert with_ms(rows(fetcher, topic, 0, end)) == committed
        assert with_ms(rows(dirty, topic, 0, end)) == everything
        # In ranges of any size, which begin and end in the midst of transactions and batches.
        pieces = sorted({0, end, *(rng.randrange(end) for _ in range(20))})
        found = [rows(fetcher, topic, *between) for between in pairwise(pieces)]
        assert with_ms([row for piece in found for row in piece]) == committed


def test_the_time_of_the_broker(address: str) -> None:
    topic = new_topic(address, message_timestamp_type="LogAppendTime")
    writer = Producer({"bootstrap.servers": address, "compression.type": "lz4"})
    for number in range(10):
        writer.produce(topic, b"v", timestamp=1000 + number)
    writer.flush()
    with Fetcher(address, ANONYMOUS) as fetcher:
        found = with_ms(rows(fetcher, topic, 0, 10))
        assert found == as_rows(messages(address, topic))
        (stamp,) = {row["timestamp"] for row in found}
        assert abs(stamp / 1000 - time.time()) < 60
        assert fetcher.offsets([(topic, 0)], stamp) == {(topic, 0): 0}


def test_offsets_by_time(address: str) -> None:
    topic = new_topic(address)
    writer = Producer({"bootstrap.servers": address})
    for number in range(100):
        writer.produce(topic, b"v", timestamp=1_700_000_000_000 + 10 * number)
        if number % 10 == 9:
            writer.flush()
    with Fetcher(address, ANONYMOUS) as fetcher:
        for time_ms, expected in ((0, 0), (1_700_000_000_495, 50), (1_700_000_000_991, 100)):
            assert fetcher.offsets([(topic, 0)], time_ms) == {(topic, 0): expected}


def test_what_has_been_deleted_is_an_error(address: str) -> None:
    topic = new_topic(address)
    with producer(address) as writer:
        writer.send({(topic, 0): [batch(b"1"), batch(b"2"), batch(b"3")]})
        writer.commit()
        writer.fence()
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        future.result(60)
    with Fetcher(address, ANONYMOUS) as fetcher:
        assert fetcher.offsets([(topic, 0)], EARLIEST) == {(topic, 0): 2}
        with pytest.raises(DataLost, match=f"{topic}-0") as lost:
            rows(fetcher, topic, 0, 4)
        assert (lost.value.wanted, lost.value.first) == (0, 2)
        assert values(fetcher, topic, 2, 4) == [b"3"]
        with pytest.raises(DataLost, match="the log ends at 4"):
            rows(fetcher, topic, 9, 10)


def test_a_compacted_topic_has_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.environ.get("NUMBA_CACHE_DIR", NUMBA_CACHE))
    with InProcessBroker.serving(str(tmp_path)) as broker:
        topic = new_topic(
            broker.bootstrap,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.01",
            segment_bytes="16384",
        )
        writer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "zstd"})
        for number in range(3000):
            writer.produce(topic, os.urandom(50), b"%d" % (number % 7 if number % 500 else number))
            if number % 20 == 19:
                writer.flush()
        rounds = broker.running.broker.compactor.run()
        asyncio.run_coroutine_threadsafe(rounds, broker._loop).result(60)
        expected = as_rows(messages(broker.bootstrap, topic))
        with Fetcher(broker.bootstrap, ANONYMOUS, patience_s=10) as fetcher:
            assert with_ms(rows(fetcher, topic, 0, 3000)) == expected
            retained = {row["offset"] for row in expected}
            assert len(retained) < 1000
            for start, end in ((1, 499), (1, 500), (1, 501), (900, 1000), (501, 1000)):
                found = [row["offset"] for row in rows(fetcher, topic, start, end)]
                assert found == [offset for offset in range(start, end) if offset in retained]


@pytest.mark.java
@pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH")
@pytest.mark.parametrize("codec", ["snappy", "lz4", "zstd"])
def test_what_java_writes(headwater_address: str, codec: str) -> None:
    """Its snappy has a framing of its own; its lz4 and zstd frames are not librdkafka's either."""
    topic = new_topic(headwater_address)
    lines = [f"{number} " * (number % 30 + 1) for number in range(3000)]
    arguments = [
        "--bootstrap-server",
        headwater_address,
        "--topic",
        topic,
        "--compression-codec",
        codec,
    ]
    run_tool("ConsoleProducer", *arguments, stdin="\n".join(lines) + "\n").check_returncode()
    with Fetcher(headwater_address, ANONYMOUS) as fetcher:
        found = values(fetcher, topic, 0, end_of(fetcher, topic))
    assert found == [line.encode() for line in lines]
