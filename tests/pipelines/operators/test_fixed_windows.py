"""Tumbling and hopping windows against a reference that knows nothing of batches."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import count

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_driver import ADDED, Driver, Source

from headwater.pipelines.operators.aggregate import Count
from headwater.pipelines.operators.fixed_windows import FixedWindows
from headwater.pipelines.operators.lateness import Lateness
from headwater.pipelines.operators.named_aggregates import NamedAggregates
from headwater.pipelines.operators.times import EventTime

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
S = 1_000_000
SCHEMA = pa.schema([("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("x", pa.int64())])


def at(seconds):
    return EPOCH + timedelta(seconds=seconds)


def windows(size_s=10, hop_s=None, *, late="drop", allowed_s=0, delay_s=0, early=False, **more):
    hop_s = hop_s or size_s
    schema = pa.schema([*SCHEMA, *ADDED[:1]])
    aggregates = NamedAggregates((("rows", Count()), ("xs", Count("x"))), schema)
    return FixedWindows(
        aggregates,
        ("name",),
        EventTime("at", delay_s * S),
        hop_s * S,
        size_s // hop_s,
        Lateness(late, allowed_s * S),
        early,
        **more,
    )


def driver(operator, directory, **more):
    columns = ("name", "at", "x", "_op")
    return Driver(operator, [Source(SCHEMA, ("name",), columns, operator.time)], directory, **more)


def row(name, seconds, x=1, **more):
    return {"name": name, "at": None if seconds is None else at(seconds), "x": x, **more}


def reference(operator, logs):
    """Rows of each (key, window), the closed windows among them, and the counters; `logs` are the
    rows of each partition."""
    size, hop = operator.panes * operator.hop_us // S, operator.hop_us // S
    delay, allowed = operator.time.delay_us // S, operator.lateness.allowed_us // S
    held, counters, latest = defaultdict(list), defaultdict(int), []
    for rows in logs.values():
        seen = None
        for each in rows:
            if each["at"] is None:
                if each.get("_op", "c") in "cr":
                    counters["without_time"] += 1
                continue
            second = (each["at"] - EPOCH).total_seconds()
            seen = second if seen is None else max(seen, second)
            if each.get("_op", "c") not in "cr":
                continue
            starts = [s for s in range(-100 * hop, 100 * hop, hop) if s <= second < s + size]
            takes = [s for s in starts if s + size + allowed > seen - delay]
            if not takes:
                counters["late"] += 1
            elif len(takes) < len(starts):
                counters["late_in_part"] += 1
            for start in takes:
                held[each["name"], start].append(each)
        latest.append(seen)
    counters["not_events"] = sum(
        each.get("_op", "c") not in "cr" for rows in logs.values() for each in rows
    )
    now = None if None in latest else min(latest) - delay
    closed = {pair for pair in held if now is not None and pair[1] + size <= now}
    return held, closed, counters


class Net:
    """What a store has after the rows were applied to it; checks that they can be."""

    def __init__(self):
        self.rows = {}

    def apply(self, result):
        for each in result:
            values = dict(each)
            op, mark = values.pop("_op"), values.pop("_mark")
            pair = each["name"], int((each["window_start"] - EPOCH).total_seconds())
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
    size = operator.panes * operator.hop_us // S
    for name, start in pairs:
        rows = held[name, start]
        each = {
            "name": name,
            "window_start": at(start),
            "window_end": at(start + size),
            "rows": len(rows),
            "xs": sum(row["x"] is not None for row in rows),
        }
        for new, of, ago in operator.previous:
            before = held.get((name, start - ago * operator.hop_us // S))
            each[new] = None
            if before:
                each[new] = (
                    len(before) if of == "rows" else sum(row["x"] is not None for row in before)
                )
        found[name, start] = each
    return found


rows_drawn = st.lists(
    st.builds(
        row,
        st.sampled_from(["a", "b", "c", None]),
        st.one_of(st.integers(-60, 60), st.integers(-60, 60), st.none()),
        st.sampled_from([1, None]),
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
    st.sampled_from([(10,), (7,), (10, 5), (12, 3), (20, 4)]),
    st.sampled_from(["drop", "side", "correct"]),
    st.sampled_from([0, 5, 30, 100]),
    st.sampled_from([0, 3, 20]),
    st.booleans(),
    st.sampled_from(
        [(), (("before", "rows", 1),), (("before", "xs", 2), ("ago", "rows", 3))],
    ),
)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), operator=operators_drawn)
def test_any_cut_gives_what_the_log_says(data, operator, tmp_path_factory):
    logs = {
        ("t", partition): data.draw(rows_drawn) for partition in range(data.draw(st.integers(1, 3)))
    }
    held, closed, counters = reference(operator, logs)
    net, aside = Net(), 0
    streamed = driver(operator, tmp_path_factory.mktemp("state"))
    todo = {place: list(rows) for place, rows in logs.items()}
    for number in count():
        if not any(todo.values()):
            break
        batch = {}
        for place, rows in todo.items():  # all partitions are known from the first batch on
            size = data.draw(st.integers(0 if number else 1, len(rows)))
            batch[place], todo[place] = rows[:size], rows[size:]
        batch = {place: rows for place, rows in batch.items() if rows}
        if not batch:
            continue
        result = streamed.batch(batch)
        if data.draw(st.booleans()):
            assert streamed.again() == result
        net.apply(result)
        sides = [each.sides.get("late") for each in streamed.states.values()]
        aside += sum(len(each) for each in sides if each is not None)
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
