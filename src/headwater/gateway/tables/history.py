"""A row as it was: the last record of a key before a position of the log (`as_of`).

The log is read backwards from there, a stretch at a time, until a record of the key comes. One that
is found is the right one, also where the topic is compacted: compaction removes a record together
with all older ones of its key. If none is found there was none, or it is not there any more; which
of the two is known only if the log has all of its records. Otherwise the answer is a refusal.
"""

import re
import time
from dataclasses import dataclass
from typing import Final

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.errors import DataLost
from headwater.gateway.answers import Refusal
from headwater.inspect.positions import parse_position
from headwater.protocol.records import Record

_FORMS: Final = "a time (2026-11-15T10:00:00Z, -1h) or an offset of the key's partition"
_FIRST_STRETCH: Final = 2_000  # offsets
_LONGEST_STRETCH: Final = 100_000
_MAX_BYTES: Final = 1 << 30  # of records that are looked through
_OVERHEAD_BYTES: Final = 50


@dataclass(frozen=True, slots=True)
class AsOf:
    """A moment: the record with this offset, or all of that time (milliseconds), included."""

    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The record, if the key had one then, and the offset behind what counts."""

    record: Record | None
    end: int


def parse(text: str) -> AsOf:
    """Raises Refusal."""
    if re.fullmatch(r"[0-9]{1,12}", text):
        return AsOf(offset=int(text))
    found = parse_position("@" + text.removeprefix("@")[:100], time.time_ns() // 1_000_000)
    if found is None or found.kind != "time":
        raise Refusal(400, "as_of is no moment", detail=text[:100], hint=f"it is {_FORMS}")
    return AsOf(time_ms=found.number)


def last_before(
    fetcher: Fetcher, topic: str, partition: int, key: bytes, as_of: AsOf, *, is_compacted: bool
) -> Found:
    """Blocks. Raises Refusal: 409 for an offset that is not there yet, 410 if the log no longer
    has what is asked for, 413 if too much of it would have to be read.
    """
    place = (topic, partition)
    start = fetcher.offsets([place], EARLIEST)[place]
    end = _end(fetcher, place, as_of)
    if end < start:
        raise _gone(topic, f"the log begins at offset {start} of partition {partition}")
    reached, stretch, count, size_bytes = end, _FIRST_STRETCH, 0, 0
    while reached > start:
        first = max(start, reached - stretch)
        last: Record | None = None
        try:
            for record in fetcher.records(topic, partition, first, reached):
                count += 1
                size_bytes += len(record.value or b"") + len(record.key or b"") + _OVERHEAD_BYTES
                if record.key == key:
                    last = record
        except DataLost as lost:  # retention was quicker
            raise _gone(topic, str(lost)) from None
        if last is not None:
            return Found(last, end)
        if size_bytes > _MAX_BYTES:
            raise Refusal(
                413,
                "the key has no record near this moment",
                detail=f"{count:,} records before it were looked through",
                hint="a view or pipeline that writes a history by key answers such questions",
            )
        reached, stretch = first, min(stretch * 4, _LONGEST_STRETCH)
    if start > 0:
        raise _gone(topic, f"the log begins at offset {start} of partition {partition}")
    if is_compacted and count < end:
        raise _gone(topic, "it is compacted, and not all records up to there are left")
    return Found(None, end)


def _end(fetcher: Fetcher, place: tuple[str, int], as_of: AsOf) -> int:
    end = fetcher.offsets([place], LATEST)[place]
    if as_of.time_ms is not None:
        return min(fetcher.offsets([place], as_of.time_ms + 1)[place], end)
    assert as_of.offset is not None
    if as_of.offset >= end:
        raise Refusal(
            409,
            f"offset {as_of.offset} is not there yet",
            detail=f"partition {place[1]} ends at {end}",
        )
    return as_of.offset + 1


def _gone(topic: str, why: str) -> Refusal:
    return Refusal(
        410,
        f"topic {topic} no longer has what the row was then",
        detail=why,
        hint="retention and compaction decide how far back it goes: retention.ms,"
        " min.compaction.lag.ms",
    )
