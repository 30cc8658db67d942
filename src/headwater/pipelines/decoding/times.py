"""Dates and times of day in ISO 8601, as numbers.

The calendar is the Gregorian one before 1582 too; years outside of 0 to 9999 have a sign, as
capture/postgres/times.py writes them.
"""

import re
from typing import Final

from headwater.capture.postgres.times import TIMESTAMP_INFINITY_US, TIMESTAMP_MINUS_INFINITY_US

_DATE: Final = r"(\d{4}|[+-]\d{4,6})-(\d\d)-(\d\d)"
_CLOCK: Final = r"(\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)?"
_ZONE: Final = r"(?:Z|z|([+-])(\d\d)(?::?(\d\d))?)"
_DAY = re.compile(_DATE + "Z?", re.ASCII)
_MOMENT = re.compile(f"{_DATE}(?:[Tt ]{_CLOCK}{_ZONE}?)?", re.ASCII)
_TIME_OF_DAY = re.compile(r"(-?\d{2,3}):(\d\d)(?::(\d\d)(?:\.(\d+))?)?Z?", re.ASCII)
_DAYS_BEFORE_1970: Final = 719_468  # of the year that begins with March of the year 0
_INFINITIES: Final = {
    "infinity": TIMESTAMP_INFINITY_US,
    "-infinity": TIMESTAMP_MINUS_INFINITY_US,
}


def days_of(text: str) -> int | None:
    """Days since 1970 of "2024-02-29"; None if it is no date."""
    match = _DAY.fullmatch(text)
    return None if match is None else _days(int(match[1]), int(match[2]), int(match[3]))


def micros_of(text: str) -> int | None:
    """Microseconds since 1970 of "2024-02-29T13:51:30.5+01:00"; None if it is no time."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        return _INFINITIES.get(text)
    year, month, day, hour, minute, second, fraction, sign, zone_hour, zone_minute = match.groups()
    days = _days(int(year), int(month), int(day))
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    shift_minutes = int(zone_hour or 0) * 60 + int(zone_minute or 0)
    if days is None or hours > 23 or minutes > 59 or seconds > 59 or int(zone_minute or 0) > 59:
        return None
    if int(zone_hour or 0) > 23:
        return None
    minutes += hours * 60 + (shift_minutes if sign == "-" else -shift_minutes)
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    return ((days * 1440 + minutes) * 60 + seconds) * 10**6 + micros


def clock_text(micros: int) -> str:
    """As "13:51:30.123456", of microseconds since midnight. MySQL's times go beyond a day and below
    zero.
    """
    seconds, rest = divmod(abs(micros), 10**6)
    sign = "-" if micros < 0 else ""
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{sign}{clock}.{rest:06}"


def clock_of(text: str) -> str | None:
    """The same of "13:51:30Z"; None if it is no time of day."""
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        return None
    hour, minute, second, fraction = match.groups()
    if int(minute) > 59 or int(second or 0) > 59:
        return None
    return f"{hour}:{minute}:{second or '00'}.{(fraction or '0')[:6]:0<6}"


def _days(year: int, month: int, day: int) -> int | None:
    """Days since 1970. A year that begins with March has its leap day at the end; 400 such years
    have 146,097 days.
    """
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12:
        return None
    month_days = 28 + is_leap if month == 2 else 30 if month in {4, 6, 9, 11} else 31
    if not 1 <= day <= month_days:
        return None
    years = year - (month <= 2)
    era, in_era = divmod(years, 400)
    in_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + in_era * 365 + in_era // 4 - in_era // 100 + in_year - _DAYS_BEFORE_1970
