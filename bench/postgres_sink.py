"""Rows a second into PostgreSQL, by our sink and by Spark's `df.write.jdbc`, in turn, on the same
rows and the same server.

Both are given a DataFrame in Spark's memory, and end in a committed table; the server syncs as it
does by default. Ours goes the way of a micro-batch: collected as Arrow, then applied with its
position. jdbc adds rows and cannot replace any, so it is the peer of upserts, too.
"""

import statistics
import time
from contextlib import closing
from functools import partial

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc

from bench.peers import headwater
from bench.peers import spark as sparks
from bench.peers.postgres import Postgres, postgres
from bench.rounds import Figures, Measured, alternate, data_directory
from headwater.pipelines.running.row_order import in_log_order
from headwater.settings import Secret
from headwater.sinks.contract import Batch, Log, Target, Writer
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

BATCHES, SMALL = 3, 100
TUNED = {"reWriteBatchedInserts": "true", "batchsize": "10000"}
APPENDS = "append a DataFrame to PostgreSQL"
UPSERTS = "upsert a DataFrame into PostgreSQL"
BY_DEFAULT = " (jdbc by default)"


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


def measure(count: int, rounds: int, figures: Figures) -> None:
    spark = sparks.spark_for_both()
    table = rows(count)
    size = count // BATCHES
    frames = [
        spark.createDataFrame(table.slice(number * size, size)).repartition(2).cache()
        for number in range(BATCHES)
    ]
    whole = spark.createDataFrame(table).repartition(2).cache()
    for frame in (*frames, whole):
        frame.count()
    with data_directory() as directory, postgres(directory) as server:
        turns = {
            headwater.NAME: partial(_ours, server, table, frames),
            sparks.NAME: partial(_sparks, server, whole, count),
        }
        alternate(turns, rounds, figures, warm_ups=1)
    for frame in (*frames, whole):
        frame.unpersist()


def _ours(server: Postgres, table: pa.Table, frames: list) -> Measured:
    appends = _written(server, frames, (), len(table))
    upserts = _written(server, frames, ("id",), len(table))
    size = len(table) // BATCHES
    pieces = [table.slice(number * size, size) for number in range(BATCHES)]
    alone = _written(server, pieces, (), len(table))
    return {
        f"{APPENDS}, rows/s": appends["new"],
        f"{APPENDS}{BY_DEFAULT}, rows/s": appends["new"],
        f"{UPSERTS}, new keys, rows/s": upserts["new"],
        f"{UPSERTS}, keys that are there, rows/s": upserts["again"],
        "append Arrow tables to PostgreSQL, no Spark, rows/s": alone["new"],
        "a batch of 10 upserts, ms": upserts["small, ms"],
    }


def _written(server: Postgres, given: list, key: tuple[str, ...], count: int) -> Measured:
    """DataFrames or Arrow tables into an empty table, and once more."""
    settings = SinkSettings("bench", "postgres", Secret(server.url))
    tables = [rows if isinstance(rows, pa.Table) else rows.limit(1).toArrow() for rows in given]
    measured: Measured = {}
    with (
        closing(store_of(settings, Target("bench", "ours", key), Log(""))) as store,
        store.writer(1, tables[0].schema) as writer,
    ):
        for again in ("new", "again"):
            began_s = time.perf_counter()
            for rows in given:
                _apply(writer, rows if isinstance(rows, pa.Table) else in_log_order(rows.toArrow()))
            measured[again] = count / (time.perf_counter() - began_s)
        taken_s = []
        some = given[0] if isinstance(given[0], pa.Table) else given[0].limit(10).toArrow()
        for _ in range(SMALL if key else 1):
            began_s = time.perf_counter()
            _apply(writer, some.slice(0, 10))
            taken_s.append(time.perf_counter() - began_s)
        measured["small, ms"] = statistics.median(taken_s) * 1000
    _drop(server, "ours", "__headwater_positions")
    return measured


def _apply(writer: Writer, some: pa.Table) -> None:
    done = writer.position.batch + 1 if writer.position else 0
    starts = {"t": {0: done}} if done else {}
    writer.apply(Batch("q", done, starts, {"t": {0: done + 1}}, some))


def _sparks(server: Postgres, frame, count: int) -> Measured:
    tuned = _by_jdbc(server, frame, TUNED, count)
    return {
        f"{APPENDS}, rows/s": tuned,
        f"{APPENDS}{BY_DEFAULT}, rows/s": _by_jdbc(server, frame, {}, count),
        f"{UPSERTS}, new keys, rows/s": tuned,
        f"{UPSERTS}, keys that are there, rows/s": tuned,
    }


def _by_jdbc(server: Postgres, frame, options: dict[str, str], count: int) -> float:
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres"
    properties = {"user": "postgres", "driver": "org.postgresql.Driver", **options}
    began_s = time.perf_counter()
    frame.write.jdbc(url, "sparks", "append", properties)
    taken_s = time.perf_counter() - began_s
    _drop(server, "sparks")
    return count / taken_s


def _drop(server: Postgres, *tables: str) -> None:
    with closing(psycopg2.connect(server.dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for table in tables:
                cursor.execute(f"DROP TABLE {table}")
            cursor.execute("CHECKPOINT")
