"""Proof that a store is what its pipeline derives from the log.

    the store says: "I am at these offsets"  ──▶  its rows, in one consistent read
    the same function, as a batch job over the log up to those offsets  ──▶  rows it should have

Both are compared by the checksums of buckets of keys, and only buckets that differ row by row. The
pipeline may go on meanwhile: nothing is locked, and the offsets are the store's own.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, DoubleType, FloatType, MapType, StructType

from headwater.errors import NotReady, PipelineError
from headwater.pipelines.flow import AT, KEPT_OP, Write
from headwater.pipelines.offsets import check_derivable
from headwater.pipelines.operators.windows.results import EARLY, MARK
from headwater.pipelines.position import POSITION
from headwater.pipelines.reading import BoundedReader, as_table
from headwater.pipelines.running.query_run import open_store
from headwater.pipelines.running.runner import Pipeline, write_named
from headwater.sinks.contract import AT_LEAST_ONCE, DELETE, OP, Offsets, Position, Store

BUCKETS: Final = 1024
SHOWN: Final = 20
_TOLERANCE: Final = 1e-9  # floating point sums depend on their order; batches have another one


@dataclass(frozen=True, slots=True)
class Difference:
    """One row that is not as it should be. None: the row is not there."""

    key: dict[str, Any]
    stored: dict[str, Any] | None
    derived: dict[str, Any] | None

    @property
    def columns(self) -> list[str]:
        """Those that differ, if both rows are there."""
        if self.stored is None or self.derived is None:
            return []
        return [name for name, value in self.stored.items() if value != self.derived[name]]


@dataclass(frozen=True, slots=True)
class Verdict:
    write: str
    version: int
    position: Position
    rows: int
    buckets_differing: int
    count: int  # of the rows that differ
    differences: list[Difference] = field(default_factory=list)  # the first SHOWN
    not_derived: tuple[str, ...] = ()  # columns that the store has from an earlier time

    @property
    def is_equal(self) -> bool:
        return self.count == 0


def verify(pipeline: Pipeline, name: str, *, version: int | None = None) -> Verdict:
    """Compares one write's store (the live version) with the log at the store's own position."""
    write = write_named(pipeline.flow(), name)
    store = open_store(pipeline.place, pipeline.name, write)
    try:
        with seen_by_tasks(pipeline.spark, pipeline.place.state_dir) as directory:
            chosen, fields, position = _saved(store, write, version, directory)
            stored = stored_frame(pipeline.spark, directory / "stored.parquet", fields)
            derived = derive(pipeline, write, position.offsets)
            if is_net(write, fields.names):
                stored, derived = net_of(write, stored), net_of(write, derived)
            gone = tuple(name for name in stored.columns if name not in derived.columns)
            fields = pa.schema([each for each in fields if each.name in derived.columns])
            found = compare(
                write, chosen, position, stored.drop(*gone), _as_stored(derived, fields)
            )
            return replace(found, not_derived=tuple(each for each in gone if each != MARK))
    finally:
        store.close()


def is_readable(pipeline: Pipeline, name: str) -> bool:
    """Not so a webhook or a mail."""
    store = open_store(pipeline.place, pipeline.name, write_named(pipeline.flow(), name))
    try:
        return store.guarantee != AT_LEAST_ONCE
    finally:
        store.close()


def derive(pipeline: Pipeline, write: Write, offsets: Offsets) -> DataFrame:
    """What the pipeline derives from the log up to `offsets`: the rows that a store should have."""
    check_derivable(pipeline.settings, pipeline.place.log, offsets)
    reader = BoundedReader(pipeline.spark, pipeline.place.log, pipeline.settings, offsets)
    flow = pipeline.flow(reader)
    if flow.unrepeatable:
        raise PipelineError(
            f"pipeline {pipeline.name} uses " + ", ".join(dict.fromkeys(flow.unrepeatable)),
            detail="its rows depend on when they were derived, not on the log alone",
            hint="they cannot be verified",
        )
    bounded = write_named(flow, write.name)
    if bounded.not_from_log:
        raise PipelineError(
            f"pipeline {pipeline.name} reads {bounded.not_from_log}",
            detail="its rows depend on when they were derived, not on the log alone",
            hint="they cannot be verified; hw.enrich keeps a topic in step with the log",
        )
    frame = bounded.frame
    if not write.key:
        return frame
    if POSITION in frame.columns:
        return as_table(frame, write.key)
    if bounded.operators:
        return _once_each(pipeline.name, write, frame)
    if OP in frame.columns:
        raise PipelineError(
            f"pipeline {pipeline.name}: what goes to {write.table} has {OP} and no {POSITION}",
            detail="the order of the changes of a row is not known",
            hint=f'select "{POSITION}" too; it is not stored',
        )
    return frame


def _once_each(pipeline: str, write: Write, frame: DataFrame) -> DataFrame:
    """What operators derive from everything at once: each key once, as it is in the end. `_mark`
    is left out: what was corrected on the way is final here.
    """
    if OP in frame.columns:
        frame = frame.where(F.coalesce(F.col(OP), F.lit("")) != DELETE)
    twice = frame.groupBy(*write.key).count().where("count > 1").take(1)
    if twice:
        shown = ", ".join(f"{name}={twice[0][name]}" for name in write.key)
        raise PipelineError(
            f"pipeline {pipeline}: {write.table} is derived with two rows of one key",
            detail=shown,
            hint="a key that tells results apart has all columns that they are grouped by, and"
            f' the window\'s bounds; else select "{POSITION}" too, which has their order',
        )
    return frame.drop(MARK)


def is_net(write: Write, columns: Sequence[str]) -> bool:
    """Whether rows were added that retract others: results of windows, without a key."""
    return not write.key and bool(write.operators) and {KEPT_OP, MARK} <= set(columns)


def net_of(write: Write, frame: DataFrame) -> DataFrame:
    """A result, its retraction and the one that takes its place are what is left of them: the
    last. One that was retracted without having been is there with "d".
    """
    if frame.where(F.col(MARK) == EARLY).take(1):
        raise PipelineError(
            f"{write.name} has early results, and no key: it cannot be verified",
            detail="how often a window is told before it is final depends on the batches",
            hint="with a key, a window's last result takes the place of those before",
        )
    names = [name for name in frame.columns if name not in (KEPT_OP, MARK)]
    sign = F.when(F.col(KEPT_OP) == DELETE, -1).otherwise(1)
    left = frame.groupBy(*names).agg(F.sum(sign).alias("__net")).where("__net != 0")
    op = F.when(F.col("__net") < 0, DELETE).otherwise("c").alias(KEPT_OP)
    times = F.explode(F.sequence(F.lit(1), F.abs("__net").cast("int"))).alias("__each")
    return left.select(*names, op, times).drop("__each")


def _saved(
    store: Store, write: Write, version: int | None, directory: Path
) -> tuple[int, pa.Schema, Position]:
    """The store's rows, in files: there may be more of them than memory."""
    versions = {each.number: each for each in store.versions()}
    live = [each.number for each in versions.values() if each.is_live]
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
    """A directory for a store's rows. On a cluster it is beside the checkpoints, which are where
    all machines see them: a temporary one of the driver's would be empty elsewhere.
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
        *[F.col(each.name).cast(each.dataType).alias(each.name) for each in kinds]
    )


def compare(
    write: Write,
    version: int,
    position: Position,
    stored: DataFrame,
    derived: DataFrame,
    *,
    also: DataFrame | None = None,
) -> Verdict:
    """`also` are changes that may or may not be in the store: a row that is as one of them left it
    is right, too.
    """
    names = [name for name in stored.columns if name not in (OP, AT, POSITION)]
    key = write.key or tuple(names)
    sums = [_checksums(each, key, names) for each in (stored, derived)]
    pairs = sums[0].join(sums[1], "bucket", "full_outer")
    both = pairs.select(
        "bucket",
        *[
            F.coalesce(sums[side][name], F.lit(0)).alias(f"{name}_{side}")
            for side in (0, 1)
            for name in ("rows", "checksum")
        ],
    ).collect()
    rows = sum(row["rows_0"] for row in both)
    differing = [
        row["bucket"]
        for row in both
        if (row["rows_0"], row["checksum_0"]) != (row["rows_1"], row["checksum_1"])
    ]
    if not differing:
        return Verdict(write.name, version, position, rows, 0, 0)
    found = _different(stored, derived, key, names, differing, counted=not write.key)
    if also is not None:
        found = _unless_changed(found, also, key, names)
    found = found.persist()
    try:
        count = found.count()
        shown = [_difference(row.asDict(recursive=True), key, names) for row in found.take(SHOWN)]
    finally:
        found.unpersist()
    return Verdict(write.name, version, position, rows, len(differing), count, shown)


def _checksums(frame: DataFrame, key: Sequence[str], names: Sequence[str]) -> DataFrame:
    kinds = {each.name: each.dataType for each in frame.schema}
    # A null leaves Spark's hash as it was: who is null must be hashed too.
    hashed = F.xxhash64(
        *[_hashable(F.col(name), kinds[name]) for name in names],
        *[F.col(name).isNull() for name in names],
    )
    bucket = _bucket(key, kinds)
    return (
        frame.select(bucket.alias("bucket"), hashed.alias("hash"))
        .groupBy("bucket")
        .agg(
            F.count("*").alias("rows"),
            F.sum(F.col("hash").cast("decimal(38,0)")).alias("checksum"),
        )
    )


def _bucket(key: Sequence[str], kinds: dict[str, DataType]) -> Column:
    return F.pmod(
        F.xxhash64(*[_hashable(F.col(name), kinds[name]) for name in key]), F.lit(BUCKETS)
    )


def _hashable(column: Column, kind: DataType) -> Column:
    """A map has no order, and so no hash of Spark's."""
    if isinstance(kind, MapType):
        return F.array_sort(F.map_entries(column))
    if isinstance(kind, StructType) and any(isinstance(f.dataType, MapType) for f in kind):
        return F.to_json(column)
    return column


