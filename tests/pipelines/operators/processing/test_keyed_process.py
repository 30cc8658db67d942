"""hw.process: calls in the order of event time, whatever the batches."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.event_log import (
    SCHEMA,
    SECOND,
    at,
    cuts,
    late_ids,
    logs,
    seconds,
    taken_and_late,
    watermark,
)
from support.pipelines.event_log import given as rows_of
from support.pipelines.operator_driver import ADDED, Driver, Source
from support.pipelines.project import Project
from tiers import examples, some

import headwater as hw
from headwater.errors import PipelineError
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.operators.processing.batch_process import BatchProcess
from headwater.pipelines.operators.processing.keyed_process import KeyedProcess
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.verification.stores import verify

COLUMNS = ("name", "id", "time", "_op", "_at")
ROWS = pa.schema([pa.schema([*SCHEMA, *ADDED]).field(name) for name in COLUMNS])
RESULTS = pa.schema([("what", pa.string()), ("ids", pa.list_(pa.int64()))])


def driver_of(directory, function, delay=0, late="drop", buckets=2):
    time = EventTime("time", delay * SECOND)
    operator = KeyedProcess(("name",), function, "f", time, Lateness(late, 0), ROWS, RESULTS)
    source = Source(SCHEMA, ("name",), COLUMNS, time)
    return Driver(operator.with_topic("operator/p"), [source], directory, buckets)


def reference(log, pause, delay):
    """By key, from all rows that are in time."""
    taken, late = taken_and_late(log, delay, lambda time: time + 1)
    now = watermark(log, delay)
    positions = {
        row["id"]: (partition, offset)
        for partition, rows in enumerate(log)
        for offset, row in enumerate(rows)
    }
    found = []
    for name in {row["name"] for row in taken}:
        rows = [row for row in taken if row["name"] == name and row["time"] < now]
        rows.sort(key=lambda row: (row["time"], positions[row["id"]]))
        ids, timer = [], None
        for row in [*rows, {"time": now, "id": None}]:
            if timer is not None and timer < row["time"]:
                found.append((name, timer, "quiet", tuple(ids)))
                ids, timer = [], None
            if row["id"] is not None:
                ids.append(row["id"])
                found += [(name, row["time"], "row", (row["id"],))] * (row["id"] % 3)
                timer = row["time"] + pause
    return found, [row["id"] for row in late]


def brief(results):
    return sorted(
        (
            (row["name"], seconds(row["event_time"]), row["what"], tuple(row["ids"]))
            for row in results
        ),
        key=repr,
    )


@settings(max_examples=examples(80), deadline=None)
@given(st.data(), logs(), st.sampled_from([1, 5, 30]), st.sampled_from([0, 10, 50]))
def test_any_cut_gives_what_the_log_says(tmp_path_factory, data, log, pause, delay):
    def function(row, context):
        if row is None:
            return {"what": "quiet", "ids": context.state.pop("ids")}
        context.state.setdefault("ids", []).append(row["id"])
        context.timer = context.time + timedelta(seconds=pause)
        return [{"what": "row", "ids": [row["id"]]}] * (row["id"] % 3)

    expected, late = reference(log, pause, delay)
    streamed = driver_of(tmp_path_factory.mktemp("state"), function, delay, "side")
    found, aside = [], []
    for share in data.draw(cuts(log)):
        if any(share):
            result = streamed.batch(rows_of(share))
            found += result
            aside += late_ids(streamed)
            assert not data.draw(st.booleans()) or streamed.again() == result
    assert brief(found) == sorted(expected, key=repr)
    assert sorted(aside) == sorted(late)
    assert all(
        row["_position"]
        == {"topic": "operator/p", "partition": 0, "offset": seconds(row["event_time"]) * SECOND}
        for row in found
    )
    assert brief(driver_of(None, function, delay).batch(rows_of(log))) == brief(found)


def batch_driver(directory, function, kind, every, delay=0, late="drop"):
    time = EventTime("time", delay * SECOND)
    settings = ("name",), function, "f", time, Lateness(late, 0), ROWS, RESULTS
    operator = BatchProcess(*settings, batches=kind, every_us=every * SECOND)
    source = Source(SCHEMA, ("name",), COLUMNS, time)
    return Driver(operator.with_topic("operator/p"), [source], directory, buckets=2)


def batch_reference(log, every, pause, delay):
    """By key and interval, from all rows that are in time."""

    def end_of(time):
        return (time // every + 1) * every

    taken, late = taken_and_late(log, delay, lambda time: end_of(time) + 1e-6)
    now = watermark(log, delay)
    positions = {
        row["id"]: (partition, offset)
        for partition, rows in enumerate(log)
        for offset, row in enumerate(rows)
    }
    found = []
    for name in {row["name"] for row in taken}:
        of_key = [row for row in taken if row["name"] == name and end_of(row["time"]) < now]
        of_key.sort(key=lambda row: (row["time"], positions[row["id"]]))
        seen, timer = 0, None
        for end in [*sorted({end_of(row["time"]) for row in of_key}), now]:
            if timer is not None and timer < end:
                found.append((name, timer, "quiet", (seen,)))
                timer = None
            ids = tuple(row["id"] for row in of_key if end_of(row["time"]) == end)
            if end < now:
                found.append((name, end, "rows", ids))
                seen, timer = seen + len(ids), end + pause
    return found, [row["id"] for row in late]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.data(),
    logs(),
    st.sampled_from(["arrow", "pandas"]),
    st.sampled_from([1, 7, 20]),
    st.sampled_from([0, 10, 50]),
)
def test_batches_of_a_key_are_intervals_of_event_time(
    tmp_path_factory, data, log, kind, every, delay
):
    def function(batch, context):
        if batch is None:
            return {"what": "quiet", "ids": [context.state["n"]]}
        ids = batch["id"].to_pylist() if kind == "arrow" else batch["id"].tolist()
        context.state["n"] = context.state.get("n", 0) + len(ids)
        context.timer = context.time + timedelta(seconds=15)
        result = pa.table({"ids": pa.array([ids], pa.list_(pa.int64())), "what": ["rows"]})
        return result if kind == "arrow" else result.to_pandas()

    expected, late = batch_reference(log, every, 15, delay)
    streamed = batch_driver(tmp_path_factory.mktemp("state"), function, kind, every, delay, "side")
    found, aside = [], []
    for share in data.draw(cuts(log)):
        if any(share):
            found += streamed.batch(rows_of(share))
            aside += late_ids(streamed)
    assert brief(found) == sorted(expected, key=repr)
    assert sorted(aside) == sorted(late)


def test_a_table_without_some_columns_of_the_output_has_nulls_there(tmp_path):
    two = pa.table({"what": ["a", "b"]})
    driver = batch_driver(tmp_path, lambda batch, context: two.slice(0, len(batch)), "arrow", 10)
    found = driver.batch(rows(0, 15)) + driver.batch(rows(16, 40))
    assert [(row["what"], row["ids"]) for row in found] == [("a", None), ("a", None), ("b", None)]
    wrong = batch_driver(tmp_path / "o", lambda batch, context: batch, "arrow", 10)
    with pytest.raises(PipelineError, match="no row of its output"):
        wrong.batch(rows(0, 15))


def test_a_result_comes_from_the_events_that_the_function_has_seen():
    def function(row, context):
        return {"what": "row", "ids": [row["id"]]}

    driver = driver_of(None, function)
    found = driver.batch({**rows(0, 5, 3, 9, 30), ("t", 1): [*rows(1, 30, name="b")["t", 0]]})
    (wanted,) = (row for row in found if row["ids"] == [5])
    (events,) = driver.lineage([wanted])
    assert [event["id"] for event in events] == [0, 5]  # the one at 3 is late
    driver = batch_driver(None, lambda batch, context: {"what": "batch"}, "arrow", 10)
    found = driver.batch(rows(0, 5, 12, 15, 30, 45))
    (events,) = driver.lineage([row for row in found if row["event_time"] == at(20)])
    assert [event["id"] for event in events] == [0, 5, 12, 15]


def rows(*times, name="a"):
    return {("t", 0): [{"name": name, "time": at(time), "id": time} for time in times]}


def test_a_key_without_state_and_timer_takes_no_space(tmp_path):
    def function(row, context):
        if row is None:
            context.state.clear()
        else:
            context.state["n"] = context.state.get("n", 0) + 1
            context.timer = context.time + timedelta(seconds=10)

    driver = driver_of(tmp_path, function, buckets=1)
    driver.batch(rows(0, 1, name="b"))
    driver.batch(rows(5))
    assert driver.counter("keys") == 1
    driver.batch(rows(8, 9))
    assert driver.counter("keys") == 2
    driver.batch(rows(100))
    assert driver.counter("keys") == 0


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda row, context: context.state.update(at=context.time), "more than JSON can hold"),
        (lambda row, context: context.state.update(t=(1, 2)), "more than JSON can hold"),
        (lambda row, context: context.state.update({1: 2}), "more than JSON can hold"),
        (lambda row, context: {"other": 1}, "no row of its output"),
        (lambda row, context: "ab", "no row of its output"),
        (lambda row, context: {"ids": "x"}, "does not fit its output"),
        (lambda row, context: setattr(context, "timer", context.time), "not later than now"),
        (lambda row, context: setattr(context, "timer", 5), "has set timer=5"),
    ],
)
def test_mistakes_of_functions(tmp_path, function, what):
    with pytest.raises(PipelineError, match=what):
        driver_of(tmp_path, function).batch(rows(1, 2))


PIPELINE = """
    from datetime import timedelta

    def abandoned(row, context):
        if row is None:
            return {"total": context.state.pop("total"), "items": context.state.pop("items")}
        if row["what"] == "paid":
            context.state.clear()
            context.timer = None
            return None
        context.state["total"] = context.state.get("total", 0) + row["price"]
        context.state["items"] = context.state.get("items", 0) + 1
        context.timer = context.time + timedelta(minutes=30)

    clicks = flow.changes("baskets", "user string, what string, price bigint, at timestamp")
    time = hw.event_time("at", delay="1 minute", future=None)
    baskets = hw.process(
        clicks, "user", abandoned, time=time, output="total bigint, items bigint"
    )
    flow.write(baskets, to="cache", table="baskets", key=["user", "event_time"])
    hours = hw.tumbling(baskets, "event_time", "1 hour").agg(
        baskets=hw.agg.count(), total=hw.agg.sum("total")
    )
    flow.write(hours, to="cache", table="hours", key="window_start")
