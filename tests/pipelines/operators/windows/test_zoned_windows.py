"""Windows of days and weeks in a time zone, against clocks that are read minute by minute."""

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.operator_driver import ADDED, Driver, Source
from tiers import examples

import headwater as hw
from headwater.errors import PipelineError, StateLost
from headwater.pipelines.operators.aggregates import api as agg
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.operators.windows.zoned_windows import DAY_US, ZonedWindows

SCHEMA = pa.schema([("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])
HOUR = timedelta(hours=1)
# Zones, and days near which their clocks were changed.
CHANGES = [
    ("Europe/Berlin", date(2026, 3, 29)),  # 23 hours
    ("Europe/Berlin", date(2026, 10, 25)),  # 25 hours
    ("America/Sao_Paulo", date(2017, 10, 15)),  # midnight is skipped
    ("America/Sao_Paulo", date(2018, 2, 17)),  # the last hour of the day happens twice
    ("America/St_Johns", date(2006, 10, 29)),  # a minute after midnight, back into the day before
    ("Australia/Lord_Howe", date(2026, 4, 5)),  # half an hour
    ("Pacific/Apia", date(2011, 12, 30)),  # which there was none of
    ("Asia/Kathmandu", date(2026, 1, 1)),
    ("UTC", date(1969, 12, 31)),
]


@cache
def midnights(zone, near):
    """The first minute of each date, by the clock there."""
    clock, found = ZoneInfo(zone), {}
    minute = datetime(near.year, near.month, near.day, tzinfo=UTC) - timedelta(days=16)
    latest = minute.astimezone(clock).date()
    for _ in range(32 * 24 * 60):
        minute += timedelta(minutes=1)
        while minute.astimezone(clock).date() > latest:
            latest += timedelta(days=1)
            found[latest] = minute
    return found


def windows(zone, days=1, panes=1, late="drop", **more):
    aggregates = NamedAggregates((("rows", agg.count()),), pa.schema([*SCHEMA, *ADDED[:1]]))
    lateness = Lateness(late, DAY_US if late == "correct" else 0)
    time = EventTime("at", 3_600_000_000)
    return ZonedWindows(
        aggregates, ("name",), time, days * DAY_US, panes, lateness, zone=zone, **more
    )


def driver(operator, directory):
    source = Source(SCHEMA, ("name",), ("name", "at", "_op"), operator.time)
    return Driver(operator, [source], directory, buckets=2)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.data(),
    st.sampled_from(CHANGES),
    st.sampled_from([(1, 1), (1, 2), (7, 1)]),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-5 * 1440, 5 * 1440)), min_size=1),
)
def test_days_are_those_of_the_clock_there(tmp_path_factory, data, change, size, steps):
    zone, near = change
    days, panes = size
    noon = datetime(near.year, near.month, near.day, 12, tzinfo=UTC)
    rows = [{"name": name, "at": noon + timedelta(minutes=minutes)} for name, minutes in steps]
    starts = midnights(zone, near)
    bounds = [
        (start, starts[day + timedelta(days=days * panes)])
        for day, start in starts.items()
        if day + timedelta(days=days * panes) in starts and (days == 1 or day.weekday() == 0)
    ]
    seen, expected = None, defaultdict(int)
    for row in rows:
        seen = row["at"] if seen is None else max(seen, row["at"])
        for start, end in bounds:
            if start <= row["at"] < end and end > seen - HOUR:
                expected[row["name"], start, end] += 1
    expected = {window: rows for window, rows in expected.items() if window[2] <= seen - HOUR}
    streamed = driver(windows(zone, days, panes), tmp_path_factory.mktemp("state"))
    cuts = sorted({0, *data.draw(st.lists(st.integers(0, len(rows)), max_size=4)), len(rows)})
    found = []
    for start, end in pairwise(cuts):
        found += streamed.batch({("t", 0): rows[start:end]})
    if not (zone == "Pacific/Apia" and panes > 1):  # two windows would begin at the same time
        assert {
            (row["name"], row["window_start"], row["window_end"]): row["rows"] for row in found
        } == expected
    bounded = driver(windows(zone, days, panes), None)
    key = ["name", "window_start", "window_end"]
    assert sorted(found, key=lambda row: [row[name] for name in key]) == sorted(
        bounded.batch({("t", 0): rows}), key=lambda row: [row[name] for name in key]
    )
    for row in found[:3] if panes == 1 else ():
        (causes,) = bounded.lineage([row])
        assert len(causes) == row["rows"]


def test_times_beyond_the_calendar_have_days():
    operator = windows("America/New_York")
    times = np.array([-(2**62), -DAY_US, 0, 2**58, 2**62])
    panes = operator.pane_at(times)
    starts, ends = operator.start_of(panes), operator.start_of(panes + 1)
    assert ((starts <= times) & (times < ends)).all()


def test_the_zone_belongs_to_the_state(tmp_path):
    row = {"name": "a", "at": datetime(2026, 1, 1, tzinfo=UTC)}
    driver(windows("Europe/Berlin"), tmp_path).batch({("t", 0): [row]})
    other = driver(windows("Europe/Paris"), tmp_path)
    next(other._numbers)
    with pytest.raises(StateLost):
        other.batch({("t", 0): [row]})


def test_a_day_is_compared_with_the_one_before_however_long(tmp_path):
    noon = datetime(2026, 10, 23, 11, tzinfo=UTC)
    operator = windows("Europe/Berlin", previous=(("before", "rows", 1), ("week", "rows", 7)))
    streamed = driver(operator, tmp_path)
    found = []
    for day in range(12):
        rows = [{"name": "a", "at": noon + timedelta(days=day)}] * (day + 1)
        found += streamed.batch({("t", 0): rows})
    assert [(row["rows"], row["before"], row["week"]) for row in found] == [
        (day + 1, day or None, day - 6 if day > 6 else None) for day in range(11)
    ]


ROWS = (
    "name string, at timestamp, _op string, _at timestamp,"
    " _position struct<topic: string, partition: int, offset: bigint>"
)


def test_weeks_of_days_in_spark(spark):
    """A window of a week over windows of days: it closes with its last day."""
    start = datetime(2026, 3, 22, 23, tzinfo=UTC)  # Monday in Berlin
    hours = [start + n * HOUR for n in range(7 * 24 - 1 + 6)]
    rows = [("a", at, "c", at, ("t", 0, n)) for n, at in enumerate(hours)]
    days = hw.tumbling(spark.createDataFrame(rows, ROWS), "at", "1 day", tz="Europe/Berlin").agg(
        hours=hw.agg.count()
    )
    weeks = hw.tumbling(days, "window_start", "1 week", tz="Europe/Berlin").agg(
        hours=hw.agg.sum("hours"), shortest=hw.agg.min("hours"), days=hw.agg.count()
    )
    (found,) = weeks.collect()
    assert (found.hours, found.shortest, found.days) == (167, 23, 7)


@pytest.mark.parametrize(
    ("size", "tz", "what"),
    [
        ("1 day", "Europe/Bielefeld", "no time zone 'Europe/Bielefeld'"),
        ("1 day", "../passwd", "no time zone"),
        ("1 hour", "Europe/Berlin", "are of days or weeks"),
    ],
)
def test_mistakes_are_errors_when_the_pipeline_is_built(spark, size, tz, what):
    rows = spark.createDataFrame([], ROWS)
    with pytest.raises(PipelineError, match=what):
        hw.tumbling(rows, "at", size, tz=tz)
