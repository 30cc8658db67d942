"""Where to read from and to: `start`, `end`, `+n`, `-n`, `N`, `@TIME`, and ranges of two of them.

    start          the first record that is there
    end            after the last record that is there now
    +n             n records after the start; as the end of a range, n after where it begins
    -n             n records before the end
    N              offset N
    @TIME          the first record at TIME or later. TIME is an ISO time (2026-11-15T10:00:00Z,
                   local without a zone), epoch milliseconds, or back from now: -1h, -1h30m, -7d
    FROM:TO        from FROM (included) to TO (not included)

Each partition has its own start, end and times: `-10` are the last ten records of every partition.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from headwater.errors import UsageError
from headwater.inspect.kafka_cluster import KafkaCluster, OffsetSpec, Partition
from headwater.settings import parse_duration_ms

FORMS: Final = "start, end, +n, -n, N, @TIME or FROM:TO, e.g. start, -10, 42:+5, @-1h:end"


@dataclass(frozen=True, slots=True)
class Position:
    """One position in a partition. `number` is n, N, or a time in epoch milliseconds."""

    kind: str  # start, end, plus, minus, offset, time
    number: int = 0


START: Final = Position("start")
END: Final = Position("end")


@dataclass(frozen=True, slots=True)
class Range:
    """From `first` up to, but not including, `last`; without `last` there is no end."""

    first: Position
    last: Position | None = None


def parse_range(text: str, now_ms: int | None = None) -> Range:
    """Raises UsageError. An ISO time has colons of its own, so every colon is tried."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    whole = parse_position(text, now_ms)
    if whole:
        return Range(whole)
    for colon in (match.start() for match in re.finditer(":", text)):
        first = parse_position(text[:colon], now_ms)
        last = parse_position(text[colon + 1 :], now_ms)
        if first and last:
            if first.kind == last.kind and _ordinal(last) < _ordinal(first):
                raise UsageError(f"the range ends before it begins: {text}")
            return Range(first, last)
    raise UsageError(f"not a position: {text}", detail=f"expected {FORMS}")


def _ordinal(position: Position) -> int:
    """Of two positions of one kind the later has the greater one; + in a range is no position."""
    return {"minus": -position.number, "plus": 0}.get(position.kind, position.number)


def parse_position(text: str, now_ms: int) -> Position | None:
    """None if it is none."""
    if text in ("start", "end"):
        return Position(text)
    if re.fullmatch(r"\+\d{1,18}", text):
        return Position("plus", int(text))
    if re.fullmatch(r"-\d{1,18}", text):
        return Position("minus", -int(text))
    if re.fullmatch(r"\d{1,18}", text):
        return Position("offset", int(text))
    at_ms = _time_ms(text[1:], now_ms) if text.startswith("@") else None
    return Position("time", at_ms) if at_ms is not None else None


def _time_ms(text: str, now_ms: int) -> int | None:
    if re.fullmatch(r"\d{13}", text):
        return int(text)
    if re.fullmatch(r"\d{10}", text):  # what `date +%s` prints
        return int(text) * 1000
    try:
        # Before 1970 is the first record: negative numbers mean something else in the protocol.
        if text.startswith("-"):
            return max(0, now_ms - parse_duration_ms(text[1:]))
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):  # of a day that the platform's calendar does not have
        return None


@dataclass(frozen=True, slots=True)
class Span:
    """A Range on one partition: its first offset, and the offset it stops before (None: never).

    `low` and `high` are the bounds that the partition had when it was resolved.
    """

    first: int
    last: int | None
    low: int
    high: int


def resolve(
    wanted: Range,
    cluster: KafkaCluster,
    partitions: Iterable[Partition],
    *,
    committed_only: bool = False,
) -> dict[Partition, Span]:
    """What `wanted` means on each partition at this moment.

    Positions are clamped to the partition, except an absolute offset, which may lie ahead of it.
    """
    bounds = cluster.bounds(partitions, committed_only=committed_only)
    at_time = {
        position.number: cluster.offsets(bounds, OffsetSpec.for_timestamp(position.number))
        for position in (wanted.first, wanted.last)
        if position is not None and position.kind == "time"
    }
    spans = {}
    for partition, (low, high) in bounds.items():

        def offset_of(
            position: Position,
            begin: int,
            partition: Partition = partition,
            low: int = low,
            high: int = high,
        ) -> int:
            match position.kind:
                case "start":
                    return low
                case "end":
                    return high
                case "plus":
                    return begin + position.number
                case "minus":
                    return max(low, high - position.number)
                case "time":
                    found = at_time[position.number].get(partition, -1)
                    return high if found < 0 else found
                case _:
                    return position.number

        first = offset_of(wanted.first, low)
        if wanted.first.kind == "plus":
            first = min(first, high)
        last = None if wanted.last is None else offset_of(wanted.last, first)
        spans[partition] = Span(first, last, low, high)
    return spans
