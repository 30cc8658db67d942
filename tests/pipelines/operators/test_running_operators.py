"""Windows in running pipelines: late rows, numbers, lost state, proof, rebuild."""

import shutil

import orjson
import pytest
from project import Project, wait_for
from topic_places import read_messages

from headwater.cli.pipeline_state import known_pipelines
from headwater.errors import PipelineError
from headwater.pipelines import rebuilding
from headwater.pipelines.tracing import why
from headwater.pipelines.verifying import verify

PIPELINE = """
    rows = flow.changes("{topic}", "id bigint, name string, n bigint, at timestamp")
    at = hw.event_time("at", delay="10 seconds", future=None)
    def sums(late):
        windows = hw.tumbling(rows, at, "1 minute", by="name", late=late)
        return windows.agg(total=hw.agg.sum("n"), rows=hw.agg.count())
    key = ["name", "window_start"]
    aside = sums("side")
    flow.write(aside, to="cache", table="sums", key=key)
    flow.write(aside, to="cache", table="told")
    flow.write(sums("correct"), to="cache", table="corrected", key=key)
    flow.write(sums("correct"), to="cache", table="corrections")
"""
WRITES = ["cache/sums", "cache/told", "cache/corrected", "cache/corrections"]


class Clocked(Project):
    """Rows whose time is so many seconds after the start."""

    def __init__(self, directory, bootstrap, topic):
        super().__init__(directory, bootstrap)
        self.events = self.topic(topic, 2)
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

    def expected_late(self):
        """By the definition: the window ended at or before the partition's latest time, less 10 s,
        the row itself included.
        """
        late = []
        for partition, rows in self.made.items():
            latest = 0
            for offset, row in enumerate(rows):
                latest = max(latest, row["n"])
                if (row["n"] // 60 + 1) * 60 <= latest - 10:
                    late.append((partition, offset))
        return sorted(late)

    def expected_sums(self, *, with_late):
        late = [] if with_late else self.expected_late()
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
            for message in read_messages(self.bootstrap, "clocked.late", partition)
        ]


def headers_of(message):
    return {
        name.removeprefix("headwater.late."): value.decode() for name, value in message.headers()
    }


def test_windows_in_a_pipeline(spark, tmp_path, broker_address):
    project = Clocked(tmp_path, broker_address, "clocked-events")
    project.pipeline("clocked", PIPELINE.format(topic=project.events), late_alert="0.01")
    project.at(0, 1, 2, 30, 61, 75)
    project.at(1, 5, 6, 80)
    with project.running(spark, "clocked"):
        project.wait_until_at_end(spark, project.events, "clocked")
    project.at(0, 3, 62, 140, 9, 200)  # 3 and 9 come after their window has ended
    project.at(1, 7, 190, 70, 71, 200, 201)
    with project.running(spark, "clocked"):
        project.wait_until_at_end(spark, project.events, "clocked")
        (known,) = wait_for(
            lambda: [
                each
                for each in known_pipelines(project.config(), ["clocked"])
                if each.writes[0].operators.get("tumbling-1", {}).get("events") == 19
            ],
            "its operators",
        )
    late = project.expected_late()
    assert len(late) == 5
    assert project.sums_in("sums") == project.expected_sums(with_late=False)
    assert project.sums_in("corrected") == project.expected_sums(with_late=True)

    # Each late row once, though two writes have the operator.
    told = project.published()
    places = [(headers_of(each)["operator"], headers_of(each)) for each in told]
    found = sorted((int(each["partition"]), int(each["offset"])) for _, each in places)
    assert found == late
    assert {name for name, _ in places} == {"tumbling-1"}
    first = min(told, key=lambda each: orjson.loads(each.value())["n"])
    assert orjson.loads(first.key()) == {"name": "n1"}
    row = orjson.loads(first.value())
    assert (row["n"], row["name"], row["at"]) == (3, "n1", "2026-01-01T00:00:03.000000Z")
    about = headers_of(first)
    assert (about["cause"], about["topic"], about["pipeline"]) == (
        "late",
        project.events,
        "clocked",
    )

    # What people see.
    assert known.late_rows == {"tumbling-1": 5}
    (told_of,) = [each.operators for each in known.writes if each.name == "cache/sums"]
    assert told_of["tumbling-1"]["late"] == 5
    assert told_of["tumbling-1"]["events"] == 19
    assert told_of["tumbling-1"]["watermark_us"] == 1767225600_000000 + 190_000000
    assert told_of["tumbling-1"]["watermark_gap_s"] > 0
    assert told_of["tumbling-1"]["state_rows"] > 0
    assert told_of["tumbling-1"]["late_alert"] is True
    assert not known.is_well

    (pipeline,) = project.pipelines(spark, "clocked")
    for name in WRITES:
        verdict = verify(pipeline, name)
        assert verdict.is_equal, (name, verdict)
        assert verdict.rows
        assert verdict.not_derived == ()
    assert len(project.rows("SELECT * FROM corrections WHERE op = 'd'")) > 0
    project.execute("UPDATE corrections SET total = total + 1 WHERE op = 'd'")
    project.execute("UPDATE corrected SET total = total + 1 WHERE name = 'n0'")
    assert not verify(pipeline, "cache/corrections").is_equal
    assert not verify(pipeline, "cache/corrected").is_equal

    key = {"name": "n1", "window_start": "2026-01-01 00:01:00+00:00"}
    trace = why(pipeline, "cache/sums", key)
    assert trace.row["rows"] == 2
    assert sorted(each.row["n"] for each in trace.causes) == [61, 71, 75]
    assert trace.untraced == []

    check_lost_state(spark, project)
    check_rebuild(spark, project)
    assert len(project.published()) == 5, "nothing is published again"


