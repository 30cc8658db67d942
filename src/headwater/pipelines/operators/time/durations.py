"""Durations as users write them: "1 minute", "90 seconds", "250 ms"."""

import re
from datetime import timedelta
from typing import Final

from headwater.errors import PipelineError

_UNITS_US: Final = {
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": 1_000_000,
    "second": 1_000_000,
    "min": 60_000_000,
    "minute": 60_000_000,
    "h": 3_600_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_MOST_US: Final = 2**58  # 9,000 years; times and some of these add up to less than 64 bits have
_DURATION: Final = re.compile(r"(\d+)\s*([a-z]+)")

Duration = str | timedelta


def microseconds(duration: Duration, what: str, *, at_least_us: int = 0) -> int:
    """`what` is the name of the argument, for the error. Raises PipelineError."""
    found = _parsed(duration)
    if found is None:
        raise PipelineError(
            f"{what}={duration!r} is no duration",
            hint='"10 seconds", "1 minute", "2 hours", "1 day", "1 week"; months differ in length',
        )
    if found > _MOST_US:
        raise PipelineError(f"{what}={duration!r} is too long")
    if found < at_least_us:
        raise PipelineError(f"{what}={duration!r} is too short")
    return found


def _parsed(duration: Duration) -> int | None:
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1)
    match = _DURATION.fullmatch(duration.strip().lower()) if isinstance(duration, str) else None
    if match is None:
        return None
    number, unit = int(match[1]), match[2]
    scale = _UNITS_US.get(unit) or _UNITS_US.get(unit.removesuffix("s"))
    return None if scale is None else number * scale
