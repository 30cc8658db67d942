"""Decoded values through Spark: types arrive, and what cannot be read is a dead letter, once."""

# ruff: noqa: DTZ001 (columns without a zone)
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from support.client.written import new_topic

from headwater.client.erasing import erase_records
from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.pipelines.publishing.dead_letters import counts
from headwater.settings import ClientSettings

LOGIN = ClientSettings()


def write(address: str, topic: str, records, partition: int = 0) -> None:
    writer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    for key, value in records:
        writer.produce(topic, value, key, partition=partition)
    assert writer.flush(60) == 0


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


def test_erased_records_are_skipped(spark, broker_address) -> None:
    """Whatever is done with bad records, they are none."""
    topic = new_topic(broker_address, 1)
    records = [(b'{"id": %d}' % n, b'{"id": %d, "name": "alice"}' % n) for n in range(6)]
    write(broker_address, topic, records)
    erase_records(broker_address, LOGIN, {(topic, 0): [0, 3, 5]})
    for on_bad in ("fail", "dead-letter"):
        options = {"on_bad": on_bad, "name": "erased"}
        frame = reader(spark, broker_address, topic, "id long, name string", **options).load()
        assert sorted(row.id for row in frame.collect()) == [1, 2, 4]
    assert (
        topic + ".dlq"
        not in AdminClient({"bootstrap.servers": broker_address}).list_topics(timeout=60).topics
    )


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


def test_avro_has_its_columns_and_schemas_from_the_registry(spark, broker_address) -> None:
    """Values of two versions: the columns are those of the last one."""
    from headwater.pipelines.reading import LiveReader
    from headwater.pipelines.settings import PipelineSettings
    from headwater.schemas.registry.registry import Registry
    from headwater.schemas.schema import Schema
    from headwater.schemas.wire_format import framed
    from headwater.sinks.contract import Log

    topic = new_topic(broker_address, 1)
    registry = Registry(broker_address, LOGIN)
    registry.open()
    head = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}'
    note = ',{"name":"note","type":["null","string"],"default":null}'
    first = registry.register(f"{topic}-value", Schema(head + "]}")).id
    second = registry.register(f"{topic}-value", Schema(head + note + "]}")).id
    registry.close()
    values = [framed(first, b"\x02"), framed(second, b"\x04\x02\x02x"), framed(second, b"\x06\x00")]
    write(broker_address, topic, [(None, value) for value in values])
    reader = LiveReader(
        spark, Log(broker_address), PipelineSettings(name="registered", file="x.py")
    )
    frame = reader.table(topic, None, "avro", {"key": "id"})
    rows = {(row["id"], row["note"]) for row in frame.select("id", "note").collect()}
    assert rows == {(1, None), (2, "x"), (3, None)}


def test_protobuf_has_its_columns_and_schemas_from_the_registry(spark, broker_address) -> None:
    from headwater.pipelines.reading import LiveReader
    from headwater.pipelines.settings import PipelineSettings
    from headwater.schemas.registry.registry import Registry
    from headwater.schemas.schema import PROTOBUF, Schema
    from headwater.schemas.wire_format import framed
    from headwater.sinks.contract import Log

    topic = new_topic(broker_address, 1)
    registry = Registry(broker_address, LOGIN)
    registry.open()
    text = (
        'syntax = "proto3"; message R { int64 id = 1; repeated string notes = 2; uint64 big = 3; }'
    )
    schema_id = registry.register(f"{topic}-value", Schema(text, PROTOBUF)).id
    registry.close()
    values = [b"\x00\x08\x01", b"\x00\x08\x02\x12\x01x\x18\x05"]
    write(broker_address, topic, [(None, framed(schema_id, value)) for value in values])
    reader = LiveReader(spark, Log(broker_address), PipelineSettings(name="messages", file="x.py"))
    frame = reader.table(topic, None, "protobuf", {"key": "id"})
    rows = {(row["id"], tuple(row["notes"]), int(row["big"])) for row in frame.collect()}
    assert rows == {(1, (), 0), (2, ("x",), 5)}
