"""Tumbling and hopping windows against a reference that knows nothing of batches."""

import math
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.operator_driver import ADDED, START, Driver, Source
from tiers import examples

from headwater.errors import StateLost
from headwater.pipelines.operators.aggregates import api as agg
from headwater.pipelines.operators.aggregates.contract import Count
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.operators.windows.fixed_windows import FixedWindows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
S = 1_000_000
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("x", pa.int64()),
        ("y", pa.float64()),
    ]
)


def at(seconds):
    return EPOCH + timedelta(seconds=seconds)


def windows(size_s=10, hop_s=None, *, late="drop", allowed_s=0, delay_s=0, early=False, **more):
    hop_s = hop_s or size_s
    schema = pa.schema([*SCHEMA, *ADDED[:1]])
    named = {"rows": Count(), "xs": Count("x"), "sum": agg.sum("y"), "most": agg.max("y")}
    return FixedWindows(
        NamedAggregates(tuple(named.items()), schema),
        ("name",),
        EventTime("at", delay_s * S),
        hop_s * S,
        size_s // hop_s,
        Lateness(late, allowed_s * S),
        early,
        **more,
    )


def driver(operator, directory, **more):
    columns = ("name", "at", "x", "y", "_op")
    return Driver(operator, [Source(SCHEMA, ("name",), columns, operator.time)], directory, **more)


def row(name, seconds, x=1, y=0.5, **more):
    return {"name": name, "at": None if seconds is None else at(seconds), "x": x, "y": y, **more}


def reference(operator, logs):
    """Rows of each (key, window), the closed windows among them, and the counters; `logs` are the
    rows of each partition."""
    size, hop = operator.panes * operator.hop_us // S, operator.hop_us // S
    delay, allowed = operator.time.delay_us // S, operator.lateness.allowed_us // S
    held, counters, latest = defaultdict(list), defaultdict(int), []
    for rows in logs.values():
        seen = None
        for row in rows:
            if row["at"] is None:
                if row.get("_op", "c") in "cr":
                    counters["without_time"] += 1
                continue
            second = (row["at"] - EPOCH).total_seconds()
            seen = second if seen is None else max(seen, second)
            if row.get("_op", "c") not in "cr":
                continue
            starts = [s for s in range(-100 * hop, 100 * hop, hop) if s <= second < s + size]
            takes = [s for s in starts if s + size + allowed > seen - delay]
            if not takes:
                counters["late"] += 1
            elif len(takes) < len(starts):
                counters["late_in_part"] += 1
            for start in takes:
                held[row["name"], start].append(row)
        if seen is not None:  # a partition without any time is not waited for
            latest.append(seen)
    counters["not_events"] = sum(
        row.get("_op", "c") not in "cr" for rows in logs.values() for row in rows
    )
    now = min(latest) - delay if latest else None
    closed = {pair for pair in held if now is not None and pair[1] + size <= now}
    return held, closed, counters


class Net:
    """What a store has after the rows were applied to it; checks that they can be."""

    def __init__(self):
        self.rows = {}

    def apply(self, result):
        for row in result:
            values = dict(row)
            op, mark = values.pop("_op"), values.pop("_mark")
            pair = row["name"], int((row["window_start"] - EPOCH).total_seconds())
            if op == "c":
                assert pair not in self.rows
            elif op == "u":
                assert self.rows[pair][0] == "early"
            if op == "d":
                assert mark == "correction"
                was = self.rows.pop(pair)
                assert was[0] != "early"
                assert was[1] == values
            else:
                if mark == "final" and pair in self.rows:
                    assert self.rows[pair][0] == "early"
                self.rows[pair] = mark, values


def values(operator, held, pairs):
    """What the results of these pairs are."""
    found = {}
    hop = operator.hop_us // S
    for name, start in pairs:
        found[name, start] = {
            "name": name,
            "window_start": at(start),
            "window_end": at(start + operator.panes * hop),
            "_position": {
                "topic": operator.topic,
                "partition": 0,
                "offset": (start + operator.panes * hop) * S,
            },
            **aggregated(held[name, start]),
        }
        for new, of, ago in operator.previous:
            before = held.get((name, start - ago * hop))
            found[name, start][new] = aggregated(before)[of] if before else None
    return found


def aggregated(rows):
    return {
        "rows": len(rows),
        "xs": sum(row["x"] is not None for row in rows),
        "sum": math.fsum(row["y"] for row in rows),
        "most": max(row["y"] for row in rows),
    }


