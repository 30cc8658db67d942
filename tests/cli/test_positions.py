"""Positions: how they are written and what they mean on a partition."""

from datetime import UTC, datetime

import pytest

from headwater.errors import UsageError
from headwater.inspect.kafka_cluster import Partition
from headwater.inspect.positions import END, START, Position, Range, Span, parse_range, resolve

NOW_MS = 1_794_736_800_000
HOUR_MS = 3_600_000


def utc_ms(*parts):
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", Range(START)),
        ("end", Range(END)),
        ("+5", Range(Position("plus", 5))),
        ("-5", Range(Position("minus", 5))),
        ("0", Range(Position("offset", 0))),
        ("start:end", Range(START, END)),
        ("42:+5", Range(Position("offset", 42), Position("plus", 5))),
        ("+10:+5", Range(Position("plus", 10), Position("plus", 5))),
        ("-10:-5", Range(Position("minus", 10), Position("minus", 5))),
        ("@1794736800123", Range(Position("time", 1794736800123))),
        ("@1794736800", Range(Position("time", NOW_MS))),
        ("@-1h", Range(Position("time", NOW_MS - HOUR_MS))),
        ("@-1h:end", Range(Position("time", NOW_MS - HOUR_MS), END)),
        (
            "@-2h:@-1h30m",
            Range(Position("time", NOW_MS - 2 * HOUR_MS), Position("time", NOW_MS - 5_400_000)),
        ),
        ("@2026-11-15T10:00:00Z", Range(Position("time", utc_ms(2026, 11, 15, 10)))),
        (
            "@2026-11-15T10:00:00+02:00:end",
            Range(Position("time", utc_ms(2026, 11, 15, 8)), END),
        ),
        (
            "@2026-11-15T10:00:00.250Z:@2026-11-15T11:30:00Z",
            Range(
                Position("time", utc_ms(2026, 11, 15, 10) + 250),
                Position("time", utc_ms(2026, 11, 15, 11, 30)),
            ),
        ),
    ],
)
def test_positions_and_ranges(text, expected):
    assert parse_range(text, NOW_MS) == expected


def test_a_time_without_a_zone_is_local():
    local_ms = int(datetime(2026, 11, 15, 10, 30).timestamp() * 1000)  # noqa: DTZ001
    assert parse_range("@2026-11-15T10:30").first == Position("time", local_ms)
    assert parse_range("@2026-11-15T10:30:start") == Range(Position("time", local_ms), START)


@pytest.mark.parametrize(
    "text", ["", "begin", "+", "-", "1.5", "@", "@yesterday", "@-1", "1:2:3", ":"]
)
def test_what_is_no_position(text):
    with pytest.raises(UsageError, match="not a position"):
        parse_range(text, NOW_MS)


@pytest.mark.parametrize("text", ["7:3", "-3:-7", "@-1h:@-2h"])
def test_a_range_that_ends_before_it_begins(text):
    with pytest.raises(UsageError, match="ends before it begins"):
        parse_range(text, NOW_MS)


class FakeCluster:
    """One partition with the records 100 to 199, one per second from NOW_MS."""

    def bounds(self, partitions, *, committed_only=False):
        return dict.fromkeys(partitions, (100, 200))

    def offsets(self, partitions, spec, *, committed_only=False):
        second = -(-(spec._value - NOW_MS) // 1000)
        found = 100 + max(0, second)
        return dict.fromkeys(partitions, found if found < 200 else -1)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("start", 100, None),
        ("end", 200, None),
        ("+10", 110, None),
        ("+1000", 200, None),
        ("-10", 190, None),
        ("-1000", 100, None),
        ("150", 150, None),
        ("5", 5, None),
        ("500", 500, None),
        ("start:end", 100, 200),
        ("start:+3", 100, 103),
        ("150:+3", 150, 153),
        ("-10:-5", 190, 195),
        (f"@{NOW_MS + 2500}", 103, None),
        (f"@{NOW_MS + 2000}:@{NOW_MS + 4000}", 102, 104),
        (f"@{NOW_MS + 10**6}", 200, None),
    ],
)
def test_what_a_position_means(text, first, last):
    partition = Partition("t", 0)
    span = resolve(parse_range(text), FakeCluster(), [partition])[partition]
    assert span == Span(first, last, 100, 200)
