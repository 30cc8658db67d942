"""count, sum, avg, rate, min, max against plain Python, over any cut and order of rows."""

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import Any

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
INT = pa.int64()
MONEY = pa.decimal128(12, 2)
WIDEST = pa.decimal128(38, 6)
STAMP = pa.timestamp("us", "UTC")

TEXTS = st.text(max_size=4) | st.sampled_from(["Ä", "Z", "ß", "日本", "🚆", "", "a\0b"])
VALUES = {
    INT: st.integers(-(2**63), 2**63 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    MONEY: st.decimals(-99999999, 99999999, places=2),
    WIDEST: st.decimals(-(10**31), 10**31, places=6),
    pa.float64(): st.floats(allow_subnormal=True),
    pa.float32(): st.floats(width=32),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=3),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    STAMP: st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
}
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def _sum(values: list) -> Any:
    return sum(values[1:], values[0]) if values else None


def _mean(values: list) -> float | None:
    return float(sum(values)) / len(values) if values else None


def _nearest_sum(values: list[float]) -> float | None:
    """The double nearest to the true sum."""
    if not values:
        return None
    strange = [value for value in values if not math.isfinite(value)]
    if strange:
        return sum(strange)
    try:
        return math.fsum(values)
    except OverflowError:  # it is too large meanwhile
        total = sum(map(Fraction, values))
        try:
            return float(total)
        except OverflowError:
            return math.inf if total > 0 else -math.inf


def _nearest_mean(values: list[float]) -> float | None:
    total = _nearest_sum(values)
    return None if total is None else total / len(values)


def _mean_of_money(values: list[Decimal]) -> Decimal | None:
    if not values:
        return None
    with localcontext(prec=80):
        total = sum(values, Decimal(0))
        whole = Fraction(total) / len(values)
        places = 4 - values[0].as_tuple().exponent
        scaled = abs(whole) * 10**places
        rounded = math.floor(scaled + Fraction(1, 2))  # half away from zero
        return Decimal(int(math.copysign(1, whole)) * rounded).scaleb(-places)


def _greatest(values: list) -> Any:
    if any(value != value for value in values):  # noqa: PLR0124 (so is NaN)
        return math.nan
    return max(values, default=None)


def _least(values: list) -> Any:
    numbers = [value for value in values if value == value]  # noqa: PLR0124
    return min(numbers) if numbers else (math.nan if values else None)


@dataclass
class Case:
    name: str
    aggregate: Any
    kind: pa.DataType
    reference: Callable[[list], Any]
    values: Any = None

    @property
    def strategy(self):
        return VALUES[self.kind] if self.values is None else self.values


CASES = [
    Case("count", hw.agg.count("x"), pa.string(), len),
    Case("sum-int", hw.agg.sum("x"), INT, _sum, st.integers(-(2**56), 2**56)),
    Case("sum-short", hw.agg.sum("x"), pa.int16(), _sum),
    Case("sum-money", hw.agg.sum("x"), MONEY, _sum),
    Case("sum-double", hw.agg.sum("x"), pa.float64(), _nearest_sum),
    Case("sum-double-finite", hw.agg.sum("x"), pa.float64(), _nearest_sum, FINITE),
    Case("sum-double-alike", hw.agg.sum("x"), pa.float64(), _nearest_sum, st.floats(-99, 99)),
    Case("sum-float", hw.agg.sum("x"), pa.float32(), _nearest_sum),
    Case("avg-double", hw.agg.avg("x"), pa.float64(), _nearest_mean, FINITE),
    Case("avg-int", hw.agg.avg("x"), INT, _mean, st.integers(-(2**45), 2**45)),
    Case("avg-money", hw.agg.avg("x"), MONEY, _mean_of_money),
    *[
        Case(f"{name}-{kind}", aggregate("x"), kind, reference)
        for name, aggregate, reference in (
            ("min", hw.agg.min, _least),
            ("max", hw.agg.max, _greatest),
        )
        for kind in VALUES
    ],
]


