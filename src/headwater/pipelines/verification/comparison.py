"""Two sets of rows compared: by checksums of buckets of keys, and row by row where those differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)
from pyspark.sql.types import DataType, DoubleType, FloatType, MapType, StructType

from headwater.pipelines.flow import AT, Write
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import DELETE, OP, Position

BUCKETS: Final = 1024
SHOWN: Final = 20
_TOLERANCE: Final = 1e-9  # floating point sums depend on their order, which differs between batches


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs. None: that side does not have it."""

    key: dict[str, Any]
    stored: dict[str, Any] | None
    derived: dict[str, Any] | None

    @property
    def columns(self) -> list[str]:
        """Those that differ, if both sides have the row."""
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
    not_derived: tuple[str, ...] = ()  # columns of the store that the pipeline no longer has
    missing: int = 0  # of those that differ, rows that the store does not have
    unexpected: int = 0  # and that only the store has

    @property
    def is_equal(self) -> bool:
        return self.count == 0


def compare(
    write: Write,
    version: int,
    position: Position,
    stored: DataFrame,
    derived: DataFrame,
    *,
    also: DataFrame | None = None,
    shown_of_each: int | None = None,
    check: Callable[[DataFrame], None] | None = None,
) -> Verdict:
    """With the first SHOWN differences, or so many that are missing, unexpected, and different.
    `also` are changes that may or may not be in the store: a row that equals the result of one
    of them is correct, too. `check` gets the derived rows of the buckets that differ. (Two rows of
    one key are among them: the store has one of them at most, so the bucket's rows differ.)
    """
    names = [name for name in stored.columns if name not in (OP, AT, POSITION)]
    key = write.key or tuple(names)
    sums = [_checksums(frame, key, names) for frame in (stored, derived)]
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
    if check is not None:
        types = {field.name: field.dataType for field in stored.schema}
        check(derived.where(_bucket(key, types).isin(differing)))
    found = _different(stored, derived, key, names, differing, counted=not write.key)
    if also is not None:
        found = _unless_changed(found, also, key, names)
    found = found.persist()
    try:
        is_missing, is_unexpected = F.col("stored").isNull(), F.col("derived").isNull()
        count, missing, unexpected = found.agg(
            F.count("*"), F.count_if(is_missing), F.count_if(is_unexpected)
        ).collect()[0]
        if shown_of_each is None:
            taken = found.take(SHOWN)
        else:
            kinds = (is_missing, is_unexpected, ~is_missing & ~is_unexpected)
            taken = [row for kind in kinds for row in found.where(kind).take(shown_of_each)]
        shown = [_difference(row.asDict(recursive=True), key, names) for row in taken]
    finally:
        found.unpersist()
    return Verdict(
        write.name,
        version,
        position,
        rows,
        len(differing),
        count,
        shown,
        missing=missing,
        unexpected=unexpected,
    )


def _checksums(frame: DataFrame, key: Sequence[str], names: Sequence[str]) -> DataFrame:
    kinds = {field.name: field.dataType for field in frame.schema}
    # A null does not change Spark's hash: which columns are null must be hashed too.
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
    """Spark does not hash maps, which have no order."""
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
    """Rows of these buckets that only one side has, or that differ."""
    kinds = {field.name: field.dataType for field in stored.schema}
    sides = []
    for frame in (stored, derived):
        of_buckets = frame.where(_bucket(key, kinds).isin(buckets))
        if counted:  # rows without a key are only counted
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
    kinds = {field.name: field.dataType for field in also.schema}
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