def _different(
    stored: DataFrame,
    derived: DataFrame,
    key: Sequence[str],
    names: Sequence[str],
    buckets: list[int],
    *,
    counted: bool,
) -> DataFrame:
    """Rows of these buckets that only one side has, or that are not the same."""
    kinds = {each.name: each.dataType for each in stored.schema}
    sides = []
    for frame in (stored, derived):
        of_buckets = frame.where(_bucket(key, kinds).isin(buckets))
        if counted:  # rows without a key are told apart by their number only
            keys = [_hashable(F.col(name), kinds[name]).alias(name) for name in names]
            of_buckets = of_buckets.select(*keys).groupBy(*names).agg(F.count("*").alias("count"))
        sides.append(of_buckets)
    columns = [*names, "count"] if counted else list(names)
    left = sides[0].select(F.struct(*columns).alias("stored"))
    right = sides[1].select(F.struct(*columns).alias("derived"))
    same_key = F.lit(True)
    for name in key:
        same_key &= F.col("stored")[name].eqNullSafe(F.col("derived")[name])
    joined = left.join(right, same_key, "full_outer")
    same = F.col("stored").isNotNull() & F.col("derived").isNotNull()
    for name in columns:
        same &= _same(F.col("stored")[name], F.col("derived")[name], kinds.get(name))
    return joined.where(~same)


