"""hw.deduplicate against a reference that reads the log row by row."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.event_log import SCHEMA, SECOND, at, cuts, late_ids, logs
from support.pipelines.event_log import given as rows_of
from support.pipelines.operator_driver import ADDED, Driver, Source
from support.pipelines.project import Project
from tiers import examples, long, some

import headwater as hw
from headwater.errors import PipelineError, StateLost
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.operators.selection.deduplication import Deduplication
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.verification.stores import verify

COLUMNS = ("name", "id", "time", "_op", "_at", "_position")
ROWS = pa.schema([*SCHEMA, *ADDED])
OUTPUT = pa.schema([ROWS.field(name) for name in COLUMNS])


def driver_of(directory, within, delay=0, late="drop", buckets=2):
    time = EventTime("time", delay * SECOND)
    operator = Deduplication(("name",), within * SECOND, time, Lateness(late, 0), OUTPUT)
    return Driver(operator, [Source(SCHEMA, ("name",), COLUMNS[:-1], time)], directory, buckets)


def reference(log, within, delay):
    emitted, late = [], []
    for rows in log:
        seen, of_key = None, {}
        for row in rows:
            seen = row["time"] if seen is None else max(seen, row["time"])
            if row["time"] < seen - delay:
                late.append(row["id"])
                continue
            times = of_key.setdefault(row["name"], [])
            if all(abs(row["time"] - time) >= within for time in times):
                times.append(row["time"])
                emitted.append(row["id"])
    return emitted, late


@st.composite
def keyed_logs(draw):
    """Each key in one partition."""
    log = draw(logs(back=60, forth=40, most=40))
    for partition, rows in enumerate(log):
        for row in rows:
            row["name"] = row["name"] and f"{row['name']}{partition}"
    log[1] = [row for row in log[1] if row["name"] is not None] or [
        {"name": "z", "time": 5, "id": 999}
    ]
    return log


@settings(max_examples=examples(100), deadline=None)
@given(
    st.data(), keyed_logs(), st.sampled_from([1, 5, 30, 100]), st.sampled_from([0, 10, 50, 1000])
)
def test_any_cut_gives_what_the_log_says(tmp_path_factory, data, log, within, delay):
    expected, late = reference(log, within, delay)
    streamed = driver_of(tmp_path_factory.mktemp("state"), within, delay, "side")
    found, aside = [], []
    for share in data.draw(cuts(log)):
        if any(share):
            result = streamed.batch(rows_of(share))
            found += result
            aside += late_ids(streamed)
            assert not data.draw(st.booleans()) or streamed.again() == result
    assert sorted(row["id"] for row in found) == sorted(expected)
    assert sorted(aside) == sorted(late)
    whole = driver_of(None, within, delay)
    result = whole.batch(rows_of(log))
    assert sorted(row["id"] for row in result) == sorted(expected)
    assert whole.counter("repeated") == sum(map(len, log)) - len(expected) - len(late)
    assert [row["id"] for row in whole.lineage(result[:3])[0]] == [row["id"] for row in result[:3]]


def rows(*times, name="a"):
    return {("t", 0): [{"name": name, "time": at(time), "id": time} for time in times]}


def test_state_ends_with_the_time_in_which_rows_are_compared(tmp_path):
    driver = driver_of(tmp_path, within=100, buckets=1)
    sizes = []
    for start in range(0, 5000, 50):
        driver.batch(rows(*range(start, start + 50), name=str(start)))
        runs = driver.states[0].document["emitted-kept"]["runs"]
        sizes.append(sum(run["rows"] for run in runs))
    assert 0 < max(sizes) < 10


def test_updates_and_deletes_are_no_events(tmp_path):
    driver = driver_of(tmp_path, within=10)
    given = rows(0, 1, 20, 40)[("t", 0)]
    for row, op in zip(given, "ducr", strict=True):
        row["_op"] = op
    assert [row["id"] for row in driver.batch({("t", 0): given})] == [20, 40]
    assert driver.counter("not_events") == 2


def test_another_time_is_another_state(tmp_path):
    driver_of(tmp_path, within=10).batch(rows(0))
    other = driver_of(tmp_path, within=20)
    next(other._numbers)
    with pytest.raises(StateLost):
        other.batch(rows(1))


PIPELINE = """
    clicks = flow.changes("repeated", "user string, page string, at timestamp")
    time = hw.event_time("at", delay="1 minute", future=None)
    once = hw.deduplicate(clicks, ["user", "page"], "10 minutes", time=time)
    flow.write(once, to="cache", table="once", key=["user", "page", "at"])
    counts = hw.tumbling(once, time, "1 hour", by="user").agg(pages=hw.agg.count())
    flow.write(counts, to="cache", table="counts", key=["user", "window_start"])
"""


@long
def test_repetitions_are_left_out_over_restarts(spark, tmp_path, broker_address):
    project = Project(tmp_path, broker_address)
    project.topic("repeated", 2)
    project.pipeline("once", PIPELINE)
    expected = set()
    for part in range(2):
        rows = []
        for minute in range(60 * part, 60 * part + 60):
            for user in ("ann", "bob"):
                at = datetime(2026, 1, 1, 12 + minute // 60, minute % 60, tzinfo=UTC)
                rows.append({"user": user, "page": "/", "at": at.isoformat()})
                if minute % 10 == 0:
                    expected.add((user, at))
        project.produce("repeated", *rows, key="user")
        with project.running(spark, "once"):
            project.wait_until_at_end(spark, "repeated", "once")
    found = project.rows("SELECT user, at FROM once")
    assert {(user, datetime.fromisoformat(at)) for user, at in found} == expected
    assert project.rows("SELECT user, pages FROM counts ORDER BY user") == [("ann", 6), ("bob", 6)]
    (pipeline,) = project.pipelines(spark, "once")
    for write in some("counts", "once"):
        assert verify(pipeline, write).is_equal, write
    traced = why(pipeline, "counts", {"user": "ann", "window_start": "2026-01-01T12:00:00Z"})
    assert {cause.row["at"][14:16] for cause in traced.causes} == {
        f"{minute:02}" for minute in range(0, 60, 10)
    }


ALL = (
    "user string, at timestamp, tags map<string,string>, _op string, _at timestamp,"
    " _position struct<topic: string, partition: int, offset: bigint>"
)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"key": []}, "key is empty"),
        ({"key": "who"}, "no column who"),
        ({"key": "tags"}, "no type for a key"),
        ({"within": "0 s"}, "too short"),
        ({"late": "correct"}, "is for windows"),
        ({"time": "user"}, "no timestamp"),
    ],
)
def test_mistakes_are_errors_when_the_pipeline_is_built(spark, given, what):
    frame = spark.createDataFrame([], ALL)
    with pytest.raises(PipelineError, match=what):
        hw.deduplicate(frame, **({"key": "user", "within": "1 hour"} | given))
