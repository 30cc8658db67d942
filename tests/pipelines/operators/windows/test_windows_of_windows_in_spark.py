"""Windows over windows, joins of windows and tables of windows, as users write them."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer
from support.pipelines.project import Project
from tiers import IS_FULL, count, long, some

import headwater as hw
from headwater.errors import PipelineError
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.verification.stores import verify

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = (
    "shop string, at timestamp, paid bigint, _op string, _at timestamp,"
    " _position struct<topic: string, partition: int, offset: bigint>"
)
PIPELINE = """
    clicks = flow.changes("windowed", "shop string, at timestamp, paid bigint")
    time = hw.event_time("at", delay="5 seconds", future=None)
    minutes = hw.tumbling(clicks, time, "1 minute", by="shop").agg(
        clicks=hw.agg.count(), paid=hw.agg.sum("paid")
    )
    fives = hw.tumbling(
        minutes.where("clicks > 0").withColumnRenamed("window_start", "minute"),
        "minute",
        "5 minutes",
        by="shop",
    ).agg(minutes=hw.agg.count(), peak=hw.agg.max("clicks"), paid=hw.agg.sum("paid"))
    flow.write(fives, to="cache", table="fives", key=["shop", "window_start"])
    one = minutes.where("shop = 'shop 0'").select(
        "window_start", F.col("paid").alias("ours"), "_op", "_position"
    )
    other = minutes.where("shop = 'shop 1'").select(
        "window_start", F.col("paid").alias("theirs"), "_op", "_position"
    )
    both = hw.join(
        one, other, "window_start", "0 s", left_time="window_start", right_time="window_start"
    )
    flow.write(both, to="cache", table="both", key="window_start")
    corrected = hw.tumbling(clicks, time, "1 minute", by="shop", late="correct", early=True).agg(
        paid=hw.agg.sum("paid")
    )
    totals = hw.tumbling(clicks, time, "1 minute", late="correct").agg(total=hw.agg.sum("paid"))
    shares = hw.join_tables(
        corrected.drop("_mark", "window_end"),
        totals.drop("_mark", "window_end"),
        "window_start",
        left_key=["shop", "window_start"],
        right_key="window_start",
    )
    flow.write(shares, to="cache", table="shares", key=["shop", "window_start"])
