"""Windows in running pipelines: late rows, numbers, lost state, proof, rebuild."""

import shutil

import orjson
import pytest
from support.pipelines.project import Project, wait_for
from support.sinks.topic_places import read_messages

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
ONE_WRITE = """
    rows = flow.changes("{topic}", "id bigint, name string, n bigint, at timestamp")
    at = hw.event_time("at", delay="10 seconds", future=None)
    windows = hw.tumbling(rows, at, "1 minute", by="name", late="side", name="tumbling-1")
    sums = windows.agg(total=hw.agg.sum("n"), rows=hw.agg.count())
    flow.write(sums, to="cache", table="sums", key=["name", "window_start"])
"""
WRITES = ["cache/sums", "cache/corrected", "cache/corrections"]


class Clocked(Project):
    """Rows whose time is so many seconds after the start."""

    def __init__(self, directory, bootstrap, name, body, **settings):
        super().__init__(directory, bootstrap)
        self.name = name
        self.events = self.topic(f"{name}-events", 2)
        self.pipeline(name, body.format(topic=self.events), **settings)
        self.made = {0: [], 1: []}

    def at(self, partition, *seconds):
        for each in seconds:
            minute, second = divmod(each, 60)
            row = {
                "id": sum(map(len, self.made.values())),
                "name": f"n{each % 2}",
                "n": each,
                "at": f"2026-01-01T00:{minute:02}:{second:02}Z",
            }
            self.made[partition].append(row)
            value = orjson.dumps(row)
            self._producer.produce(self.events, value, partition=partition)
        self._producer.flush()

    def expected_late(self, allowed=0):
        """By the definition: the window ended (so many seconds before) at or before the partition's
        latest time, less 10 s, the row itself included.
        """
        late = []
        for partition, rows in self.made.items():
            latest = 0
            for offset, row in enumerate(rows):
                latest = max(latest, row["n"])
                if (row["n"] // 60 + 1) * 60 + allowed <= latest - 10:
                    late.append((partition, offset))
        return sorted(late)

    def expected_sums(self, allowed=0):
        late = self.expected_late(allowed)
        closed = min(max(row["n"] for row in rows) for rows in self.made.values()) - 10
        sums = {}
        for partition, rows in self.made.items():
            for offset, row in enumerate(rows):
                minute = row["n"] // 60
                if (partition, offset) not in late and (minute + 1) * 60 <= closed:
                    total, count = sums.get((row["name"], minute), (0, 0))
                    sums[row["name"], minute] = total + row["n"], count + 1
        return sums

    def sums_in(self, table):
        columns = "name, substr(window_start, 15, 2) + 0, total, rows"
        found = self.rows(f'SELECT {columns} FROM "{table}"')
        return {(name, minute): (total, count) for name, minute, total, count in found}

    def published(self):
        return [
            message
            for partition in (0, 1)
            for message in read_messages(self.bootstrap, f"{self.name}.late", partition)
        ]


def headers_of(message):
    return {
        name.removeprefix("headwater.late."): value.decode() for name, value in message.headers()
    }


def run_to_end(spark, project):
    with project.running(spark, project.name) as runner:
        project.wait_until_at_end(spark, project.events, project.name)
    return runner


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
        known = wait_for(lambda: known_with_events(project, 20), "its operators")
    assert project.sums_in("sums") == project.expected_sums()
    assert project.sums_in("corrected") == project.expected_sums(60)
    check_published(project)
    check_metrics(known)
    (pipeline,) = project.pipelines(spark, "clocked")
    for name in WRITES:
        verdict = verify(pipeline, name)
        assert verdict.is_equal, (name, verdict)
        assert verdict.rows
        assert verdict.not_derived == ()
    assert project.rows("SELECT * FROM corrections WHERE op = 'd'")
    project.execute("UPDATE corrections SET total = total + 1 WHERE op = 'd'")
    project.execute("UPDATE corrected SET total = total + 1 WHERE name = 'n0'")
    assert not verify(pipeline, "cache/corrections").is_equal
    assert not verify(pipeline, "cache/corrected").is_equal

    key = {"name": "n1", "window_start": "2026-01-01 00:01:00+00:00"}
    trace = why(pipeline, "cache/sums", key)
    assert trace.row["rows"] == 2
    assert sorted(cause.row["n"] for cause in trace.causes) == [61, 75]  # 71 was late
    assert trace.untraced == []


def known_with_events(project, count):
    (known,) = pipeline_states(project.config(), [project.name])
    found = [write.operators for write in known.writes]
    is_counted = all(
        metrics["events"] == count for operators in found for metrics in operators.values()
    )
    return known if is_counted and all(found) else None


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


def check_metrics(known):
    assert known.late_rows["tumbling-1"] == 6
    (metrics,) = [
        write.operators["tumbling-1"] for write in known.writes if write.name == WRITES[0]
    ]
    assert metrics["late"] == 6
    assert metrics["watermark_us"] == 1767225600_000000 + 190_000000
    assert metrics["watermark_gap_s"] > 0
    assert metrics["state_rows"] > 0
    assert metrics["state_bytes"] > 0
    assert metrics["late_alert"] is True
    assert not known.is_well


@pytest.mark.timeout(600)
def test_lost_state_is_derived_again_and_a_rebuild_has_its_own(spark, tmp_path, broker_address):
    project = Clocked(tmp_path, broker_address, "losing", ONE_WRITE)
    project.at(0, 1, 2, 61, 140, 3)
    project.at(1, 5, 80, 190)
    run_to_end(spark, project)

    operators = project.state_dir / "losing" / "cache.sums" / "v1" / "checkpoint" / "operators"
    shutil.rmtree(operators / "tumbling-1" / "3")
    project.at(0, 260)
    with project.running(spark, "losing") as runner:
        wait_for(lambda: live_version(spark, project) == 2, "a new version")
        project.wait_until_at_end(spark, project.events, "losing")
        assert runner.errors() == []
    assert project.sums_in("sums") == project.expected_sums()

    # What a worker finds, in the middle of a batch: one bucket's newest manifest is gone, and the
    # one before it is there.
    operators = project.state_dir / "losing" / "cache.sums" / "v2" / "checkpoint" / "operators"
    bucket = operators / "tumbling-1" / "3"
    newest = max(int(path.stem) for path in bucket.glob("*.json"))
    (bucket / f"{newest}.json").unlink()
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
