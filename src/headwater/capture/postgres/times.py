"""Dates, times and intervals: from PostgreSQL's text to Debezium's numbers and to ISO 8601.

The text is that of DateStyle ISO, TimeZone UTC and IntervalStyle iso_8601.

The calendar is the proleptic Gregorian one, with a year 0 (1 BC), as in ISO 8601 and in Java.
Python's datetime has the years 1 to 9999 only: it is used where it reaches, for its speed.
"""

import re
from datetime import date, datetime
from typing import Final

# What Debezium gives for timestamps that are infinite (the numbers of PostgreSQL's JDBC driver).
TIMESTAMP_INFINITY_US: Final = 9223372036825200000
TIMESTAMP_MINUS_INFINITY_US: Final = -9223372036832400000
DATE_INFINITY: Final = 2**31 - 1  # PostgreSQL's own representation
DATE_MINUS_INFINITY: Final = -(2**31)
INTERVAL_INFINITY_US: Final = 2**63 - 1

_DAY_US: Final = 86_400_000_000
_MONTH_US: Final = 2_629_800_000_000  # 30.4375 days, as Debezium counts
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the column has no zone either
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_INTERVAL: Final = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)W)?(?:(-?\d+)D)?"
    r"(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d+))?S)?)?"
)


def epoch_days(text: str) -> int:
    """2024-02-29, 0044-03-15 BC, 12024-01-01, infinity."""
    if len(text) == 10:
        return date.fromisoformat(text).toordinal() - _EPOCH_ORDINAL
    if text == "infinity":
        return DATE_INFINITY
    if text == "-infinity":
        return DATE_MINUS_INFINITY
    return _days_of_civil(*_civil(text))


def iso_date(text: str) -> str:
    if len(text) == 10 or text.endswith("infinity"):
        return text
    return _iso_civil(*_civil(text))


def day_us(text: str) -> int:
    """13:51:30.123, 24:00:00: microseconds since midnight."""
    seconds = int(text[0:2]) * 3600 + int(text[3:5]) * 60 + int(text[6:8])
    return seconds * 1_000_000 + (int(text[9:15].ljust(6, "0")) if len(text) > 8 else 0)


def day_ms(text: str) -> int:
    return day_us(text) // 1000


def iso_time(text: str) -> str:
    return text + "Z"


def utc_time(text: str) -> str:
    """13:51:30.123+02, 13:51:30-05:30: the time of day in UTC, 11:51:30.123Z."""
    at = max(text.rfind("+"), text.rfind("-"))
    clock, zone = text[:at], text[at + 1 :].split(":")
    hours, minutes, seconds = (int(part) for part in (*zone, "0", "0")[:3])
    shift_s = hours * 3600 + minutes * 60 + seconds
    if text[at] == "+":
        shift_s = -shift_s
    whole = (int(clock[0:2]) * 3600 + int(clock[3:5]) * 60 + int(clock[6:8]) + shift_s) % 86_400
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{clock[8:]}Z"


def epoch_us(text: str) -> int:
    """2024-02-29 13:51:30.123456, 0044-03-15 00:00:00 BC, infinity: microseconds since 1970."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return _epoch_us_beyond(text)
    since = at - _EPOCH
    return since.days * _DAY_US + since.seconds * 1_000_000 + since.microseconds


def epoch_ms(text: str) -> int:
    return epoch_us(text) // 1000


def _epoch_us_beyond(text: str) -> int:
    if text == "infinity":
        return TIMESTAMP_INFINITY_US
    if text == "-infinity":
        return TIMESTAMP_MINUS_INFINITY_US
    day, clock = text.removesuffix(" BC").split(" ")
    days = _days_of_civil(*_civil(day + " BC" if text.endswith(" BC") else day))
    return days * _DAY_US + day_us(clock)


def iso_timestamp(text: str) -> str:
    """A timestamp without zone as Debezium's isostring mode writes it: in UTC."""
    if text.endswith("infinity"):
        return text
    day, clock = text.removesuffix(" BC").split(" ")
    return iso_date(day + " BC" if text.endswith(" BC") else day) + "T" + clock + "Z"


def zoned(text: str) -> str:
    """2024-02-29 13:51:30.12+00 (the session's zone is UTC): 2024-02-29T13:51:30.120000Z."""
    if len(text) == 29 and text[10] == " " and text[26:] == "+00":  # by far the most
        return f"{text[:10]}T{text[11:26]}Z"
    clock = text[11:-3]
    if 21 < len(text) < 30 and text[10] == " " and text[-3:] == "+00":
        return (
            f"{text[:10]}T{clock}{'.000000Z' if len(clock) == 8 else '000000Z'[len(clock) - 9 :]}"
        )
    if text.endswith("infinity"):
        return text
    era = " BC" if text.endswith(" BC") else ""
    day, rest = text.removesuffix(" BC").split(" ")
    clock = rest.removesuffix("+00")
    return f"{iso_date(day + era)}T{clock if len(clock) > 8 else clock + '.':0<15}Z"


def duration_us(text: str) -> int:
    """P1Y2M3DT4H5M6.78S: microseconds, with months of 30.4375 days as Debezium counts them."""
    match = _INTERVAL.fullmatch(text)
    if match is None:
        if text.endswith("infinity"):
            return -INTERVAL_INFINITY_US if text[0] == "-" else INTERVAL_INFINITY_US
        raise ValueError(f"no interval: {text!r}")
    years, months, weeks, days, hours, minutes = (int(part or 0) for part in match.groups()[:6])
    sign, seconds, fraction = match[7], int(match[8] or 0), (match[9] or "").ljust(6, "0")
    second_us = seconds * 1_000_000 + int(fraction)
    return (
        (years * 12 + months) * _MONTH_US
        + (weeks * 7 + days) * _DAY_US
        + (hours * 3600 + minutes * 60) * 1_000_000
        + (-second_us if sign else second_us)
    )


def _civil(text: str) -> tuple[int, int, int]:
    year, month, day = text.removesuffix(" BC").split("-")
    return (1 - int(year) if text.endswith(" BC") else int(year)), int(month), int(day)


def _iso_civil(year: int, month: int, day: int) -> str:
    """ISO 8601 wants a sign before years that do not have four digits."""
    digits = f"{year:04}" if 0 <= year <= 9999 else f"{'-' if year < 0 else '+'}{abs(year):04}"
    return f"{digits}-{month:02}-{day:02}"


def _days_of_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01. A cycle of 400 years has 146097 days; years begin in March."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468
