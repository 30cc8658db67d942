"""Sliding windows against every event's interval looked up in all rows that are in time."""

import random
import tempfile
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st
from support.pipelines.event_log import (
    SCHEMA,
    SECOND,
    Ids,
    Net,
    at,
    cuts,
    driven,
    event_time,
    given,
    late_ids,
    logs,
    seconds,
    taken_and_late,
    watermark,
)
from support.pipelines.operator_driver import Driver, Source, table_names
from tiers import examples

from headwater.errors import StateLost
from headwater.pipelines.operators.aggregates import api as agg
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.operators.windows.ranges import accumulate_ranges
from headwater.pipelines.operators.windows.sliding import Sliding

FLOATS = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("time", pa.timestamp("us", "UTC"))])
NAMED = (("rows", agg.count()), ("ids", Ids()), ("total", agg.sum("id")), ("least", agg.min("id")))


def driver_of(
    directory, size=10, delay=0, late="drop", allowed=0, early=False, by=("name",), idle=None
):
    aggregates = NamedAggregates(NAMED, SCHEMA)
    lateness = Lateness(late, allowed * SECOND)
    time = event_time(delay, idle)
    operator = Sliding(by, ("id",), size * SECOND, time, lateness, early, aggregates)
    return driven(operator, directory)


def results_of(rows, size):
    """By id: name, time, ids of the interval."""
    return {
        row["id"]: (
            row["name"],
            row["time"],
            sorted(
                other["id"]
                for other in rows
                if other["name"] == row["name"]
                and row["time"] - size < other["time"] <= row["time"]
            ),
        )
        for row in rows
    }


@settings(deadline=None, max_examples=examples(70))
@given_by(
    data=st.data(),
    log=logs(),
    size=st.sampled_from([1, 5, 12, 40]),
    delay=st.sampled_from([0, 4, 30]),
    mode=st.sampled_from([("drop", 0), ("side", 0), ("correct", 3), ("correct", 25)]),
    early=st.booleans(),
)
def test_however_the_log_is_cut_each_event_has_its_interval(data, log, size, delay, mode, early):
    late, allowed = mode
    taken, too_late = taken_and_late(log, delay, lambda time: time + 1e-6 + allowed)
    now = watermark(log, delay)
    expected = {
        number: (*found, is_final)
        for number, found in results_of(taken, size).items()
        if (is_final := found[1] < now) or early
    }
    with tempfile.TemporaryDirectory() as directory:
        driver = driver_of(Path(directory), size, delay, late, allowed, early)
        net, aside = Net(("id",)), []
        for share in data.draw(cuts(log)):
            if not any(share):
                continue
            results = driver.batch(given(share))
            if data.draw(st.booleans()):
                assert driver.again() == results
            net.apply(results)
            aside += late_ids(driver)
        assert net_of(net, log) == expected
        assert driver.counter("late") == len(too_late)
        assert sorted(aside) == sorted(r["id"] for r in too_late if late != "drop")

        bounded = driver_of(None, size, delay, late, allowed, early)
        net = Net(("id",))
        net.apply(bounded.batch(given(log)))
        assert net_of(net, log) == expected


@settings(deadline=None, max_examples=examples(40))
@given_by(
    data=st.data(),
    log=logs(),
    size=st.sampled_from([5, 12]),
    mode=st.sampled_from([("side", 0), ("correct", 25)]),
    early=st.booleans(),
)
def test_rows_of_partitions_that_were_idle_are_taken_in_or_put_aside(data, log, size, mode, early):
    late, allowed = mode
    with tempfile.TemporaryDirectory() as directory:
        driver = driver_of(Path(directory), size, 4, late, allowed, early, idle=15)
        net, aside = Net(("id",)), set()
        for number, share in enumerate(data.draw(cuts(log, least=0))):
            if any(share):
                net.apply(driver.batch(given(share), now=at(10 * number)))
                aside |= set(late_ids(driver))
        now = driver.states[0].document["watermark_us"] / SECOND
    taken = [row for rows in log for row in rows if row["id"] not in aside]
    assert net_of(net) == {
        number: (*found, is_final)
        for number, found in results_of(taken, size).items()
        if (is_final := found[1] < now) or early
    }


def net_of(net, log=None):
    positions = {
        row["id"]: {"topic": "events", "partition": partition, "offset": offset}
        for partition, rows in enumerate(log or [])
        for offset, row in enumerate(rows)
    }
    for row in net.rows.values():
        assert row["rows"] == len(row["ids"])
        assert row["total"] == sum(row["ids"])
        assert row["least"] == min(row["ids"])
        assert log is None or row["_position"] == positions[row["id"]]
    return {
        number: (row["name"], seconds(row["event_time"]), row["ids"], row["_mark"] != "early")
        for (number,), row in net.rows.items()
    }


def brief(results):
    return [(row["_op"], row["_mark"], row["id"], row["ids"]) for row in results]


