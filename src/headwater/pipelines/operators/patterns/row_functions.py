"""Functions of a row that conditions of stored patterns have, as Spark computes them.

Their arguments are never null: a null makes the result null. They raise TypeError or ValueError for
values that Spark would refuse, too.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from math import ceil, floor, isfinite
from typing import Any, Final


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError(f"{value!r} is no number")
    return value


def _concat(*values: Any) -> str:
    return "".join(_to_string(value) for value in values)


def _substring(text: Any, start: Any, length: Any = None) -> str:
    """From 1 on; a negative start counts from the end."""
    whole, first = _text(text), _whole(start)
    begin = first - 1 if first > 0 else len(whole) + first if first < 0 else 0
    end = len(whole) if length is None else begin + _whole(length)
    return whole[max(begin, 0) : max(end, 0)]


def _like(text: Any, pattern: Any) -> bool:
    """Without backtracking: what is between two `%` is taken where it is first found."""
    text = _text(text)
    first, *others = _like_parts(_text(pattern))
    if not others:
        return first.fullmatch(text) is not None
    found = first.match(text)
    if found is None:
        return False
    *inner, last = others
    for part in inner:
        found = part.search(text, found.end())
        if found is None:
            return False
    return last.match(text, max(found.end(), len(text) - _length(last))) is not None


@lru_cache(maxsize=1024)
def _like_parts(pattern: str) -> tuple[re.Pattern[str], ...]:
    """What is between `%`; each matches texts of one length. The last one ends the text."""
    parts, escaped = [""], False
    for character in pattern:
        if escaped or character not in "\\%_":
            parts[-1] += re.escape(character)
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "%":
            parts.append("")
        else:
            parts[-1] += "."
    parts[-1] += r"\Z"
    return tuple(re.compile(part, re.DOTALL) for part in parts)


@lru_cache(maxsize=1024)
def _length(part: re.Pattern[str]) -> int:
    """Of the texts that the last part matches."""
    return len(re.sub(r"\\(.)", r"\1", part.pattern.removesuffix(r"\Z"), flags=re.DOTALL))


def _rounded(value: Any, places: Any = 0) -> Any:
    """Half up, as Spark rounds."""
    value, places = _number(value), _whole(places)
    if isinstance(value, float):
        return float(_half_up(Decimal(repr(value)), places)) if isfinite(value) else value
    found = _half_up(Decimal(value), places)
    return int(found) if isinstance(value, int) else found


def _half_up(value: Decimal, places: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, int | str):
        return str(value)
    raise TypeError(f"{value!r} as a text")


def _to_whole(value: Any) -> int:
    if isinstance(value, str | int | float | Decimal):
        return int(value)
    raise TypeError(f"{value!r} as a whole number")


def _to_double(value: Any) -> float:
    if isinstance(value, str | int | float | Decimal):
        return float(value)
    raise TypeError(f"{value!r} as a double")


def _to_timestamp(value: Any) -> datetime:
    """Without a zone it is UTC."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001 (the zone follows)
    if not isinstance(value, datetime):
        raise TypeError(f"{value!r} as a timestamp")
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def _to_date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    return _to_timestamp(value).date()


def _time_part(name: str) -> Callable[[Any], int]:
    def part(value: Any) -> int:
        found: int = getattr(_to_timestamp(value), name)
        return found

    return part


def _day_of_week(value: Any) -> int:
    """Sunday is 1."""
    return _to_date(value).isoweekday() % 7 + 1


def _member(value: Any, name: str) -> Any:
    """Of a struct, or of a map, which Arrow gives as a list of pairs."""
    if isinstance(value, list | tuple):
        value = dict(value)
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} has no member {name}")
    by_name = {str(key).lower(): member for key, member in value.items()}
    return value[name] if name in value else by_name.get(name.lower())


ROW_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "lower": lambda text: _text(text).lower(),
    "upper": lambda text: _text(text).upper(),
    "trim": lambda text: _text(text).strip(" "),
    "length": lambda text: len(_text(text)),
    "concat": _concat,
    "substring": _substring,
    "startswith": lambda text, start: _text(text).startswith(_text(start)),
    "endswith": lambda text, end: _text(text).endswith(_text(end)),
    "contains": lambda text, part: _text(part) in _text(text),
    "like": _like,
    "round": _rounded,
    "floor": lambda value: floor(_number(value)),
    "ceil": lambda value: ceil(_number(value)),
    "year": _time_part("year"),
    "month": _time_part("month"),
    "day": _time_part("day"),
    "hour": _time_part("hour"),
    "minute": _time_part("minute"),
    "second": _time_part("second"),
    "dayofweek": _day_of_week,
    "string": _to_string,
    "bigint": _to_whole,
    "double": _to_double,
    "timestamp": _to_timestamp,
    "date": _to_date,
    "member": _member,
}
