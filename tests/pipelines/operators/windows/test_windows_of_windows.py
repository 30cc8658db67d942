"""Operators over results of windows: any cut of the log into batches gives the same."""

import json
from collections import defaultdict
from dataclasses import replace

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.chained import Chain
from support.pipelines.event_log import SCHEMA, SECOND, Ids, at, cuts, driven, logs, seconds
from support.pipelines.event_log import given as rows_of
from support.pipelines.operator_driver import ADDED, Driver, Source
from tiers import examples

from headwater.pipelines.operators.aggregates import api as agg
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.joins.interval_join import (
    IntervalJoin,
    JoinSide,
    result_schema,
)
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.operators.time.result_time import ResultTime
from headwater.pipelines.operators.windows.fixed_windows import FixedWindows
from headwater.pipelines.operators.windows.sessions import Sessions
from headwater.pipelines.operators.windows.sliding import Sliding

DROP = Lateness("drop", 0)
STAMP = pa.timestamp("us", "UTC")
RESULTS = pa.schema(
    [
        ("name", pa.string()),
        ("window_start", STAMP),
        ("window_end", STAMP),
        ("n", pa.int64()),
        ("ids", pa.list_(pa.int64())),
    ]
)
ROWS = pa.schema([*SCHEMA, *ADDED[:1]])


def first_of(kind, delay, topic="operator/first"):
    time = EventTime("time", delay * SECOND)
    aggregates = NamedAggregates((("n", agg.count()), ("ids", Ids())), ROWS)
    made = {
        "tumbling": FixedWindows(aggregates, ("name",), time, 10 * SECOND, 1, DROP),
        "hopping": FixedWindows(aggregates, ("name",), time, 5 * SECOND, 2, DROP),
        "session": Sessions(("name",), 5 * SECOND, time, DROP, False, aggregates),
    }[kind]
    return made.with_topic(topic)


def second_of(kind, time, by=("name",)):
    schema = pa.schema([*RESULTS, *ADDED[:1]])
    aggregates = NamedAggregates((("windows", agg.count()), ("rows", agg.sum("n"))), schema)
    made = {
        "tumbling": lambda: FixedWindows(aggregates, by, time, 30 * SECOND, 1, DROP),
        "hopping": lambda: FixedWindows(aggregates, by, time, 20 * SECOND, 2, DROP),
        "session": lambda: Sessions(by, 12 * SECOND, time, DROP, False, aggregates),
        "sliding": lambda: Sliding(by, ("window_end",), 25 * SECOND, time, DROP, False, aggregates),
    }[kind]()
    return made.with_topic("operator/second") if kind != "sliding" else made


def chain(first, second, directory=None, shuffled=lambda rows: rows):
    columns = (*RESULTS.names, "_op")
    source = Source(RESULTS, second.by, columns, second.time)
    return Chain(
        [driven(first, directory and directory / "first")],
        Driver(second, [source], directory and directory / "second", buckets=2),
        shuffled,
    )


def in_any_order(rows):
    return sorted(rows, key=repr)


LEADS_US = {  # as the operators' columns have it in their metadata
    ("tumbling", "window_start"): 0,
    ("tumbling", "window_end"): 10 * SECOND,
    ("hopping", "window_start"): -5 * SECOND,
    ("hopping", "window_end"): 5 * SECOND,
    ("session", "window_start"): None,
    ("session", "window_end"): 1,
}
KINDS = st.sampled_from(["tumbling", "hopping", "session"])


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), KINDS, st.sampled_from(["tumbling", "hopping", "session", "sliding"]))
def test_any_cut_gives_what_one_batch_gives(tmp_path_factory, data, one, other):
    """By a bound of the windows, as `input_time` has it: no result is late, and lateness is no
    matter of the cut for any other time: here a start of sessions without delay."""
    tmp_path = tmp_path_factory.mktemp("chain")
    first = first_of(one, data.draw(st.sampled_from([0, 10])))
    for name in ("window_start", "window_end"):
        (metadata,) = first.output.field(name).metadata.values()
        assert json.loads(metadata).get("headwater.lead_us") == LEADS_US[one, name]
    bound = data.draw(st.sampled_from(["window_start", "window_end"]))
    second = second_of(other, ResultTime(bound, 0, bound_us=LEADS_US[one, bound]))
    log = data.draw(logs())
    shuffled = data.draw(st.randoms(use_true_random=False))

    def in_disorder(rows):
        shuffled.shuffle(rows)
        return rows

    whole = chain(first, second)
    expected = whole.batch(rows_of(log))
    streamed = chain(first, second, tmp_path, in_disorder)
    found = [row for share in data.draw(cuts(log)) for row in streamed.batch(rows_of(share))]
    assert in_any_order(found) == in_any_order(expected)
    assert streamed.second.counter("late") == whole.second.counter("late")
    if (one, bound) != ("session", "window_start"):
        assert whole.second.counter("late") == 0


