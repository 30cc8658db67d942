"""Session windows against sessions made at once of all rows that are in time."""

import tempfile
from itertools import count
from pathlib import Path
from unittest import mock

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
from support.pipelines.operator_driver import table_names
from tiers import examples

from headwater.errors import StateLost
from headwater.pipelines.operators.aggregates.contract import Count
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.operators.windows import session_state
from headwater.pipelines.operators.windows.sessions import Sessions


@pytest.fixture(scope="module", autouse=True)
def _many_sessions():
    """So that a few sessions are written as many are: those that have changed."""
    with mock.patch.object(session_state, "_FEW", 0):
        yield


def driver_of(
    directory, gap=10, delay=0, late="drop", allowed=0, early=False, by=("name",), idle=None
):
    aggregates = NamedAggregates((("rows", Count()), ("ids", Ids())), SCHEMA)
    lateness = Lateness(late, allowed * SECOND)
    time = event_time(delay, idle)
    return driven(Sessions(by, gap * SECOND, time, lateness, early, aggregates), directory)


def sessions_of(rows, gap):
    """Name, start, end, ids."""
    found = []
    for row in sorted(rows, key=lambda session: (str(session["name"]), session["time"])):
        last = found[-1] if found else None
        if last and last["name"] == row["name"] and row["time"] - last["last"] <= gap:
            last["last"] = row["time"]
            last["ids"].append(row["id"])
        else:
            new = {"name": row["name"], "first": row["time"], "last": row["time"]}
            found.append({**new, "ids": [row["id"]]})
    return found


@settings(deadline=None, max_examples=examples(70))
@given_by(
    data=st.data(),
    log=logs(),
    gap=st.sampled_from([1, 5, 12]),
    delay=st.sampled_from([0, 4, 30]),
    mode=st.sampled_from([("drop", 0), ("side", 0), ("correct", 3), ("correct", 25)]),
    early=st.booleans(),
)
def test_however_the_log_is_cut_the_sessions_are_those_of_the_rows_in_time(
    data, log, gap, delay, mode, early
):
    late, allowed = mode
    taken, too_late = taken_and_late(log, delay, lambda time: time + gap + allowed)
    now = watermark(log, delay)
    settling = 0 if late == "correct" else gap
    expected = {
        (session["name"], session["first"], session["last"] + gap): (
            sorted(session["ids"]),
            is_final,
        )
        for session in sessions_of(taken, gap)
        if (is_final := session["last"] + gap + settling <= now) or early
    }
    with tempfile.TemporaryDirectory() as directory:
        driver = driver_of(Path(directory), gap, delay, late, allowed, early)
        net, aside = Net(("name", "window_start", "window_end")), []
        for share in data.draw(cuts(log)):
            if not any(share):
                continue
            results = driver.batch(given(share))
            if data.draw(st.booleans()):
                assert driver.again() == results
            net.apply(results)
            aside += late_ids(driver)
        assert net_of(net) == expected
        assert driver.counter("late") == len(too_late)
        assert sorted(aside) == sorted(r["id"] for r in too_late if late != "drop")

        bounded = driver_of(None, gap, delay, late, allowed, early)
        net = Net(("name", "window_start", "window_end"))
        net.apply(bounded.batch(given(log)))
        assert net_of(net) == expected


@settings(deadline=None, max_examples=examples(40))
@given_by(
    data=st.data(),
    log=logs(),
    gap=st.sampled_from([5, 12]),
    mode=st.sampled_from([("side", 0), ("correct", 25)]),
    early=st.booleans(),
)
def test_rows_of_partitions_that_were_idle_are_taken_in_or_put_aside(data, log, gap, mode, early):
    late, allowed = mode
    with tempfile.TemporaryDirectory() as directory:
        driver = driver_of(Path(directory), gap, 4, late, allowed, early, idle=15)
        net, aside = Net(("name", "window_start", "window_end")), set()
        for number, share in enumerate(data.draw(cuts(log, least=0))):
            if any(share):
                net.apply(driver.batch(given(share), now=at(10 * number)))
                aside |= set(late_ids(driver))
        now = driver.states[0].document["watermark_us"] / SECOND
    taken = [row for rows in log for row in rows if row["id"] not in aside]
    settling = 0 if late == "correct" else gap
    assert net_of(net) == {
        (session["name"], session["first"], session["last"] + gap): (
            sorted(session["ids"]),
            is_final,
        )
        for session in sessions_of(taken, gap)
        if (is_final := session["last"] + gap + settling <= now) or early
    }


def net_of(net):
    for row in net.rows.values():
        assert row["rows"] == len(row["ids"])
    return {
        (name, seconds(start), seconds(end)): (row["ids"], row["_mark"] != "early")
        for (name, start, end), row in net.rows.items()
    }


def brief(results):
    """Rows as short as can be: op, mark, start, end, ids."""
    return [
        (
            row["_op"],
            row["_mark"],
            seconds(row["window_start"]),
            seconds(row["window_end"]),
            row["ids"],
        )
        for row in results
    ]


def rows(*times, name="a", ids=None, partition=0):
    ids = ids or times
    found = [{"name": name, "time": at(t), "id": n} for t, n in zip(times, ids, strict=True)]
    return {("events", partition): found}


def test_rows_exactly_a_gap_apart_are_one_session(tmp_path):
    driver = driver_of(tmp_path, gap=10)
    assert brief(driver.batch(rows(0, 10, 21, 100))) == [
        ("c", "final", 0, 20, [0, 10]),
        ("c", "final", 21, 31, [21]),
    ]


