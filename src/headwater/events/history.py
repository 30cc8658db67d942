"""Times and positions: times of events never decrease with their positions, so a time is found by
binary search over positions, which have no gaps.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from headwater.errors import EventRefused

Run = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]


def position_at(run: Run, at: datetime) -> int:
    """The position of the last event at or before this time; 0: there is none."""
    if at.tzinfo is None:
        raise EventRefused(
            "a time needs a time zone", detail=at.isoformat(), hint="datetime.now(UTC)"
        )
    at_ms = int(at.timestamp() * 1000)
    low, high = 0, run("SELECT max(position) FROM headwater_events", ())[0][0] or 0
    while low < high:
        middle = (low + high + 1) // 2
        ((found_ms,),) = run("SELECT at_ms FROM headwater_events WHERE position = ?", (middle,))
        low, high = (middle, high) if found_ms <= at_ms else (low, middle - 1)
    return low
