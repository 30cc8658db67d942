"""One line of StatsD's protocol, with DogStatsD's extensions.

    name:value[:value…]|type[|@rate][|#tag:value,tag…][|c:…][|T…]

Types: c (counter), g (gauge; a sign in front of the value changes it by that), ms, h and d
(timers), s (set). Other fields behind the type are DogStatsD's container id (c:), timestamp (T)
and what later versions may add: they are passed over.
"""

import math
import re
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

_NUMBER: Final = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?")
MAX_LINE_BYTES: Final = 8192
_MAX_NAME_BYTES: Final = 1024
_CACHED_BYTES: Final = 256


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    TIMER = "timer"
    SET = "set"


_KINDS: Final = {
    b"c": Kind.COUNTER, b"g": Kind.GAUGE, b"ms": Kind.TIMER, b"h": Kind.TIMER, b"d": Kind.TIMER,
    b"s": Kind.SET,
}  # fmt: skip


class Sample(NamedTuple):
    """What a line says."""

    name: str
    kind: Kind
    tags: tuple[str, ...]  # sorted, each once
    values: tuple[float, ...]  # none of a set
    members: tuple[bytes, ...] = ()  # of a set
    weight: float = 1.0  # how many events each value stands for: 1 / rate
    is_change: bool = False  # of a gauge: values are differences


class Refused(NamedTuple):
    """A line that is no sample. `is_unsupported`: an event or a service check of DogStatsD."""

    reason: str
    is_unsupported: bool = False


class _Series(NamedTuple):
    """What a line says besides its value."""

    name: str
    kind: Kind
    tags: tuple[str, ...]
    weight: float


def parse(line: bytes) -> Sample | Refused:
    """Never raises."""
    if line.startswith((b"_e{", b"_sc|")):
        return Refused("events and service checks are not supported", is_unsupported=True)
    if len(line) > MAX_LINE_BYTES:
        return Refused("too long")
    name, colon, rest = line.partition(b":")
    text, bar, about = rest.partition(b"|")
    if not colon or not bar:
        return Refused("no value and type")
    series = _cached_series(name, about) if len(line) <= _CACHED_BYTES else _series(name, about)
    if isinstance(series, Refused):
        return series
    kind = series.kind
    if kind is Kind.SET:
        return Sample(series.name, kind, series.tags, (), (text,))
    values = text.split(b":")
    for value in values:
        if not _NUMBER.fullmatch(value):
            return Refused("no number")
    numbers = tuple(map(float, values))
    for number in numbers:
        if not math.isfinite(number):
            return Refused("a number that is too large")
    is_change = kind is Kind.GAUGE and text[:1] in b"+-"
    return Sample(series.name, kind, series.tags, numbers, (), series.weight, is_change)


def _series(name: bytes, about: bytes) -> _Series | Refused:
    type_, *fields = about.split(b"|")
    if not 0 < len(name) <= _MAX_NAME_BYTES:
        return Refused("no name, or one that is too long")
    kind = _KINDS.get(type_)
    if kind is None:
        return Refused("unknown type")
    rate, tags = 1.0, b""
    for field in fields:
        if field.startswith(b"@"):
            if not _NUMBER.fullmatch(field[1:]) or not 0 < float(field[1:]) <= 1:
                return Refused("a rate that is not above 0 and at most 1")
            rate = 1.0 if kind in (Kind.GAUGE, Kind.SET) else float(field[1:])
        elif field.startswith(b"#"):
            tags = field[1:]
    try:
        names = {tag for tag in tags.decode().split(",") if tag}
        return _Series(name.decode(), kind, tuple(sorted(names)), 1 / rate)
    except UnicodeDecodeError:
        return Refused("no UTF-8")


# Applications send the same names and tags again and again. 16 MB at most.
_cached_series = lru_cache(maxsize=16_384)(_series)
