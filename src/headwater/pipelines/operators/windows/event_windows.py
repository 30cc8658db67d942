"""`hw.session` and `hw.sliding`: windows whose bounds depend on the events."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates, Previous
from headwater.pipelines.operators.runtime.contract import Operator
from headwater.pipelines.operators.time.durations import Duration, microseconds
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import DROP, lateness_of
from headwater.pipelines.operators.windows.api import Windowed, windowed
from headwater.pipelines.operators.windows.sessions import Sessions
from headwater.pipelines.operators.windows.sliding import RESERVED, Sliding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def session(
    frame: "DataFrame",
    time: str | EventTime,
    gap: Duration,
    *,
    by: str | Sequence[str] = (),
    late: str = DROP,
    allowed_lateness: Duration | None = None,
    early: bool = False,
    name: str | None = None,
) -> Windowed:
    """Rows of a key that are at most `gap` apart, from the first of them to `gap` after the last.

    A session is final when another `gap` has passed, as no row that is in time can reach it then;
    with late="correct" when it has ended.
    """
    gap_us = microseconds(gap, "gap", at_least_us=1)
    lateness = lateness_of(late, allowed_lateness)

    def make(
        windows: Windowed, aggregates: NamedAggregates, compared: dict[str, Previous]
    ) -> Operator:
        _check_compared("session", compared)
        return Sessions(windows.by, gap_us, windows.time, lateness, early, aggregates)

    return windowed("session", frame, time, by, lateness, make, name=name)


def sliding(
    frame: "DataFrame",
    time: str | EventTime,
    size: Duration,
    *,
    by: str | Sequence[str] = (),
    keep: str | Sequence[str] = (),
    late: str = DROP,
    allowed_lateness: Duration | None = None,
    early: bool = False,
    name: str | None = None,
) -> Windowed:
    """Each row gives a result, over the rows of its key from `size` before it (left out) to itself,
    and those of the same time. Results have `by`, `event_time`, the row's columns in `keep`,
    the aggregates, and the row's `_position`.
    """
    size_us = microseconds(size, "size", at_least_us=1)
    lateness = lateness_of(late, allowed_lateness)
    keys = (by,) if isinstance(by, str) else tuple(by)
    wanted = (keep,) if isinstance(keep, str) else tuple(dict.fromkeys(keep))
    passed_on = tuple(column for column in wanted if column not in keys)

    def make(
        windows: Windowed, aggregates: NamedAggregates, compared: dict[str, Previous]
    ) -> Operator:
        _check_compared("sliding", compared)
        return Sliding(windows.by, passed_on, size_us, windows.time, lateness, early, aggregates)

    return windowed(
        "sliding", frame, time, by, lateness, make, keep=passed_on, reserved=RESERVED, name=name
    )


def _check_compared(kind: str, compared: dict[str, Previous]) -> None:
    for name in compared:
        raise PipelineError(
            f"{kind}: {name} is the result of a window before, and there is no such",
            hint="tumbling and hopping windows have one",
        )
