"""Event time through Spark: types of columns, watermarks of producers, several partitions."""

import pytest
from pyspark import cloudpickle
from support.pipelines import judging
from support.pipelines.project import Project
from tiers import long

from headwater.errors import PipelineError
from headwater.pipelines.verification.stores import derive, verify

PIPELINE = """
    from headwater.pipelines.operators.runtime.planning import Side, run_operator
    from headwater.pipelines.operators.time.event_time import time_of
    from support.pipelines.judging import Judging

    time = time_of(TIME)
    rows = flow.changes(
        "timed",
        "name string, at timestamp_ntz, device string, done timestamp",
    )
    found = run_operator("judging", Judging(time), [Side(rows, ("name",), ("name", "_op"), time)])
    flow.write(found, to="cache", table="judged", key="name", ignore_deletes=True)
"""
BY_PRODUCERS = 'hw.event_time("at", producer="device", watermark="done")'


@pytest.fixture(autouse=True)
def _operator_for_workers():
    cloudpickle.register_pickle_by_value(judging)  # they do not find modules of tests
    yield
    cloudpickle.unregister_pickle_by_value(judging)


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


@long
def test_watermarks_of_producers_batch_by_batch_and_in_a_bounded_run(spark, project):
    project.topic("timed", 2)
    project.pipeline("judged", PIPELINE.replace("TIME", BY_PRODUCERS))
    rows_with_marks = [
        ("a1", "10:00", "a", "10:00"),
        ("a2", "10:10", "a", None),
        ("a3", "11:30", "a", "11:00"),
        ("a4", "10:50", "a", None),  # its hour has ended by what the producer said before
        ("a5", None, "a", "12:30"),
        ("a6", "11:59", "a", None),
        ("a7", "12:01", "a", None),
    ]
    for batch in (rows_with_marks[:3], rows_with_marks[3:4], rows_with_marks[4:]):
        for name, at, device, done in batch:
            row = {"name": name, "device": device, "at": at and f"2020-01-01T{at}:00"}
            row["done"] = done and f"2020-01-01T{done}:00Z"
            project.produce("timed", row, key="device")
        with project.running(spark, "judged"):
            project.wait_until_at_end(spark, "timed", "judged")
    found = dict(project.rows("SELECT name, is_taken FROM judged"))
    refused = {name for name, is_taken in found.items() if not is_taken}
    assert set(found) == {name for name, *_ in rows_with_marks}
    assert refused == {"a4", "a5", "a6"}
    assert verify(project.pipelines(spark, "judged")[0], "cache/judged").is_equal


def test_what_went_by_the_clock_cannot_be_verified(spark, project):
    project.topic("clocked")
    project.pipeline("judged", PIPELINE.replace("TIME", "hw.processing_time()"))
    pipeline = project.pipelines(spark, "judged")[0]
    with pytest.raises(PipelineError, match=r"uses hw.processing_time: its rows depend on when"):
        derive(pipeline, pipeline.flow().writes[0], {"clocked": {0: 0}})


def test_a_column_that_is_no_time_is_named_when_the_frame_is_built(spark, project):
    project.pipeline("judged", PIPELINE.replace("TIME", '"name"'))
    with pytest.raises(PipelineError, match="judging: the column name is no timestamp"):
        project.pipelines(spark, "judged")[0].flow()
