"""A pipeline that is started with another number of buckets goes on with its state."""

import pytest
from pipelines.engine.test_switching import as_query
from support.pipelines.clocked import ONE_WRITE, Clocked, run_to_end
from tiers import long, some

from headwater.pipelines.operators.state.state_files import begun_buckets
from headwater.pipelines.verification.stores import verify

BUCKETS = "spark.headwater.state.buckets"


@pytest.fixture
def buckets(spark):
    before = spark.conf.get(BUCKETS)
    yield lambda number: spark.conf.set(BUCKETS, str(number))
    spark.conf.set(BUCKETS, before)


@long
@pytest.mark.timeout(600)
def test_another_number_of_buckets_needs_no_log(
    spark, tmp_path, broker_address, monkeypatch, buckets
):
    """In the driver and in tasks: the state's rows cannot come from anywhere else, because a
    version that is derived again would be another one.
    """
    project = Clocked(tmp_path, broker_address, "rescaled", ONE_WRITE)
    at_s = 0
    for number, is_query in some((2, False), (5, True), (3, False), (1, True), (4, True), quick=3):
        buckets(number)
        as_query(monkeypatch, is_query=is_query)
        project.at(0, at_s, at_s + 1, at_s + 75, at_s + 3)
        project.at(1, at_s + 2, at_s + 80)
        at_s += 70
        run_to_end(spark, project)
        assert project.sums_in("sums") == project.expected_sums()
        (begun,) = tmp_path.rglob("begun")  # of one version
        assert begun_buckets(begun.parent) == number
    (pipeline,) = project.pipelines(spark, project.name)
    assert verify(pipeline, "cache/sums").is_equal
    assert len(project.published()) == len(project.expected_late())