"""


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


@long
def test_windows_that_follow_windows_go_on_over_restarts(spark, project):
    project.topic("windowed", 2)
    project.pipeline("chain", PIPELINE)
    # A click each 10 seconds, two shops; then one that is two minutes late.
    clicks = [(f"shop {n % 2}", START + timedelta(seconds=10 * n), n) for n in range(120)]
    clicks.insert(100, ("shop 0", START + timedelta(seconds=870), 1000))
    size = count(quick=65, full=50)  # two runs, or three
    for start in range(0, len(clicks), size):
        rows = [
            {"shop": shop, "at": at.isoformat(), "paid": paid}
            for shop, at, paid in clicks[start : start + size]
        ]
        project.produce("windowed", *rows, key="shop")
        with project.running(spark, "chain"):
            project.wait_until_at_end(spark, "windowed", "chain")
    del clicks[100]
    minutes = {}
    for shop, at, paid in clicks:
        minutes.setdefault((shop, (at - START) // timedelta(minutes=1)), []).append(paid)
    # Each shop has a partition. The earlier of both is at 1180 seconds: less the delay, 19 minutes
    # have ended, and of the longer windows three.
    expected = {}
    for (shop, minute), paid in minutes.items():
        if minute < 15:
            row = expected.setdefault((shop, minute // 5 * 5), [0, 0, 0])
            row[:] = row[0] + 1, max(row[1], len(paid)), row[2] + sum(paid)
    found = project.rows("SELECT shop, window_start, minutes, peak, paid FROM fives")
    assert {(shop, _minute(start)): list(more) for shop, start, *more in found} == expected
    found = project.rows("SELECT window_start, ours, theirs FROM both")
    assert {_minute(start): (ours, theirs) for start, ours, theirs in found} == {
        minute: (sum(minutes["shop 0", minute]), sum(minutes["shop 1", minute]))
        for minute in range(19)
    }
    minutes["shop 0", 14].append(1000)
    found = project.rows("SELECT shop, window_start, paid, total FROM shares")
    assert {(shop, _minute(start)): tuple(more) for shop, start, *more in found} == {
        (shop, minute): (
            sum(paid),
            sum(minutes["shop 0", minute]) + sum(minutes["shop 1", minute]),
        )
        for (shop, minute), paid in minutes.items()
        if minute < 19
    }
    (pipeline,) = project.pipelines(spark, "chain")
    for table in some("both", "fives", "shares"):
        assert verify(pipeline, table).is_equal, table
    traced = why(pipeline, "fives", {"shop": "shop 0", "window_start": "2026-01-01T00:05:00Z"})
    assert traced.row["minutes"] == 5
    assert traced.is_certain
    assert not traced.untraced
    assert {cause.row["paid"] for cause in traced.causes} == set(range(30, 60, 2))
    if not IS_FULL:
        return
    traced = why(pipeline, "both", {"window_start": "2026-01-01T00:05:00Z"})
    assert {cause.row["paid"] for cause in traced.causes} == set(range(30, 36))


def _minute(stored):
    at = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return (at.astimezone(UTC) - START) // timedelta(minutes=1)


@pytest.mark.parametrize(
    ("described", "what"),
    [
        (
            lambda rows: hw.session(
                hw.tumbling(rows, "at", "1 s", early=True).agg(n=hw.agg.count()),
                "window_end",
                "1 hour",
            ),
            "replaced later",
        ),
        (
            lambda rows: hw.sliding(
                hw.session(rows, "at", "1 s", late="correct").agg(n=hw.agg.count()).where("n > 1"),
                "window_end",
                "1 hour",
            ),
            "replaced later",
        ),
        (
            lambda rows: hw.tumbling(
                hw.sliding(rows, "at", "1 s", early=True).agg(n=hw.agg.count()),
                "event_time",
                "1 hour",
            ),
            "replaced later",
        ),
        (
            lambda rows: hw.tumbling(
                hw.session(rows, "at", "1 s").agg(n=hw.agg.count()), "window_start", "1 hour"
            ),
            "sessions do not end in the order",
        ),
        (
            lambda rows: hw.tumbling(
                hw.tumbling(rows, "at", "1 s").agg(n=hw.agg.count()),
                "window_start",
                "1 hour",
                late="side",
            ),
            'late="side"',
        ),
    ],
)
def test_mistakes_are_errors_when_the_pipeline_is_built(spark, described, what):
    rows = spark.createDataFrame([], ROWS)
    with pytest.raises(PipelineError) as raised:
        described(rows).agg(n=hw.agg.count())
    assert what in f"{raised.value} {raised.value.hint}"


def test_columns_that_are_renamed_are_bounds_still(spark):
    rows = [("a", START + timedelta(seconds=10 * n), n, "c", START, ("t", 0, n)) for n in range(40)]
    minutes = hw.tumbling(spark.createDataFrame(rows, ROWS), "at", "1 minute").agg(n=hw.agg.count())
    renamed = minutes.where("n > 1").withColumnRenamed("window_start", "minute")
    found = hw.tumbling(renamed, "minute", "2 minutes").agg(n=hw.agg.sum("n")).collect()
    # The last row is at 390 seconds: less 10, six minutes have ended, and so has the third pair.
    assert [row.n for row in found] == [12, 12, 12]
    computed = minutes.selectExpr("n", "window_start + interval 1 second AS at", "_op", "_position")
    later = hw.event_time("at", delay="0 s")
    found = hw.tumbling(computed, later, "2 minutes").agg(n=hw.agg.sum("n")).collect()
    assert [row.n for row in found] == [12, 12]


def test_sliding_windows_are_followed_without_a_delay(spark):
    """The second event of each pair comes before the first, which is late by its offset alone."""
    rows = []
    for n in range(20):
        for second in (60 * n + 30, 60 * n):
            at = START + timedelta(seconds=second)
            rows.append(("a", at, n, "c", START, ("t", 0, len(rows))))
    time = hw.event_time("at", delay="1 minute", future=None)
    moving = hw.sliding(spark.createDataFrame(rows, ROWS), time, "2 minutes").agg(n=hw.agg.count())
    found = hw.tumbling(moving, "event_time", "1 minute").agg(
        events=hw.agg.count(), most=hw.agg.max("n")
    )
    counts = [(row.events, row.most) for row in found.orderBy("window_start").collect()]
    # The watermark is at 1110 seconds: the event at 1080 is the last, and 18 minutes have ended.
    assert counts == [(2, 2), *[(2, 4)] * 17]


ENRICHED = """
    clicks = flow.changes("clicked-on", "page string, at timestamp")
    time = hw.event_time("at", delay="5 seconds", future=None)
    minutes = hw.tumbling(clicks, time, "1 minute", by="page").agg(clicks=hw.agg.count())
    pages = flow.table("pages", "page string, title string", key="page")
    rich = hw.enrich(minutes, pages, on="page", as_of="window_end")
    flow.write(rich, to="cache", table="rich", key=["page", "window_start"])
    hours = hw.tumbling(rich, "window_start", "5 minutes", by="title").agg(
        clicks=hw.agg.sum("clicks")
    )
    flow.write(hours, to="cache", table="hours", key=["title", "window_start"])
    both = minutes.where("page = 'a'").union(minutes.where("page = 'b'"))
    united = hw.tumbling(both, "window_start", "5 minutes").agg(clicks=hw.agg.sum("clicks"))
    flow.write(united, to="cache", table="united", key="window_start")
