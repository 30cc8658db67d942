"""Tumbling and hopping windows of days and weeks in a time zone.

Panes are numbered as in fixed_windows.py, by days of the local calendar, so a day has 23 or 25
hours where clocks are put forward or back. A day begins at the first moment of its date: where
clocks skip midnight, when they do; where they show it twice, the first time. Weeks begin on Monday.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property, lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from headwater.pipelines.operators.windows.fixed_windows import FixedWindows
from headwater.pipelines.operators.windows.pane_state import Windows

DAY_US: Final = 86_400_000_000
WEEK_DAYS: Final = 7
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MONDAY: Final = -3  # the day 1969-12-29
_FIRST: Final = date(2, 1, 1).toordinal() - date(1970, 1, 1).toordinal()
_LAST: Final = date(9998, 12, 31).toordinal() - date(1970, 1, 1).toordinal()
_FEW_DAYS: Final = 1000
_DRIFT_US: Final = 2 * DAY_US  # by which some days can differ from as many times 24 hours


@dataclass(frozen=True)
class Calendar:
    """Panes of some days each in a time zone, numbered."""

    zone: str
    days: int

    def pane_at(self, time_us: Windows) -> Windows:
        days = _around(time_us // DAY_US)
        starts_us = np.array([_midnight_us(self.zone, day) for day in days.tolist()], np.int64)
        local = days[np.searchsorted(starts_us, time_us, "right") - 1]
        panes: Windows = (local - self.first_day) // self.days
        return panes

    def start_of(self, pane: Windows) -> Windows:
        panes, inverse = np.unique(pane, return_inverse=True)
        days = (panes * self.days + self.first_day).tolist()
        starts_us: Windows = np.array([_midnight_us(self.zone, day) for day in days], np.int64)
        return starts_us[inverse]

    @property
    def first_day(self) -> int:
        """On which pane 0 begins."""
        return _MONDAY if self.days % WEEK_DAYS == 0 else 0


@dataclass(frozen=True)
class ZonedWindows(FixedWindows):
    """Operator (contract.py). `hop_us` is a number of days."""

    zone: str = "UTC"

    @cached_property
    def _calendar(self) -> Calendar:
        return Calendar(self.zone, self.hop_us // DAY_US)

    def pane_at(self, time_us: Windows) -> Windows:
        return self._calendar.pane_at(time_us)

    def start_of(self, pane: Windows) -> Windows:
        return self._calendar.start_of(pane)

    @property
    def _panes_layout(self) -> str:
        return f"{super()._panes_layout} in {self.zone}"

    @property
    def _leads_us(self) -> tuple[int, int]:
        overlap_us = (self.panes - 1) * self.hop_us
        return -(overlap_us + _DRIFT_US) if overlap_us else 0, 1

    @property
    def _retention_us(self) -> int:
        return super()._retention_us + (_DRIFT_US if self.previous else 0)


def _around(days: Windows) -> Windows:
    """All days that local times can be on: those of UTC, the ones before and the ones after."""
    if not len(days):
        return days
    first, last = int(days.min()), int(days.max())
    if last - first < _FEW_DAYS:
        return np.arange(first - 1, last + 2)
    found = np.unique(days)
    return np.unique(np.concatenate([found - 1, found, found + 1]))


@lru_cache(maxsize=1 << 16)
def _midnight_us(zone: str, day: int) -> int:
    """When a day begins. Beyond the calendar's years, days are those of UTC."""
    if not _FIRST <= day <= _LAST:
        return day * DAY_US
    local = datetime.combine(date(1970, 1, 1) + timedelta(days=day), time(), ZoneInfo(zone))
    return (local.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
