"""How far a condition gets down a plan of Spark's, and what is said where it does not."""

import pytest
from pyspark.sql import functions as F  # noqa: N812

from headwater.pipelines.lineage.plans import arrivals


@pytest.fixture
def frames(spark, tmp_path):
    """Sources that are no topics: `a` (id, of, x) and `b` (id, x)."""
    spark.range(9).selectExpr("id", "id % 3 of", "id x").write.parquet(f"{tmp_path}/a")
    spark.range(9).selectExpr("id", "id + 100 x").write.parquet(f"{tmp_path}/b")
    return spark.read.parquet(f"{tmp_path}/a"), spark.read.parquet(f"{tmp_path}/b")


def arrived(frame, condition, *sources):
    """(offsets of the rows that it leaves of each source or None, whether that is certain)."""
    found = []
    for source, arrival in zip(sources, arrivals(frame, condition, ()), strict=True):
        rows = None
        if arrival.condition is not None:
            rows = sorted(row.id for row in source.where(arrival.condition).collect())
        found.append((rows, arrival.is_certain))
    return found


def test_conditions_go_through_projections_groups_and_unions(frames):
    a, b = frames
    renamed = a.withColumnRenamed("id", "key").withColumnRenamed("x", "id").where("id != 4")
    assert arrived(renamed, F.col("key") == 5, a) == [([5], True)]
    grouped = a.where("x < 8").groupBy((F.col("of") + 1).alias("n")).count()
    assert arrived(grouped, F.col("n") == 3, a) == [([2, 5], True)]
    both = a.select("id", F.lit("a").alias("kind")).union(b.select("id", F.lit("b").alias("kind")))
    assert arrived(both, (F.col("kind") == "b") & (F.col("id") == 1), b) == [([1], True)]


def test_what_does_not_arrive_is_not_guessed(frames):
    a, b = frames
    doubled = F.udf(lambda value: 2 * value, "bigint")
    computed = a.where("x < 8").groupBy(doubled("id").alias("id")).count()
    assert arrived(computed, F.col("id") == 4, a) == [(None, False)]
    having = a.groupBy("of").agg(F.max("id").alias("id"))  # not the column of that name
    assert arrived(having, F.col("id") == 8, a) == [(None, False)]
    joined = a.join(b.withColumnRenamed("x", "y"), "id")
    assert arrived(joined, F.col("id") == 2, a, b) == [([2], False), ([2], False)]
    of_other = a.join(b.selectExpr("id of", "x y"), "of")
    assert arrived(of_other, F.col("id") == 2, a, b) == [([2], False), (None, False)]


def test_a_filter_of_the_pipeline_says_what_the_key_says(frames):
    a, _ = frames
    counted = a.where("of = 1").groupBy("of").count()
    assert arrived(counted, F.col("of") == 1, a) == [([1, 4, 7], True)]