def _alike(found, expected):
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    return found == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_any_cut_and_order_gives_what_plain_python_gives(case, data, random):
    row = st.tuples(st.integers(0, GROUPS - 2), st.none() | case.strategy)  # the last is empty
    given_rows = data.draw(st.lists(row, max_size=30))
    group = [number for number, _ in given_rows]
    rows = pa.table({"x": pa.array([value for _, value in given_rows], case.kind)})
    values = rows["x"].to_pylist()
    accumulators = at_once(case.aggregate, rows, group, GROUPS)
    in_any_order = in_parts(case.aggregate, rows, group, GROUPS, random)
    assert bits(in_any_order) == bits(accumulators)
    expected = [
        case.reference(
            [x for x, of in zip(values, group, strict=True) if of == at and x is not None]
        )
        for at in range(GROUPS)
    ]
    found = result(case.aggregate, rows, accumulators)
    assert all(map(_alike, found, expected)), (found, expected)


@pytest.mark.parametrize("seed", range(5))
def test_many_doubles_are_added_without_rounding(seed):
    random = np.random.default_rng(seed)
    values = random.standard_normal(3000) * 10.0 ** random.integers(-300, 300, 3000)
    values = np.concatenate([values, -values[::2], random.lognormal(0, 1, 2000)])
    group = random.integers(0, 3, len(values))
    rows = pa.table({"x": values})
    found = result(hw.agg.sum("x"), rows, at_once(hw.agg.sum("x"), rows, group, 3))
    assert found == [math.fsum(values[group == at]) for at in range(3)]


def test_what_cancels_out_leaves_nothing():
    assert _one(hw.agg.sum("x"), [1e300, 1.0, -1e300], pa.float64()) == 1.0
    assert _one(hw.agg.sum("x"), [0.1] * 10, pa.float64()) == 1.0
    assert _one(hw.agg.sum("x"), [1.7e308, 1.7e308, -1.7e308], pa.float64()) == 1.7e308
    assert _one(hw.agg.sum("x"), [1.7e308, 1.7e308], pa.float64()) == math.inf
    assert str(_one(hw.agg.sum("x"), [-0.0], pa.float64())) == "0.0"


def test_half_goes_to_the_even_double():
    assert _one(hw.agg.sum("x"), [2.0**53, 1.0], pa.float64()) == 2.0**53
    assert _one(hw.agg.sum("x"), [2.0**53 + 2, 1.0], pa.float64()) == 2.0**53 + 4
    assert _one(hw.agg.sum("x"), [2.0**53, 1.0, 2.0**-1000], pa.float64()) == 2.0**53 + 2


def _one(aggregate, values, kind):
    rows = pa.table({"x": pa.array(values, kind)})
    return result(aggregate, rows, at_once(aggregate, rows, [0] * len(values), 1))[0]


def test_rows_are_counted_without_a_column():
    assert _one(hw.agg.count(), [None, 1, None], INT) == 3
    assert _one(hw.agg.count("x"), [None, 1, None], INT) == 1


def test_a_rate_is_by_the_length_of_the_window():
    assert _one(hw.agg.rate("1 second"), [1] * 90, INT) == 1.5
    assert _one(hw.agg.rate("1 hour"), [1], INT) == 60.0


def test_a_sum_that_is_too_large_only_meanwhile_is_none_the_worse():
    most = 2**63 - 1
    assert _one(hw.agg.sum("x"), [most, most, -most, -5], INT) == most - 5
    assert _one(hw.agg.sum("x"), [-most - 1, -most, most], INT) == -most - 1


@pytest.mark.parametrize("values", [[2**63 - 1, 1], [-(2**63), -1]])
def test_a_sum_too_large_for_its_type_is_an_error_with_a_hint(values):
    with pytest.raises(PipelineError, match="sum of x is too large") as caught:
        _one(hw.agg.sum("x"), values, INT)
    assert "decimal(38,0)" in caught.value.hint


