"""`python -m bench.postgres_sink`: rows per second into PostgreSQL, by our sink and by Spark's
`df.write.jdbc`, in turn, on the same rows and the same server.

Ours is given Arrow tables (what a pipeline's driver holds), Spark a DataFrame in its memory. Both
end in a committed table; the server syncs as it does by default.
"""

import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc

import headwater as hw
from bench.peers.postgres import Postgres, postgres
from bench.peers.provision import WORK, postgresql_jdbc_jars
from headwater.settings import Secret
from headwater.sinks.contract import Batch, Log, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

ROUNDS, ROWS, PER_BATCH, SMALL = 3, 300_000, 100_000, 200


def rows(count: int) -> pa.Table:
    ids = pa.array(range(count), pa.int64())
    text = ids.cast(pa.string())
    return pa.table(
        {
            "id": ids,
            "customer": pc.divide(ids, 7),
            "name": pc.binary_join_element_wise("customer", text, " "),
            "email": pc.binary_join_element_wise(text, "example.org", "@"),
            "total": pc.divide(ids.cast(pa.float64()), 4),
            "price": ids.cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
            "at": pa.array(pc.add(ids, 1_700_000_000_000_000)).cast(pa.timestamp("us", "UTC")),
            "is_paid": pc.equal(pc.bit_wise_and(ids, 1), 0),
        }
    )


def ours(server: Postgres, table: pa.Table, key: tuple[str, ...], figures: dict) -> None:
    """Into an empty table, then the same rows once more; without a key they are added again."""
    settings = SinkSettings("bench", "postgres", Secret(server.url))
    with (
        closing(store_of(settings, Target("bench", "ours", key), Log(""))) as store,
        store.writer(1, table.schema) as writer,
    ):
        position = 0

        def apply(some: pa.Table) -> None:
            nonlocal position
            starts = {"t": {0: position}} if position else {}
            writer.apply(Batch("q", position, starts, {"t": {0: position + 1}}, some))
            position += 1

        for again in ("", " again"):
            began_s = time.perf_counter()
            for first in range(0, len(table), PER_BATCH):
                apply(table.slice(first, PER_BATCH))
            name = ("upserts" if key else "appends") + again
            figures[f"ours: {name}, rows/s"].append(len(table) / (time.perf_counter() - began_s))
        taken_s = []
        for n in range(SMALL):
            began_s = time.perf_counter()
            apply(table.slice(n * 10, 10))
            taken_s.append(time.perf_counter() - began_s)
        name = "upserts" if key else "appends"
        figures[f"ours: a batch of 10 {name}, ms"].append(statistics.median(taken_s) * 1000)
    _drop(server, "ours", "__headwater_positions")


def sparks(server: Postgres, frame, options: dict[str, str], name: str, figures: dict) -> None:
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres"
    properties = {"user": "postgres", "driver": "org.postgresql.Driver", **options}
    began_s = time.perf_counter()
    frame.write.jdbc(url, "sparks", "append", properties)
    figures[f"Spark's jdbc, {name}: appends, rows/s"].append(ROWS / (time.perf_counter() - began_s))
    _drop(server, "sparks")


def _drop(server: Postgres, *tables: str) -> None:
    with closing(psycopg2.connect(server.dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for table in tables:
                cursor.execute(f"DROP TABLE {table}")
            cursor.execute("CHECKPOINT")


def main() -> None:
    figures: dict[str, list[float]] = defaultdict(list)
    table = rows(ROWS)
    spark = hw.spark(
        "bench", "local[2]", jars=postgresql_jdbc_jars(), **{"spark.driver.memory": "2g"}
    )
    frame = spark.createDataFrame(table).repartition(2).cache()
    frame.count()
    WORK.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=WORK) as folder,
        postgres(Path(folder)) as server,
    ):
        turns = [
            lambda: ours(server, table, ("id",), figures),
            lambda: ours(server, table, (), figures),
            lambda: sparks(server, frame, {}, "2 tasks", figures),
            lambda: sparks(
                server, frame, {"reWriteBatchedInserts": "true", "batchsize": "10000"},
                "2 tasks, rewritten batches", figures,
            ),
        ]  # fmt: skip
        for number in range(ROUNDS):
            shift = number % len(turns)
            for turn in turns[shift:] + turns[:shift]:
                turn()
    spark.stop()
    for name, values in sorted(figures.items()):
        spread = f"{min(values):,.1f}–{max(values):,.1f}"
        print(f"{name:60} {statistics.median(values):12,.1f}  ({spread})")


if __name__ == "__main__":
    main()
