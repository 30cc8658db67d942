"""distinct and bloom: exact while small, close when large, and the same for any cut and order."""

import math
import random as randoms
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.accumulating import at_once, bits, in_parts, result
from tiers import examples

import headwater as hw
from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates.bloom import _test
from headwater.pipelines.operators.runtime.hashing import hashes

GROUPS = 4
DISTINCT = hw.agg.distinct("x")
SMALL = hw.agg.bloom("x", expected=100, false_positives=0.01)  # full from 15 hashes on
VALUES = {
    pa.string(): st.text(max_size=3) | st.sampled_from(["Ä", "日本", "🚆"]),
    pa.int32(): st.integers(-50, 50),
    pa.float64(): st.floats(),
    pa.decimal128(10, 2): st.decimals(-10, 10, places=2),
    pa.bool_(): st.booleans(),
}


def _table(values, kind=None):
    return pa.table({"x": pa.array(values, kind)})


def _of(aggregate, values, kind=None):
    table = _table(values, kind)
    return result(aggregate, table, at_once(aggregate, table, [0] * len(values), 1))[0]


def _in(filters, values, kind=None):
    return _test(pa.array(filters, pa.binary()), pa.array(values, kind)).to_pylist()


@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_few_values_are_counted_exactly(kind, data, random):
    row = st.tuples(st.integers(0, GROUPS - 2), st.none() | VALUES[kind])
    rows = data.draw(st.lists(row, max_size=50))
    group, table = [at for at, _ in rows], _table([value for _, value in rows], kind)
    accumulators = at_once(DISTINCT, table, group, GROUPS)
    assert bits(in_parts(DISTINCT, table, group, GROUPS, random)) == bits(accumulators)
    for at, found in enumerate(result(DISTINCT, table, accumulators)):
        values = [value for number, value in rows if number == at and value is not None]
        numbers = {value for value in values if value == value}  # noqa: PLR0124
        assert found == len(numbers) + any(value != value for value in values)  # noqa: PLR0124


@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_a_filter_has_all_its_values(kind, data, random):
    row = st.tuples(st.integers(0, GROUPS - 2), st.none() | VALUES[kind])
    rows = data.draw(st.lists(row, max_size=80))
    group, table = [at for at, _ in rows], _table([value for _, value in rows], kind)
    accumulators = at_once(SMALL, table, group, GROUPS)
    assert bits(in_parts(SMALL, table, group, GROUPS, random)) == bits(accumulators)
    filters = result(SMALL, table, accumulators)
    for at, value in rows:
        assert _in([filters[at]], [value], kind) == [None if value is None else True]


@pytest.mark.parametrize("aggregate", [DISTINCT, SMALL])
@pytest.mark.parametrize("seed", range(6))
def test_large_sets_do_not_depend_on_cut_and_order_either(aggregate, seed):
    numbers = np.random.default_rng(seed)
    sizes = [5, 14, 15, 16, 511, 512, 513, 3000]  # of distinct values: around both limits
    times = 1 + seed % 3  # that each value comes
    group = np.repeat(np.arange(len(sizes)), np.array(sizes) * times)
    values = np.concatenate([np.tile(numbers.integers(0, 2**62, size), times) for size in sizes])
    table = _table(values)
    accumulators = at_once(aggregate, table, group, len(sizes))
    other = in_parts(aggregate, table, group, len(sizes), randoms.Random(seed))
    assert bits(other) == bits(accumulators)


def test_up_to_511_distinct_values_are_counted_exactly():
    for size in (0, 1, 33, 510, 511):
        assert _of(DISTINCT, list(range(size)) * 4, pa.int64()) == size


@pytest.mark.parametrize("size", [512, 1000, 5000, 12_000, 40_000, 300_000])
def test_the_error_of_distinct_is_that_of_a_hyperloglog(size):
    errors = []
    for seed in range(12):
        start = seed * 10**9
        found = _of(DISTINCT, np.arange(start, start + size))
        errors.append(found / size - 1)
    assert max(map(abs, errors)) < 4 * 1.04 / 64
    assert abs(sum(errors) / len(errors)) < 4 * 1.04 / 64 / math.sqrt(len(errors))


def test_distinct_values_that_come_unevenly():
    values = np.random.default_rng(5).zipf(1.2, 300_000) % 10**9
    assert _of(DISTINCT, values) == pytest.approx(len(np.unique(values)), rel=0.05)
    words = [f"{number}-ß" for number in values.tolist()]
    assert _of(DISTINCT, words) == pytest.approx(len(np.unique(values)), rel=0.05)


def test_a_hundred_thousand_groups_of_few_values_take_few_bytes():
    table = _table(np.arange(300_000))
    for aggregate in (DISTINCT, hw.agg.bloom("x")):
        (accumulators,) = at_once(aggregate, table, np.arange(300_000) % 100_000, 100_000)
        assert accumulators.nbytes < 33 * 100_000