rows_drawn = st.lists(
    st.builds(
        row,
        st.sampled_from(["a", "b", "c", None]),
        st.one_of(st.integers(-60, 60), st.integers(-60, 60), st.none()),
        st.sampled_from([1, None]),
        st.sampled_from([0.1, 0.3, 1e16, -1e16]),
        _op=st.sampled_from(["c", "c", "c", "c", "r", "u", "d"]),
    ),
    min_size=1,
    max_size=25,
)
operators_drawn = st.builds(
    lambda size, late, allowed, delay, early, previous: windows(
        *size,
        late=late,
        allowed_s=allowed if late == "correct" else 0,
        delay_s=delay,
        early=early,
        previous=previous,
    ),
    st.sampled_from([(10,), (7,), (1,), (10, 5), (12, 3), (20, 4), (6, 1)]),
    st.sampled_from(["drop", "side", "correct"]),
    st.sampled_from([0, 5, 30, 100]),
    st.sampled_from([0, 3, 20]),
    st.booleans(),
    st.sampled_from(
        [(), (("before", "sum", 1),), (("before", "xs", 2), ("ago", "rows", 3))],
    ),
)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), operator=operators_drawn)
def test_any_cut_gives_what_the_log_says(data, operator, tmp_path_factory):
    logs = {
        ("t", partition): data.draw(rows_drawn) for partition in range(data.draw(st.integers(1, 3)))
    }
    held, closed, counters = reference(operator, logs)
    net, aside = Net(), 0
    streamed = driver(operator, tmp_path_factory.mktemp("state"), buckets=2)
    todo = {place: list(rows) for place, rows in logs.items()}
    for number in count():
        if not any(todo.values()):
            break
        batch = {}
        for place, rows in todo.items():  # every partition has rows in the first batch
            has_time = (at for at, row in enumerate(rows, 1) if row["at"] is not None)
            size = data.draw(st.integers(0 if number else next(has_time, 0), len(rows)))
            batch[place], todo[place] = rows[:size], rows[size:]
        batch = {place: rows for place, rows in batch.items() if rows}
        if not batch:
            continue
        result = streamed.batch(batch)
        if data.draw(st.booleans()):
            assert streamed.again() == result
        net.apply(result)
        sides = [state.sides.get("late") for state in streamed.states.values()]
        aside += sum(len(side) for side in sides if side is not None)
    wanted = values(operator, held, held if operator.is_early else closed)
    assert {pair: row for pair, (_, row) in net.rows.items()} == wanted
    assert {pair for pair, (mark, _) in net.rows.items() if mark != "early"} == closed
    for name in ("late", "late_in_part", "without_time", "not_events"):
        assert streamed.counter(name) == counters[name], name
    is_aside = operator.lateness.mode != "drop"
    assert aside == (counters["late"] + counters["without_time"] if is_aside else 0)

    bounded = Net()
    bounded.apply(driver(operator, None).batch(logs))
    assert {pair: row for pair, (_, row) in bounded.rows.items()} == wanted


def summary(result):
    """(op, mark, key, start, rows) of each."""
    return [
        (
            row["_op"],
            row["_mark"],
            row["name"],
            int((row["window_start"] - EPOCH).total_seconds()),
            row["rows"],
        )
        for row in result
    ]


def test_a_partition_an_hour_ahead_loses_the_other_nothing(tmp_path):
    ahead = [row("ahead", 3600 + second) for second in range(60)]
    behind = [row("behind", second) for second in range(60)]
    streamed = driver(windows(10), tmp_path)
    found = []
    for start in range(0, 60, 20):
        both = {("t", 0): ahead[start : start + 20], ("t", 1): behind[start : start + 20]}
        found += summary(streamed.batch(both))
    assert found == [("c", "final", "behind", start, 10) for start in range(0, 50, 10)]
    assert streamed.counter("late") == 0
    found = summary(streamed.batch({("t", 1): [row("behind", 4000)]}))
    finals = [("c", "final", "ahead", 3600 + start, 10) for start in range(0, 50, 10)]
    assert sorted(found) == sorted([*finals, ("c", "final", "behind", 50, 10)])


def test_corrections_retract_what_was_emitted_last(tmp_path):
    streamed = driver(windows(10, late="correct", allowed_s=100), tmp_path)
    first = streamed.batch({("t", 0): [row("a", 1), row("a", 12)]})
    assert summary(first) == [("c", "final", "a", 0, 1)]
    for rows in (2, 3, 4):
        assert summary(streamed.batch({("t", 0): [row("a", 2)]})) == [
            ("d", "correction", "a", 0, rows - 1),
            ("c", "correction", "a", 0, rows),
        ]
    assert summary(streamed.batch({("t", 0): [row("b", 2)]})) == [("c", "correction", "b", 0, 1)]
    streamed.batch({("t", 0): [row("z", 110)]})
    assert summary(streamed.batch({("t", 0): [row("a", 3)]})) == []  # 10 + 100 <= 110
    assert streamed.counter("late") == 1


