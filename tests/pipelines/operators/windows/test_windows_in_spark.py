"""Windows as users write them, from a topic into a store."""

from datetime import UTC, datetime, timedelta

import pytest
from support.pipelines.project import Project

import headwater as hw
from headwater.errors import PipelineError

START = datetime(2026, 1, 1, tzinfo=UTC)
PIPELINE = """
    clicks = flow.changes("paid-clicks", "shop string, at timestamp, paid bigint")
    time = hw.event_time("at", delay="5 seconds", future=None)
    minutes = hw.tumbling(
        clicks, time, "1 minute", by="shop", late="correct", allowed_lateness="1 hour"
    ).agg(clicks=hw.agg.count(), paid=hw.agg.sum("paid"))
    flow.write(minutes.drop("_mark"), to="cache", table="minutes", key=["shop", "window_start"])
    moving = hw.hopping(clicks, time, "2 minutes", "1 minute").agg(clicks=hw.agg.count())
    flow.write(moving, to="cache", table="moving", key="window_start")
"""


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


def test_windows_go_on_over_restarts_and_are_corrected(spark, project):
    project.topic("paid-clicks")
    project.pipeline("counts", PIPELINE)
    # A click each 10 seconds, two shops; then one that is 4 minutes late.
    clicks = [(f"shop {n % 2}", START + timedelta(seconds=10 * n), n) for n in range(60)]
    clicks.insert(45, ("shop 0", START + timedelta(seconds=200), 1000))
    for start in (0, 40):
        rows = [
            {"shop": shop, "at": at.isoformat(), "paid": paid}
            for shop, at, paid in clicks[start : start + 40]
        ]
        project.produce("paid-clicks", *rows, key="shop")
        with project.running(spark, "counts"):
            project.wait_until_at_end(spark, "paid-clicks", "counts")
    expected, moving = {}, {}
    for number, (shop, at, paid) in enumerate(clicks):
        minute = (at - START) // timedelta(minutes=1)
        before = expected.get((shop, minute), (0, 0))
        expected[shop, minute] = before[0] + 1, before[1] + paid
        if number != 45:
            for window in (minute - 1, minute):
                moving[window] = moving.get(window, 0) + 1
    # The last click is at 590 seconds: with the delay, nine minutes have ended.
    expected = {key: counts for key, counts in expected.items() if key[1] < 9}
    moving = {start: count for start, count in moving.items() if start + 2 <= 9}

    found = project.rows("SELECT shop, window_start, clicks, paid FROM minutes")
    assert {(shop, _minute(start)): tuple(more) for shop, start, *more in found} == expected
    found = project.rows("SELECT window_start, clicks FROM moving")
    assert {_minute(start): clicks for start, clicks in found} == moving


def _minute(stored):
    at = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return (at.astimezone(UTC) - START) // timedelta(minutes=1)


ROWS = "shop string, at timestamp, paid bigint, tags array<string>, _op string, _at timestamp"
PLACE = "_position struct<topic: string, partition: int, offset: bigint>"


@pytest.mark.parametrize(
    ("described", "what"),
    [
        (lambda rows: hw.tumbling(rows, "at", "0 s").agg(n=hw.agg.count()), "too short"),
        (lambda rows: hw.tumbling(rows, "at", "soon").agg(n=hw.agg.count()), "no duration"),
        (lambda rows: hw.tumbling(rows, "at", 60).agg(n=hw.agg.count()), "no duration"),
        (lambda rows: hw.tumbling(rows, "when", "1 s").agg(n=hw.agg.count()), "no column when"),
        (lambda rows: hw.tumbling(rows, "paid", "1 s").agg(n=hw.agg.count()), "no timestamp"),
        (lambda rows: hw.tumbling(rows, "at", "1 s", by="no").agg(n=hw.agg.count()), "column no"),
        (lambda rows: hw.tumbling(rows, "at", "1 s", by="tags").agg(n=hw.agg.count()), "grouped"),
        (lambda rows: hw.tumbling(rows, "at", "1 s", by=["shop"] * 2).agg(n=hw.agg.count()), "twi"),
        (lambda rows: hw.tumbling(rows, "at", "1 s").agg(), "no aggregates"),
        (lambda rows: hw.tumbling(rows, "at", "1 s").agg(n=3), "no aggregate"),
        (lambda rows: hw.tumbling(rows, "at", "1 s").agg(n=rows["paid"]), "no aggregate"),
        (lambda rows: hw.tumbling(rows, "at", "1 s").agg(n=hw.agg.sum("no")), "no column no"),
        (lambda rows: hw.tumbling(rows, "at", "1 s").agg(n=hw.agg.sum("shop")), "sum of shop"),
        (lambda rows: hw.tumbling(rows, "at", "1 s").agg(window_end=hw.agg.count()), "the name"),
        (
            lambda rows: hw.tumbling(rows, "at", "1 s", by="shop").agg(shop=hw.agg.count()),
            "the name shop",
        ),
        (lambda rows: hw.tumbling(rows, "at", "1 s", late="later").agg(n=hw.agg.count()), "late="),
        (lambda rows: hw.hopping(rows, "at", "5 s", "2 s").agg(n=hw.agg.count()), "no multiple"),
        (lambda rows: hw.hopping(rows, "at", "5 s", "10 s").agg(n=hw.agg.count()), "no multiple"),
        (lambda rows: hw.tumbling(rows, "at", "1 s").agg(n=hw.agg.previous("m")), "no aggregate"),
        (
            lambda rows: hw.hopping(rows, "at", "9 s", "3 s").agg(
                n=hw.agg.count(), before=hw.agg.previous("n", ago="10 s")
            ),
            "no window began",
        ),
        (
            lambda rows: hw.tumbling(rows.drop("_position"), "at", "1 s").agg(n=hw.agg.count()),
            "no column _position",
        ),
        (
            lambda rows: hw.session(
                hw.tumbling(rows, "at", "1 s").agg(n=hw.agg.count()).drop("_position"),
                "window_end",
                "1 hour",
            ).agg(n=hw.agg.sum("n")),
            "no column _position",
        ),
    ],
)
def test_mistakes_are_errors_when_the_pipeline_is_built(spark, described, what):
    rows = spark.createDataFrame([], f"{ROWS}, {PLACE}")
    with pytest.raises(PipelineError) as raised:
        described(rows)
    assert what in f"{raised.value} {raised.value.hint}"


def test_the_columns_of_a_result(spark):
    rows = spark.createDataFrame([], f"{ROWS}, {PLACE}")
    result = hw.hopping(rows, "at", "2 hours", "1 hour", by=["shop", "paid"]).agg(
        n=hw.agg.count(), before=hw.agg.previous("n", ago="1 day")
    )
    assert result.schema.simpleString() == (
        "struct<shop:string,paid:bigint,window_start:timestamp,window_end:timestamp,"
        "n:bigint,before:bigint,"
        "_position:struct<topic:string,partition:int,offset:bigint>,_mark:string,_op:string>"
    )
    assert result.collect() == []
