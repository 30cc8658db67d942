"""Aggregates and Spark: hashes equal to Spark's, Bloom filters tested in Spark."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812
from support.pipelines.accumulating import at_once, result

import headwater as hw
from headwater.pipelines.operators.runtime.hashing import hashes


def test_hashes_are_those_of_spark(spark):
    texts = ["x日Ä"[: n % 4] * n for n in range(120)]
    rows = [(text, n * 7919 - 10**17, n / 7 - 3) for n, text in enumerate(texts)]
    frame = spark.createDataFrame(rows, "text string, number bigint, ratio double")
    found = frame.select(
        "text",
        "number",
        "ratio",
        *[F.xxhash64(column).alias(f"of_{column}") for column in frame.columns],
    ).collect()
    for name in frame.columns:
        ours = hashes(pa.array([row[name] for row in found])).view(np.int64).tolist()
        assert ours == [row[f"of_{name}"] for row in found]


def test_filters_are_tested_in_spark(spark):
    table = pa.table({"x": pa.array([f"user {n}" for n in range(3000)])})
    bloom = hw.agg.bloom("x", expected=2000)
    group = np.arange(3000) % 2 * (np.arange(3000) < 10)  # five of them apart, all others
    many, few = result(bloom, table, at_once(bloom, table, group, 2))
    rows = [(many, "user 0"), (many, "user 2999"), (few, "user 3"), (few, "user 4"), (None, "x")]
    frame = spark.createDataFrame(rows, "seen binary, name string")
    found = frame.select(hw.agg.might_contain("seen", F.col("name")).alias("is_in")).collect()
    assert [row.is_in for row in found] == [True, True, True, False, None]
    with pytest.raises(Exception, match="of another type"):
        frame.select(hw.agg.might_contain("seen", F.lit(5))).collect()