def test_a_session_is_final_when_no_row_in_time_can_reach_it(tmp_path):
    driver = driver_of(tmp_path, gap=10)
    assert driver.batch(rows(0, 19)) == []
    # 10 is in time: its own session ends at 20. It makes one session of all three.
    assert driver.batch(rows(10)) == []
    assert driver.batch(rows(38)) == []
    assert brief(driver.batch(rows(39))) == [("c", "final", 0, 29, [0, 10, 19])]
    assert driver.counter("late") == 0


def test_a_late_row_merges_two_emitted_sessions(tmp_path):
    driver = driver_of(tmp_path, gap=10, late="correct", allowed=100)
    assert brief(driver.batch(rows(0, 15, 60))) == [
        ("c", "final", 0, 10, [0]),
        ("c", "final", 15, 25, [15]),
    ]
    assert brief(driver.batch(rows(8))) == [
        ("d", "correction", 0, 10, [0]),
        ("d", "correction", 15, 25, [15]),
        ("c", "correction", 0, 25, [0, 8, 15]),
    ]


def test_a_row_at_the_end_of_an_emitted_session_goes_on_with_it(tmp_path):
    driver = driver_of(tmp_path, gap=10, late="correct", allowed=100)
    both = [*rows(0)["events", 0], *rows(10, name="b")["events", 0]]
    assert brief(driver.batch({("events", 0): both})) == [("c", "final", 0, 10, [0])]
    assert brief(driver.batch(rows(10))) == [("d", "correction", 0, 10, [0])]
    assert ("c", "final", 0, 20, [0, 10]) in brief(driver.batch(rows(40, name="b")))


def test_a_session_stays_open_over_many_batches(tmp_path):
    driver = driver_of(tmp_path, gap=10, early=True)
    for n in range(20):
        last = brief(driver.batch(rows(5 * n)))[-1]
        assert last == ("c", "early", 0, 5 * n + 10, [5 * step for step in range(n + 1)])
    assert brief(driver.batch(rows(95, ids=[1000]))) == [
        ("u", "early", 0, 105, [*range(0, 100, 5), 1000])
    ]


def test_a_correction_that_reopens_a_session_takes_it_back_until_it_ends(tmp_path):
    driver = driver_of(tmp_path, gap=10, late="correct", allowed=100)
    assert brief(driver.batch(rows(0, 12))) == [("c", "final", 0, 10, [0])]
    assert brief(driver.batch(rows(8))) == [("d", "correction", 0, 10, [0])]
    assert brief(driver.batch(rows(23))) == [("c", "final", 0, 22, [0, 8, 12])]


@pytest.mark.parametrize("late", ["drop", "correct"])
def test_a_key_that_is_silent_leaves_no_state(tmp_path, late):
    driver = driver_of(tmp_path, gap=10, late=late, allowed=50 if late == "correct" else 0)
    with mock.patch.object(session_state, "_FEW", 64):
        driver.batch(rows(0, name="silent"))
        for time in range(10, 200, 10):
            driver.batch(rows(time, name="busy"))
    names = set()
    for state in driver.states.values():
        for table in table_names(state):
            found = state.table(table)
            names |= set(found["k0"].to_pylist()) if found is not None else set()
    assert names == {"busy"}


def test_one_partition_far_ahead_makes_no_row_of_another_late(tmp_path):
    driver = driver_of(tmp_path, gap=10)
    driver.batch(rows(0, partition=0) | rows(3600, partition=1))
    assert driver.batch(rows(5, 9, 30, partition=0) | rows(7200, partition=1)) == [
        {
            "name": "a",
            "window_start": at(0),
            "window_end": at(19),
            "rows": 3,
            "ids": [0, 5, 9],
            "_position": {"topic": "", "partition": 0, "offset": 19_000_000},
            "_mark": "final",
            "_op": "c",
        }
    ]
    assert driver.counter("late") == 0


def test_without_a_key_all_rows_make_sessions_together(tmp_path):
    driver = driver_of(tmp_path, gap=10, by=())
    driver.batch(rows(0, name="a") | rows(5, name="b", partition=1))
    found = driver.batch(rows(100, name="a") | rows(100, name="b", partition=1))
    assert brief(found) == [("c", "final", 0, 15, [0, 5])]


def test_a_row_finds_the_session_of_its_key_among_many(tmp_path):
    driver = driver_of(tmp_path, gap=10)
    many = [{"name": f"n{n}", "time": at(0), "id": n} for n in range(60)]
    driver.batch({("events", 0): many})
    driver.batch(rows(5, name="n7", ids=[100]))
    found = driver.batch(rows(100, name="n8"))
    assert {row["name"]: row["ids"] for row in found} == {
        f"n{n}": [n, 100] if n == 7 else [n] for n in range(60)
    }


def test_updates_and_deletes_are_no_events(tmp_path):
    driver = driver_of(tmp_path, gap=10)
    changed = {"name": "a", "time": at(5), "id": 1, "_op": "u"}
    driver.batch({("events", 0): [changed, {**changed, "_op": "d"}]})
    assert brief(driver.batch(rows(0, 100))) == [("c", "final", 0, 10, [0])]
    assert driver.counter("not_events") == 2


def test_state_of_sessions_with_another_gap_is_refused(tmp_path):
    driver_of(tmp_path, gap=10).batch(rows(0, 100))
    for changed in ({"gap": 20}, {"gap": 10, "late": "correct", "allowed": 50}):
        driver = driver_of(tmp_path, **changed)
        driver._numbers = count(1)
        with pytest.raises(StateLost, match="session"):
            driver.batch(rows(300))
