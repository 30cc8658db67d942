"""Nexmark q1 to q8 through the log, each answer value by value as DuckDB gives it."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.nexmark.answers import answer, in_order
from bench.nexmark.events import Events
from bench.nexmark.queries import MODES, QUERIES, STREAMED
from bench.nexmark.topics import DDL, END, PARTITIONS, fill_topics

EVENTS = Events(20_000, per_s=500)  # 40 s


@pytest.fixture(scope="module")
def tables():
    return EVENTS.tables()


@pytest.fixture(scope="module")
def address(tables, broker_address):
    admin = AdminClient({"bootstrap.servers": broker_address})
    topics = [NewTopic(name, count) for name, count in PARTITIONS.items()]
    for created in admin.create_topics(topics).values():
        created.result()
    fill_topics(broker_address, tables)
    return broker_address


def frames(reader, address):
    added = "_op string, _at timestamp, "
    added += "_position struct<topic: string, partition: int, offset: bigint>"
    options = {"bootstrap": address, "value": "json", "start": "earliest"}
    return {
        name: reader.format("headwater")
        .options(**options, topic=name)
        .schema(f"{ddl}, {added}")
        .load()
        for name, ddl in DDL.items()
    }


def without_end(rows):
    return [row for row in rows if END not in row]


@pytest.mark.parametrize("query", QUERIES)
def test_of_what_is_there(spark, address, tables, query):
    result = QUERIES[query](frames(spark.read, address)).toArrow()
    assert without_end(in_order(result)) == pytest.approx(answer(query, tables))


@pytest.mark.parametrize("query", STREAMED)
def test_as_a_stream(spark, address, tables, query, tmp_path):
    spark.conf.set("spark.headwater.state.dir", str(tmp_path / "state"))
    reader = spark.readStream.option("max_rows", 7000)
    found = []
    writing = QUERIES[query](frames(reader, address)).writeStream.foreachBatch(
        lambda frame, _: found.append(frame.toArrow())
    )
    writing = writing.outputMode(MODES.get(query, "append")).trigger(availableNow=True)
    writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    rows = [row for table in found for row in in_order(table)]
    assert sorted(without_end(rows)) == answer(query, tables)
