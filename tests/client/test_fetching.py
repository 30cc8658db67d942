"""Reading in bulk, of our broker and of Apache Kafka; librdkafka says what is there."""

import re
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from wire import wait_until as eventually
from written import NOBODY, batch, messages, new_topic, producer

from headwater.client.arrow import schema_of
from headwater.client.fetching import DEFAULT_COLUMNS, EARLIEST, LATEST, Fetcher
from headwater.errors import RequestRefused

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
    for each in found:
        each.validate(full=True)
        assert each.num_rows
    return pa.Table.from_batches(found, schema_of(columns)).to_pylist()


def values(fetcher: Fetcher, topic: str, start: int, end: int) -> list[bytes | None]:
    return [row["value"] for row in rows(fetcher, topic, start, end, ("value",))]


def end_of(fetcher: Fetcher, topic: str, partition: int = 0) -> int:
    return fetcher.offsets([(topic, partition)], LATEST)[topic, partition]


def as_rows(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages of librdkafka's in our columns."""
    return [
        {
            "key": each.key(),
            "value": each.value(),
            "offset": each.offset(),
            "timestamp": each.timestamp()[1],
            "headers": [{"name": name, "value": value} for name, value in each.headers() or ()],
        }
        for each in found
    ]


def with_ms(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "timestamp": round(row["timestamp"].timestamp() * 1000)} for row in found]


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
    with Fetcher(address, NOBODY) as fetcher:
        end = end_of(fetcher, topic)
        assert with_ms(rows(fetcher, topic, 0, end)) == as_rows(messages(address, topic))
        assert [row["offset"] for row in rows(fetcher, topic, 5, 3001)] == list(range(5, 3001))


def test_topics_partitions_and_offsets(address: str) -> None:
    one, two = new_topic(address, 3), new_topic(address)
    with producer(address) as writer:
        writer.send({(one, 1): [batch(b"a", b"b")], (two, 0): [batch(b"c")]})
        writer.commit()
        writer.fence()
    with Fetcher(address, NOBODY) as fetcher:
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
    with producer(address) as one, producer(address) as other, Fetcher(address, NOBODY) as fetcher:
        one.send({(topic, 0): [batch(b"1"), batch(b"2")]})
        other.send({(topic, 0): [batch(b"aborted 1")]})
        one.send({(topic, 0): [batch(b"3")]})
        other.abort()
        one.commit()
        one.fence()
        other.fence()
        other.send({(topic, 0): [batch(b"open")]})
        assert values(fetcher, topic, 0, end_of(fetcher, topic)) == [b"1", b"2", b"3"]
        with Fetcher(address, NOBODY, isolation="read_uncommitted") as dirty:
            assert values(dirty, topic, 0, end_of(dirty, topic)) == [
                b"1", b"2", b"aborted 1", b"3", b"open",
            ]  # fmt: skip
        before = end_of(fetcher, topic)
        other.abort()
        eventually(lambda: end_of(fetcher, topic) > before)
        # Nothing but aborted records and markers up to the end.
        assert values(fetcher, topic, before, end_of(fetcher, topic)) == []
        assert values(fetcher, topic, 3, 3) == []


def test_columns_are_those_asked_for(address: str) -> None:
    topic = new_topic(address)
    with producer(address) as writer, Fetcher(address, NOBODY) as fetcher:
        writer.send({(topic, 0): [batch(b"a", None)]})
        writer.commit()
        writer.fence()
        assert rows(fetcher, topic, 0, 2, ("value",)) == [{"value": b"a"}, {"value": None}]
        assert rows(fetcher, topic, 0, 2, ("offset", "key")) == [
            {"offset": 0, "key": b"k"},
            {"offset": 1, "key": b"k"},
        ]
        assert set(rows(fetcher, topic, 0, 1, DEFAULT_COLUMNS)[0]) == set(DEFAULT_COLUMNS)
