"""Sizing of a micro-batch by samples, because its first records may be smaller than the others.

Only reading all of it would give the exact size. So it is sampled along the way, at its very end
too, and the offsets between two samples count as the larger of them: small records that are
followed by large ones are found wherever they change, and a run that no sample meets is short.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

from headwater.client.writing.sending import TopicPartition

SAMPLE_ROWS: Final = 100
LARGEST_BYTES: Final = 1 << 20  # of a record, as brokers have it by default
_SAMPLES: Final = 8  # of a partition, at most
_PARTITIONS: Final = 16  # with the most records; others count as the largest sample

Offsets = Mapping[TopicPartition, int]
Size = Callable[[TopicPartition, int, int], float]  # bytes per offset, from one to another


def shortened(
    start: Offsets,
    end: Offsets,
    max_bytes: int,
    size_of: Size,
    largest_bytes: int = LARGEST_BYTES,
) -> dict[TopicPartition, int]:
    """`end`, or an earlier one if the records have more than `max_bytes`; every partition with
    records still has some. `size_of` is called for SAMPLE_ROWS offsets at most, and not at all
    while the records are too few to be too large, if none has more than `largest_bytes`.
    """
    rows = {
        partition: end[partition] - start[partition]
        for partition in end
        if end[partition] > start[partition]
    }
    if sum(rows.values()) * largest_bytes <= max_bytes:
        return dict(end)
    by_rows = sorted(rows, key=lambda partition: rows[partition], reverse=True)
    for samples in (1, _SAMPLES):  # besides the one at the end; more, if it may be too much
        runs = {
            partition: _runs(partition, start[partition], end[partition], samples, size_of)
            for partition in by_rows[:_PARTITIONS]
        }
        largest = max(size for of_partition in runs.values() for _, size in of_partition)
        runs |= {partition: [(rows[partition], largest)] for partition in by_rows[_PARTITIONS:]}
        sizes = {
            partition: sum(count * size for count, size in of_partition)
            for partition, of_partition in runs.items()
        }
        share = max_bytes / max(sum(sizes.values()), 1)
        if share >= 1:
            return dict(end)
    shorter = {
        partition: start[partition] + max(1, _fitting(runs[partition], sizes[partition] * share))
        for partition in runs
    }
    return dict(end) | shorter


def _runs(
    partition: TopicPartition, start: int, end: int, samples: int, size_of: Size
) -> list[tuple[int, float]]:
    """Runs of a partition: numbers of offsets, and bytes of each at most."""
    count = min(samples, 1 + (end - start) // SAMPLE_ROWS)
    points = [start + (end - start) * number // count for number in range(count)]
    points = sorted({*points, max(start, end - SAMPLE_ROWS)})
    sizes = [size_of(partition, point, min(point + SAMPLE_ROWS, end)) for point in points]
    between = [max(pair) for pair in pairwise(sizes)]
    lengths = [other - one for one, other in pairwise([*points, end])]
    return list(zip(lengths, [*between, sizes[-1]], strict=True))


def _fitting(runs: list[tuple[int, float]], room_bytes: float) -> int:
    fitting = 0
    for count, size in runs:
        if count * size > room_bytes:
            return fitting + int(room_bytes / size)
        fitting += count
        room_bytes -= count * size
    return fitting
