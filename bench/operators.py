"""Windows and joins over the log, rows a second, beside Spark's own where it has them.

Everybody reads the same topics (two partitions, JSON, `format("headwater")`) in the same Spark on
two cores, with RocksDB as Spark's state store, to `noop`, half a million rows a micro-batch, until
the topics are read; rows a second are by the time of the micro-batches.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from confluent_kafka import Producer

import headwater as hw
from bench.clients.rdkafka import LoadFailedError, create_topics
from bench.nexmark.events import Events
from bench.nexmark.queries import MODES, QUERIES, STREAMED
from bench.nexmark.topics import DDL, PARTITIONS, fill_topics
from bench.peers import headwater
from bench.peers import spark as sparks
from bench.peers.provision import WORK
from bench.rounds import BROKERS, Figures, Measured, alternate, data_directory
from headwater.pipelines.flow import Flow
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.settings import PipelineSettings
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST_MS = 1_767_225_600_000  # 2026-01-01
SCHEMA = "k bigint, at timestamp, v bigint"
BATCH_ROWS = 500_000
_SECONDS = 60  # of event time, over all rows


@dataclass
class Topics:
    """A broker with topics, as streams."""

    spark: "SparkSession"
    address: str

    def stream(self, topic: str, schema: str = SCHEMA) -> "DataFrame":
        return self.flow.changes(topic, schema)

    @property
    def flow(self) -> Flow:
        settings = PipelineSettings("bench", file="", batch_rows=BATCH_ROWS, batch_bytes=1 << 30)
        reader = LiveReader(self.spark, Log(self.address, ClientSettings()), settings)
        return Flow(self.spark, "bench", reader, {})

    def bounded(self, topic: str, schema: str) -> "DataFrame":
        return self._read(self.spark.read, topic, schema)

    def _read(self, reader: Any, topic: str, schema: str) -> "DataFrame":
        reader = reader.format("headwater").option("bootstrap", self.address)
        reader = reader.option("topic", topic).option("value", "json").option("start", "earliest")
        return reader.schema(schema + ", " + _ADDED).load()

    def fill(self, topic: str, rows: Iterator[dict[str, Any]], key: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.address,
                "linger.ms": 50,
                "batch.size": 500_000,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        for number, row in enumerate(rows):
            producer.produce(topic, orjson.dumps(row), orjson.dumps({key: row[key]}))
            if number % 10_000 == 0:
                producer.poll(0)
                while len(producer) > 500_000:
                    producer.poll(0.05)
        assert producer.flush(120) == 0


_ADDED = (
    "_op string, _at timestamp, _position struct<topic: string, partition: int, offset: bigint>"
)


def keyed(rows: int, keys: int, seconds: int = _SECONDS) -> Iterator[dict[str, Any]]:
    for number in range(rows):
        at_ms = FIRST_MS + number * seconds * 1000 // rows
        yield {"k": number * 2654435761 % keys, "at": at_ms, "v": number}


def rate_of(
    frame: "DataFrame", metric: str, rows: int, mode: str = "append", *, read: int | None = None
) -> Measured:
    """Runs the query over what is there. `read`: how many rows it has to read, if not all."""
    with tempfile.TemporaryDirectory(dir=WORK) as checkpoint:
        writing = frame.writeStream.format("noop").outputMode(mode)
        query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:
            raise LoadFailedError(str(error)[:2000]) from None
        progress = query.recentProgress
        state = frame.sparkSession.conf.get("spark.headwater.state.dir")
        shutil.rmtree(str(state), ignore_errors=True)
    found = sum(batch["numInputRows"] for batch in progress)
    assert found >= (rows if read is None else read), f"{found} of {rows} rows"
    batches_ms = sum(
        batch["durationMs"]["triggerExecution"] for batch in progress if batch["numInputRows"]
    )
    return {metric: rows / batches_ms * 1000}


@contextmanager
def topics_on_ours(**partitions: int) -> Iterator[Topics]:
    spark = sparks.spark_for_both()
    with data_directory() as directory:
        spark.conf.set("spark.headwater.state.dir", str(directory / "state"))
        with BROKERS[headwater.NAME](directory / "broker") as broker:
            for name, count in partitions.items():
                create_topics(broker.address, name, partitions=count)
            yield Topics(spark, broker.address)


def measure(rows: int, keys: int, rounds: int, figures: Figures, *, alone: bool = False) -> None:
    """`alone`: ours only, for how it grows."""
    about = f"{keys // 1000}k keys"
    with topics_on_ours(events=2, clicks=2) as topics:
        print(f"  filling, {about}", flush=True)
        topics.fill("events", keyed(rows, keys), "k")
        topics.fill("clicks", keyed(rows, keys), "k")
        for what, (ours, theirs, count) in _parts(topics, rows).items():
            metric = f"{what}, {about}, rows/s"
            turns: dict[str, Callable[[], Measured]] = {
                headwater.NAME: lambda make=ours, m=metric, n=count: rate_of(make(), m, n)
            }
            if theirs is not None and not alone:
                turns[sparks.NAME] = lambda make=theirs, m=metric, n=count: rate_of(make(), m, n)
            alternate(turns, rounds, figures, warm_ups=1 if theirs is not None else 0)


def _parts(topics: Topics, rows: int) -> dict[str, tuple[Any, Any, int]]:
    from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)

    in_order = hw.event_time("at", delay="1 second")

    def events(name: str = "events") -> "DataFrame":
        return topics.stream(name)

    def watermarked(name: str = "events") -> "DataFrame":
        return topics.stream(name).withWatermark("at", "1 second")

    def windowed(window: Any) -> "DataFrame":
        return watermarked().groupBy(window, "k").count()

    def joined() -> "DataFrame":
        left = watermarked().select("k", "at", "v")
        right = events("clicks").selectExpr("k", "at AS clicked", "v AS click")
        right = right.withWatermark("clicked", "1 second")
        near = "clicked BETWEEN at - INTERVAL 2 SECONDS AND at + INTERVAL 2 SECONDS"
        return left.join(right, (left["k"] == right["k"]) & F.expr(near))

    clicks = partial(events, "clicks")

    return {
        "tumbling count, 10 s": (
            lambda: hw.tumbling(events(), in_order, "10 seconds", by=["k"]).agg(n=hw.agg.count()),
            lambda: windowed(F.window("at", "10 seconds")),
            rows,
        ),
        "hopping count, 10 s each 2 s": (
            lambda: hw.hopping(events(), in_order, "10 seconds", "2 seconds", by=["k"]).agg(
                n=hw.agg.count()
            ),
            lambda: windowed(F.window("at", "10 seconds", "2 seconds")),
            rows,
        ),
        "session count, gap 5 s": (
            lambda: hw.session(events(), in_order, "5 seconds", by=["k"]).agg(n=hw.agg.count()),
            lambda: windowed(F.session_window("at", "5 seconds")),
            rows,
        ),
        "sliding count and sum, 10 s": (
            lambda: hw.sliding(events(), in_order, "10 seconds", by=["k"]).agg(
                n=hw.agg.count(), total=hw.agg.sum("v")
            ),
            None,
            rows,
        ),
        "stream–stream inner join, 2 s": (
            lambda: hw.join(
                events(),
                clicks().selectExpr("k", "at AS clicked", "v AS click", "_op", "_at", "_position"),
                on="k",
                within="2 seconds",
                left_time=in_order,
                right_time=hw.event_time("clicked", delay="1 second"),
            ),
            joined,
            rows * 2,
        ),
        "stream–table join": (
            lambda: _enriched(topics.flow),
            None,
            rows * 2,
        ),
        "table–table join, changes": (
            lambda: hw.join_tables(
                events().drop("at"),
                clicks().withColumnRenamed("v", "click").drop("at"),
                on="k",
                left_key="k",
                right_key="k",
            ),
            None,
            rows * 2,
        ),
    }


def _enriched(flow: Flow) -> "DataFrame":
    table = flow.table("clicks", SCHEMA, key="k")
    return hw.enrich(flow.changes("events", SCHEMA), table, "k", columns={"v": "click"})


def nexmark(events: int, figures: Figures) -> None:
    """q4 and q6 are asked of what is there, the others of streams."""
    with topics_on_ours(**PARTITIONS) as topics:
        print("  filling Nexmark", flush=True)
        count = fill_topics(topics.address, Events(events, per_s=10_000).tables())
        for name, query in QUERIES.items():
            turn = partial(_answered, topics, name, query, count)
            alternate({headwater.NAME: turn}, 1, figures, warm_ups=1)


def _answered(topics: Topics, name: str, query: Any, count: int) -> Measured:
    """Events a second, whichever of the topics a question is about."""
    metric = f"Nexmark {name}, events/s"
    if name in STREAMED:
        frames = {topic: topics.stream(topic, ddl) for topic, ddl in DDL.items()}
        return rate_of(query(frames), metric, count, MODES.get(name, "append"), read=0)
    frames = {topic: topics.bounded(topic, ddl) for topic, ddl in DDL.items()}
    began_s = time.perf_counter()
    query(frames).write.format("noop").mode("overwrite").save()
    return {metric: count / (time.perf_counter() - began_s)}


Part = Callable[[int, Figures], None]


def parts(*, quick: bool) -> dict[str, Part]:
    share = 4 if quick else 1
    return {
        "beside Spark, 100k keys": lambda rounds, figures: measure(
            2_000_000 // share, 100_000, rounds, figures
        ),
        "growth, 10k keys": lambda _, figures: measure(
            2_000_000 // share, 10_000, 1, figures, alone=True
        ),
        "growth, 1M keys": lambda _, figures: measure(
            2_000_000 // share, 1_000_000, 1, figures, alone=True
        ),
        "Nexmark": lambda _, figures: nexmark(1_000_000 // share, figures),
    }