@settings(max_examples=examples(40), deadline=None)
@given(logs(), st.sampled_from([0, 10]))
def test_a_longer_window_has_the_results_of_the_shorter_ones_in_it(log, delay):
    first = first_of("tumbling", delay)
    time = ResultTime("window_start", 0, bound_us=0)
    found = chain(first, second_of("tumbling", time)).batch(rows_of(log))
    shorter = driven(first, None).batch(rows_of(log))
    closed = max((seconds(row["window_end"]) for row in shorter), default=0)
    expected = defaultdict(lambda: [0, 0])
    for row in shorter:
        start = seconds(row["window_start"]) // 30 * 30
        if start + 30 <= closed:  # it closes with its last short window
            expected[row["name"], start][0] += 1
            expected[row["name"], start][1] += row["n"]
    assert {
        (row["name"], seconds(row["window_start"])): [row["windows"], row["rows"]] for row in found
    } == expected


def test_a_longer_window_closes_with_the_last_shorter_one_in_it(tmp_path):
    first = first_of("tumbling", 0)
    second = second_of("tumbling", ResultTime("window_start", 0, bound_us=0))
    driver = chain(first, second, tmp_path)

    def rows(*times):
        return rows_of([[{"name": "a", "time": time, "id": time} for time in times]])

    assert driver.batch(rows(0, 3, 12, 25, 29)) == []
    (found,) = driver.batch(rows(31))
    assert (found["window_start"], found["window_end"]) == (at(0), at(30))
    assert (found["windows"], found["rows"]) == (3, 5)
    assert found["_position"] == {
        "topic": "operator/second",
        "partition": 0,
        "offset": 30 * SECOND,
    }


@settings(max_examples=examples(40), deadline=None)
@given(st.data(), KINDS, KINDS)
def test_windows_are_joined_the_same_for_any_cut(tmp_path_factory, data, one, other):
    tmp_path = tmp_path_factory.mktemp("join")
    delay = data.draw(st.sampled_from([0, 10]))
    firsts = [first_of(one, delay, "operator/left"), first_of(other, delay, "operator/right")]
    leads_us = [LEADS_US[kind, "window_end"] for kind in (one, other)]
    names = ("window_end", "n")
    sides = [
        JoinSide(
            side,
            time=ResultTime("window_end", 0, bound_us=lead_us),
            key=("name",),
            hash_column="hash",
            columns=(("name", "name"), *((name, f"{side}_{name}") for name in names)),
            is_outer=True,
            back_us=5 * SECOND,
            ahead_us=10 * SECOND,
        )
        for side, lead_us in zip(("left", "right"), leads_us, strict=True)
    ]
    sides[1] = replace(sides[1], back_us=10 * SECOND, ahead_us=5 * SECOND)
    schema = pa.schema([*RESULTS, ("hash", pa.int64()), *ADDED])
    output = result_schema((sides[0], sides[1]), [schema, schema])
    join = IntervalJoin(sides[0], sides[1], DROP, output)

    def hashed(rows):
        return [{**row, "hash": 0 if row["name"] is None else ord(row["name"])} for row in rows]

    def chained(directory):
        columns = ("name", "hash", *names, "_op", "_at")
        sources = [
            Source(pa.schema([*RESULTS, ("hash", pa.int64())]), ("name",), columns, side.time)
            for side in sides
        ]
        return Chain(
            [
                driven(first, directory and directory / str(number))
                for number, first in enumerate(firsts)
            ],
            Driver(join, sources, directory and directory / "join", buckets=2),
            hashed,
        )

    log = data.draw(logs())
    expected = chained(None).batch(rows_of(log))
    streamed = chained(tmp_path)
    found = [row for share in data.draw(cuts(log)) for row in streamed.batch(rows_of(share))]
    assert in_any_order(found) == in_any_order(expected)
    assert streamed.second.counter("late") == 0


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.sampled_from(["tumbling", "hopping", "session"]))
def test_sliding_windows_are_followed_the_same_for_any_cut(tmp_path_factory, data, kind):
    """Although they have the positions of events, which are not in the order of time."""
    tmp_path = tmp_path_factory.mktemp("sliding")
    time = EventTime("time", data.draw(st.sampled_from([0, 10, 50])) * SECOND)
    aggregates = NamedAggregates((("n", agg.count()),), ROWS)
    first = Sliding(("name",), ("id",), 20 * SECOND, time, DROP, False, aggregates)
    results = pa.schema([("name", pa.string()), ("event_time", STAMP), ("n", pa.int64())])
    (metadata,) = first.output.field("event_time").metadata.values()
    assert json.loads(metadata) == {"headwater.in_time": 1}
    following = ResultTime("event_time", 0, in_order=True)
    named = NamedAggregates(
        (("windows", agg.count()), ("rows", agg.sum("n"))), pa.schema([*results, *ADDED[:1]])
    )
    second = {
        "tumbling": FixedWindows(named, ("name",), following, 10 * SECOND, 1, DROP),
        "hopping": FixedWindows(named, ("name",), following, 5 * SECOND, 2, DROP),
        "session": Sessions(("name",), 5 * SECOND, following, DROP, False, named),
    }[kind]

    def chained(directory):
        source = Source(results, ("name",), (*results.names, "_op"), following)
        return Chain(
            [driven(first, directory and directory / "first")],
            Driver(second, [source], directory and directory / "second", buckets=2),
        )

    log = data.draw(logs())
    whole = chained(None)
    expected = whole.batch(rows_of(log))
    streamed = chained(tmp_path)
    found = [row for share in data.draw(cuts(log)) for row in streamed.batch(rows_of(share))]
    assert in_any_order(found) == in_any_order(expected)
    assert streamed.second.counter("late") == whole.second.counter("late") == 0
