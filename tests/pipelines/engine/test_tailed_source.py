"""A source in the driver: bounded batches, and what happens while the tail is behind the log."""

import threading
import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from support.pipelines.project import wait_for

from headwater.client.reading import tailing
from headwater.errors import DataLost
from headwater.pipelines.engine import shared_log as shared_log_module
from headwater.pipelines.engine.local_plan import Source
from headwater.pipelines.engine.shared_log import SharedLog
from headwater.pipelines.engine.tailed_source import MOST_BYTES, MOST_ROWS, TailedSource
from headwater.pipelines.source.log_ends import LogEnds
from headwater.pipelines.source.options import read_options
from headwater.pipelines.source.reading import close_fetchers

RAW = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])


@pytest.fixture
def topic(broker_address):
    name = f"tailed-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker_address})
    made = NewTopic(name, 1, config={"max.message.bytes": str(64 << 20)})
    admin.create_topics([made])[name].result()
    return name


@pytest.fixture
def log(broker_address, topic):
    shared = SharedLog(read_options(options(broker_address, topic)))
    yield shared
    shared.tail.close()
    close_fetchers()


@pytest.fixture
def source(broker_address, topic, log):
    return TailedSource(Source(0, read_options(options(broker_address, topic)), RAW), log)


def options(bootstrap, topic):
    return {"bootstrap": bootstrap, "topic": topic, "value": "bytes"}


def produce(bootstrap, topic, values, **settings):
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 64 << 20, **settings})
    for value in values:
        producer.produce(topic, value, partition=0)
        producer.poll(0)
    producer.flush()


def begun(source, topic, offset=0):
    """The source follows the topic."""
    start = source.next_end({})
    assert start == {topic: {"0": 0}}
    assert source.next_end(start) == start
    return {topic: {"0": offset}}


def batches(source, topic, end):
    """Offsets and bytes of all batches up to an end."""
    start, found = {topic: {"0": 0}}, []
    while start != {topic: {"0": end}}:
        next_end = wait_for(lambda at=start: (new := source.next_end(at)) != at and new, "records")
        rows = source.read_batch(start, next_end)
        found.append((rows["offset"].to_pylist(), rows.nbytes))
        start = next_end
    assert [offset for offsets, _ in found for offset in offsets] == list(range(end))
    return found


def arrived(log, topic, end):
    wait_for(lambda: log.tail.ends([(topic, 0)]).get((topic, 0), (0, 0))[0] >= end, "the tail")


def test_a_tail_that_is_behind_what_a_query_has_read(
    source, broker_address, topic, log, monkeypatch
):
    """The records were read by a query, at whose end the tail has not arrived yet."""
    begun(source, topic)
    monkeypatch.setattr(tailing.Tail, "_add", lambda *_: None)
    produce(broker_address, topic, [b"x"] * 5)
    read = {topic: {"0": 5}}
    assert source.next_end(read) == read, "nothing new, and nothing lost"
    with pytest.raises(DataLost):
        source.next_end({topic: {"0": 6}})
    monkeypatch.undo()
    produce(broker_address, topic, [b"y"])
    assert wait_for(lambda: (end := source.next_end(read)) != read and end, "the record") == {
        topic: {"0": 6}
    }
    assert source.read_batch(read, {topic: {"0": 6}})["value"].to_pylist() == [b"y"]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_are_bounded_by_bytes_in_memory(source, broker_address, topic, log, codec):
    """Compressed records are a thousandth of what they take in memory."""
    begun(source, topic)
    count, size = 300, 100_000
    produce(
        broker_address,
        topic,
        [bytes(size)] * count,
        **{"compression.type": codec, "linger.ms": 50, "batch.size": 4 << 20},
    )
    arrived(log, topic, count)
    found = batches(source, topic, count)
    assert len(found) >= count * size // MOST_BYTES
    assert max(size_bytes for _, size_bytes in found) < 1.5 * MOST_BYTES


def test_batches_are_bounded_by_rows(source, broker_address, topic, log):
    begun(source, topic)
    count = int(2.5 * MOST_ROWS)
    produce(broker_address, topic, [b"x"] * count, **{"linger.ms": 20})
    arrived(log, topic, count)
    found = batches(source, topic, count)
    assert max(len(offsets) for offsets, _ in found) <= MOST_ROWS
    assert len(found) == 3


def test_a_record_larger_than_a_batch_goes_alone(source, broker_address, topic, log):
    begun(source, topic)
    large = 10 << 20
    values = [bytes(100)] * 3 + [bytes(large)] + [bytes(100)] * 3 + [bytes(large)] * 2
    for value in values:  # each in a batch of its own
        produce(broker_address, topic, [value])
    found = batches(source, topic, len(values))
    assert max(size_bytes for _, size_bytes in found) < 2 * large, "at most one of them in a batch"


def test_others_do_not_wait_while_one_asks_for_partitions(log, broker_address, topic, monkeypatch):
    asked = read_options(options(broker_address, topic))
    monkeypatch.setattr(shared_log_module, "_PARTITIONS_EVERY_S", 0.0)
    assert log.partitions(asked) == [(topic, 0)]
    monkeypatch.setattr(shared_log_module, "_PARTITIONS_EVERY_S", 900.0)
    is_asking, answer = threading.Event(), threading.Event()

    def slow(_):
        is_asking.set()
        assert answer.wait(120)
        return [(topic, 0), (topic, 1)]

    monkeypatch.setattr(LogEnds, "partitions", slow)
    waiting = threading.Thread(target=log.partitions, args=(asked,))
    waiting.start()
    assert is_asking.wait(60)
    assert log.partitions(asked) == [(topic, 0)], "what was found before"
    answer.set()
    waiting.join()
    assert log.partitions(asked) == [(topic, 0), (topic, 1)]
