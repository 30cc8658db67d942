"""Rows that a store refuses, on a broker, without Spark."""

import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from headwater.errors import RowRefused
from headwater.pipelines.publishing.refused_rows import RefusedRows, refused_count
from headwater.sinks.contract import Batch, Log
from headwater.sinks.topic.transactional_positions import read_positions

NOTHING = pa.table({"id": pa.array([], pa.int64())})


@pytest.fixture
def name():
    return f"p-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def refused_of(broker_address, name):
    made = []

    def refused(version=1):
        made.append(RefusedRows(Log(broker_address), f"{name}/cache/t", name, version))
        return made[-1]

    yield refused
    for rows in made:
        rows.close()


def batch(number, query="q"):
    return Batch(query, number, {}, {"orders": {0: number}}, NOTHING)


def rows(*ids):
    return [RowRefused("no", row={"id": number}, column="id") for number in ids]


def letters(broker_address, name):
    consumer = Consumer({"bootstrap.servers": broker_address, "group.id": "test"})
    consumer.assign([TopicPartition(f"{name}.dlq", 0, 0)])
    found = []
    while (message := consumer.poll(1)) is not None:
        found.append(message.value().decode())
    consumer.close()
    return found


def test_each_is_written_once(broker_address, name, refused_of):
    first = refused_of()
    refuse = first.of_batch(batch(1))
    refuse(rows(1))
    refuse(rows(2))  # a store may report in several calls
    refuse = first.of_batch(batch(1))  # the store's own transaction has failed: once more
    refuse(rows(1))
    refuse(rows(2))
    second = refused_of()  # the process was killed
    refuse = second.of_batch(batch(1))
    refuse(rows(1))
    refuse(rows(2))
    refuse(rows(3))  # … before it came so far
    second.of_batch(batch(2))(rows(4))
    second.of_batch(batch(1))(rows(1))
    assert letters(broker_address, name) == [f'{{"id":{n}}}' for n in (1, 2, 3, 4)]
    assert refused_count(read_positions(Log(broker_address)), f"{name}/cache/t", 1) == 4


def test_a_rebuild_does_not_stop_the_version_in_use(broker_address, name, refused_of):
    live, rebuilt = refused_of(1), refused_of(2)
    live.of_batch(batch(7))(rows(1))
    rebuilt.of_batch(batch(0, "other"))(rows(1))
    live.of_batch(batch(8))(rows(2))
    live.of_batch(batch(7))(rows(1))
    rebuilt.of_batch(batch(1, "other"))(rows(2))
    assert len(letters(broker_address, name)) == 4
    positions = read_positions(Log(broker_address))
    assert [refused_count(positions, f"{name}/cache/t", version) for version in (1, 2, 3)] == [
        2,
        2,
        0,
    ]
