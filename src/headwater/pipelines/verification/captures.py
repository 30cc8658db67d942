"""Proof that a captured topic is what its table is.

The database goes on while it is read, so there is no one moment for both. Instead:

    E0, the topic's end now ──▶ the table is read, chunk by chunk ──▶ the capture has passed all of
    that ──▶ E1, the topic's end then

What the topic had at E0 was committed before the table was read. So a row that did not change
between E0 and E1 must be equal, and one that did must be as the topic had it at some time between.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)

from headwater import config
from headwater.capture import positions
from headwater.capture.contract import Begin, Chunk, Source, Table
from headwater.capture.plan import topic_name
from headwater.capture.settings import with_password
from headwater.capture.shaping import Shaper
from headwater.capture.sources import source_of
from headwater.client.compacted import read_committed_latest
from headwater.errors import NotReady, PipelineError
from headwater.pipelines.decoding import decoder
from headwater.pipelines.decoding.captured import captured_schema
from headwater.pipelines.flow import Write
from headwater.pipelines.offsets import ends_of
from headwater.pipelines.position import POSITION
from headwater.pipelines.reading import BoundedReader, as_table
from headwater.pipelines.running.store_lookup import place_of
from headwater.pipelines.running.waiting import await_capture
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.verification.stores import Verdict, compare, seen_by_tasks, stored_frame
from headwater.sinks.contract import OP, TRUNCATE, Log, Offsets, Position

_AGAIN_S: Final = 0.05


def verify_captured(
    loaded: config.Config, spark: SparkSession, topic: str, *, timeout_s: float = 60.0
) -> Verdict:
    """Compares the table in the database with what its topic says."""
    settings = with_password(loaded.captures[topic.split(".", maxsplit=1)[0]])
    log = Log(loaded.bootstrap(), loaded.client)
    fields, key = captured_schema(log.bootstrap, log.login, topic)
    if not key:
        raise PipelineError(f"{topic} has no key: its rows cannot be told apart")
    source = source_of(settings, log.bootstrap)
    try:
        table = _table(source, settings.name, topic)
        shaper = Shaper(settings, source.connector, source.database)
        before = ends_of(log, [topic])
        with seen_by_tasks(spark, place_of(loaded)) as directory:
            path = directory / "stored.parquet"
            chunks = _chunks(source, table, settings.chunk_rows, _last(log, settings.name))
            last = _save(chunks, shaper, fields, path)
            await_capture(log, settings.name, last, time.monotonic() + timeout_s)
            return _compared(spark, log, topic, key, stored_frame(spark, path, fields), before)
    finally:
        source.close()


def _table(source: Source, capture: str, topic: str) -> Table:
    for table in source.tables():
        if topic_name(capture, table) == topic:
            return table
    raise PipelineError(f"the database has no table for {topic}")


def _last(log: Log, capture: str) -> Begin | None:
    """The last transaction that the topics have."""
    stored = positions.decode(
        capture, read_committed_latest(log.bootstrap, log.login, positions.TOPIC)
    )
    return stored.capture.last if stored.capture is not None else None


def _chunks(source: Source, table: Table, chunk_rows: int, known: Begin | None) -> Iterator[Chunk]:
    """The table. A database may send a transaction before others see it: a chunk that does not
    show `known` yet is read again.
    """
    after: Any = None
    while True:
        chunk = source.read_chunk(table, after, chunk_rows)
        if known is not None and not chunk.contains(known):
            time.sleep(_AGAIN_S)
            continue
        yield chunk
        after = chunk.after
        if after is None:
            return


def _save(chunks: Iterator[Chunk], shaper: Shaper, fields: pa.Schema, path: Path) -> Chunk:
    """The table as the topic would have it, in a file; the last chunk that was read."""
    decode = decoder("debezium", fields, {})
    with pq.ParquetWriter(path, fields.remove_metadata(), compression="lz4") as file:
        for chunk in chunks:
            for records in _records(shaper, chunk):
                decoded = decode.decode(records, "", 0)
                if decoded.rejected:
                    raise PipelineError(
                        "a row of the table cannot be read", detail=decoded.rejected[0].cause
                    )
                file.write_batch(decoded.rows.select(fields.names))
    return chunk


def _records(shaper: Shaper, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    shaped = list(shaper.rows(chunk.table, chunk.rows, positions.INCREMENTAL))
    if shaped:
        count = len(shaped)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([each[1] for each in shaped], pa.binary()),
                pa.array([each[2] for each in shaped], pa.binary()),
                pa.array(range(count), pa.int64()),
                pa.array([0] * count, pa.timestamp("us", "UTC")),
            ],
            names=["key", "value", "offset", "timestamp"],
        )


def _compared(
    spark: SparkSession,
    log: Log,
    topic: str,
    key: tuple[str, ...],
    stored: DataFrame,
    before: Offsets,
) -> Verdict:
    after = ends_of(log, [topic])
    settings = PipelineSettings(topic, file="")
    changes = BoundedReader(spark, log, settings, after).changes(topic, None, "debezium", {})
    place = F.col(POSITION)
    known = F.lit(False)  # in front of E0
    for partition, end in before[topic].items():
        known |= (place["partition"] == partition) & (place["offset"] < end)
    derived = as_table(changes.where(known), key).select(*stored.columns)
    write = Write(derived, "topic", topic, key, "update", {})
    position = Position("", 0, after)
    between = changes.where(~known)
    if between.where(F.col(OP) == TRUNCATE).take(1):
        raise NotReady(f"the table of {topic} was truncated while it was read", hint="try again")
    return compare(write, 1, position, stored, derived, also=between)