def test_a_decimal_sum_too_large_for_38_digits_is_an_error():
    most, least = Decimal(10**38 - 1), Decimal(1 - 10**38)
    assert _one(hw.agg.sum("x"), [most, most, least], pa.decimal128(38, 0)) == most
    with pytest.raises(PipelineError, match="sum of x is too large"):
        _one(hw.agg.sum("x"), [most, most], pa.decimal128(38, 0))


def test_types_are_those_of_spark():
    def types(aggregate, kind):
        return aggregate("x").bound(pa.schema([("x", kind)])).result_type

    assert types(hw.agg.sum, pa.int32()) == pa.int64()
    assert types(hw.agg.sum, pa.float32()) == pa.float64()
    assert types(hw.agg.sum, MONEY) == pa.decimal128(22, 2)
    assert types(hw.agg.sum, WIDEST) == pa.decimal128(38, 6)
    assert types(hw.agg.avg, pa.int32()) == pa.float64()
    assert types(hw.agg.avg, MONEY) == pa.decimal128(16, 6)
    assert types(hw.agg.max, pa.date32()) == pa.date32()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["0.01", "0.01", "0.02"], "0.013333"),
        (["0.01", "0.02", "0.02"], "0.016667"),
        (["-0.01", "-0.02", "-0.02"], "-0.016667"),
        (["0.01"] + ["0.00"] * 31, "0.000313"),  # 0.0003125: half goes up
        (["-0.01"] + ["0.00"] * 31, "-0.000313"),
    ],
)
def test_an_average_of_decimals_is_rounded_half_up(values, expected):
    found = _one(hw.agg.avg("x"), [Decimal(value) for value in values], MONEY)
    assert found == Decimal(expected)
    plain = sum(map(Decimal, values)) / len(values)
    assert found == plain.quantize(Decimal("0.000001"), ROUND_HALF_UP)


def test_an_average_of_the_widest_decimals():
    assert _one(hw.agg.avg("x"), [Decimal(10**23)] * 7, pa.decimal128(38, 10)) == Decimal(10**23)


@pytest.mark.parametrize(
    ("aggregate", "kind", "what"),
    [
        (hw.agg.sum, pa.string(), "sum of x, which is string"),
        (hw.agg.avg, pa.bool_(), "avg of x, which is bool"),
        (hw.agg.sum, STAMP, "sum of x"),
        (hw.agg.min, pa.list_(INT), "min of x"),
        (hw.agg.max, pa.struct([("a", INT)]), "max of x"),
    ],
)
def test_what_cannot_be_aggregated_is_refused_when_it_is_built(aggregate, kind, what):
    with pytest.raises(PipelineError, match=what) as caught:
        aggregate("x").bound(pa.schema([("x", kind)]))
    assert caught.value.hint


@pytest.mark.parametrize("aggregate", [hw.agg.count, hw.agg.sum, hw.agg.avg, hw.agg.max])
def test_a_column_that_is_not_there_is_refused_when_it_is_built(aggregate):
    with pytest.raises(PipelineError, match="there is no column y") as caught:
        aggregate("y").bound(pa.schema([("x", INT)]))
    assert "x" in caught.value.detail


def test_a_rate_needs_a_duration():
    with pytest.raises(PipelineError, match="no duration"):
        hw.agg.rate("fast")
    with pytest.raises(PipelineError, match="too short"):
        hw.agg.rate("0 seconds")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_can_be_sent_to_a_worker(case):
    bound = case.aggregate.bound(pa.schema([("x", case.kind)]))
    assert pickle.loads(pickle.dumps(bound)) == bound


def test_dates_and_times_keep_their_type():
    assert _one(hw.agg.max("x"), [date(1969, 1, 1), date(1968, 1, 1)], pa.date32()) == date(
        1969, 1, 1
    )
    early = datetime(1904, 2, 3, 4, 5, 6, 7, UTC)
    assert _one(hw.agg.min("x"), [early, datetime(2026, 1, 1, tzinfo=UTC)], STAMP) == early
