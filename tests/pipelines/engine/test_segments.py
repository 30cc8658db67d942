"""Segments: what Spark evaluates in the driver is what a job gives, to the bit."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from headwater.pipelines.engine.segments import SegmentFailed, segments_of
from headwater.pipelines.operators.runtime.packing import NOW

NOW_MS = 1_767_225_600_123
SCHEMA = (
    "id bigint, name string, total decimal(10,2), at timestamp, day date, ratio double,"
    " tags array<string>, inner struct<a: int, b: string>, counts map<string,int>, raw binary"
)


def rows(spark, count=20):
    """As Spark's own types have them, with nulls."""
    made = [
        (
            None if n % 7 == 3 else n,
            None if n % 5 == 2 else f"näme {n}",
            Decimal(n) / 4,
            datetime(2026, 1, 1, 0, n % 60, tzinfo=UTC),
            date(2026, 1, 1 + n % 28),
            float("nan") if n % 6 == 1 else n / 3,
            None if n % 4 == 0 else [f"t{n}", None, "x"][: n % 4],
            None if n % 9 == 1 else (n, f"b{n}"),
            {"a": n, "b": None},
            bytes([n % 256, 0, 255]),
        )
        for n in range(count)
    ]
    return spark.createDataFrame(made, SCHEMA)


@pytest.fixture
def run(spark):
    """The frame that `derive` makes of the rows, evaluated in the driver, and by a job."""

    def run(derive, given=None):
        given = rows(spark) if given is None else given
        leaf = given._jdf.queryExecution().analyzed()
        derived = derive(given)
        plan = derived._jdf.queryExecution().analyzed()
        nodes = [leaf]
        segment = segments_of(spark).add(plan, nodes, derived.schema)
        found = segment.run([given.toArrow()], NOW_MS)
        segment.close()
        return segment, found, derived.toArrow()

    yield run
    segments_of(spark).disconnect()


def same(found, wanted):
    assert found.schema.names == wanted.schema.names
    left, right = found.to_pylist(), wanted.cast(found.schema).to_pylist()
    assert repr(left) == repr(right)


@pytest.mark.parametrize(
    "derive",
    [
        lambda frame: frame,
        lambda frame: frame.select("name", "id", "inner"),
        lambda frame: frame.where("id % 2 = 0").withColumn("double", F.col("total") * 2),
        lambda frame: frame.where("name IS NULL OR ratio > 1").select("*", F.upper("name")),
        lambda frame: frame.select("inner.*", "tags", F.element_at("counts", "a").alias("c")),
        lambda frame: frame.select(F.xxhash64("id", "name"), F.to_json("inner"), "raw", "day"),
        lambda frame: frame.where("id > 3").union(frame.where("id <= 3")),
        lambda frame: frame.union(frame).select("id"),
        lambda frame: frame.where("id < 0"),
        lambda frame: frame.select(
            F.date_format("at", "yyyy-MM-dd HH:mm:ss"), F.col("at").cast("date")
        ),
    ],
    ids=[
        "all",
        "columns",
        "filter",
        "nulls",
        "nested",
        "functions",
        "union",
        "twice",
        "none",
        "times",
    ],
)
def test_without_a_job(run, derive):
    segment, found, wanted = run(derive)
    same(found, wanted)
    assert "LogicalRDD" in segment.plan, "compiled"


@pytest.mark.parametrize(
    "derive",
    [
        lambda frame: frame.select("id", F.explode("tags").alias("tag")),
        lambda frame: frame.select("id", F.udf(lambda name: f"<{name}>", StringType())("name")),
        lambda frame: frame.join(
            frame.sparkSession.createDataFrame([(1, "one"), (2, "two")], "id bigint, word string"),
            "id",
        ).orderBy("id"),
    ],
    ids=["explode", "udf", "join"],
)
def test_with_a_job(run, derive):
    _, found, wanted = run(derive)
    same(found, wanted)


def test_only_chosen_columns_stay_in_python(run):
    segment, found, _ = run(lambda frame: frame.select("name", F.col("id").alias("number")))
    assert segment._columns == [1, 0]
    assert found.column_names == ["name", "number"]


def test_current_times_are_those_of_the_batch(run):
    _, found, _ = run(
        lambda frame: frame.select(
            F.current_timestamp().alias("now"),
            F.current_date().alias("day"),
            F.date_trunc("hour", F.current_timestamp()).alias("hour"),
        )
    )
    at = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert found["now"][0].as_py() == at
    assert found["day"][0].as_py() == at.date()
    assert found["hour"][0].as_py() == at.replace(minute=0, second=0, microsecond=0)


def test_the_time_of_a_batch_is_filled_in(run):
    segment, found, _ = run(lambda frame: frame.select("id", F.current_timestamp().alias(NOW)))
    assert "LogicalRDD" in segment.plan, "compiled, although it has the current time"
    assert set(found[NOW].to_pylist()) == {datetime.fromtimestamp(NOW_MS / 1000, UTC)}


def test_an_error_of_an_expression_says_what_it_is(run):
    with pytest.raises(SegmentFailed, match="CAST_INVALID_INPUT"):
        run(lambda frame: frame.select(F.col("name").cast("int")))


def test_many_rows_in_several_batches(spark, run):
    given = spark.range(50_000).selectExpr("id", "id % 100 AS part")
    segment, found, wanted = run(
        lambda frame: frame.where("part < 50").selectExpr("id * 2 AS n"), given
    )
    assert pa.compute.sum(found["n"]).as_py() == pa.compute.sum(wanted["n"]).as_py()
    assert len(found) == 25_000
    assert segment is not None
