"""Wrong arguments of joins are errors when the pipeline is built."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from headwater.errors import PipelineError
from headwater.pipelines.operators.joins.join_columns import pairs_of
from headwater.pipelines.operators.joins.stream_join import _interval, _names
from headwater.pipelines.operators.time.durations import microseconds


@pytest.mark.parametrize(
    ("on", "pairs"),
    [
        ("id", [("id", "id")]),
        (["a", "b"], [("a", "a"), ("b", "b")]),
        ([("a", "b"), "c"], [("a", "b"), ("c", "c")]),
        ((["a", "b"],), [("a", "b")]),
    ],
)
def test_columns_to_join_by(on, pairs):
    assert pairs_of("join", on) == pairs


@pytest.mark.parametrize("on", [[], (), None, 5, [5], [("a",)], [("a", "b", "c")], [("a", None)]])
def test_what_does_not_name_columns(on):
    with pytest.raises(PipelineError, match="does not name columns"):
        pairs_of("join", on)


@pytest.mark.parametrize("duration", [3600, 1.5, None, ["1 hour"], "1 month", "", "-1 hour"])
def test_what_is_no_duration(duration):
    with pytest.raises(PipelineError, match="is no duration"):
        microseconds(duration, "within")


def test_a_duration_has_bounds():
    assert microseconds("365 days", "within") == microseconds(timedelta(365), "within")
    for long in ("9999999999999 weeks", timedelta.max):
        with pytest.raises(PipelineError, match="too long"):
            microseconds(long, "within")
    with pytest.raises(PipelineError, match="too short"):
        microseconds(timedelta(-1), "within")


@pytest.mark.parametrize("within", [("1 hour",), ("1 hour",) * 3, ["1 hour", "1 hour"], 5])
def test_what_is_no_interval(within):
    with pytest.raises(PipelineError, match="within="):
        _interval(within)


@pytest.mark.parametrize("suffixes", ["_x", ("_x",), ("a", "b", "c")])
def test_suffixes_are_two(suffixes):
    frame = SimpleNamespace(columns=["id", "x"])
    with pytest.raises(PipelineError, match="suffixes="):
        _names(frame, frame, [("id", "id")], suffixes)
