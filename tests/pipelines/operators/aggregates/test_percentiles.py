"""percentile and percentiles: at most 0.8 % off, and the same for any cut and order of rows."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.accumulating import at_once, bits, in_parts, result
from tiers import examples

import headwater as hw
from headwater.errors import PipelineError

GROUPS = 4
SHARES = [0, 0.01, 0.25, 0.5, 0.9, 0.99, 1]
ALL = hw.agg.percentiles("x", SHARES)


def exact(values, share):
    """The value of rank ⌈share · n⌉. NaN is greater than any number."""
    if not values:
        return None
    ordered = sorted(values, key=lambda value: (math.isnan(value), value))
    return ordered[max(math.ceil(Fraction(str(share)) * len(values)), 1) - 1]


def is_close(found, true):
    if math.isnan(true) or math.isinf(true) or math.isnan(found):
        return str(found) == str(true)
    return abs(found - true) <= abs(true) / 128 or (abs(true) < 1e-300 and abs(found) < 1e-300)


@settings(max_examples=examples(100), deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, GROUPS - 2),
            st.none() | st.floats() | st.floats(0, 100) | st.sampled_from([0.0, -0.0, 1.0, 5.0]),
        ),
        max_size=60,
    ),
    random=st.randoms(use_true_random=False),
)
def test_any_cut_and_order_gives_the_same_and_is_close(rows, random):
    group = [number for number, _ in rows]
    table = pa.table({"x": pa.array([value for _, value in rows], pa.float64())})
    accumulators = at_once(ALL, table, group, GROUPS)
    assert bits(in_parts(ALL, table, group, GROUPS, random)) == bits(accumulators)
    for at, found in enumerate(result(ALL, table, accumulators)):
        values = [value for number, value in rows if number == at and value is not None]
        if not values:
            assert found is None
            continue
        for share, value in zip(SHARES, found, strict=True):
            assert is_close(value, exact(values, share)), (share, value, exact(values, share))
        assert str(found[0] + 0.0) == str(exact(values, 0) + 0.0)
        assert str(found[-1] + 0.0) == str(exact(values, 1) + 0.0)


@settings(max_examples=examples(60), deadline=None)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-128, 128), min_size=1))
def test_integers(values):
    table = pa.table({"x": pa.array(values, pa.int64())})
    (found,) = result(ALL, table, at_once(ALL, table, [0] * len(values), 1))
    for share, value in zip(SHARES, found, strict=True):
        true = exact([float(value) for value in values], share)
        assert is_close(value, true)
        assert value == true or abs(true) >= 128  # small ones have a bin of their own


def _of(values, aggregate=ALL, kind=None):
    table = pa.table({"x": pa.array(values, kind)})
    return result(aggregate, table, at_once(aggregate, table, [0] * len(values), 1))[0]


@pytest.mark.parametrize(
    "draw",
    [
        lambda random: random.lognormal(3, 3, 200_000),
        lambda random: random.pareto(1.1, 200_000) * 1e-6,
        lambda random: -random.exponential(1e9, 200_000),
        lambda random: np.concatenate([np.full(199_000, 3.0), random.uniform(1e5, 1e6, 1000)]),
        lambda random: random.standard_cauchy(200_000),
    ],
)
def test_the_error_holds_for_skewed_values(draw):
    values = draw(np.random.default_rng(7))
    ordered = np.sort(values)
    for share, found in zip(SHARES, _of(values), strict=True):
        true = ordered[max(math.ceil(Fraction(str(share)) * len(values)), 1) - 1]
        assert abs(found - true) <= abs(true) / 128


def test_a_single_one_is_no_list():
    assert _of([1.0, 2.0, 3.0, 4.0], hw.agg.percentile("x", 0.5), pa.float64()) == 2.015625
    assert _of([1, 2, 3, 4], hw.agg.percentile("x", 0.5)) == 2.0
    assert _of([7.3] * 9, hw.agg.percentile("x", 0.9)) == 7.3
    assert _of([None], hw.agg.percentile("x", 0.9), pa.int64()) is None


def test_a_rank_is_not_off_by_the_rounding_of_a_product():
    assert math.ceil(0.07 * 100) == 8
    assert _of(list(range(1, 101)), hw.agg.percentile("x", 0.07)) == 7.0


def test_decimals():
    assert _of([Decimal("1.50")] * 3, hw.agg.percentile("x", 0.5), pa.decimal128(10, 2)) == 1.5


def test_few_values_take_few_bytes():
    table = pa.table({"x": np.arange(100_000, dtype=np.float64)})
    accumulators = at_once(ALL, table, range(100_000), 100_000)
    assert sum(column.nbytes for column in accumulators) < 50 * 100_000


@pytest.mark.parametrize("share", [-0.1, 1.1, 99, math.nan])
def test_a_share_is_between_0_and_1(share):
    with pytest.raises(PipelineError, match="not between 0 and 1") as caught:
        hw.agg.percentile("x", share)
    assert "0.99" in caught.value.hint


def test_none_are_refused():
    with pytest.raises(PipelineError, match="which"):
        hw.agg.percentiles("x", [])


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.timestamp("us"), pa.bool_(), pa.list_(pa.int64())]
)
def test_what_is_no_number_is_refused_when_it_is_built(kind):
    with pytest.raises(PipelineError, match="percentile of x, which is"):
        ALL.bound(pa.schema([("x", kind)]))