def check_lost_state(spark, project):
    directory = project.state_dir / "clocked" / "cache.sums" / "v1" / "checkpoint" / "operators"
    shutil.rmtree(directory / "tumbling-1" / "3")
    project.at(0, 260)
    with project.running(spark, "clocked") as runner:
        wait_for(lambda: live_version(spark, project, "cache/sums") == 2, "a new version")
        project.wait_until_at_end(spark, project.events, "clocked")
        assert runner.errors() == []
    assert project.sums_in("sums") == project.expected_sums(with_late=False)
    (pipeline,) = project.pipelines(spark, "clocked")
    assert verify(pipeline, "cache/sums").is_equal
    # Damage that is found by a worker.
    directory = project.state_dir / "clocked" / "cache.sums" / "v2" / "checkpoint" / "operators"
    for path in (directory / "tumbling-1").glob("*/*.json"):
        path.write_bytes(b"{")
    project.at(0, 270)
    with project.running(spark, "clocked"):
        wait_for(lambda: live_version(spark, project, "cache/sums") == 3, "a new version")
        project.wait_until_at_end(spark, project.events, "clocked")
    assert project.sums_in("sums") == project.expected_sums(with_late=False)


def check_rebuild(spark, project):
    (pipeline,) = project.pipelines(spark, "clocked")
    before = live_version(spark, project, "cache/corrected")
    rebuilding.rebuild(pipeline, only="cache/corrected")
    rebuilding.promote(pipeline, only="cache/corrected")
    assert live_version(spark, project, "cache/corrected") == before + 1
    project.at(0, 280)
    project.at(1, 285)
    with project.running(spark, "clocked"):
        project.wait_until_at_end(spark, project.events, "clocked")
    assert project.sums_in("corrected") == project.expected_sums(with_late=True)
    assert verify(pipeline, "cache/corrected").is_equal


def live_version(spark, project, name):
    (pipeline,) = project.pipelines(spark, "clocked")
    (write,) = [each for each in pipeline.flow().writes if each.name == name]
    versions = rebuilding.versions_of(pipeline, write)
    return next((each.number for each in versions if each.is_live), None)


def test_rows_that_are_to_be_put_aside_need_a_pipeline(spark):
    import headwater as hw

    frame = spark.sql(
        "SELECT 1 AS n, current_timestamp() AS at, 'c' AS _op, current_timestamp() AS _at,"
        " struct('t' AS topic, 0 AS partition, 0L AS offset) AS _position"
    )
    with pytest.raises(PipelineError, match='late="side" outside of a pipeline'):
        hw.tumbling(frame, "at", "1 minute", late="side").agg(n=hw.agg.count())
