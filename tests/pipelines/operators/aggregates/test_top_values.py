"""top: the most frequent values, exactly."""

import math
from collections import Counter
from datetime import date
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

GROUPS = 4
VALUES = {
    pa.string(): st.sampled_from(["", "a", "b", "Ä", "日本", "🚆", "z"]),
    pa.int64(): st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)]),
    pa.float64(): st.sampled_from([0.5, -1.0, 1e300, math.inf]),
    pa.bool_(): st.booleans(),
    pa.date32(): st.sampled_from([date(1960, 1, 1), date(2026, 1, 1)]),
    pa.decimal128(10, 2): st.sampled_from([Decimal("1.00"), Decimal("-2.50"), Decimal("99.99")]),
    pa.binary(): st.binary(max_size=1),
}


def expected(values, most):
    ranked = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))
    return [{"value": value, "count": count} for value, count in ranked[:most]]


@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), random=st.randoms(use_true_random=False), most=st.integers(1, 4))
def test_any_cut_and_order_gives_what_a_counter_gives(kind, data, random, most):
    row = st.tuples(st.integers(0, GROUPS - 2), st.none() | VALUES[kind])
    rows = data.draw(st.lists(row, max_size=50))
    group = [number for number, _ in rows]
    table = pa.table({"x": pa.array([value for _, value in rows], kind)})
    top = hw.agg.top("x", most)
    accumulators = at_once(top, table, group, GROUPS)
    assert bits(in_parts(top, table, group, GROUPS, random)) == bits(accumulators)
    for at, found in enumerate(result(top, table, accumulators)):
        values = [value for number, value in rows if number == at and value is not None]
        assert found == expected(values, most)


@pytest.mark.parametrize("far", [2**63 - 1, 2**62 + 5])
def test_values_that_are_further_apart_than_64_bits(far):
    table = pa.table({"x": [-far, far, far] * 20})
    top = hw.agg.top("x", 2)
    found = result(top, table, at_once(top, table, [0] * 60, 1))
    assert found == [[{"value": far, "count": 40}, {"value": -far, "count": 20}]]


@pytest.mark.parametrize("spread", [1, 1_000_003])  # keys near each other, and far apart
def test_many_values(spread):
    random = np.random.default_rng(3)
    values, group = random.zipf(1.3, 50_000) % 5000 * spread, random.integers(0, 3, 50_000)
    table = pa.table({"x": values})
    top = hw.agg.top("x", 20)
    for at, found in enumerate(result(top, table, at_once(top, table, group, 3))):
        assert found == expected(values[group == at].tolist(), 20)


def test_equal_numbers_are_one_value():
    table = pa.table({"x": [0.0, -0.0, math.nan, -math.nan, math.nan]})
    top = hw.agg.top("x", 3)
    (found,) = result(top, table, at_once(top, table, [0] * 5, 1))
    assert [str(entry["value"]) for entry in found] == ["nan", "0.0"]
    assert [entry["count"] for entry in found] == [3, 2]


def test_more_distinct_values_than_allowed_are_an_error_whenever_they_meet():
    table = pa.table({"x": [1, 2, 3, 4]})
    top = hw.agg.top("x", 1, distinct=3)
    with pytest.raises(PipelineError, match="a group has 4 distinct values") as caught:
        at_once(top, table, [0] * 4, 1)
    assert "distinct=" in caught.value.hint
    accumulators = at_once(top, table, [0, 0, 0, 1], 2)
    with pytest.raises(PipelineError, match="a group has 4 distinct values"):
        top.bound(table.schema).merge(accumulators, np.array([0, 0]), 1)


@pytest.mark.parametrize(("most", "distinct"), [(0, 10), (11, 10), (-1, 10)])
def test_how_many_is_checked(most, distinct):
    with pytest.raises(PipelineError, match="top"):
        hw.agg.top("x", most, distinct=distinct)


def test_what_has_no_order_is_refused_when_it_is_built():
    with pytest.raises(PipelineError, match="top of x, which is list"):
        hw.agg.top("x", 3).bound(pa.schema([("x", pa.list_(pa.int64()))]))
