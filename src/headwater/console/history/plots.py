"""What pages draw: plots of some series in the range that was chosen, and small lines in lists."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from headwater.console.history.chosen_range import range_of
from headwater.console.history.ranges import LIST
from headwater.console.history.store import History
from headwater.console.web.access import Access

_AGE_S: Final = 3.0
_DIGITS: Final = 5


class Plot(NamedTuple):
    """`lines` are label and series each. `unit`: "" (a number), B, ms, s, /s or cores. `of` is for
    a page that shows plots of several things: they are read at once.
    """

    title: str
    unit: str
    lines: Sequence[tuple[str, str]]
    of: str = ""


async def plots_of(
    request: Request, access: Access, history: History, wanted: Iterable[Plot]
) -> list[dict[str, Any]]:
    """For uPlot: x, and y of each line. A plot without any value is left out, a line, too."""
    range_ = range_of(request)
    every = list(wanted)
    names = tuple(dict.fromkeys(name for plot in every for _, name in plot.lines))
    points = await access.read(
        ("history", names, range_.name),
        lambda: history.read(names, range_, time.time()),
        max_age_s=_AGE_S,
    )
    found = []
    for plot in every:
        lines = [
            {"label": label, "y": [_rounded(value) for value in points.series[name]]}
            for label, name in plot.lines
            if any(value is not None for value in points.series[name])
        ]
        if lines:
            found.append(
                {
                    "of": plot.of,
                    "title": plot.title,
                    "unit": plot.unit,
                    "x": points.at,
                    "series": lines,
                    "has_line": len(points.at) > 1,
                }
            )
    return found


async def small_lines(
    access: Access, history: History, names: Mapping[str, str]
) -> dict[str, list[float | None]]:
    """The last hour of each series, by the keys of `names`."""
    wanted = tuple(names.values())
    points = await access.read(
        ("lines", wanted), lambda: history.read(wanted, LIST, time.time()), max_age_s=_AGE_S
    )
    return {key: points.series[name] for key, name in names.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")
