"""Whether what is to be a micro-batch is as small as the average of its first records promises.

Only reading all of it would tell exactly. So it is sampled along the way, at its very end too, and
what lies between two samples counts as the larger of them: small records that are followed by large
ones are found wherever they change, and what hides between two samples is short.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

from headwater.client.sending import TopicPartition

SAMPLE_ROWS: Final = 100
_LARGEST_BYTES: Final = 1 << 20  # of a record, as brokers have it by default
_SAMPLES: Final = 8  # of a partition, at most
_PARTITIONS: Final = 16  # with the most records; others count as the largest sample

Offsets = Mapping[TopicPartition, int]
Size = Callable[[TopicPartition, int, int], float]  # bytes per offset, from one to another


def shortened(
    start: Offsets, end: Offsets, max_bytes: int, size_of: Size
) -> dict[TopicPartition, int]:
    """`end`, or less of what has more bytes than these; every partition that has something keeps
    something. `size_of` is asked for SAMPLE_ROWS offsets at most, and not at all while the records
    are too few to be too large.
    """
    rows = {place: end[place] - start[place] for place in end if end[place] > start[place]}
    if sum(rows.values()) * _LARGEST_BYTES <= max_bytes:
        return dict(end)
    by_rows = sorted(rows, key=lambda place: rows[place], reverse=True)
    for samples in (1, _SAMPLES):  # besides the one at the end; more, if it may be too much
        runs = {
            place: _runs(place, start[place], end[place], samples, size_of)
            for place in by_rows[:_PARTITIONS]
        }
        largest = max(size for each in runs.values() for _, size in each)
        runs |= {place: [(rows[place], largest)] for place in by_rows[_PARTITIONS:]}
        sizes = {place: sum(count * size for count, size in each) for place, each in runs.items()}
        share = max_bytes / max(sum(sizes.values()), 1)
        if share >= 1:
            return dict(end)
    shorter = {
        place: start[place] + max(1, _fitting(runs[place], sizes[place] * share)) for place in runs
    }
    return dict(end) | shorter


def _runs(
    place: TopicPartition, start: int, end: int, samples: int, size_of: Size
) -> list[tuple[int, float]]:
    """Of a partition: so many offsets, of so many bytes at most."""
    count = min(samples, 1 + (end - start) // SAMPLE_ROWS)
    points = [start + (end - start) * each // count for each in range(count)]
    points = sorted({*points, max(start, end - SAMPLE_ROWS)})
    sizes = [size_of(place, each, min(each + SAMPLE_ROWS, end)) for each in points]
    between = [max(pair) for pair in pairwise(sizes)]
    lengths = [other - one for one, other in pairwise([*points, end])]
    return list(zip(lengths, [*between, sizes[-1]], strict=True))


def _fitting(runs: list[tuple[int, float]], room_bytes: float) -> int:
    taken = 0
    for count, size in runs:
        if count * size > room_bytes:
            return taken + int(room_bytes / size)
        taken += count
        room_bytes -= count * size
    return taken
