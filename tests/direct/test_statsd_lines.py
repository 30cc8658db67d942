"""StatsD's lines, and what their series become: the parser and the aggregation, without sockets."""

import json
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from headwater.direct.statsd.lines import Kind, Refused, Sample, parse
from headwater.direct.statsd.series import Aggregator
from headwater.direct.statsd.sketch import Sketch

ROOM = 1 << 30


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        (b"page.views:1|c", Sample("page.views", Kind.COUNTER, (), (1.0,))),
        (b"a:2.5|c|@0.1", Sample("a", Kind.COUNTER, (), (2.5,), (), 10.0)),
        (b"a:-3|c", Sample("a", Kind.COUNTER, (), (-3.0,))),
        (b"a:320|ms|@0.5", Sample("a", Kind.TIMER, (), (320.0,), (), 2.0)),
        (b"a:1:2:3|h|#b:1", Sample("a", Kind.TIMER, ("b:1",), (1.0, 2.0, 3.0))),
        (b"a:1e3|d", Sample("a", Kind.TIMER, (), (1000.0,))),
        (b"a:333|g", Sample("a", Kind.GAUGE, (), (333.0,))),
        (b"a:-10|g", Sample("a", Kind.GAUGE, (), (-10.0,), (), 1.0, is_change=True)),
        (b"a:+4|g", Sample("a", Kind.GAUGE, (), (4.0,), (), 1.0, is_change=True)),
        (b"a:user:7|s", Sample("a", Kind.SET, (), (), (b"user:7",))),
        (
            b"a:1|c|@1|#env:prod,canary,env:prod,|c:83c0a9|T1656581400",
            Sample("a", Kind.COUNTER, ("canary", "env:prod"), (1.0,)),
        ),
        ("größe:1|c|#ä:ö".encode(), Sample("größe", Kind.COUNTER, ("ä:ö",), (1.0,))),
    ],
)
def test_lines_that_are_samples(line, sample):
    assert parse(line) == sample


@pytest.mark.parametrize(
    "line",
    [
        b"", b"a", b"a:1", b"a|c", b":1|c", b"a:|c", b"a:x|c", b"a:1|", b"a:1|x", b"a:nan|g",
        b"a:inf|c", b"a:1_000|c", b"a: 1|c", b"a:1|c|@0", b"a:1|c|@2", b"a:1|c|@x", b"a:1|c|@nan",
        b"a:1e999|c", b"\xff:1|c", b"a:1|c|#\xff", b"a" * 2000 + b":1|c", b"a:1::2|ms",
        b"a:" + b"1" * 9000 + b"|c",
    ],
)  # fmt: skip
def test_lines_that_are_not(line):
    assert isinstance(parse(line), Refused)


def test_events_and_service_checks_are_counted_apart():
    for line in (b"_e{5,4}:title|text", b"_sc|redis|0"):
        assert parse(line).is_unsupported


text = st.binary(max_size=30)
lines = st.one_of(
    text,
    st.builds(
        lambda name, values, kind, rest: name + b":" + b":".join(values) + b"|" + kind + rest,
        text,
        st.lists(
            st.one_of(text, st.floats().map(lambda x: repr(x).encode())), min_size=1, max_size=3
        ),
        st.sampled_from([b"c", b"g", b"ms", b"h", b"d", b"s", b"x"]),
        st.lists(
            st.one_of(
                text.map(lambda data: b"|" + data),
                text.map(lambda data: b"|#" + data),
                st.floats().map(lambda rate: b"|@" + repr(rate).encode()),
            ),
            max_size=3,
        ).map(b"".join),
    ),
)


@settings(max_examples=examples(2000), deadline=None)
@given(st.lists(lines, max_size=20), st.sampled_from([0, 1000, 4000, ROOM]))
def test_whatever_comes_it_neither_fails_nor_takes_more_room_than_allowed(lines, max_bytes):
    aggregator = Aggregator(max_bytes)
    for number, line in enumerate(lines):
        found = parse(line)
        if isinstance(found, Sample):
            aggregator.add(found)
        assert aggregator.held_bytes <= max_bytes
        if number % 7 == 6:
            check_records(aggregator)
    check_records(aggregator)


def check_records(aggregator):
    for record in aggregator.flush(1, 2):
        value = json.loads(record.value)
        assert record.key
        numbers = [number for number in value.values() if isinstance(number, int | float)]
        assert all(map(math.isfinite, numbers))


