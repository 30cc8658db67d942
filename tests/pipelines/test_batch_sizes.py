"""How many bytes a micro-batch has: bounded, also when records grow in the middle of it."""

import json
import os
from itertools import accumulate

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from headwater.pipelines.source.options import read_options
from headwater.pipelines.source.sizing import shortened
from headwater.pipelines.source.streaming import LogStreamReader

A, B, C = ("t", 0), ("t", 1), ("u", 0)


class Log:
    """Sizes of the records of each partition; counts how often it is asked."""

    def __init__(self, **sizes):
        self._sums = {
            ("t", int(name[1:])): [0, *accumulate(of_partition)]
            for name, of_partition in sizes.items()
        }
        self.asked = 0

    def size_of(self, place, first, last):
        self.asked += 1
        return self.bytes(place, first, last) / (last - first)

    def bytes(self, place, first, last):
        return self._sums[place][last] - self._sums[place][first]

    def of(self, start, end):
        return sum(self.bytes(place, start[place], end[place]) for place in end)


def test_small_records_that_are_followed_by_large_ones():
    log = Log(p0=[100] * 5_000 + [100_000] * 5_000)
    end = shortened({A: 0}, {A: 10_000}, 4_000_000, log.size_of)
    assert log.of({A: 0}, end) <= 4_000_000
    assert end[A] > 1_000
    assert shortened({A: 0}, {A: 5_000}, 4_000_000, log.size_of) == {A: 5_000}, "all of it fits"


@given(
    small=st.integers(1, 1_000),
    factor=st.integers(1, 1_000),
    before=st.integers(0, 3_000),
    behind=st.integers(1, 3_000),
    other=st.integers(0, 500),
    max_bytes=st.integers(1_000_000, 20_000_000),
)
def test_the_bound_holds_wherever_the_size_changes(small, factor, before, behind, other, max_bytes):
    log = Log(p0=[small] * before + [small * factor] * behind, p1=[small] * other)
    start = {A: 0, B: 0}
    end = shortened(start, {A: before + behind, B: other}, max_bytes, log.size_of)
    assert end[A] >= 1
    assert end[B] >= min(other, 1)
    least = small * factor + small  # one record of each goes on, whatever it has
    assert log.of(start, end) <= max(max_bytes, least)
    assert log.asked <= 2 * 11


def test_few_records_are_not_looked_at():
    log = Log(p0=[1] * 60)
    assert shortened({A: 0}, {A: 60}, 64 << 20, log.size_of) == {A: 60}
    assert log.asked == 0


def test_of_very_many_partitions_some_are_looked_at():
    log = Log(**{f"p{number}": [1_000] * 1_000 for number in range(100)})
    start = {("t", number): 0 for number in range(100)}
    end = shortened(start, dict.fromkeys(start, 1_000), 10_000_000, log.size_of)
    assert log.asked <= 16 * 11
    assert 9_000_000 < log.of(start, end) <= 10_000_000


RAW = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_of_a_real_log(broker_address, codec):
    topic = f"growing-{codec}"
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.create_topics([NewTopic(topic, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": broker_address, "compression.type": codec})
    for number in range(3_000):
        producer.produce(topic, os.urandom(100 if number < 1_500 else 50_000))
    producer.flush()
    given = {"bootstrap": broker_address, "topic": topic, "value": "bytes", "max_bytes": "4MB"}
    source = LogStreamReader(read_options(given), RAW)
    start = source.latestOffset({}, ReadMaxRows(1_000_000))
    sizes = []
    while (end := source.latestOffset(start, ReadMaxRows(1_000_000))) != start:
        (offset_range,) = source.partitions(start, end)
        sizes.append(sum(batch.nbytes for batch in source.read(offset_range)))
        start = json.loads(json.dumps(end))
    assert start == {topic: {"0": 3_000}}
    assert max(sizes) <= 4_200_000
    assert len(sizes) < 40
