"""Fields of documents by their paths: `customer.address.city`, through structs, lists and JSON.

A list stands for its elements: a path leads to all values below it. A text that holds a JSON object
or array is read as such where a path leads into it. Whatever is not there, or is of another type
than the path needs, has no values; no document is an error.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson

_EARTH_RADIUS_M: Final = 6_371_008.8
_LATITUDES: Final = ("lat", "latitude")
_LONGITUDES: Final = ("lon", "lng", "long", "longitude")
_DEEPEST: Final = 100  # lists and structs within each other: JSON of others may have thousands
_LONGEST_NUMBER: Final = 400  # digits: 1e999999999 is no number that anyone looks for

Number = int | Decimal


def values_at(columns: Mapping[str, Any], path: Sequence[str]) -> list[Any]:
    """All values at the path, without nulls; lists are replaced by their elements."""
    value = columns.get(path[0])
    return [] if value is None else list(_below(value, path, 1))


def _below(value: Any, path: Sequence[str], depth: int, lists: int = 0) -> Iterator[Any]:
    if value is None or lists > _DEEPEST:
        return
    if isinstance(value, list | tuple) and not _is_entries(value):
        for element in value:
            yield from _below(element, path, depth, lists + 1)
        return
    if depth == len(path):
        yield value
        return
    if isinstance(value, str):
        value = _from_json(value)
        if isinstance(value, list):
            yield from _below(value, path, depth, lists + 1)
            return
    elif isinstance(value, list | tuple):
        value = dict(value)
    if isinstance(value, Mapping):
        yield from _below(value.get(path[depth]), path, depth + 1, lists)


def _is_entries(value: Sequence[Any]) -> bool:
    """Arrow gives a map as a list of pairs."""
    return bool(value) and all(
        isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)
        for entry in value
    )


def _from_json(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """All strings in it, down to some depth."""
    if isinstance(value, str):
        yield value
    elif depth > _DEEPEST:
        return
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from texts_in(member, depth + 1)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from texts_in(element, depth + 1)


def as_number(value: Any) -> Number | None:
    """Exact, so that 0.1 as a double and 0.1 as a decimal are equal."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return Decimal(repr(value)) if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    return None


def number_of(text: str) -> Decimal | None:
    """The number that a query has written."""
    try:
        found = Decimal(text)
    except InvalidOperation:
        return None
    return found if found.is_finite() and abs(found.adjusted()) < _LONGEST_NUMBER else None


def as_time(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC)
    return time_of(value) if isinstance(value, str) else None


def time_of(text: str) -> datetime | None:
    """ISO 8601, with a date at least; UTC if it has no zone."""
    if len(text) < len("2026-01-01") or text[4:5] != "-":
        return None
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # the year 1, in a zone ahead of UTC
        return None


def canonical(value: Any) -> str | None:
    """The same text for equal values, however they are stored; None if nothing can equal it."""
    if isinstance(value, str):
        return f"={value}"
    if isinstance(value, bool):
        return "=true" if value else "=false"
    if isinstance(value, datetime | date):
        moment = as_time(value)
        return None if moment is None else canonical_time(moment)
    number = as_number(value)
    return None if number is None else canonical_number(number)


def canonical_number(number: Number) -> str:
    if isinstance(number, int):
        return f"#{number}"
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "#0" if text == "-0" else f"#{text}"


def canonical_time(moment: datetime) -> str:
    return f"@{moment.astimezone(UTC).isoformat()}"


def alternatives(text: str) -> tuple[str, ...]:
    """The canonical values that a text of a query can mean: `5` is a number and a text."""
    found = [f"={text}"]
    number, moment = number_of(text), time_of(text)
    if number is not None:
        found.append(canonical_number(number))
    if moment is not None:
        found.append(canonical_time(moment))
    return tuple(found)


def place_of(value: Any) -> tuple[float, float] | None:
    """Latitude and longitude in degrees: {"lat": 52.5, "lon": 13.4}, or "52.5,13.4"."""
    if isinstance(value, Mapping):
        latitude, longitude = (
            next((value[name] for name in names if value.get(name) is not None), None)
            for names in (_LATITUDES, _LONGITUDES)
        )
    elif isinstance(value, str):
        first, comma, second = value.partition(",")
        if not comma:
            return None
        latitude, longitude = number_of(first.strip()), number_of(second.strip())
    else:
        return None
    numbers = as_number(latitude), as_number(longitude)
    if numbers[0] is None or numbers[1] is None:
        return None
    found = float(numbers[0]), float(numbers[1])
    return found if -90 <= found[0] <= 90 and -180 <= found[1] <= 180 else None


def distance_m(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Along the surface of a sphere (haversine), which differs from the earth by 0.5 % at most."""
    latitude, longitude, its_latitude, its_longitude = map(math.radians, (*one, *other))
    half = (
        math.sin((its_latitude - latitude) / 2) ** 2
        + math.cos(latitude)
        * math.cos(its_latitude)
        * math.sin((its_longitude - longitude) / 2) ** 2
    )
    return 2 * _EARTH_RADIUS_M * math.asin(math.sqrt(min(half, 1.0)))
