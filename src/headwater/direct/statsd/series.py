"""Samples aggregated by series (name, type and tags), within a bound of bytes.

At the end of an interval every series that got a sample becomes one record:

    key    name, or name|tag,tag
    value  {"name", "type", "tags", "from_ms", "to_ms", …}
             counter   value (the sum, each sample divided by its rate), samples
             gauge     value (the last one)
             timer     count, sum, min, max, mean, p50, p90, p95, p99, samples
             set       value (how many distinct members)

Gauges are remembered beyond the interval, because +1 and -1 change them; those that got no sample
for the longest time are forgotten when there is no more room.
"""

import hashlib
import math
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import orjson

from headwater.direct.statsd.lines import Kind, Sample
from headwater.direct.statsd.sketch import Sketch

_SHARES: Final = (0.5, 0.9, 0.95, 0.99)
_SERIES_BYTES: Final = 600  # of Python's objects, besides the name and tags
_BUCKET_BYTES: Final = 120
_MEMBER_BYTES: Final = 100
_MAX: Final = sys.float_info.max

SeriesId = tuple[str, Kind, tuple[str, ...]]


class SeriesRecord(NamedTuple):
    key: bytes
    value: bytes


class _Counter:
    __slots__ = ("samples", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.samples = 0

    def add(self, sample: Sample) -> None:
        for value in sample.values:
            self.total = _bounded(self.total + _bounded(value * sample.weight))
            self.samples += 1

    def fields(self) -> dict[str, Any]:
        return {"value": _number(self.total), "samples": self.samples}


class _Timer:
    __slots__ = ("count", "greatest", "least", "samples", "sketch", "total")

    def __init__(self) -> None:
        self.count = self.total = 0.0
        self.samples = 0
        self.least, self.greatest = math.inf, -math.inf
        self.sketch = Sketch()

    def add(self, sample: Sample) -> None:
        for value in sample.values:
            weight = _bounded(sample.weight)
            self.samples += 1
            self.count = _bounded(self.count + weight)
            self.total = _bounded(self.total + _bounded(value * weight))
            self.least, self.greatest = min(self.least, value), max(self.greatest, value)
            self.sketch.add(value, weight)

    def fields(self) -> dict[str, Any]:
        if not self.samples:  # there was no room for them
            return {"count": 0, "samples": 0}
        percentiles = (
            min(max(found, self.least), self.greatest) for found in self.sketch.quantiles(_SHARES)
        )
        mean = min(max(self.total / self.count, self.least), self.greatest)
        return {
            "count": _number(self.count),
            "sum": _number(self.total),
            "min": _number(self.least),
            "max": _number(self.greatest),
            "mean": _number(mean),
            **{
                f"p{share * 100:.0f}": _number(p)
                for share, p in zip(_SHARES, percentiles, strict=True)
            },
            "samples": self.samples,
        }


class Aggregator:
    """Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.held_bytes = 0
        self.lost = 0  # samples for which there was no room
        self.forgotten_gauges = 0
        self._max_bytes = max_bytes
        self._counters: dict[SeriesId, _Counter] = {}
        self._timers: dict[SeriesId, _Timer] = {}
        self._sets: dict[SeriesId, set[bytes]] = {}
        self._gauges: dict[SeriesId, float] = {}  # those of longest ago first
        self._new_gauges: set[SeriesId] = set()

    @property
    def series(self) -> int:
        return len(self._counters) + len(self._timers) + len(self._sets) + len(self._gauges)

    def add(self, sample: Sample) -> None:
        series = (sample.name, sample.kind, sample.tags)
        match sample.kind:
            case Kind.COUNTER:
                if series in self._counters or self._reserve(_size_bytes(series)):
                    self._counters.setdefault(series, _Counter()).add(sample)
            case Kind.TIMER:
                self._add_to_timer(series, sample)
            case Kind.SET:
                self._add_to_set(series, sample)
            case Kind.GAUGE:
                self._add_to_gauge(series, sample)

    def flush(self, from_ms: int, to_ms: int) -> Iterator[SeriesRecord]:
        """A record for each series that got samples; the next interval begins."""
        counters, self._counters = self._counters, {}
        timers, self._timers = self._timers, {}
        sets, self._sets = self._sets, {}
        gauges = {series: self._gauges[series] for series in self._new_gauges}
        self._new_gauges = set()
        self.held_bytes = sum(map(_size_bytes, self._gauges))
        times = {"from_ms": from_ms, "to_ms": to_ms}
        for series, counter in counters.items():
            yield _record(series, times | counter.fields())
        for series, timer in timers.items():
            yield _record(series, times | timer.fields())
        for series, members in sets.items():
            yield _record(series, times | {"value": len(members)})
        for series, value in gauges.items():
            yield _record(series, times | {"value": _number(value)})

    def _add_to_timer(self, series: SeriesId, sample: Sample) -> None:
        timer = self._timers.get(series)
        if timer is None:
            if not self._reserve(_size_bytes(series)):
                return
            timer = self._timers[series] = _Timer()
        most_bytes = self.held_bytes + len(sample.values) * _BUCKET_BYTES
        if most_bytes > self._max_bytes:  # else it need not be counted twice
            new = sum(not timer.sketch.has_bucket(value) for value in sample.values)
            if not self._reserve(new * _BUCKET_BYTES):
                return
            self.held_bytes -= new * _BUCKET_BYTES
        before = timer.sketch.buckets
        timer.add(sample)
        self.held_bytes += (timer.sketch.buckets - before) * _BUCKET_BYTES

    def _add_to_set(self, series: SeriesId, sample: Sample) -> None:
        members = self._sets.get(series)
        if members is None:
            if not self._reserve(_size_bytes(series)):
                return
            members = self._sets[series] = set()
        for member in sample.members:
            hashed = hashlib.blake2b(member, digest_size=16).digest()
            if hashed not in members and self._reserve(_MEMBER_BYTES):
                members.add(hashed)

    def _add_to_gauge(self, series: SeriesId, sample: Sample) -> None:
        # Taken out and put in again, it is the last one.
        before = self._gauges.pop(series, None)
        if before is None and not self._reserve(_size_bytes(series)):
            return
        now = before or 0.0
        for value in sample.values:
            now = _bounded(now + value) if sample.is_change else value
        self._gauges[series] = now
        self._new_gauges.add(series)

    def _reserve(self, size_bytes: int) -> bool:
        """Makes room by forgetting gauges that got no sample in this interval."""
        while self.held_bytes + size_bytes > self._max_bytes:
            oldest = next(iter(self._gauges), None)
            if oldest is None or oldest in self._new_gauges:
                self.lost += 1
                return False
            del self._gauges[oldest]
            self.held_bytes -= _size_bytes(oldest)
            self.forgotten_gauges += 1
        self.held_bytes += size_bytes
        return True


def _size_bytes(series: SeriesId) -> int:
    name, _, tags = series
    return _SERIES_BYTES + 2 * len(name) + sum(2 * len(tag) + 60 for tag in tags)


def _record(series: SeriesId, fields: dict[str, Any]) -> SeriesRecord:
    name, kind, tags = series
    key = f"{name}|{','.join(tags)}" if tags else name
    about = {"name": name, "type": kind.value, "tags": _tag_table(tags)}
    return SeriesRecord(key.encode(), orjson.dumps(about | fields))


def _tag_table(tags: tuple[str, ...]) -> dict[str, str]:
    """A tag without a value has an empty one; of a tag with several, they are joined by commas."""
    table: dict[str, str] = {}
    for tag in tags:
        name, _, value = tag.partition(":")
        table[name] = f"{table[name]},{value}" if name in table else value
    return table


def _bounded(number: float) -> float:
    return max(-_MAX, min(_MAX, number))


def _number(number: float) -> float | int:
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
