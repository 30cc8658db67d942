"""The ranges of time that plots show. One choice holds for all pages of a browser."""

from dataclasses import dataclass
from typing import Final

FINE_S: Final = 15  # between two samples
FINE_FOR_S: Final = 3 * 3600
COARSE_S: Final = 300  # of samples behind that: their mean over so long
COARSE_FOR_S: Final = 7 * 86400


@dataclass(frozen=True, slots=True)
class Range:
    """`length_s` up to now, with a point every `step_s`."""

    name: str
    title: str
    length_s: int
    step_s: int

    @property
    def is_fine(self) -> bool:
        return self.step_s < COARSE_S


RANGES: Final = {
    range_.name: range_
    for range_ in (
        Range("15m", "15 min", 900, FINE_S),
        Range("1h", "1 hour", 3600, FINE_S),
        Range("3h", "3 hours", FINE_FOR_S, 2 * FINE_S),
        Range("1d", "1 day", 86400, COARSE_S),
        Range("1w", "1 week", COARSE_FOR_S, 6 * COARSE_S),
    )
}
DEFAULT: Final = RANGES["1h"]
LIST: Final = Range("", "the last hour", 3600, 4 * FINE_S)  # of the small lines in lists