def test_early_results_and_the_final_one(tmp_path):
    streamed = driver(windows(10, early=True), tmp_path)
    assert summary(streamed.batch({("t", 0): [row("a", 1)]})) == [("c", "early", "a", 0, 1)]
    assert summary(streamed.batch({("t", 0): [row("a", 2)]})) == [("u", "early", "a", 0, 2)]
    assert summary(streamed.batch({("t", 0): [row("b", 9)]})) == [("c", "early", "b", 0, 1)]
    closing = streamed.batch({("t", 0): [row("a", 3), row("c", 8), row("b", 10)]})
    assert sorted(summary(closing)) == [
        ("c", "early", "b", 10, 1),
        ("c", "final", "c", 0, 1),
        ("u", "final", "a", 0, 3),
        ("u", "final", "b", 0, 1),
    ]


def test_a_row_counts_in_those_of_its_windows_that_are_open(tmp_path):
    streamed = driver(windows(20, 10), tmp_path)
    streamed.batch({("t", 0): [row("a", 5), row("a", 22)]})
    found = streamed.batch({("t", 0): [row("a", 15), row("a", 4), row("a", 60)]})
    # [0, 20) had closed at 22; [10, 30) takes the row of 15; the row of 4 is in none that is open.
    assert summary(found) == [
        ("c", "final", "a", start, rows) for start, rows in ((10, 2), (20, 1))
    ]
    assert (streamed.counter("late_in_part"), streamed.counter("late")) == (1, 1)


def test_a_backlog_gives_what_the_live_run_gave(tmp_path):
    """A year, hour by hour and all at once: no spike, no other result."""
    year = [row("abc"[n % 3], 3600 * n + 7 * (n % 11)) for n in range(24 * 365)]
    at_once = driver(windows(86400), tmp_path / "backlog").batch({("t", 0): year})
    live, found = driver(windows(86400), tmp_path / "live"), []
    for start in range(0, len(year), 24 * 30):
        found += live.batch({("t", 0): year[start : start + 24 * 30]})
    assert len(at_once) == 3 * 364
    assert {row["rows"] for row in at_once} == {8}
    assert sorted(summary(found)) == sorted(summary(at_once))


def test_a_window_knows_the_one_before_it(tmp_path):
    operator = windows(10, late="correct", allowed_s=100, previous=(("before", "rows", 1),))
    streamed = driver(operator, tmp_path)
    first = streamed.batch({("t", 0): [row("a", 1), row("a", 11), row("a", 21), row("a", 31)]})
    assert [row["before"] for row in first] == [None, 1, 1]
    # A correction of [0, 10) is one of [10, 20), too; [20, 30) does not know of it.
    late = streamed.batch({("t", 0): [row("a", 2)]})
    assert [(op, start, rows) for op, _, _, start, rows in summary(late)] == [
        ("d", 0, 1),
        ("d", 10, 1),
        ("c", 0, 2),
        ("c", 10, 1),
    ]
    assert [row["before"] for row in late] == [None, 1, None, 2]
    later = streamed.batch({("t", 0): [row("a", 41)]})  # the one before closed batches ago
    assert [(row["rows"], row["before"]) for row in later] == [(1, 1)]


def test_state_lives_until_it_can_be_neither_corrected_nor_compared_with(tmp_path):
    operator = windows(10, late="correct", allowed_s=100, previous=(("before", "rows", 2),))
    streamed = driver(operator, tmp_path, buckets=1)

    def ends():
        """Of the windows in state."""
        state = streamed.states[0]
        tables = [state.table(f"panes{first}") for first, *_ in state.document["panes"]]
        return sorted((last + 1) * 10 for table in tables for last in table["last"].to_pylist())

    streamed.batch({("t", 0): [row("a", 5), row("a", 15)]})
    streamed.batch({("t", 0): [row("b", 129)]})
    assert ends() == [10, 20, 130]  # 10 + 100 + 20 is not yet reached
    streamed.batch({("t", 0): [row("b", 130)]})
    assert ends() == [20, 130, 140]
    streamed.batch({("t", 0): [row("b", 1000)]})
    assert ends() == [1010]


