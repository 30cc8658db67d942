"""Which writes run in the driver, and how their plans are cut."""

import pytest
from support.pipelines.project import Project

from headwater.pipelines.engine.local_plan import NotLocal, plan_locally


@pytest.fixture
def planned(spark, tmp_path, broker_address):
    """The plan of a pipeline's only write; `body` has `rows`, a stream."""
    project = Project(tmp_path, broker_address)
    plans = []

    def planned(body):
        name = f"planned_{len(plans)}"
        read = 'rows = flow.changes("planned", "id bigint, at timestamp")\n'
        project.pipeline(name, read + body)
        (pipeline,) = project.pipelines(spark, name)
        (write,) = pipeline.flow().writes
        plans.append(plan_locally(write))
        return plans[-1]

    yield planned
    for plan in plans:
        plan.close()


def test_a_frame_that_is_used_twice_is_one_source(planned):
    """Else its two halves would be read up to different offsets while records arrive."""
    plan = planned(
        """
both = rows.where("id % 2 = 0").union(rows.where("id % 2 = 1"))
counts = hw.tumbling(both, "at", "1 minute").agg(n=hw.agg.count())
flow.write(counts, to="cache", table="counts", key="window_start")
"""
    )
    assert len(plan.sources) == 1
    assert plan.slots == (0, 0), "both streams of Spark's plan are recorded"


def test_two_reads_of_a_topic_are_two_sources(planned):
    plan = planned(
        """
other = flow.changes("planned", "id bigint")
flow.write(rows.select("id", "_op", "_position").union(other.select("id", "_op", "_position")),
           to="cache", table="both", key="id")
"""
    )
    assert plan.slots == (0, 1)


def test_a_branch_that_the_optimiser_removes_leaves_the_others(planned):
    plan = planned(
        """
other = flow.changes("planned", "id bigint, at timestamp").where(F.lit(False))
flow.write(rows.union(other), to="cache", table="both", key="id")
"""
    )
    nothing = [source.no_rows for source in plan.sources]
    row = {"id": 1, "at": None, "_op": "c", "_at": None, "_position": None}
    (first, *_) = nothing
    one = first.from_pylist([row], schema=first.schema)
    assert plan.top.segment.run([one, nothing[1]], 0).to_pylist() == [row]


def test_segments_above_an_operator_are_compiled_too(planned):
    """Although the current time is used below: planning each batch costs more than the batch."""
    plan = planned(
        """
counts = hw.tumbling(rows, "at", "1 minute", by="id").agg(n=hw.agg.count())
flow.write(counts.where("n > 1").drop("_mark"), to="cache", table="counts",
           key=["window_start", "id"])
"""
    )
    below, above = plan.top
    assert "LogicalRDD" in below.segment.plan
    assert "LogicalRDD" in above.segment.plan
    assert "MapInArrow" not in above.segment.plan


@pytest.mark.parametrize(
    "body",
    [
        'flow.write(rows.groupBy("id").count(), to="cache", table="t", key="id")',
        'flow.write(rows.dropDuplicates(["id"]), to="cache", table="t", key="id")',
        'flow.write(rows.union(flow.spark.createDataFrame([], rows.schema)), "cache", "t", "id")',
    ],
    ids=["aggregation", "deduplication", "union with a table"],
)
def test_what_only_spark_can_run_is_left_to_it(planned, body):
    with pytest.raises(NotLocal):
        planned(body)
