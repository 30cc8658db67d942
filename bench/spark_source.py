"""`python -m bench.spark_source`: rows a second into Spark, ours beside Spark's own connector.

One partition of one topic on one broker, values of 100 B, a batch read with six columns to `noop`,
on two cores; plain, with lz4, and in transactions (read_committed). Both readers take turns on the
same records in the same Spark; the first read of each is left out.
"""

import argparse
import statistics
import time

from confluent_kafka import Producer

import headwater as hw
from bench.clients.rdkafka import create_topics
from bench.peers import headwater as ours
from bench.peers import kafka
from bench.peers.provision import spark_connector_jars
from bench.rounds import BROKERS, data_directory
from headwater.pipelines.source.kafka_connector import read_by_kafka_connector

SIZE_BYTES = 100
TRANSACTION_ROWS = 10_000
TOPICS = ("plain", "lz4", "transactions")
OURS, THEIRS = "headwater", "Spark's connector"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_source", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--broker", choices=[kafka.NAME, ours.NAME], default=kafka.NAME)
    options = parser.parse_args()
    for what, figures in measure(options.broker, options.rows, options.rounds).items():
        ratios = [a / b for a, b in zip(figures[OURS], figures[THEIRS], strict=True)]
        shown = ", ".join(f"{name} {_spread(values)}" for name, values in figures.items())
        print(f"{what}, rows/s: {shown}, ratio {_spread(ratios, '.2f')}")


def _spread(values: list[float], form: str = ",.0f") -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}}–{high:{form}})"


def measure(broker_name: str, rows: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Topic → reader → rows a second in each round."""
    jars = spark_connector_jars()
    figures: dict[str, dict[str, list[float]]] = {}
    with data_directory() as directory, BROKERS[broker_name](directory / "broker") as broker:
        create_topics(broker.address, *TOPICS)
        for topic in TOPICS:
            fill(broker.address, topic, rows)
        spark = hw.spark("bench", "local[2]", jars=jars, **{"spark.driver.memory": "2g"})
        for topic in TOPICS:
            options = {"bootstrap": broker.address, "topic": topic}
            readers = {
                OURS: lambda given: spark.read.format("headwater").options(**given).load(),
                THEIRS: lambda given: read_by_kafka_connector(spark, given, streaming=False),
            }
            for number in range(rounds + 1):
                for name, read in readers.items():
                    begun_s = time.perf_counter()
                    read(options).write.format("noop").mode("overwrite").save()
                    rate = rows / (time.perf_counter() - begun_s)
                    if number:
                        figures.setdefault(topic, {}).setdefault(name, []).append(rate)
                        print(f"  {topic} round {number}/{rounds} {name}: {rate:,.0f}", flush=True)
            for name, read in readers.items():
                found = read(options).count()
                assert found == rows, f"{name} found {found} of {rows} rows in {topic}"
        spark.stop()
    return figures


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


if __name__ == "__main__":
    main()