@pytest.mark.parametrize(("expected", "share"), [(1000, 0.01), (5000, 0.1), (300, 0.001)])
def test_false_positives_are_as_rare_as_asked_for(expected, share):
    values = np.random.default_rng(1).integers(0, 2**60, expected)
    found = _of(hw.agg.bloom("x", expected=expected, false_positives=share), values)
    assert all(_in([found] * expected, values))
    others = np.random.default_rng(2).integers(2**61, 2**62, 40_000)
    hits = sum(_in([found] * 40_000, others))
    assert hits / 40_000 < share * 1.3 + 0.0003


def test_a_small_filter_has_its_values_and_no_others():
    found = _of(hw.agg.bloom("x"), ["a", "日本", ""])
    assert _in([found] * 5, ["a", "日本", "", "b", None]) == [True, True, True, False, None]
    assert _in([None], ["a"]) == [None]
    assert len(found) == 8 + 3 * 8


def test_a_filter_of_nothing_has_nothing():
    assert _in([_of(hw.agg.bloom("x"), [None], pa.string())], ["a"]) == [False]


def test_a_value_of_another_type_is_an_error_and_not_absent():
    found = _of(hw.agg.bloom("x"), [1, 2], pa.int64())
    assert _in([found], [2], pa.int16()) == [True]
    for values, kind in ((["1"], pa.string()), ([1.0], pa.float64()), ([True], pa.bool_())):
        with pytest.raises(PipelineError, match="of another type"):
            _in([found], values, kind)
    money = _of(hw.agg.bloom("x"), [Decimal("1.00")], pa.decimal128(10, 2))
    assert _in([money], [Decimal("1.00")], pa.decimal128(20, 2)) == [True]
    with pytest.raises(PipelineError, match="of another type"):
        _in([money], [Decimal("1.0")], pa.decimal128(10, 1))


@pytest.mark.parametrize("junk", [b"", b"1234567", b"12345678", b"x" * 4096])
def test_what_is_no_filter_is_an_error(junk):
    with pytest.raises(PipelineError, match="no filter"):
        _in([junk], ["a"])


def test_a_filter_read_from_a_slice():
    filters = [_of(hw.agg.bloom("x"), [text]) for text in ("a", "b", "c")]
    column, values = pa.array(filters)[1:], pa.array(["z", "b", "x"])[1:]
    assert _test(column, values).to_pylist() == [True, False]


@pytest.mark.parametrize(
    "options", [{"expected": 0}, {"false_positives": 0}, {"false_positives": 1}]
)
def test_what_a_filter_is_made_for_is_checked(options):
    with pytest.raises(PipelineError, match="bloom of x"):
        hw.agg.bloom("x", **options)


@pytest.mark.parametrize("aggregate", [DISTINCT, hw.agg.bloom("x")])
def test_what_has_no_hash_is_refused_when_it_is_built(aggregate):
    with pytest.raises(PipelineError, match="of x, which is struct"):
        aggregate.bound(pa.schema([("x", pa.struct([("a", pa.int64())]))]))


def test_hashes_stay_as_they_are():
    """They are in the state of pipelines and in stores. test_aggregates_in_spark compares them
    with Spark's."""
    stamp = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    found = {
        "text": hashes(pa.array(["", "a", "日本", "x" * 100])).tolist(),
        "integer": hashes(pa.array([0, 1, -1])).tolist(),
        "double": hashes(pa.array([1.5, math.nan, -0.0])).tolist(),
        "date": hashes(pa.array([date(2026, 1, 1)])).tolist(),
        "timestamp": hashes(pa.array([stamp], pa.timestamp("us", "UTC"))).tolist(),
        "decimal": hashes(pa.array([Decimal("1.50")], pa.decimal128(10, 2))).tolist(),
    }
    assert found == {
        "text": [
            11002672306508523268,
            9864288744972464332,
            5255273406210089560,
            365730103971579591,
        ],
        "integer": [13194218611613725804, 11445071438006506034, 3858142552250413010],
        "double": [7738255526519901366, 15318800012184600370, 13194218611613725804],
        "date": [2480387134349192627],
        "timestamp": [16533834580053337388],
        "decimal": [13308956044920519288],
    }


def test_equal_values_have_equal_hashes():
    assert hashes(pa.array([5], pa.int8())) == hashes(pa.array([5], pa.int64()))
    assert hashes(pa.array([0.0])) == hashes(pa.array([-0.0]))
    assert hashes(pa.array([5, 6, 7], pa.int32())[1:]).tolist() == hashes(pa.array([6, 7])).tolist()
    texts = pa.array(["a", "bc", "def"])
    assert hashes(texts[1:]).tolist() == hashes(pa.array(["bc", "def"], pa.large_string())).tolist()
    money = pa.array([Decimal(1), Decimal(2)], pa.decimal128(5, 0))
    assert hashes(money[1:]).tolist() == hashes(money).tolist()[1:]
    stamps = pa.array([10**6], pa.timestamp("us"))
    assert hashes(stamps.cast(pa.timestamp("s"))) == hashes(stamps)
