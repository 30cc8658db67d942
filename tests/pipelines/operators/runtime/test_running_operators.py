"""Windows in running pipelines: late rows, numbers, lost state, proof, rebuild."""

import shutil

import orjson
import pytest
from support.pipelines.clocked import ONE_WRITE, Clocked, run_to_end
from support.pipelines.project import wait_for
from tiers import IS_FULL, some

from headwater.errors import PipelineError
from headwater.inspect.pipelines import pipeline_states
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.running import rebuilding
from headwater.pipelines.verification.stores import verify

PIPELINE = """
    rows = flow.changes("{topic}", "id bigint, name string, n bigint, at timestamp")
    at = hw.event_time("at", delay="10 seconds", future=None)
    def sums(**late):
        name = "tumbling-2" if "allowed_lateness" in late else "tumbling-1"
        windows = hw.tumbling(rows, at, "1 minute", by="name", name=name, **late)
        return windows.agg(total=hw.agg.sum("n"), rows=hw.agg.count())
    key = ["name", "window_start"]
    flow.write(sums(late="side"), to="cache", table="sums", key=key)
    corrected = sums(late="correct", allowed_lateness="1 minute")
    flow.write(corrected, to="cache", table="corrected", key=key)
    flow.write(corrected, to="cache", table="corrections")
"""
WRITES = ["cache/sums", "cache/corrections", "cache/corrected"]


def headers_of(message):
    return {
        name.removeprefix("headwater.late."): value.decode() for name, value in message.headers()
    }


@pytest.mark.timeout(600)
def test_windows_in_a_pipeline(spark, tmp_path, broker_address):
    project = Clocked(tmp_path, broker_address, "clocked", PIPELINE, late_alert="0.01")
    project.at(0, 1, 2, 30, 61, 75)
    project.at(1, 5, 6, 80)
    run_to_end(spark, project)
    project.at(0, 3, 62, 140, 9, 200)  # 3 and 9 come after their window has ended
    project.at(1, 7, 190, 70, 71, 10, 200, 201)
    with project.running(spark, "clocked"):
        project.wait_until_at_end(spark, project.events, "clocked")
        status = wait_for(lambda: status_with_events(project, 20), "its operators")
    assert project.sums_in("sums") == project.expected_sums()
    assert project.sums_in("corrected") == project.expected_sums(60)
    check_published(project)
    check_metrics(status)
    (pipeline,) = project.pipelines(spark, "clocked")
    for name in some(*WRITES, quick=2):
        verdict = verify(pipeline, name)
        assert verdict.is_equal, (name, verdict)
        assert verdict.rows
        assert verdict.not_derived == ()
    assert project.rows("SELECT * FROM corrections WHERE op = 'd'")
    project.execute("UPDATE corrections SET total = total + 1 WHERE op = 'd'")
    project.execute("UPDATE corrected SET total = total + 1 WHERE name = 'n0'")
    assert not verify(pipeline, "cache/corrections").is_equal
    if IS_FULL:
        assert not verify(pipeline, "cache/corrected").is_equal

    key = {"name": "n1", "window_start": "2026-01-01 00:01:00+00:00"}
    trace = why(pipeline, "cache/sums", key)
    assert trace.row["rows"] == 2
    assert sorted(cause.row["n"] for cause in trace.causes) == [61, 75]  # 71 was late
    assert trace.untraced == []


def status_with_events(project, count):
    (status,) = pipeline_states(project.config(), [project.name])
    found = [write.operators for write in status.writes]
    is_counted = all(
        metrics["events"] == count for operators in found for metrics in operators.values()
    )
    return status if is_counted and all(found) else None


def check_published(project):
    """Each late row once by each operator, though the second one is in two writes."""
    messages = project.published()
    found = {"tumbling-1": [], "tumbling-2": []}
    for headers in map(headers_of, messages):
        found[headers["operator"]].append((int(headers["partition"]), int(headers["offset"])))
    assert sorted(found["tumbling-1"]) == project.expected_late()
    assert sorted(found["tumbling-2"]) == project.expected_late(60)
    assert len(found["tumbling-1"]) > len(found["tumbling-2"]) > 0
    first = min(messages, key=lambda message: orjson.loads(message.value())["n"])
    assert orjson.loads(first.key()) == {"name": "n1"}
    row = orjson.loads(first.value())
    assert (row["n"], row["name"], row["at"]) == (3, "n1", "2026-01-01T00:00:03.000000Z")
    about = headers_of(first)
    assert about["cause"] == "late"
    assert (about["topic"], about["pipeline"]) == (project.events, project.name)


