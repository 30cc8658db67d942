"""Positions of clients: the next offset of every partition, as the id of an event has it.

0:121,1:33        as an id, and as `from`; a partition that is not named begins at its start
start, end, -n, @TIME    as `from`; for each partition (`headwater consume -o` has the same)
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Final

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.gateway.answers import Refusal
from headwater.inspect.positions import Position, parse_position

Positions = Mapping[int, int]

_PAIRS: Final = re.compile(r"[0-9]{1,9}:[0-9]{1,18}(,[0-9]{1,9}:[0-9]{1,18})*")
_FORMS: Final = "start, end, -n, @TIME (@2026-11-15T10:00:00Z, @-1h) or 0:121,1:33"
_MAX_CHARACTERS: Final = 100_000
# From the first and the last offset of each partition, and a look-up by time, to where one begins.
Resolve = Callable[[Fetcher, str, int], dict[int, int]]


def identity_of(positions: Positions) -> bytes:
    return ",".join(
        f"{partition}:{offset}" for partition, offset in sorted(positions.items())
    ).encode()


def is_end(text: str) -> bool:
    return text == "end"


def parse(text: str) -> Position | dict[int, int]:
    """Raises Refusal."""
    if len(text) <= _MAX_CHARACTERS and _PAIRS.fullmatch(text):
        pairs = (pair.split(":") for pair in text.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}
    found = parse_position(text[:100], time.time_ns() // 1_000_000)
    if found is None or found.kind in ("plus", "offset"):
        raise Refusal(400, "this is no position", detail=text[:100], hint=f"it is {_FORMS}")
    return found


def resolve(
    fetcher: Fetcher, topic: str, partitions: int, wanted: Position | Mapping[int, int]
) -> dict[int, int]:
    """Where it is in each partition at this moment. Raises Refusal if it is behind the end."""
    everything = [(topic, number) for number in range(partitions)]
    starts = _by_number(fetcher.offsets(everything, EARLIEST))
    ends = _by_number(fetcher.offsets(everything, LATEST))
    ends = {number: max(end, starts[number]) for number, end in ends.items()}
    if isinstance(wanted, Mapping):
        return _checked(wanted, starts, ends)
    match wanted.kind:
        case "start":
            return starts
        case "end":
            return ends
        case "minus":
            return {
                number: max(starts[number], end - wanted.number) for number, end in ends.items()
            }
        case _:
            return _by_number(fetcher.offsets(everything, wanted.number))


def _checked(wanted: Positions, starts: Positions, ends: Positions) -> dict[int, int]:
    """An offset that retention has passed stays: what is lost is reported when it is read."""
    for partition, offset in wanted.items():
        if partition not in ends:
            raise Refusal(400, f"there is no partition {partition}", detail=f"{len(ends)}")
        if offset > ends[partition]:
            raise Refusal(
                409,
                f"offset {offset} of partition {partition} is behind the end of the log",
                detail=f"the log ends at {ends[partition]}",
                hint="was the topic deleted and created again? from=start reads what it has now",
            )
    return {number: wanted.get(number, start) for number, start in starts.items()}


def _by_number(found: Mapping[tuple[str, int], int]) -> dict[int, int]:
    return {number: offset for (_, number), offset in found.items()}
