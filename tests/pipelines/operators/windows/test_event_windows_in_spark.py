"""Sessions and sliding windows as users write them, in one pipeline, from a topic into a store."""

from datetime import UTC, datetime, timedelta

import pytest
from support.pipelines.project import Project
from tiers import long

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates import api as agg
from headwater.pipelines.operators.aggregates.named_aggregates import Previous
from headwater.pipelines.operators.windows.event_windows import session, sliding
from headwater.pipelines.verification.stores import verify

START = datetime(2026, 1, 1, tzinfo=UTC)
PIPELINE = """
    clicks = flow.changes("views", "id bigint, user string, at timestamp, seconds bigint")
    time = hw.event_time("at", delay="5 seconds", future=None)
    visits = hw.session(
        clicks, time, "1 minute", by="user", late="correct", allowed_lateness="1 hour"
    ).agg(views=hw.agg.count(), seconds=hw.agg.sum("seconds"))
    flow.write(visits.drop("_mark"), to="cache", table="visits", key=["user", "window_start"])
    recent = hw.sliding(clicks, time, "2 minutes", by="user", keep="id").agg(
        views=hw.agg.count(), most=hw.agg.max("seconds")
    )
    flow.write(recent.drop("_mark"), to="cache", table="recent", key="id")
"""


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


@long
def test_sessions_and_sliding_windows_go_on_over_restarts(spark, project):
    project.topic("views")
    project.pipeline("watching", PIPELINE)
    # Four users; each views twice, half a minute apart, and then pauses for two minutes and a half.
    views = []
    for n in range(240):
        at = 10 * n
        if (at // 30) % 6 < 2:
            views.append({"id": n, "user": f"u{n % 4}", "at": at, "seconds": n * 7 % 11})
    late = {"id": 1000, "user": "u0", "at": 100, "seconds": 3}
    views.insert(60, late)
    for start, end in ((0, 50), (50, len(views))):
        rows = [
            {**row, "at": (START + timedelta(seconds=row["at"])).isoformat()}
            for row in views[start:end]
        ]
        project.produce("views", *rows, key="user")
        with project.running(spark, "watching"):
            project.wait_until_at_end(spark, "views", "watching")
    now = max(row["at"] for row in views) - 5

    found = project.rows("SELECT user, window_start, window_end, views, seconds FROM visits")
    assert {(user, _at(start), _at(end), *more) for user, start, end, *more in found} == {
        session for session in _sessions(views, 60) if session[2] <= now
    }
    in_time = [row for row in views if row is not late]
    expected = {}
    for row in in_time:
        inside = [
            other["seconds"]
            for other in in_time
            if other["user"] == row["user"] and row["at"] - 120 < other["at"] <= row["at"]
        ]
        if row["at"] < now:
            expected[row["id"]] = row["user"], row["at"], len(inside), max(inside)
    found = project.rows("SELECT id, user, event_time, views, most FROM recent")
    assert {
        number: (user, _at(time), count, most) for number, user, time, count, most in found
    } == expected
    (pipeline,) = project.pipelines(spark, "watching")
    for name in ("cache/recent", "cache/visits"):
        verdict = verify(pipeline, name)
        assert verdict.is_equal, verdict


def test_what_cannot_be_computed_is_an_error_when_the_pipeline_is_built(spark):
    frame = spark.sql(
        "SELECT 'a' AS user, current_timestamp() AS at, current_timestamp() AS _at,"
        " named_struct('topic', 't', 'partition', 0, 'offset', 0L) AS _position"
    )
    with pytest.raises(PipelineError, match="no column nobody"):
        session(frame, "at", "1 minute", by="nobody").agg(rows=agg.count())
    with pytest.raises(PipelineError, match="a window before"):
        session(frame, "at", "1 minute", by="user").agg(rows=agg.count(), was=Previous("rows"))
    with pytest.raises(PipelineError, match="of their own"):
        sliding(frame.withColumnRenamed("user", "event_time"), "at", "1 minute", keep="event_time")
    with pytest.raises(PipelineError, match="no column id"):
        sliding(frame, "at", "1 minute", by="user", keep="id").agg(rows=agg.count())
    with pytest.raises(PipelineError, match="can have the name user"):
        sliding(frame, "at", "1 minute", keep="user").agg(user=agg.count())
    with pytest.raises(PipelineError, match="too short"):
        session(frame, "at", "0 seconds")


def _sessions(views, gap):
    found = []
    for row in sorted(views, key=lambda view: (view["user"], view["at"])):
        if found and found[-1][0] == row["user"] and row["at"] <= found[-1][2]:
            user, start, _, views_, seconds = found[-1]
            found[-1] = user, start, row["at"] + gap, views_ + 1, seconds + row["seconds"]
        else:
            found.append((row["user"], row["at"], row["at"] + gap, 1, row["seconds"]))
    return found


def _at(stored):
    at = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return int((at.astimezone(UTC) - START).total_seconds())
