"""Rows a second from Spark into a topic, ours beside Spark's own.

Ours writes each time in one transaction (exactly once), Spark's sink for Kafka at least once. Keys
of 8 and values of 100 B from a cached DataFrame of two partitions, as they are (bytes) and as JSON
that the sink (ours) or Spark (theirs) makes of three columns. Both take turns in the same Spark.
"""

import time
from functools import partial
from uuid import uuid4

from bench.clients.rdkafka import create_topics
from bench.peers import headwater
from bench.peers import spark as sparks
from bench.rounds import BROKERS, Figures, Measured, alternate, data_directory

_RECORDS = (
    "CAST(lpad(CAST(id AS STRING), 8, '0') AS BINARY) AS key",
    "CAST(lpad(CAST(id * 2654435761 AS STRING), 100, '0') AS BINARY) AS value",
)
_COLUMNS = ("id", "lpad(CAST(id * 2654435761 AS STRING), 60, '0') AS name", "id / 7 AS price")
_JSON = (
    "CAST(to_json(struct(id)) AS BINARY) AS key",
    "CAST(to_json(struct(*)) AS BINARY) AS value",
)


def measure(broker_name: str, rows: int, rounds: int, figures: Figures) -> None:
    spark = sparks.spark_for_both()
    with data_directory() as directory, BROKERS[broker_name](directory / "broker") as broker:
        for form, columns in (("bytes", _RECORDS), ("json", _COLUMNS)):
            frame = spark.range(rows, numPartitions=2).selectExpr(*columns).cache()
            assert frame.count() == rows
            records = frame if form == "bytes" else frame.selectExpr(*_JSON)
            given = {"bootstrap": broker.address, "value": form}
            if form == "json":
                given["key"] = "id"
            theirs = {
                "kafka.bootstrap.servers": broker.address,
                "kafka.compression.type": "lz4",
            }
            writes = {
                headwater.NAME: frame.write.format("headwater").options(**given),
                sparks.NAME: records.write.format("kafka").options(**theirs),
            }
            metric = f"into a topic of {broker_name}, {form}, rows/s"
            turns = {
                name: partial(_write, metric, write, spark, broker.address, rows)
                for name, write in writes.items()
            }
            alternate(turns, rounds, figures, warm_ups=1)
            frame.unpersist()


def _write(metric: str, write, spark, address: str, rows: int) -> Measured:
    """Into a topic of its own."""
    topic = f"bench-{uuid4().hex[:8]}"
    create_topics(address, topic)
    began_s = time.perf_counter()
    write.option("topic", topic).mode("append").save()
    taken_s = time.perf_counter() - began_s
    _check(spark, address, topic, rows)
    return {metric: rows / taken_s}


def _check(spark, address: str, topic: str, rows: int) -> None:
    found = spark.read.format("headwater").options(bootstrap=address, topic=topic).load().count()
    assert found == rows, f"{found} of {rows} rows in {topic}"