def rows(*times, name="a", ids=None, partition=0):
    ids = ids or times
    found = [{"name": name, "time": at(t), "id": n} for t, n in zip(times, ids, strict=True)]
    return {("events", partition): found}


def test_events_of_the_same_time_are_in_each_others_intervals(tmp_path):
    driver = driver_of(tmp_path, size=10)
    assert brief(driver.batch(rows(5, 5, 14, 15, 16, ids=[1, 2, 3, 4, 5]))) == [
        ("c", "final", 1, [1, 2]),
        ("c", "final", 2, [1, 2]),
        ("c", "final", 3, [1, 2, 3]),
        ("c", "final", 4, [3, 4]),  # 5 is ten seconds before 15: no longer in
    ]


def test_a_result_waits_until_no_event_of_its_time_can_come(tmp_path):
    driver = driver_of(tmp_path, size=10, delay=5)
    assert driver.batch(rows(10)) == []
    assert driver.batch(rows(15, ids=[2])) == []
    assert driver.batch(rows(10, ids=[3])) == []
    assert brief(driver.batch(rows(16, ids=[4]))) == [
        ("c", "final", 10, [3, 10]),
        ("c", "final", 3, [3, 10]),
    ]
    assert driver.counter("late") == 0


def test_early_results_are_changed_by_those_that_come(tmp_path):
    driver = driver_of(tmp_path, size=10, delay=60, early=True)
    assert brief(driver.batch(rows(10))) == [("c", "early", 10, [10])]
    assert brief(driver.batch(rows(5))) == [("c", "early", 5, [5]), ("u", "early", 10, [5, 10])]
    assert brief(driver.batch(rows(71))) == [
        ("u", "final", 5, [5]),
        ("u", "final", 10, [5, 10]),
        ("c", "early", 71, [71]),
    ]


def test_a_late_event_corrects_the_results_of_those_within_size_after_it(tmp_path):
    driver = driver_of(tmp_path, size=10, late="correct", allowed=100)
    driver.batch(rows(0, 10, 19, 20, 50))
    assert brief(driver.batch(rows(10, ids=[7]))) == [
        ("d", "correction", 10, [10]),
        ("d", "correction", 19, [10, 19]),
        ("c", "correction", 10, [7, 10]),
        ("c", "correction", 7, [7, 10]),
        ("c", "correction", 19, [7, 10, 19]),
    ]


def test_a_key_that_is_silent_leaves_nothing_behind(tmp_path):
    driver = driver_of(tmp_path, size=10, late="correct", allowed=50)
    driver.batch(rows(0, name="silent"))
    for time in range(10, 200, 5):
        driver.batch(rows(time, name="busy"))
    names, stored = set(), 0
    for state in driver.states.values():
        for table in table_names(state):
            found = state.table(table)
            if found is not None and "k0" in found.column_names:
                names |= set(found["k0"].to_pylist())
            elif found is not None:
                stored += len(found)
    assert names == {"busy"}
    assert stored <= 60 / 5 + 2


def test_one_partition_far_ahead_drops_nothing_of_the_other(tmp_path):
    driver = driver_of(tmp_path, size=10)
    driver.batch(rows(0, partition=0) | rows(3600, partition=1))
    found = driver.batch(rows(5, 9, 30, partition=0) | rows(7200, partition=1))
    assert brief(found) == [
        ("c", "final", 0, [0]),
        ("c", "final", 5, [0, 5]),
        ("c", "final", 9, [0, 5, 9]),
    ]
    assert driver.counter("late") == 0


def test_an_event_finds_those_of_its_key_among_many(tmp_path):
    driver = driver_of(tmp_path, size=10)
    many = [{"name": f"n{n}", "time": at(0), "id": n} for n in range(60)]
    driver.batch({("events", 0): many})
    assert len(driver.batch(rows(5, 6, name="n7", ids=[100, 101]))) == 61
    assert brief(driver.batch(rows(7, name="new"))) == [("c", "final", 101, [7, 100, 101])]
    assert brief(driver.batch(rows(9, name="n59", ids=[102]))) == [("c", "final", 7, [7])]
    assert brief(driver.batch(rows(50))) == [("c", "final", 102, [59, 102])]


def test_without_a_key_all_events_are_together(tmp_path):
    driver = driver_of(tmp_path, size=10, by=())
    found = driver.batch(
        {("events", 0): [*rows(1)["events", 0], *rows(2, 30, name="b")["events", 0]]}
    )
    assert brief(found) == [("c", "final", 1, [1]), ("c", "final", 2, [1, 2])]


