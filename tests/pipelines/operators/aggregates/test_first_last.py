"""first and last: chosen by event time and offset, whatever the order of partitions."""

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.accumulating import at_once, bits, in_parts, result
from tiers import examples

import headwater as hw
from headwater.errors import PipelineError

GROUPS = 3
VALUES = {
    pa.string(): st.sampled_from(["a", "b", "Ä", "日本", ""]),
    pa.int32(): st.integers(-3, 3),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, math.inf]),
    pa.bool_(): st.booleans(),
}


def _rows(rows, kind):
    return pa.table(
        {
            "x": pa.array([value for *_, value in rows], kind),
            "__time": pa.array([time for _, time, *_ in rows], pa.int64()),
            "__offset": pa.array([offset for *_, offset, _ in rows], pa.int64()),
        }
    )


@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_any_cut_and_order_chooses_the_same(kind, data, random):
    few = st.integers(0, 2)
    row = st.tuples(st.integers(0, GROUPS - 2), few, few, st.none() | VALUES[kind])
    rows = data.draw(st.lists(row, max_size=30))
    group, table = [at for at, *_ in rows], _rows(rows, kind)
    for aggregate, choose in ((hw.agg.first("x"), min), (hw.agg.last("x"), max)):
        accumulators = at_once(aggregate, table, group, GROUPS)
        assert bits(in_parts(aggregate, table, group, GROUPS, random)) == bits(accumulators)
        for at, found in enumerate(result(aggregate, table, accumulators)):
            met = [tuple(more) for number, *more in rows if number == at and more[-1] is not None]
            assert found == (choose(met)[-1] if met else None)


def test_time_decides_before_the_offset():
    rows = [(0, 30, 1, "late"), (0, 10, 3, "early"), (0, 20, 2, "middle")]
    table = _rows(rows, pa.string())
    found = [
        result(aggregate, table, at_once(aggregate, table, [0, 0, 0], 1))
        for aggregate in (hw.agg.first("x"), hw.agg.last("x"))
    ]
    assert found == [["early"], ["late"]]


def test_what_has_no_order_is_refused_when_it_is_built():
    with pytest.raises(PipelineError, match="last of x, which is list"):
        hw.agg.last("x").bound(pa.schema([("x", pa.list_(pa.int64()))]))
