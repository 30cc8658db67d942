"""The live tail of a topic: its new records as they are written.

A reader asks where the partitions end, reads what is new, and asks again. If more is new than
people can read (a burst, or a slow browser), only the last of it is read, and the number of records
that were left out is reported: so a tail is never behind.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.console.topics.records import (
    PREVIEW_BYTES,
    Positions,
    Record,
    bounds,
    opened,
    read_range,
)
from headwater.console.web.access import Access
from headwater.inspect.decoding.part import Part

if TYPE_CHECKING:
    from headwater.client.reading.fetching import Fetcher

MOST_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class News:
    """What has come since the last time."""

    records: list[Record]  # the oldest first
    left_out: int  # offsets that were passed over
    positions: Positions


class Tail:
    """One reader of one topic. Its methods block; to be used by one thread at a time."""

    def __init__(
        self, access: Access, topic: str, partitions: list[int], contains: str, since: Positions
    ) -> None:
        self._fetcher: Fetcher = opened(access)
        self._topic = topic
        self._partitions = partitions
        self._contains = contains.encode()
        self._at = dict(since)
        self.begun_s = time.monotonic()

    def close(self) -> None:
        self._fetcher.close()

    def news(self) -> News:
        """At once, also if there is nothing."""
        starts, ends = bounds(self._fetcher, self._topic, self._partitions)
        new = {
            partition: (max(self._at.get(partition, end), starts[partition]), end)
            for partition, end in ends.items()
            if min(self._at.get(partition, end), end) < end
        }
        share = max(1, MOST_AT_ONCE // len(new)) if new else 0
        found: list[Record] = []
        left_out = 0
        for partition, (first, end) in new.items():
            begin = max(first, end - share)
            left_out += begin - first
            found += read_range(self._fetcher, self._topic, partition, begin, end, PREVIEW_BYTES)
        self._at = dict(ends)
        found.sort(key=lambda record: record.timestamp_ms or 0)
        if self._contains:
            found = [record for record in found if self._has(record.key) or self._has(record.value)]
        return News(found, left_out, ends)

    def _has(self, part: Part) -> bool:
        return part.data is not None and self._contains in part.data