def test_results_of_floats_are_retracted_as_they_were_emitted(tmp_path):
    named = NamedAggregates((("total", agg.sum("x")),), FLOATS)
    time, lateness = EventTime("time", 0), Lateness("correct", 1000 * SECOND)
    operator = Sliding((), ("id",), 10 * SECOND, time, lateness, False, named)
    driver = Driver(operator, [Source(FLOATS, (), ("id", "x"), time)], tmp_path, buckets=1)
    net = Net(("id",))
    for number, time_ in enumerate([1, 2, 3, 100] * 20):
        row = {"id": number, "x": 10.0 ** (number % 17) + number / 7, "time": at(time_)}
        partition = number % 3 if number > 3 else 0
        net.apply(driver.batch({("events", partition): [row]}))
    assert len(net.rows) == 60


def test_any_aggregate_can_be_put_together_of_blocks():
    draw = random.Random(7)
    values = [draw.choice([None, draw.uniform(-1e9, 1e9)]) for _ in range(400)]
    table = pa.table({"x": pa.array(values, pa.float64())})
    low = np.sort(np.random.default_rng(7).integers(0, 400, 300))
    length = np.random.default_rng(8).integers(1, 90, 300)
    high = np.maximum.accumulate(np.minimum(low + length, 400))
    named = NamedAggregates(
        (
            ("rows", agg.count()),
            ("values", agg.count("x")),
            ("rate", agg.rate("1 second")),
            ("most", agg.max("x")),
            ("least", agg.min("x")),
            ("median", agg.percentile("x", 0.5)),
            ("distinct", agg.distinct("x")),
            ("top", agg.top("x", 3)),
            ("filter", agg.bloom("x", expected=100)),
            ("total", agg.sum("x")),
            ("mean", agg.avg("x")),
        ),
        table.schema,
    )
    start_us, end_us = low * SECOND, low * SECOND + SECOND
    found = named.results(accumulate_ranges(named, table, low, high), start_us, end_us)
    alone = [
        named.results(_alone(named, table, *bounds), *window_us)
        for bounds, window_us in zip(
            zip(low, high, strict=True),
            zip(start_us[:, None], end_us[:, None], strict=True),
            strict=True,
        )
    ]
    for column, (name, _) in enumerate(named.aggregates):
        expected = [result[column][0].as_py() for result in alone]
        if name in ("total", "mean"):
            sizes = [sum(abs(x or 0) for x in values[a:b]) for a, b in zip(low, high, strict=True)]
            pairs = zip(found[column].to_pylist(), expected, sizes, strict=True)
            assert all(a == b or abs(a - b) <= 1e-12 * size for a, b, size in pairs)
        else:
            assert found[column].to_pylist() == expected, name


def _alone(named, table, low, high):
    inside = table.slice(low, high - low)
    accumulators = named.accumulate(inside, np.zeros(len(inside), np.intp), 1)
    return pa.Table.from_arrays(accumulators, schema=named.accumulators_schema)


def test_state_of_other_settings_is_refused(tmp_path):
    driver_of(tmp_path, size=10, late="correct", allowed=50).batch(rows(0, 100))
    shorter = driver_of(tmp_path, size=10, late="correct", allowed=20)
    shorter._numbers = count(1)
    shorter.batch(rows(200))
    for changed in ({"size": 20}, {"late": "correct", "allowed": 50}, {"early": True}):
        driver = driver_of(tmp_path, **{"size": 10, **changed})
        driver._numbers = count(2)
        with pytest.raises(StateLost, match="sliding"):
            driver.batch(rows(300))


def test_an_interval_reaches_back_to_its_very_beginning(tmp_path):
    driver = driver_of(tmp_path, size=40)
    driver.batch({("events", 0): [*rows(1)["events", 0], *rows(30, name="b")["events", 0]]})
    found = driver.batch(
        {("events", 0): [*rows(40)["events", 0], *rows(60, name="b")["events", 0]]}
    )
    assert ("c", "final", 40, [1, 40]) in brief(found)


def test_sums_of_floats_do_not_depend_on_which_partition_came_first(tmp_path):
    named = NamedAggregates((("total", agg.sum("x")),), FLOATS)
    time, lateness = EventTime("time", 100 * SECOND), Lateness("drop", 0)
    operator = Sliding((), ("id",), 10 * SECOND, time, lateness, False, named)
    values = [(0, 1e16), (0, 1.0), (1, -1e16), (1, 1.0), (0, 3.0)]
    of = {
        ("events", p): [
            {"id": n, "x": x, "time": at(5)} for n, (q, x) in enumerate(values) if p == q
        ]
        for p in (0, 1)
    }
    end = {place: [{"id": 9, "x": 0.0, "time": at(500)}] for place in of}
    totals = []
    for name, order in (("a", (0, 1)), ("b", (1, 0))):
        source = Source(FLOATS, (), ("id", "x"), time)
        driver = Driver(operator, [source], tmp_path / name, buckets=1)
        for partition in order:
            driver.batch({("events", partition): of["events", partition]})
        totals.append([row["total"] for row in driver.batch(end)])
    assert totals[0][0] == totals[1][0]
