"""Rows that report how far a partition is read: true when planned, the same when run again."""

import json

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from headwater.pipelines.source.data_source import ADDED
from headwater.pipelines.source.options import read_options
from headwater.pipelines.source.progress import READ_TO_END, READ_TO_HERE
from headwater.pipelines.source.streaming import LogStreamReader

TOPIC = "progressing"
SCHEMA = StructType([StructField("id", LongType()), *ADDED])


@pytest.fixture
def bootstrap(broker_address):
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.create_topics([NewTopic(TOPIC, 2)])[TOPIC].result()
    return broker_address


def reader(bootstrap, **options):
    given = {"bootstrap": bootstrap, "topic": TOPIC, "value": "json", "progress": "true"}
    return LogStreamReader(read_options(given | options), SCHEMA)


def produce(bootstrap, partition, *ids):
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in ids:
        producer.produce(TOPIC, json.dumps({"id": number}).encode(), partition=partition)
    producer.flush()


def rows_read(source, offset_range):
    return [row for batch in source.read(offset_range) for row in batch.to_pylist()]


def progress_rows(source, start, end):
    """Of each partition: its ids, and what its last row says."""
    found = {}
    for offset_range in source.partitions(start, end):
        rows = rows_read(source, offset_range)
        assert rows[-1]["id"] is None
        assert rows[-1]["_position"]["partition"] == offset_range.partition
        found[offset_range.partition] = [row["id"] for row in rows[:-1]], rows[-1]["_op"]
    return found


def test_every_partition_reports_how_far_it_was_read_also_when_run_again(bootstrap):
    produce(bootstrap, 0, 1, 2, 3, 4)
    source = reader(bootstrap, max_rows="2")
    limit = ReadMaxRows(2)
    begun = source.latestOffset({}, limit)
    assert progress_rows(source, {}, begun) == {0: ([], READ_TO_HERE), 1: ([], READ_TO_END)}
    first = source.latestOffset(begun, limit)
    expected = {0: ([1, 2], READ_TO_HERE), 1: ([], READ_TO_END)}
    assert progress_rows(source, begun, first) == expected
    second = source.latestOffset(first, limit)
    at_end = {0: ([3, 4], READ_TO_END), 1: ([], READ_TO_END)}
    assert progress_rows(source, first, second) == at_end
    assert source.latestOffset(second, limit) == second  # nothing new: no micro-batch
    produce(bootstrap, 0, 5)
    produce(bootstrap, 1, 6)
    again = reader(bootstrap, max_rows="2")  # after a crash, when the log has grown
    assert progress_rows(again, first, second) == at_end
    third = again.latestOffset(second, limit)
    assert progress_rows(again, second, third) == {0: ([5], READ_TO_END), 1: ([6], READ_TO_END)}
    plain = reader(bootstrap, progress="false", max_rows="2")  # without the option nothing is added
    begun = plain.latestOffset({}, limit)
    end = plain.latestOffset(begun, limit)
    assert end == {TOPIC: {"0": 1, "1": 1}}
    rows = [
        row for partition in plain.partitions(begun, end) for row in rows_read(plain, partition)
    ]
    assert [row["id"] for row in rows] == [1, 6]
