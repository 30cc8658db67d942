"""`python -m bench.topic_sink`: rows a second from Spark into a topic, ours beside Spark's own.

Ours writes each time in one transaction (exactly once), Spark's sink for Kafka at least once. Keys
of 8 and values of 100 B from a cached DataFrame of two partitions, as they are (bytes) and as JSON
that the sink (ours) or Spark (theirs) makes of three columns. Both take turns in the same Spark;
the first write of each is left out.
"""

import argparse
import statistics
import time
from uuid import uuid4

import headwater as hw
from bench.clients.rdkafka import create_topics
from bench.peers import headwater as ours
from bench.peers import kafka
from bench.peers.provision import spark_connector_jars
from bench.rounds import BROKERS, data_directory

OURS, THEIRS = "headwater", "Spark's sink"
_RECORDS = (
    "CAST(lpad(CAST(id AS STRING), 8, '0') AS BINARY) AS key",
    "CAST(lpad(CAST(id * 2654435761 AS STRING), 100, '0') AS BINARY) AS value",
)
_COLUMNS = ("id", "lpad(CAST(id * 2654435761 AS STRING), 60, '0') AS name", "id / 7 AS price")
_JSON = (
    "CAST(to_json(struct(id)) AS BINARY) AS key",
    "CAST(to_json(struct(*)) AS BINARY) AS value",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.topic_sink", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
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
    """Form → sink → rows a second in each round."""
    figures: dict[str, dict[str, list[float]]] = {}
    with data_directory() as directory, BROKERS[broker_name](directory / "broker") as broker:
        spark = hw.spark(
            "bench", "local[2]", jars=spark_connector_jars(), **{"spark.driver.memory": "2g"}
        )
        for form, columns in (("bytes", _RECORDS), ("json", _COLUMNS)):
            frame = spark.range(rows, numPartitions=2).selectExpr(*columns).cache()
            assert frame.count() == rows
            records = frame if form == "bytes" else frame.selectExpr(*_JSON)
            our_options = {"value": form, **({"key": "id"} if form == "json" else {})}
            for number in range(rounds + 1):
                for name in (OURS, THEIRS):
                    topic = f"{form}-{uuid4().hex[:8]}"
                    create_topics(broker.address, topic)
                    if name == OURS:
                        write = frame.write.format("headwater").options(
                            bootstrap=broker.address, topic=topic, **our_options
                        )
                    else:
                        write = records.write.format("kafka").options(
                            **{"kafka.bootstrap.servers": broker.address, "topic": topic,
                               "kafka.compression.type": "lz4"}
                        )  # fmt: skip
                    begun_s = time.perf_counter()
                    write.mode("append").save()
                    rate = rows / (time.perf_counter() - begun_s)
                    if number:
                        figures.setdefault(form, {}).setdefault(name, []).append(rate)
                        print(f"  {form} round {number}/{rounds} {name}: {rate:,.0f}", flush=True)
                    if number == rounds:
                        _check(spark, broker.address, topic, rows)
            frame.unpersist()
        spark.stop()
    return figures


def _check(spark, address: str, topic: str, rows: int) -> None:
    found = spark.read.format("headwater").options(bootstrap=address, topic=topic).load().count()
    assert found == rows, f"{found} of {rows} rows in {topic}"


if __name__ == "__main__":
    main()
