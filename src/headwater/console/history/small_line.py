"""The small line beside a number in a list: drawn here, because a list may have 500 of them."""

from collections.abc import Sequence
from typing import Final

WIDTH: Final = 96
HEIGHT: Final = 20
_MARGIN: Final = 1.5


def small_line(values: Sequence[float | None]) -> list[str]:
    """Points of the polylines of an SVG of WIDTH x HEIGHT, from 0 up; a gap begins another one.
    Empty if there are not two values.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return []
    highest = max(*known, 0.0) or 1.0
    step = (WIDTH - 2 * _MARGIN) / max(len(values) - 1, 1)
    lines: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            lines.append([])
            continue
        y = HEIGHT - _MARGIN - max(value, 0.0) / highest * (HEIGHT - 2 * _MARGIN)
        lines[-1].append(f"{_MARGIN + number * step:.1f},{y:.1f}")
    # A single value between two gaps is a point: a line that ends where it begins.
    return [" ".join(line if len(line) > 1 else line * 2) for line in lines if line]
