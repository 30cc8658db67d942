"""Event time of an operator's input: as configured, or as results of an operator have it.

Results of windows come in the order of their ends, in a partition of their own
(pipelines/position.py). So the watermark of an operator that follows is derived from them like from
the records of any partition, and whether a result is late does not depend on how the log was cut
into batches. Their bounds promise more: after the result of the minute that ends at 13:00, no
minute that starts before 13:00 can come. So the hour before 13:00 closes at once, and no result
is late. Results of sliding windows have the positions of their events, but come in the order of
time: none is late, either.

An operator also passes its output watermark on (runtime/watermark_rows.py), so that the next one
advances when there are no results. Behind joins and deduplications, whose results come in any
order, it is the only watermark.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import PipelineError
from headwater.pipelines.operators.state.fingerprints import NO_SETTING
from headwater.pipelines.operators.time.event_time import (
    EventTime,
    ProcessingTime,
    event_time,
    time_of,
)
from headwater.pipelines.operators.time.lateness import SIDE
from headwater.pipelines.operators.time.stamping import AT
from headwater.pipelines.operators.time.watermarks import PassedOnWatermarks, Watermarks
from headwater.pipelines.operators.windows.results import IN_TIME, LEAD, UNORDERED, WINDOW_END
from headwater.pipelines.plans import passes_watermarks, results_in
from headwater.pipelines.position import CHANGING, CHANGING_EVENTS, FLOOR, TABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NO_DELAY: Final = "0 seconds"


@dataclass(frozen=True)
class ResultTime(EventTime):
    """Of window results. Times from the future were left out before them."""

    bound_us: int | None = None  # of the bounds of windows: how far they are ahead of the offset
    in_order: bool = False  # the time of results that come in its order: those of sliding windows
    bound_by_watermark_us: int | None = field(default=None, metadata=NO_SETTING)

    @property
    def lead_us(self) -> int | None:
        return self.bound_us

    @property
    def is_in_order(self) -> bool:
        return self.in_order

    @property
    def floor_us(self) -> int | None:
        return self.bound_by_watermark_us


@dataclass(frozen=True)
class PassedOnTime(ResultTime):
    """Of results that come in any order, and whose operator passes its watermark on."""

    def watermarks(self, stored: Mapping[str, Any] | None = None) -> Watermarks:
        return PassedOnWatermarks(stored)


def input_time(
    kind: str, frame: "DataFrame", time: str | EventTime, late: str = "", *, in_order: bool = False
) -> EventTime:
    """The event time of an operator's argument. A name alone is event time with all defaults; for
    bounds of windows it is without a delay, and for the times of a join or deduplication it is the
    watermark that these pass on, unless the operator needs rows `in_order`. `kind` and `late` are
    the operator's. Raises PipelineError.
    """
    found = time_of(time)
    if isinstance(found, ProcessingTime):
        return found
    results = results_in(frame)
    if results.kinds:
        _check(kind, results.kinds, late)
    column = next((field for field in frame.schema if field.name == found.column), None)
    metadata = column.metadata if column is not None else {}
    floor_us = metadata.get(FLOOR)
    if found.clocks is not None or found.producers is not None or not passes_watermarks(frame):
        floor_us = None
    if not results.kinds:
        if floor_us is None:
            return found
        if isinstance(time, str) and not in_order:
            return PassedOnTime(time, 0, bound_by_watermark_us=floor_us)
    if not results.is_only:
        metadata = {}
    if isinstance(time, str) and UNORDERED in metadata:
        raise PipelineError(
            f"{kind}: sessions do not end in the order of their {time}",
            detail="the longer a session is, the later is its result",
            hint=f'"{WINDOW_END}", or hw.event_time("{time}", delay=…) with the length of the'
            " longest session: longer ones are late",
        )
    if isinstance(time, str) and (LEAD in metadata or IN_TIME in metadata):
        found = event_time(time, delay=_NO_DELAY)
    has_guard = AT in frame.columns
    return ResultTime(
        found.column,
        found.delay_us,
        found.idle_us,
        found.future_us if has_guard else None,
        found.clocks,
        found.producers,
        metadata.get(LEAD),
        IN_TIME in metadata,
        floor_us,
    )


def _check(kind: str, kinds: frozenset[str], late: str) -> None:
    if CHANGING in kinds or CHANGING_EVENTS in kinds:
        raise PipelineError(
            f"{kind}: results of its input are replaced later",
            detail='they come from windows or matches with early=True or late="correct"; here each'
            " row is an event",
            hint='leave out early and late="correct" there (a longer delay of hw.event_time lets'
            " more rows be in time); hw.tumbling(key=…), hw.join_tables and hw.top take results"
            " that change",
        )
    if TABLE in kinds:
        raise PipelineError(
            f"{kind}: its input is a table that changes, and here each row is an event",
            hint="hw.tumbling(key=…), hw.join_tables and hw.top take tables that change",
        )
    if late == SIDE:
        raise PipelineError(
            f'{kind}: late="{SIDE}" is for records of topics, and its input is results of windows',
            hint='late="drop" counts late results',
        )