"""


def test_results_of_windows_with_the_row_of_a_table(spark, project):
    project.topic("clicked-on", 2)
    project.topic("pages", 1)
    project.pipeline("enriched", ENRICHED)
    producer = Producer({"bootstrap.servers": project.bootstrap, "linger.ms": 0})
    for minute, page, title in ((-1, "a", "A"), (-1, "b", "B"), (70, "a", "A, again")):
        producer.produce(
            "pages",
            key=json.dumps({"page": page}).encode(),
            value=json.dumps({"page": page, "title": title}).encode(),
            timestamp=int((START + timedelta(minutes=minute)).timestamp() * 1000),
        )
    producer.flush()
    for first in (0, 60):
        clicks = [
            {"page": page, "at": (START + timedelta(minutes=minute)).isoformat()}
            for minute in range(first, first + 60)
            for page in "ab"
        ]
        project.produce("clicked-on", *clicks, key="page")
        with project.running(spark, "enriched"):
            project.wait_until_at_end(spark, "clicked-on", "enriched")
    # The last click is at minute 119: less the delay, 118 minutes have ended.
    found = project.rows("SELECT page, window_start, title FROM rich")
    assert {(page, _minute(start)): title for page, start, title in found} == {
        (page, minute): "B" if page == "b" else "A" if minute + 1 < 70 else "A, again"
        for minute in range(118)
        for page in "ab"
    }
    found = project.rows("SELECT title, count(*), sum(clicks) FROM hours GROUP BY title")
    assert sorted(found) == [("A", 14, 69), ("A, again", 10, 46), ("B", 23, 115)]
    # Of two branches there is no promise when results come next, so their time has a delay.
    found = project.rows("SELECT count(*), min(clicks), max(clicks) FROM united")
    assert found == [(23, 10, 10)]
    (pipeline,) = project.pipelines(spark, "enriched")
    for table in some("hours", "rich", "united"):
        assert verify(pipeline, table).is_equal, table
