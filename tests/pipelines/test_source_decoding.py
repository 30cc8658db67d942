"""Decoded values through Spark: types arrive, and what cannot be read is a dead letter, once."""

# ruff: noqa: DTZ001 (columns without a zone)
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from support.client.written import new_topic

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.pipelines.publishing.dead_letters import counts
from headwater.settings import ClientSettings

LOGIN = ClientSettings()


def write(address: str, topic: str, records, partition: int = 0) -> None:
    writer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    for key, value in records:
        writer.produce(topic, value, key, partition=partition)
    assert writer.flush(30) == 0


def reader(spark, address: str, topic: str, schema: str, **options):
    given = {"bootstrap": address, "topic": topic, "value": "json", **options}
    return spark.read.format("headwater").schema(schema).options(**given)


def test_every_type_of_spark(spark, broker_address) -> None:
    topic = new_topic(broker_address, 1)
    value = b"""{"id": 1, "price": 12.50, "day": "2024-02-29", "data": "AP8=", "flag": true,
        "at": "2024-02-29T13:51:30.5+02:00", "local": "2024-02-29 13:51:30", "ratio": 0.1,
        "text": {"a": 1}, "tags": {"x": 1}, "lines": [{"sku": "s", "n": 2}, null],
        "inner": {"deep": [[1], []]}}"""
    write(broker_address, topic, [(None, value), (b'{"id": 1}', None)])
    schema = """id long, price decimal(10,2), day date, at timestamp, local timestamp_ntz,
        data binary, flag boolean, ratio float, text string, tags map<string,int>,
        lines array<struct<sku:string,n:smallint>>, inner struct<deep:array<array<tinyint>>>,
        _op string, _at timestamp, _position struct<topic:string,partition:int,offset:long>"""
    frame = reader(spark, broker_address, topic, schema).load()
    table = frame.toArrow().to_pylist()
    first, deleted = table
    assert first["price"] == Decimal("12.50")
    assert first["day"] == date(2024, 2, 29)
    assert first["at"] == datetime(2024, 2, 29, 11, 51, 30, 500_000, tzinfo=UTC)
    assert first["local"] == datetime(2024, 2, 29, 13, 51, 30)
    assert first["data"] == b"\x00\xff"
    assert (first["flag"], first["text"]) == (True, '{"a": 1}')
    assert first["tags"] == [("x", 1)]
    assert first["lines"] == [{"sku": "s", "n": 2}, None]
    assert first["inner"] == {"deep": [[1], []]}
    assert (deleted["id"], deleted["_op"], deleted["price"]) == (1, "d", None)
    assert deleted["_position"] == {"topic": topic, "partition": 0, "offset": 1}


def dead_letters(address: str, topic: str) -> list[tuple[int, bytes]]:
    found = []
    with Fetcher(address, LOGIN) as fetcher:
        for partition in range(fetcher.partitions(topic + ".dlq")):
            place = (topic + ".dlq", partition)
            start, end = (fetcher.offsets([place], at)[place] for at in (EARLIEST, LATEST))
            for batch in fetcher.read(*place, start, end):
                found += [(partition, value) for value in batch.column("value").to_pylist()]
    return sorted(found)


def test_what_cannot_be_read_is_a_dead_letter_once(spark, broker_address, tmp_path) -> None:
    topic = new_topic(broker_address, 2)
    for partition in (0, 1):
        values = [b'{"id": %d}' % n if n % 5 else b"bad %d" % n for n in range(20)]
        write(broker_address, topic, [(None, value) for value in values], partition)
    wanted = [(partition, b"bad %d" % n) for partition in (0, 1) for n in (0, 10, 15, 5)]
    name = f"p{uuid4().hex[:6]}"
    schema = "id long, _position struct<topic:string,partition:int,offset:long>"
    options = {"on_bad": "dead-letter", "name": name}

    def run(checkpoint: str) -> int:
        seen = []
        given = {"bootstrap": broker_address, "topic": topic, "value": "json", **options}
        stream = spark.readStream.format("headwater").schema(schema).options(**given).load()
        writer = stream.writeStream.foreachBatch(
            lambda frame, _: seen.extend([frame.count(), frame.count()])  # two actions
        )
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        assert query.trigger(availableNow=True).start().awaitTermination(60)
        return sum(seen) // 2

    assert run("first") == 32
    assert dead_letters(broker_address, topic) == sorted(wanted)
    assert run("rebuilt") == 32  # from the start, by another query
    assert reader(spark, broker_address, topic, schema, **options).load().count() == 32
    assert dead_letters(broker_address, topic) == sorted(wanted)
    assert counts(broker_address, LOGIN, name) == {(topic, 0): 4, (topic, 1): 4}


def test_without_dead_letters_the_query_fails_and_names_the_record(spark, broker_address) -> None:
    topic = new_topic(broker_address, 1)
    write(broker_address, topic, [(None, b'{"id": 1}'), (None, b'{"id": "x"}')])
    frame = reader(spark, broker_address, topic, "id long")
    with pytest.raises(PySparkException, match='offset 1: field id: expected an integer, got "x"'):
        frame.load().collect()
    assert frame.option("on_bad", "skip").load().count() == 1