"""


def test_a_function_goes_on_over_restarts(spark, tmp_path, broker_address):
    project = Project(tmp_path, broker_address)
    project.topic("baskets", 2)
    project.pipeline("abandoned", PIPELINE)
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)
    expected = {}
    for part in range(2):
        clicks = []
        for minute in range(120 * part, 120 * part + 120):
            at = start + timedelta(minutes=minute)
            for n, user in enumerate(("ann", "bob")):
                if minute % 60 in (0, 10):
                    clicks.append({"user": user, "what": "add", "price": minute + n})
                elif minute % 60 == 20 and user == "ann":
                    clicks.append({"user": user, "what": "paid", "price": 0})
                else:
                    clicks.append({"user": f"other {n}", "what": "paid", "price": 0})
                clicks[-1]["at"] = at.isoformat()
            if minute % 60 == 10:
                due = at + timedelta(minutes=30)
                expected["bob", due] = (2 * minute - 10 + 2, 2)
        project.produce("baskets", *clicks, key="user")
        with project.running(spark, "abandoned"):
            project.wait_until_at_end(spark, "baskets", "abandoned")
    found = project.rows("SELECT user, event_time, total, items FROM baskets")
    assert {
        (user, datetime.fromisoformat(at)): tuple(more) for user, at, *more in found
    } == expected
    found = project.rows("SELECT baskets, total FROM hours ORDER BY window_start")
    assert found == [(1, row[0]) for row in list(expected.values())[:3]]
    (pipeline,) = project.pipelines(spark, "abandoned")
    for write in some("hours", "baskets"):
        assert verify(pipeline, write).is_equal, write
    traced = why(pipeline, "baskets", {"user": "bob", "event_time": "2026-01-01T12:40:00Z"})
    assert [cause.row["price"] for cause in traced.causes] == [11, 1]
    assert not traced.is_certain
    assert not traced.untraced


ALL = (
    "user string, at timestamp, tags array<string>, _op string, _at timestamp,"
    " _position struct<topic: string, partition: int, offset: bigint>"
)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"function": 3}, "is no function"),
        ({"key": ()}, "key is empty"),
        ({"key": "who"}, "no column who"),
        ({"key": "tags"}, "cannot be grouped by tags"),
        ({"time": "user"}, "no timestamp"),
        ({"output": "what"}, "has no columns"),
        ({"output": "user string"}, "a column user of their own"),
        ({"late": "correct"}, "is for windows"),
        ({"batches": "arrow"}, "every=None"),
        ({"every": "1 minute"}, "batches=None"),
        ({"batches": "polars", "every": "1 minute"}, "batches='polars'"),
    ],
)
def test_mistakes_are_errors_when_the_pipeline_is_built(spark, given, what):
    frame = spark.createDataFrame([], ALL)
    right = {
        "function": lambda row, context: None,
        "key": "user",
        "time": "at",
        "output": "n bigint",
    }
    with pytest.raises(PipelineError, match=what):
        hw.process(frame, **(right | given))
