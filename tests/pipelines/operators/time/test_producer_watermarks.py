"""Watermarks that producers send inside the stream: the least of those that are present."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.judging import P0, P1, STAMP, Judge, hours, minutes
from tiers import examples

import headwater as hw
from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.contract import PartitionProgress
from headwater.pipelines.operators.time import producer_watermarks, punctuations
from headwater.pipelines.operators.time.punctuations import LEFT, MARK, ROW, Punctuations

SCHEMA = pa.schema([("name", pa.string()), ("at", STAMP), ("device", pa.string()), ("done", STAMP)])
LEAVES = datetime(9999, 1, 1, tzinfo=UTC)


def by_producers(**more):
    given = {"delay": "0 s", "future": None} | more
    return hw.event_time("at", producer="device", watermark="done", **given)


@pytest.fixture
def judge(tmp_path):
    return Judge(by_producers(), tmp_path, SCHEMA)


def row(device, at, done=None, name=None, **more):
    """Hours; a row without `at` is a punctuation only."""
    return {
        "name": name or f"{device}-{at}",
        "at": None if at is None else hours(at),
        "device": device,
        "done": done if done is None or done is LEAVES else hours(done),
        **more,
    }


def test_time_is_the_least_of_the_producers(judge):
    judge.batch({P0: [row("a", 1, 1), row("b", 1, 1)]})
    judge.batch({P0: [row("a", 5, 5), row("b", 2, 2)]})
    assert judge.now == hours(2)
    assert not judge.batch({P0: [row("a", 9), row("b", 2.5)]})  # rows alone move nothing
    assert judge.now == hours(2)


def test_a_producer_that_vanishes_holds_time_back(judge):
    judge.batch({P0: [row("a", 1, 1), row("b", 1, 1)]})
    for hour in range(2, 9):
        judge.batch({P0: [row("a", hour, hour)]}, now=hours(hour))
    assert judge.now == hours(1)


def test_a_producer_that_is_idle_is_forgotten(tmp_path):
    judge = Judge(by_producers(idle="5 minutes"), tmp_path, SCHEMA)
    judge.batch({P0: [row("a", 1, 1), row("b", 1, 1)]})
    judge.batch({P0: [row("a", 2, 2)]}, now=minutes(60))
    judge.batch({P0: [row("a", 3, 3)]}, now=minutes(65))
    assert judge.now == hours(1)
    judge.batch({P0: [row("a", 4, 4)]}, now=minutes(66))
    assert judge.now == hours(4)
    late = judge.batch({P0: [row("b", 3.5, name="old"), row("b", 4.5)]}, now=minutes(67))
    assert late == {"old"}
    judge.batch({P0: [row("a", 9, 9)]}, now=minutes(68))
    assert judge.now == hours(4)  # it has joined again, with its first row, and is waited for


def test_a_producer_joins_with_its_first_row_and_leaves_by_a_watermark(judge):
    judge.batch({P0: [row("a", 1, 1)]})
    judge.batch({P0: [row("a", 2, 2), row("b", 3)]})
    judge.batch({P0: [row("a", 9, 9)]})
    assert judge.now == hours(3)
    judge.batch({P0: [row("b", None, LEAVES)]})
    assert judge.now == hours(9)
    assert judge.batch({P0: [row("b", 8), row("b", 9.5)]}) == {"b-8"}
    judge.batch({P0: [row("a", 12, 12)]})
    assert judge.now == hours(9)


def test_rows_before_the_first_watermark_may_be_out_of_order_by_the_delay(tmp_path):
    judge = Judge(by_producers(delay="30 minutes"), tmp_path, SCHEMA)
    assert not judge.batch({P0: [row("a", 1.2), row("a", 0.9)]})
    assert judge.now == minutes(42)
    judge.batch({P0: [row("a", 2, 2)]})
    assert judge.now == hours(2)  # what a producer says is not delayed


def test_its_own_watermark_does_not_make_a_row_late(judge):
    assert not judge.batch({P0: [row("a", 0.9, 1)]})
    assert judge.batch({P0: [row("a", 0.95)]}) == {"a-0.95"}


def test_a_watermark_that_goes_back_is_none(judge):
    judge.batch({P0: [row("a", 5, 5), row("a", 5, 3)]})
    assert judge.now == hours(5)
    judge.batch({P0: [row("b", 6, 6), row("a", 5, 4)]})
    judge.batch({P0: [row("c", 5.5, 5.5)]})
    judge.batch({P0: [row("a", None, LEAVES), row("b", 7, 4)]})
    assert judge.now == hours(5.5)
    judge.batch({P0: [row("c", None, LEAVES)]})
    assert judge.now == hours(6)


def test_a_row_may_be_a_punctuation_only(judge):
    judge.batch({P0: [row("a", 1), row("a", None, 4)]})
    assert judge.now == hours(4)
    assert judge.driver.counter("without_time") == 0
    judge.batch({P0: [row("a", None), row(None, None, 7)]})  # these are no punctuations
    assert judge.driver.counter("without_time") == 2
    assert judge.now == hours(4)


def test_rows_without_a_producer_are_events_and_move_nothing(judge):
    judge.batch({P0: [row("a", 1, 1)]})
    assert not judge.batch({P0: [row(None, 5, 5, name="x")], P1: [row(None, 3, name="y")]})
    assert judge.now == hours(1)


def test_a_producer_is_waited_for_in_each_partition_that_it_writes_to(judge):
    judge.batch({P0: [row("a", 1, 1)], P1: [row("a", 1)]})
    judge.batch({P0: [row("a", 5, 5)]})
    assert judge.now == hours(1)
    judge.batch({P1: [row("a", None, 4)]})
    assert judge.now == hours(4)


def test_a_partition_without_producers_is_not_waited_for(judge):
    judge.batch({P0: [row("a", 1, 1)], P1: [row("b", 1, 1)]})
    judge.batch({P0: [row("a", 5, 5)], P1: [row("b", 1, LEAVES)]})
    assert judge.now == hours(5)
    assert not judge.is_idle


@pytest.mark.parametrize("is_cut", [False, True])
def test_when_all_have_left_time_is_where_the_furthest_was(judge, is_cut):
    batches = [{P0: [row("a", 8, 8)], P1: [row("b", 3, 3)]}, {P0: [row("a", None, LEAVES)]}]
    batches.append({P1: [row("b", None, LEAVES)]})
    for batch in (
        batches
        if is_cut
        else [{P0: batches[0][P0] + batches[1][P0], P1: batches[0][P1] + batches[2][P1]}]
    ):
        judge.batch(batch)
    assert judge.now == hours(8)
    assert judge.is_idle


def test_a_watermark_from_the_future_is_not_believed(tmp_path):
    judge = Judge(by_producers(future="1 hour"), tmp_path, SCHEMA)
    judge.batch({P0: [row("a", 0, 0)]})
    assert judge.batch({P0: [row("a", 0, 1.01, name="x"), row("a", 0, 1)]}) == {"x"}
    assert judge.driver.counter("future") == 1
    assert judge.now == hours(1)
    judge.batch({P0: [row("a", None, 50)]})
    assert judge.driver.counter("future") == 2
    assert judge.now == hours(1)
    judge.batch({P0: [row("b", 1), row("a", None, LEAVES)]})  # that is no broken clock
    judge.batch({P0: [row("b", None, 2, _at=hours(3))]})
    assert judge.now == hours(2)


def test_numbers_are_names_too(tmp_path):
    schema = pa.schema(
        [("name", pa.string()), ("at", STAMP), ("device", pa.int32()), ("done", STAMP)]
    )
    judge = Judge(by_producers(), tmp_path, schema)
    judge.batch({P0: [row(7, 1, 1), row(8, 3, 3)]})
    assert judge.now == hours(1)


# ---- any cut of the log

DEVICES = st.sampled_from(["a", "b", "c", None])
DONE = st.one_of(st.none(), st.integers(0, 12), st.just(LEAVES))
EVENTS = st.tuples(DEVICES, st.one_of(st.none(), st.integers(0, 48)), DONE)


def _row(number, event):
    device, quarter, done = event
    at = None if quarter is None else quarter / 4
    return row(device, at, done, name=f"{number}-{device}")


def _reference(rows, delay):
    """Names that are not taken, and how far time has come, in one partition."""
    present, come, refused = {}, None, set()
    for row in rows:
        at, done, device = row["at"], row["done"], row["device"]
        if at is None or (come is not None and at.replace(minute=0) + timedelta(hours=1) <= come):
            refused.add(row["name"])
        if device is None:
            continue
        if done is LEAVES:
            present.pop(device, None)
        elif done is not None:
            present[device] = max(done, present.get(device, done))
        elif at is not None:
            present.setdefault(device, at - delay)
        if present:
            least = min(present.values())
            come = least if come is None else max(come, least)
    return refused, come


def _cut(data, rows, least=0):
    """Into batches."""
    parts = []
    while rows:
        size = data.draw(st.integers(least, 8))
        parts.append(rows[:size])
        rows = rows[size:]
    return parts


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(EVENTS, max_size=40), st.integers(0, 90), st.data())
def test_any_cut_of_a_partition_judges_the_same(tmp_path_factory, events, delay, data):
    rows = [_row(number, event) for number, event in enumerate(events)]
    time = by_producers(delay=timedelta(minutes=delay))
    judge = Judge(time, tmp_path_factory.mktemp("state"), SCHEMA)
    refused, come = _reference(rows, timedelta(minutes=delay))
    found = set()
    for batch in _cut(data, rows):
        if batch:
            found |= judge.batch({P0: batch})
            if data.draw(st.booleans()):
                judge.driver.again()
    assert found == refused
    if rows:
        bounded = Judge(time, None, SCHEMA)
        assert bounded.batch({P0: rows}) == refused
        if come is not None:
            assert judge.now == bounded.now == come


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(EVENTS, max_size=20), st.lists(EVENTS, max_size=20), st.data())
def test_any_interleaving_of_partitions_judges_the_same(tmp_path_factory, one, other, data):
    """Each partition has one producer from the first batch on that never leaves."""
    judge = Judge(by_producers(), tmp_path_factory.mktemp("state"), SCHEMA)
    logs = {
        partition: [
            row("first", 0, name=f"{partition[1]}-first"),
            *[_row(f"{partition[1]}-{number}", event) for number, event in enumerate(events)],
            row("first", None, done, name=f"{partition[1]}-last"),
        ]
        for partition, events, done in ((P0, one, 5), (P1, other, 9))
    }
    parts = {partition: _cut(data, rows, 1) for partition, rows in logs.items()}
    found = judge.batch({partition: batches.pop(0) for partition, batches in parts.items()})
    while any(parts.values()):
        chosen = data.draw(st.sampled_from([partition for partition in parts if parts[partition]]))
        found |= judge.batch({chosen: parts[chosen].pop(0)})
    references = [_reference(rows, timedelta(0)) for rows in logs.values()]
    assert found == references[0][0] | references[1][0]
    assert judge.now == min(come for _, come in references)


# ---- what is sent to the buckets


def _punctuations(kinds_and_values):
    number = len(kinds_and_values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(number), pa.int64()),
            pa.array(["a"] * number),
            pa.array([value for _, value in kinds_and_values], pa.int64()),
            pa.array([kind for kind, _ in kinds_and_values], pa.int8()),
        ],
        schema=punctuations.SCHEMA,
    )


@pytest.mark.parametrize("most", [1, 1 << 20])
def test_only_punctuations_that_matter_are_sent(monkeypatch, most):
    monkeypatch.setattr(punctuations, "_THINNED_ROWS", most)
    cases = [
        ((ROW, 5), True),
        ((ROW, 6), False),
        ((MARK, 4), True),
        ((MARK, 4), False),
        ((ROW, 9), False),
        ((MARK, 8), True),
        ((MARK, 7), False),
        ((LEFT, LEFT), True),
        ((ROW, 3), True),
        ((MARK, 2), True),
    ]
    found = Punctuations()
    rows = _punctuations([row for row, _ in cases])
    for start in range(len(cases)):
        found.add(rows.slice(start, 1))
    expected = [number for number, (_, matters) in enumerate(cases) if matters]
    assert found.thinned()["offset"].to_pylist() == expected


def test_too_many_producers_are_an_error(monkeypatch):
    monkeypatch.setattr(producer_watermarks, "MOST_PRODUCERS", 2)
    watermarks = by_producers().watermarks()
    for number, device in enumerate("ab"):
        received = Punctuations()
        received.add(_punctuations([(ROW, number)]).set_column(1, "producer", pa.array([device])))
        progress = (PartitionProgress("events", number, 0, 0, (received.to_text(),)),)
        watermarks.advance(progress, 0)
    received.add(_punctuations([(ROW, 5)]).set_column(1, "producer", pa.array(["c"])))
    with pytest.raises(PipelineError, match="3 producers have a watermark, and 2 can"):
        watermarks.advance((PartitionProgress("events", 1, 0, 0, (received.to_text(),)),), 0)


def test_the_least_of_many_producers_in_a_random_order():
    random = np.random.default_rng(5)
    names = [f"p{number}" for number in random.integers(0, 300, 3000)]
    marks = random.integers(0, 10**6, 3000)
    received = Punctuations()
    received.add(
        pa.RecordBatch.from_arrays(
            [
                pa.array(range(3000), pa.int64()),
                pa.array(names),
                pa.array(marks),
                pa.array([MARK] * 3000, pa.int8()),
            ],
            schema=punctuations.SCHEMA,
        )
    )
    watermarks = by_producers().watermarks()
    watermarks.advance((PartitionProgress("events", 0, None, 2999, (received.to_text(),)),), 0)
    highest, least = {}, 0
    for name, mark in zip(names, marks.tolist(), strict=True):
        highest[name] = max(mark, highest.get(name, mark))
        least = max(least, min(highest.values()))
    assert watermarks.now_us == least