def check_metrics(status):
    assert status.late_rows["tumbling-1"] == 6
    (metrics,) = [
        write.operators["tumbling-1"] for write in status.writes if write.name == WRITES[0]
    ]
    assert metrics["late"] == 6
    assert metrics["watermark_us"] == 1767225600_000000 + 190_000000
    assert metrics["watermark_gap_s"] > 0
    assert metrics["state_rows"] > 0
    assert metrics["state_bytes"] > 0
    assert metrics["late_alert"] is True
    assert not status.is_well


@pytest.mark.timeout(600)
def test_lost_state_is_derived_again_and_a_rebuild_has_its_own(spark, tmp_path, broker_address):
    project = Clocked(tmp_path, broker_address, "losing", ONE_WRITE)
    project.at(0, 1, 2, 61, 140, 3)
    project.at(1, 5, 80, 190)
    run_to_end(spark, project)

    operators = project.state_dir / "losing" / "cache.sums" / "v1" / "checkpoint" / "operators"
    shutil.rmtree(operators / "tumbling-1" / "1")
    project.at(0, 260)
    with project.running(spark, "losing") as runner:
        wait_for(lambda: live_version(spark, project) == 2, "a new version")
        project.wait_until_at_end(spark, project.events, "losing")
        assert runner.errors() == []
    assert project.sums_in("sums") == project.expected_sums()

    # The newest record of the state is missing, and the one before it is there.
    operators = project.state_dir / "losing" / "cache.sums" / "v2" / "checkpoint" / "operators"
    newest = max(int(path.stem) for path in operators.glob("*.json"))
    (operators / f"{newest}.json").unlink()
    project.at(0, 270)
    with project.running(spark, "losing"):
        wait_for(lambda: live_version(spark, project) == 3, "a new version")
        project.wait_until_at_end(spark, project.events, "losing")
    assert project.sums_in("sums") == project.expected_sums()

    (pipeline,) = project.pipelines(spark, "losing")
    rebuilding.rebuild(pipeline)
    rebuilding.promote(pipeline)
    assert live_version(spark, project) == 4
    project.at(0, 280)
    project.at(1, 285)
    run_to_end(spark, project)
    assert project.sums_in("sums") == project.expected_sums()
    assert verify(pipeline, "cache/sums").is_equal
    positions = [headers_of(message) for message in project.published()]
    found = sorted(
        (int(topic_partition["partition"]), int(topic_partition["offset"]))
        for topic_partition in positions
    )
    assert found == project.expected_late(), "nothing is published again"


def live_version(spark, project):
    (pipeline,) = project.pipelines(spark, project.name)
    versions = rebuilding.versions_of(pipeline, pipeline.flow().writes[0])
    return next((version.number for version in versions if version.is_live), None)


def test_rows_that_are_to_be_put_aside_need_a_pipeline(spark):
    import headwater as hw

    frame = spark.sql(
        "SELECT 1 AS n, current_timestamp() AS at, 'c' AS _op, current_timestamp() AS _at,"
        " struct('t' AS topic, 0 AS partition, 0L AS offset) AS _position"
    )
    with pytest.raises(PipelineError, match='late="side" outside of a pipeline'):
        hw.tumbling(frame, "at", "1 minute", late="side").agg(n=hw.agg.count())


def test_two_rows_of_one_key_are_an_error_of_verify(spark, tmp_path, broker_address):
    """The store has one of the two, whatever its value."""
    body = ONE_WRITE.replace('key=["name", "window_start"]', 'key="window_start"')
    project = Clocked(tmp_path, broker_address, "ambiguous", body)
    project.at(0, 1, 2, 75)
    project.at(1, 75)
    run_to_end(spark, project)
    (pipeline,) = project.pipelines(spark, "ambiguous")
    with pytest.raises(PipelineError, match="two rows of one key: window_start=2026-01-01"):
        verify(pipeline, "cache/sums")
