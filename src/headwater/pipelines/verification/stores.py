"""Verification of a store against the rows that its pipeline derives from the log.

    the store's rows and position, in one consistent read
    the same function, as a batch job over the log up to that position  ──▶  the expected rows

Both are compared by checksums of buckets of keys, and row by row only in buckets that differ. The
pipeline may run meanwhile: nothing is locked, and the offsets are the store's own.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)
from pyspark.sql.pandas.types import from_arrow_schema

from headwater.errors import NotReady, PipelineError
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.flow import STORED_OP, Write, has_results
from headwater.pipelines.offsets import check_derivable
from headwater.pipelines.operators.runtime.naming import CLOCK_CONDITION
from headwater.pipelines.operators.windows.results import EARLY, MARK
from headwater.pipelines.position import POSITION
from headwater.pipelines.reading import BoundedReader, as_table
from headwater.pipelines.running.environment import open_store
from headwater.pipelines.running.loaded_pipeline import Pipeline, write_named
from headwater.pipelines.verification.comparison import Verdict, compare
from headwater.sinks.contract import AT_LEAST_ONCE, DELETE, OP, Offsets, Position, Store


def verify(pipeline: Pipeline, name: str, *, version: int | None = None) -> Verdict:
    """Compares one write's store (the live version) with the log at the store's own position."""
    write = write_named(pipeline.flow(), name)
    store = open_store(pipeline.environment, pipeline.name, write)
    try:
        with seen_by_tasks(pipeline.spark, pipeline.environment.state_dir) as directory:
            chosen, fields, position = save_rows(store, write, version, directory)
            stored = stored_frame(pipeline.spark, directory / "stored.parquet", fields)
            derived = derive(
                pipeline, write, position.offsets, time_us(pipeline, write, chosen, position)
            )
            if is_net(write, fields.names):
                stored, derived = net_of(write, stored), net_of(write, derived)
            missing = tuple(name for name in stored.columns if name not in derived.columns)
            fields = pa.schema([field for field in fields if field.name in derived.columns])
            found = compare(
                write,
                chosen,
                position,
                stored.drop(*missing),
                _as_stored(derived, fields),
                check=lambda rows: refuse_two_rows(pipeline.name, write, rows),
            )
            return replace(found, not_derived=tuple(name for name in missing if name != MARK))
    finally:
        store.close()


def is_readable(pipeline: Pipeline, name: str) -> bool:
    """Whether the store can be read back; a webhook or a mail cannot."""
    store = open_store(pipeline.environment, pipeline.name, write_named(pipeline.flow(), name))
    try:
        return store.guarantee != AT_LEAST_ONCE
    finally:
        store.close()


def derive(
    pipeline: Pipeline, write: Write, offsets: Offsets, now_us: int | None = None
) -> DataFrame:
    """What the pipeline derives from the log up to `offsets`, at the time of the store's last
    batch: the rows that a store should have.
    """
    check_derivable(pipeline.settings, pipeline.environment.log, offsets)
    reader = BoundedReader(pipeline.spark, pipeline.environment.log, pipeline.settings, offsets)
    flow = pipeline.flow(reader, now_us=now_us)
    by_time = [what for what in flow.unrepeatable if what != CLOCK_CONDITION or now_us is None]
    if by_time:
        raise PipelineError(
            f"pipeline {pipeline.name} uses " + ", ".join(dict.fromkeys(by_time)),
            detail="its rows depend on when they were derived, not on the log alone"
            if by_time != [CLOCK_CONDITION]
            else "the time of the store's last batch is not in the checkpoint of this machine",
            hint="they cannot be verified",
        )
    bounded = write_named(flow, write.name)
    if bounded.not_from_log:
        raise PipelineError(
            f"pipeline {pipeline.name} reads {bounded.not_from_log}",
            detail="its rows depend on when they were derived, not on the log alone",
            hint="they cannot be verified; hw.enrich reads a topic in step with the log",
        )
    frame = bounded.frame
    if not write.key:
        return frame
    if POSITION in frame.columns and not has_results(frame):
        return as_table(frame, write.key)
    if bounded.operators:
        return _final_rows(frame)
    if OP in frame.columns:
        raise PipelineError(
            f"pipeline {pipeline.name}: what goes to {write.table} has {OP} and no {POSITION}",
            detail="the order of the changes of a row is undefined",
            hint=f'select "{POSITION}" too; it is not stored',
        )
    return frame


def time_us(pipeline: Pipeline, write: Write, version: int, position: Position) -> int | None:
    """Of the batch that the store has; None if this machine does not have its checkpoint."""
    state_dir = pipeline.environment.state_dir
    return Checkpoint(state_dir, pipeline.name, write.name, version).time_us(position)


def _final_rows(frame: DataFrame) -> DataFrame:
    """The rows that operators derive from the whole log at once: the final row of each key. `_mark`
    is left out: intermediate results are not derived here.
    """
    if OP in frame.columns:
        frame = frame.where(F.coalesce(F.col(OP), F.lit("")) != DELETE)
    return frame.drop(MARK)


def refuse_two_rows(pipeline: str, write: Write, frame: DataFrame) -> None:
    """Raises PipelineError if the frame has two rows of one key."""
    if write.key:
        twice = frame.groupBy(*write.key).count().where("count > 1").take(1)
        if twice:
            raise two_rows_of_one_key(pipeline, write, twice[0].asDict())


def two_rows_of_one_key(pipeline: str, write: Write, row: Mapping[str, Any]) -> PipelineError:
    return PipelineError(
        f"pipeline {pipeline}: {write.table} is derived with two rows of one key",
        detail=", ".join(f"{name}={row[name]}" for name in write.key),
        hint="the key of results has all columns that they are grouped by, and"
        f' the window\'s bounds; else select "{POSITION}" too, which has their order',
    )


def is_net(write: Write, columns: Sequence[str]) -> bool:
    """Whether rows were added that retract others: results of windows, without a key."""
    return not write.key and bool(write.operators) and {STORED_OP, MARK} <= set(columns)


def net_of(write: Write, frame: DataFrame) -> DataFrame:
    """The net of results and retractions: of a result, its retraction and its replacement, the last
    one. A retraction without its result stays, with "d".
    """
    if frame.where(F.col(MARK) == EARLY).take(1):
        raise PipelineError(
            f"{write.name} has early results, and no key: it cannot be verified",
            detail="how often a window has early results depends on the batches",
            hint="with a key, a window's last result replaces those before",
        )
    names = [name for name in frame.columns if name not in (STORED_OP, MARK)]
    sign = F.when(F.col(STORED_OP) == DELETE, -1).otherwise(1)
    left = frame.groupBy(*names).agg(F.sum(sign).alias("__net")).where("__net != 0")
    op = F.when(F.col("__net") < 0, DELETE).otherwise("c").alias(STORED_OP)
    times = F.explode(F.sequence(F.lit(1), F.abs("__net").cast("int"))).alias("__copy")
    return left.select(*names, op, times).drop("__copy")


def save_rows(
    store: Store, write: Write, version: int | None, directory: Path
) -> tuple[int, pa.Schema, Position]:
    """Saves the store's rows to a file: they may not fit into memory."""
    versions = {found.number: found for found in store.versions()}
    live = [found.number for found in versions.values() if found.is_live]
    chosen = version if version is not None else live[0] if live else None
    if chosen is None or chosen not in versions:
        raise NotReady(f"{write.name} has not been written yet")
    fields = versions[chosen].fields
    with store.read(chosen) as contents:
        if contents.position is None:
            raise NotReady(f"{write.name} has not been written yet")
        with pq.ParquetWriter(directory / "stored.parquet", fields, compression="lz4") as file:
            for batch in contents.rows:
                file.write_batch(batch)
        return chosen, fields, contents.position


@contextmanager
def seen_by_tasks(spark: SparkSession, state_dir: Path) -> Iterator[Path]:
    """A temporary directory for a store's rows. On a cluster it is beside the checkpoints, in the
    directory that all machines share: one of the driver's would be empty elsewhere.
    """
    is_here = str(spark.sparkContext.master).startswith("local")
    if not is_here:
        state_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="headwater-verify-", dir=None if is_here else state_dir
    ) as directory:
        yield Path(directory)


def stored_frame(spark: SparkSession, path: Path, fields: pa.Schema) -> DataFrame:
    return spark.read.schema(from_arrow_schema(fields)).parquet(path.as_uri())


def _as_stored(derived: DataFrame, fields: pa.Schema) -> DataFrame:
    kinds = from_arrow_schema(fields)
    return derived.select(
        *[F.col(field.name).cast(field.dataType).alias(field.name) for field in kinds]
    )