def _unless_changed(
    found: DataFrame, also: DataFrame, key: Sequence[str], names: Sequence[str]
) -> DataFrame:
    kinds = {each.name: each.dataType for each in also.schema}
    row = F.struct(*names)
    changes = also.select(
        F.when(F.col(OP) != DELETE, row).alias("changed"),
        F.struct(*key).alias("changed_key"),
    )
    is_of_row = F.lit(True)
    is_so = F.col("stored").isNotNull() & F.col("changed").isNotNull()
    for name in key:
        of_row = F.coalesce(F.col("stored")[name], F.col("derived")[name])
        is_of_row &= of_row.eqNullSafe(F.col("changed_key")[name])
    for name in names:
        is_so &= _same(F.col("stored")[name], F.col("changed")[name], kinds.get(name))
    is_so |= F.col("stored").isNull() & F.col("changed").isNull()
    return found.join(changes, is_of_row & is_so, "left_anti")


def _same(left: Column, right: Column, kind: DataType | None) -> Column:
    if isinstance(kind, MapType):
        left, right = F.array_sort(F.map_entries(left)), F.array_sort(F.map_entries(right))
    same = left.eqNullSafe(right)
    if isinstance(kind, DoubleType | FloatType):
        near = F.abs(left - right) <= _TOLERANCE * F.greatest(F.abs(left), F.abs(right))
        same |= F.coalesce(near, F.lit(False))
    return same


def _difference(row: dict[str, Any], key: Sequence[str], names: Sequence[str]) -> Difference:
    stored, derived = row["stored"], row["derived"]
    either = stored if stored is not None else derived
    return Difference({name: either[name] for name in key}, stored, derived)