names = st.sampled_from(["a", "b"])
tags = st.sampled_from([(), ("x:1",), ("x:1", "y")])
small = st.floats(-1e6, 1e6, allow_subnormal=False)
rates = st.sampled_from([1.0, 0.5, 0.1])
samples = st.one_of(
    st.builds(
        lambda n, t, v, r: Sample(n, Kind.COUNTER, t, (v,), (), 1 / r), names, tags, small, rates
    ),
    st.builds(
        lambda n, t, v, r: Sample(n, Kind.TIMER, t, (v,), (), 1 / r), names, tags, small, rates
    ),
    st.builds(
        lambda n, t, v, change: Sample(n, Kind.GAUGE, t, (v,), (), 1.0, change),
        names, tags, small, st.booleans(),
    ),
    st.builds(lambda n, t, m: Sample(n, Kind.SET, t, (), (m,)), names, tags, st.binary(max_size=1)),
)  # fmt: skip


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(st.lists(samples, max_size=30), max_size=4))
def test_aggregation_equals_a_model(intervals):
    aggregator = Aggregator(ROOM)
    gauges: dict = {}
    for interval in intervals:
        expected: dict = {}
        for sample in interval:
            aggregator.add(sample)
            series = (sample.name, sample.kind.value, sample.tags)
            if sample.kind is Kind.SET:
                expected.setdefault(series, set()).update(sample.members)
            elif sample.kind is Kind.GAUGE:
                (value,) = sample.values
                value += gauges.get(series, 0.0) if sample.is_change else 0.0
                gauges[series] = expected[series] = value
            else:
                expected.setdefault(series, []).append((sample.values[0], sample.weight))
        records = list(aggregator.flush(10, 20))
        assert len(records) == len(expected)
        for record in records:
            value = json.loads(record.value)
            key = record.key.decode()
            found_tags = tuple(filter(None, key.partition("|")[2].split(",")))
            model = expected[value["name"], value["type"], found_tags]
            assert (value["from_ms"], value["to_ms"]) == (10, 20)
            assert value["tags"] == {tag.partition(":")[0]: tag[2:] for tag in found_tags}
            compare(value, model)
    assert aggregator.lost == 0


def compare(value, model):
    if value["type"] == "set":
        assert value["value"] == len(model)
    elif value["type"] == "gauge":
        assert value["value"] == pytest.approx(model)
    else:
        total = sum(number * weight for number, weight in model)
        assert value["samples"] == len(model)
        if value["type"] == "counter":
            assert value["value"] == pytest.approx(total, abs=1e-3)
            return
        numbers = sorted(number for number, _ in model)
        assert value["count"] == pytest.approx(sum(weight for _, weight in model))
        assert value["sum"] == pytest.approx(total, abs=1e-3)
        assert (value["min"], value["max"]) == (numbers[0], numbers[-1])
        assert numbers[0] <= value["p50"] <= value["p90"] <= value["p95"] <= value["p99"]
        assert value["p99"] <= numbers[-1]
        # One of the numbers, within the sketch's accuracy.
        assert any(value["p50"] == pytest.approx(n, rel=0.0101, abs=1e-8) for n in numbers)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.integers(-10_000, 10_000), min_size=1, max_size=400))
def test_percentiles_are_within_one_percent(numbers):
    sketch = Sketch()
    for number in numbers:
        sketch.add(number, 1.0)
    ordered = sorted(numbers)
    shares = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)
    for share, found in zip(shares, sketch.quantiles(shares), strict=True):
        rank = share * (len(ordered) - 1)
        near = (ordered[math.floor(rank)], ordered[math.ceil(rank)])
        assert any(found == pytest.approx(number, rel=0.0101) for number in near)


def test_percentiles_of_many_orders_of_magnitude_are_bounded():
    sketch = Sketch()
    for number in range(5000):
        sketch.add(1.1**number, 1.0)
    assert sketch.buckets <= 2048
    assert sketch.quantiles((1.0,))[0] > 1e200


def test_a_percentile_of_a_normal_distribution():
    aggregator = Aggregator(ROOM)
    numbers = statistics.NormalDist(100, 15).samples(5000, seed=1)
    for number in numbers:
        aggregator.add(Sample("t", Kind.TIMER, (), (number,)))
    (record,) = aggregator.flush(0, 1)
    value = json.loads(record.value)
    exact = statistics.quantiles(numbers, n=100, method="inclusive")
    for share in (50, 90, 95, 99):
        assert value[f"p{share}"] == pytest.approx(exact[share - 1], rel=0.015)


def test_without_room_samples_are_counted_as_lost_and_idle_gauges_forgotten():
    aggregator = Aggregator(2000)
    for number in range(3):
        aggregator.add(parse(b"gauge%d:5|g" % number))
    assert aggregator.series == 3
    list(aggregator.flush(0, 1))
    for number in range(5):
        aggregator.add(parse(b"counter%d:1|c" % number))
    assert aggregator.forgotten_gauges == 3
    assert aggregator.lost == 2
    assert len(list(aggregator.flush(1, 2))) == 3


def test_gauges_are_written_only_when_they_were_set():
    aggregator = Aggregator(ROOM)
    aggregator.add(parse(b"g:5|g"))
    assert len(list(aggregator.flush(0, 1))) == 1
    assert list(aggregator.flush(1, 2)) == []
    aggregator.add(parse(b"g:+1|g"))
    (record,) = aggregator.flush(2, 3)
    assert json.loads(record.value)["value"] == 6
