"""An operator in Spark: all rows of a key meet, state goes from batch to batch, and a bounded run
gives the same."""

import pytest
from support.pipelines.project import Project

import headwater as hw
from headwater.pipelines.verification.stores import verify

PIPELINE = """
    from dataclasses import dataclass

    import pyarrow as pa

    from headwater.pipelines.operators.runtime.planning import Side, run_operator

    @dataclass(frozen=True)
    class Summing:
        output: pa.Schema = pa.schema([("name", pa.string()), ("total", pa.int64())])

        def step(self, state, inputs):
            rows = inputs[0].rows.select(["name", "total"])
            before = state.table("sums")
            both = rows if before is None else pa.concat_tables([before, rows])
            sums = both.group_by("name").aggregate([("total", "sum")])
            sums = sums.rename_columns(["name", "total"])
            state.put("sums", sums)
            met = rows.select(["name"]).group_by("name").aggregate([])
            return sums.join(met, "name", join_type="inner")

    rows = flow.changes("amounts", "name string, total bigint")
    sums = run_operator("summing", Summing(), [Side(rows, ("name",), ("name", "total"))])
    flow.write(sums, to="cache", table="sums", key="name", ignore_deletes=True)
"""


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


def test_state_goes_from_batch_to_batch_and_over_restarts(spark, project):
    project.topic("amounts", 3)
    project.pipeline("sums", PIPELINE)
    expected: dict[str, int] = {}
    for start in (0, 40, 80):
        rows = [{"name": f"n{n % 7}", "total": n} for n in range(start, start + 40)]
        for row in rows:
            expected[row["name"]] = expected.get(row["name"], 0) + row["total"]
        project.produce("amounts", *rows, key="name")
        with project.running(spark, "sums"):
            project.wait_until_at_end(spark, "amounts", "sums")
    assert dict(project.rows("SELECT name, total FROM sums")) == expected
    assert verify(project.pipelines(spark, "sums")[0], "cache/sums").is_equal


ROWS = """
    SELECT id AS n, 'c' AS _op, struct('t' AS topic, CAST(id % 2 AS INT) AS partition, id AS offset)
        AS _position, timestamp_seconds(1767225600 + id - IF(id % 7 = 0, 20, 0)) AS at
    FROM range(0, 400, 1, 2)
"""


def windows(rows):
    time = hw.event_time("at", delay="5 seconds", future=None)
    tens = hw.tumbling(rows, time, "10 seconds", name="tens")  # which is in positions
    return tens.agg(n=hw.agg.count(), total=hw.agg.sum("n"))


def test_rows_that_spark_has_moved_are_late_by_their_offset(spark):
    rows = spark.sql(ROWS)
    expected = sorted(windows(rows.coalesce(1)).collect())
    moved = rows.repartition(5, "n").join(spark.range(400).withColumnRenamed("id", "n"), "n")
    assert sorted(windows(moved).collect()) == expected
    total = sum(row.n for row in expected)
    assert 300 < total < 400, "some are late, and some windows are open"


def test_rows_of_a_source_are_shuffled_once(spark):
    rows = spark.createDataFrame([], spark.sql(ROWS).schema).where("n > 1").select("*")
    assert windows(rows)._jdf.queryExecution().executedPlan().toString().count("Exchange") == 1