def test_a_batch_writes_what_it_changes_only(tmp_path):
    operator = windows(1, late="correct", allowed_s=10_000)
    streamed = driver(operator, tmp_path, buckets=1, as_tasks=True)

    def written():
        """Rows of the tables that the last batch wrote."""
        state = streamed.states[0]
        return [len(table) for table in state._put.values() if table is not None]

    streamed.batch({("t", 0): [row(f"k{n % 5}", n // 5) for n in range(5000)]})
    for second in range(1000, 1060):
        listed = {f"panes{first}" for first, *_ in streamed.states[0].document["panes"]}
        streamed.batch({("t", 0): [row(f"k{n}", second) for n in range(5)]})
        # Its own window, and sometimes two small tables that wait and become one.
        assert sum(written()) <= 5 + 5000 / 8
        assert len(streamed.states[0].document["panes"]) <= 64
        assert (
            set(streamed.states[0]._tables) == listed
        )  # on disk are the tables of the state, and no more
    for late in (1001, 2, 500):
        streamed.batch({("t", 0): [row("k1", late)]})
        assert len(written()) == 1
        assert written()[0] <= 5000 / 8
    streamed.batch({("t", 0): [row("k1", 30_000)]})
    assert [first for first, *_ in streamed.states[0].document["panes"]] == [30_000]


@pytest.mark.parametrize(("late", "result"), [("drop", []), ("correct", [("d", 1), ("c", 2)])])
def test_a_partition_that_was_left_behind_finds_windows_closed(tmp_path, late, result):
    operator = windows(10, late=late, allowed_s=100 if late == "correct" else 0)
    operator = replace(operator, time=EventTime("at", 0, idle_us=60 * S))
    streamed = driver(operator, tmp_path)
    both = {("t", 0): [row("a", 1), row("a", 31)], ("t", 1): [row("a", 25)]}
    assert summary(streamed.batch(both)) == [("c", "final", "a", 0, 1)]
    for minute in (1, 3):
        found = streamed.batch({("t", 0): [row("a", 32)]}, now=START + timedelta(minutes=minute))
    assert summary(found) == [("c", "final", "a", 20, 1)]
    woken = streamed.batch({("t", 1): [row("a", 26)]}, now=START + timedelta(minutes=4))
    assert [(op, rows) for op, *_, rows in summary(woken)] == result
    assert streamed.counter("late") == (late == "drop")


def test_a_row_left_behind_counts_in_windows_that_are_open(tmp_path):
    operator = replace(windows(20, 10), time=EventTime("at", 0, idle_us=60 * S))
    streamed = driver(operator, tmp_path)
    streamed.batch({("t", 0): [row("a", 45)], ("t", 1): [row("a", 5)]})
    for minute in (1, 3):
        streamed.batch({("t", 0): [row("a", 46)]}, now=START + timedelta(minutes=minute))
    later = START + timedelta(minutes=4)
    assert streamed.batch({("t", 1): [row("a", 35)]}, now=later) == []  # [20, 40) has closed
    both = {place: [row("b", 70)] for place in (("t", 0), ("t", 1))}
    assert [(start, rows) for *_, start, rows in summary(streamed.batch(both, now=later))] == [
        (30, 4),
        (40, 3),
    ]
    assert (streamed.counter("late_in_part"), streamed.counter("late")) == (1, 0)


def test_times_before_1970(tmp_path):
    rows = [row("a", -1), row("a", -10), row("a", -11), row("a", 0), row("a", 10)]
    found = driver(windows(10, delay_s=30), tmp_path).batch({("t", 0): [*rows, row("a", 40)]})
    assert [(start, rows) for *_, start, rows in summary(found)] == [(-20, 1), (-10, 2), (0, 1)]


@pytest.mark.parametrize(
    "other",
    [windows(20), windows(10, 5), windows(10, late="correct", allowed_s=1)],
    ids=["size", "hop", "allowed_lateness"],
)
def test_state_of_other_windows_is_no_state(tmp_path, other):
    driver(windows(10), tmp_path).batch({("t", 0): [row("a", 1)]})
    changed = driver(other, tmp_path)
    changed._numbers = count(1)
    with pytest.raises(StateLost):
        changed.batch({("t", 0): [row("a", 2)]})


def test_what_a_batch_closes_or_corrects_is_read_from_tables_that_it_does_not_change(tmp_path):
    hopping = driver(windows(20, 10), tmp_path / "hopping")
    hopping.batch({("t", 0): [row("a", 15)]})
    assert summary(hopping.batch({("t", 0): [row("b", 22)]})) == [("c", "final", "a", 0, 1)]
    operator = windows(10, late="correct", allowed_s=100, previous=(("before", "rows", 1),))
    compared = driver(operator, tmp_path / "compared")
    compared.batch({("t", 0): [row("a", 1), row("a", 11), row("a", 21)]})
    late = compared.batch({("t", 0): [row("a", 12)]})
    assert [(row["rows"], row["before"]) for row in late] == [(1, 1), (2, 1)]


def test_early_results_corrections_and_windows_compared_with_go_together(tmp_path):
    previous = (("before", "rows", 1),)
    operator = windows(10, late="correct", allowed_s=100, early=True, previous=previous)
    run = driver(operator, tmp_path)
    run.batch({("t", 0): [row("a", 1), row("a", 11), row("a", 25)]})
    found = run.batch({("t", 0): [row("a", 2)]})
    assert summary(found) == [
        ("d", "correction", "a", 0, 1),
        ("d", "correction", "a", 10, 1),
        ("c", "correction", "a", 0, 2),
        ("c", "correction", "a", 10, 1),
    ]
    assert [row["before"] for row in found] == [None, 1, None, 2]
