"""Nexmark q1 to q8 through the log, each answer value by value as DuckDB gives it."""

from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tiers import in_full

from bench.nexmark.answers import answer, in_order
from bench.nexmark.events import Events
from bench.nexmark.queries import MODES, QUERIES, STREAMED
from bench.nexmark.topics import DDL, END, PARTITIONS, fill_topics

WIDEST = ["q3", "q5"]  # in the quick tier: a join, and windows
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


def differing(rows, query, tables):
    """Rows that only one of the two has; averages may differ behind the ninth digit."""
    ours = Counter(rounded(row) for row in rows if END not in row)
    theirs = Counter(rounded(row) for row in answer(query, tables))
    assert theirs
    return (ours - theirs) + (theirs - ours)


def rounded(row):
    return tuple(float(f"{value:.9g}") if isinstance(value, float) else value for value in row)


@pytest.mark.parametrize("query", ["q4", *in_full("q5", "q6")])
def test_of_what_is_there(spark, address, tables, query):
    result = QUERIES[query](frames(spark.read, address)).toArrow()
    assert not differing(in_order(result), query, tables)


@pytest.mark.parametrize(
    "query", [*WIDEST, *in_full(*(query for query in STREAMED if query not in WIDEST))]
)
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
    assert not differing(rows, query, tables)
