"""Verification of a captured topic against its table.

The database changes while it is read, so no snapshot covers both. Instead:

    E0, the topic's end now ──▶ the table is read, chunk by chunk ──▶ the capture has passed all of
    that ──▶ E1, the topic's end then

The records before E0 were committed before the table was read. So a row that did not change between
E0 and E1 must be equal, and one that did must equal one of its states in between.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)

from headwater.capture import positions
from headwater.capture.contract import Begin, Chunk, Source, Table
from headwater.capture.records.plan import topic_name
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.capture.sources import source_of
from headwater.client.reading.compacted import read_committed_latest
from headwater.errors import NotReady, PipelineError
from headwater.pipelines.decoding import decoder
from headwater.pipelines.decoding.captured import captured_schema
from headwater.pipelines.flow import Write
from headwater.pipelines.offsets import ends_of
from headwater.pipelines.position import POSITION
from headwater.pipelines.reading import BoundedReader, as_table
from headwater.pipelines.running.capture_position import await_capture
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.verification.comparison import Verdict, compare
from headwater.pipelines.verification.stores import seen_by_tasks, stored_frame
from headwater.sinks.contract import OP, TRUNCATE, Log, Offsets, Position
from headwater.subjects.access import PersonalTopics

_AGAIN_S: Final = 0.05


def verify_captured(
    settings: CaptureSettings,
    log: Log,
    spark: SparkSession,
    topic: str,
    *,
    state_dir: Path,
    timeout_s: float = 60.0,
    personal: PersonalTopics | None = None,
) -> Verdict:
    """Compares the table in the database with its topic. `settings` include the password.
    `personal`: fields that the topic has encrypted; equal values are equal texts.
    """
    fields, key = captured_schema(log.bootstrap, log.login, topic)
    if not key:
        raise PipelineError(f"{topic} has no key to identify its rows")
    source = source_of(settings, log.bootstrap)
    try:
        table = _table(source, settings.name, topic)
        shaper = Shaper(settings, source.connector, source.database, personal)
        before = ends_of(log, [topic])
        with seen_by_tasks(spark, state_dir) as directory:
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


def _chunks(source: Source, table: Table, chunk_rows: int, last: Begin | None) -> Iterator[Chunk]:
    """The chunks of the table. A database may stream a transaction before it is visible to readers:
    a chunk that does not contain `last` yet is read again.
    """
    after: Any = None
    while True:
        chunk = source.read_chunk(table, after, chunk_rows)
        if last is not None and not chunk.contains(last):
            time.sleep(_AGAIN_S)
            continue
        yield chunk
        after = chunk.after
        if after is None:
            return


def _save(chunks: Iterator[Chunk], shaper: Shaper, fields: pa.Schema, path: Path) -> Chunk:
    """Saves the table as the topic would have it, in a file; the last chunk that was read."""
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
                pa.array([record[1] for record in shaped], pa.binary()),
                pa.array([record[2] for record in shaped], pa.binary()),
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
    position = F.col(POSITION)
    is_before = F.lit(False)  # E0
    for partition, end in before[topic].items():
        is_before |= (position["partition"] == partition) & (position["offset"] < end)
    derived = as_table(changes.where(is_before), key).select(*stored.columns)
    write = Write(derived, "topic", topic, key, "update", {})
    between = changes.where(~is_before)
    if between.where(F.col(OP) == TRUNCATE).take(1):
        raise NotReady(f"the table of {topic} was truncated while it was read", hint="try again")
    return compare(write, 1, Position("", 0, after), stored, derived, also=between)
