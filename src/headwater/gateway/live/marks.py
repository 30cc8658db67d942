"""Marks: the ids of events, from which a client goes on.

    3f9a01bc.1794916800.0:121,1:33
    │        │          └ the next offset of each partition
    │        └ when it was given, in seconds
    └ the topic's own id: one that was deleted and created again is another one

The time is needed because a tombstone is removed from a compacted topic some time after it was
written: whoever is behind by longer cannot know which rows were removed meanwhile.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_MARK: Final = re.compile(
    r"([0-9a-f]{8})\.([0-9]{1,12})\.([0-9]{1,9}:[0-9]{1,18}(?:,[0-9]{1,9}:[0-9]{1,18})*)"
)
_MAX_CHARACTERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Mark:
    topic_id: str
    given_s: int
    positions: str

    def offsets(self) -> dict[int, int]:
        pairs = (pair.split(":") for pair in self.positions.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}


def parse(text: str) -> Mark | None:
    """None if it is no mark."""
    match = _MARK.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
    return None if match is None else Mark(match[1], int(match[2]), match[3])


def text_of(topic_id: str, positions: str) -> str:
    """Given now."""
    return f"{topic_id}.{int(time.time())}.{positions}"


def positions_text(offsets: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))
