"""Rows a second into Spark, ours beside Spark's own connector.

One partition of one topic on one broker, values of 100 B, six columns to `noop`, on two cores;
plain, with lz4, and in transactions (read_committed). Both readers take turns on the same records
in the same Spark.
"""

import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from bench.clients.rdkafka import create_topics
from bench.peers import headwater, kafka
from bench.peers import spark as sparks
from bench.peers.provision import WORK
from bench.rounds import BROKERS, Figures, Measured, alternate, data_directory
from headwater.pipelines.source.kafka_connector import read_by_kafka_connector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZE_BYTES = 100
TRANSACTION_ROWS = 10_000
TOPICS = {"plain": "", "lz4": " with lz4", "transactions": " in transactions"}
STREAM = {"max_rows": "1000000", "max_bytes": str(1 << 30)}


def measure(broker_name: str, rows: int, rounds: int, figures: Figures) -> None:
    """Batch reads of each topic; and the plain one as a stream, on Kafka."""
    spark = sparks.spark_for_both()
    ours = spark.read.format("headwater"), spark.readStream.format("headwater")

    def read(name: str, topic: str, *, streaming: bool = False) -> "DataFrame":
        options = {"bootstrap": broker.address, "topic": topic, **(STREAM if streaming else {})}
        options["start"] = "earliest"
        if name == headwater.NAME:
            return ours[streaming].options(**options).load()
        return read_by_kafka_connector(spark, options, streaming=streaming)

    def batch(metric: str, name: str, topic: str) -> Measured:
        frame = read(name, topic)
        began_s = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return {metric: rows / (time.perf_counter() - began_s)}

    def stream(metric: str, name: str, topic: str) -> Measured:
        """By the time of its micro-batches; and by all the time from its start to its end."""
        with tempfile.TemporaryDirectory(dir=WORK) as checkpoint:
            writing = read(name, topic, streaming=True).writeStream.format("noop")
            writing = writing.option("checkpointLocation", checkpoint)
            began_s = time.perf_counter()
            query = writing.trigger(availableNow=True).start()
            query.awaitTermination()
            taken_s = time.perf_counter() - began_s
            progress = query.recentProgress
        found = sum(batch["numInputRows"] for batch in progress)
        assert found == rows, f"{name} found {found} of {rows} rows in the stream"
        batches_ms = sum(batch["durationMs"]["triggerExecution"] for batch in progress)
        return {
            f"{metric}, rows/s": rows / batches_ms * 1000,
            f"{metric} with the start, rows/s": rows / taken_s,
        }

    with data_directory() as directory, BROKERS[broker_name](directory / "broker") as broker:
        create_topics(broker.address, *TOPICS)
        for topic, label in TOPICS.items():
            print(f"  filling {topic}", flush=True)
            fill(broker.address, topic, rows)
            metric = f"batch read from {broker_name}{label}, rows/s"
            turns = {
                name: partial(batch, metric, name, topic) for name in (headwater.NAME, sparks.NAME)
            }
            alternate(turns, rounds, figures, warm_ups=1)
            found = read(headwater.NAME, topic).count()
            assert found == rows, f"{found} of {rows} rows in {topic}"
        if broker_name == kafka.NAME:
            metric = f"stream (availableNow) from {broker_name}"
            turns = {
                name: partial(stream, metric, name, "plain")
                for name in (headwater.NAME, sparks.NAME)
            }
            alternate(turns, rounds, figures, warm_ups=1)


def fill(address: str, topic: str, rows: int) -> None:
    """Numbers and padding: about as compressible as log lines are."""
    given = {
        "bootstrap.servers": address,
        "linger.ms": 50,
        "batch.size": 500_000,
        "queue.buffering.max.messages": 1_000_000,
        "compression.type": "lz4" if topic == "lz4" else "none",
    }
    in_transactions = topic == "transactions"
    if in_transactions:
        given["transactional.id"] = "bench"
    producer = Producer(given)
    if in_transactions:
        producer.init_transactions(60)
    for first in range(0, rows, TRANSACTION_ROWS):
        if in_transactions:
            producer.begin_transaction()
        for number in range(first, min(first + TRANSACTION_ROWS, rows)):
            producer.produce(topic, b"%0100d" % (number * 2654435761), b"%d" % number, 0)
        if in_transactions:
            producer.commit_transaction(60)
        producer.poll(0)
        while len(producer) > 500_000:
            producer.poll(0.05)
    assert producer.flush(120) == 0
