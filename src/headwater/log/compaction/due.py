"""Which partitions are worth a pass of compaction, as Kafka decides it.

A log is clean up to an offset that a pass has reached, then dirty; the active segment is neither.
A pass is due when the dirty part is larger than `min.cleanable.dirty.ratio` of both, or holds a
record older than `max.compaction.lag.ms`. It ends where a transaction is open, and where a record
is younger than `min.compaction.lag.ms`.
"""

import itertools
from typing import NamedTuple

from headwater.log import segment as segments_on_disk
from headwater.log.partitions.partition import PartitionLog
from headwater.log.segment import Segment, Storage
from headwater.log.store import LogStore
from headwater.protocol.records import INT64_MAX, NO_TIMESTAMP


class Dirt(NamedTuple):
    """What of a partition could be cleaned, and whether it should be."""

    partition: PartitionLog
    sources: tuple[Segment, ...]
    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool  # by max.compaction.lag.ms

    @property
    def ratio(self) -> float:
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        least = self.partition.config.min_cleanable_dirty_ratio
        return self.dirty_bytes > 0 and (self.is_overdue or self.ratio > least)


def is_compacted(partition: PartitionLog) -> bool:
    return "compact" in partition.config.cleanup_policy


async def dirt_of(store: LogStore, partition: PartitionLog) -> Dirt:
    """What could be cleaned now. Cheap while no segment's timestamps are asked for."""
    config, now_ms = partition.config, store.clock.now_ms()
    first_dirty = max(partition.clean_offset, partition.log_start_offset)
    sources: list[Segment] = []
    clean_bytes = dirty_bytes = 0
    end_offset, is_overdue = partition.log_start_offset, False
    for segment, following in itertools.pairwise(partition.segments):
        if following.base_offset > partition.last_stable_offset:
            break
        is_dirty = following.base_offset > first_dirty
        if is_dirty and config.min_compaction_lag_ms > 0:
            newest_ms = await _newest_ms(store, segment)
            if newest_ms > now_ms - config.min_compaction_lag_ms:
                break
        if is_dirty and config.max_compaction_lag_ms < INT64_MAX and segment.size_bytes:
            await _newest_ms(store, segment)
            first_ms = segment.written.first_timestamp_ms
            is_overdue |= _is_before(first_ms, now_ms - config.max_compaction_lag_ms)
        sources.append(segment)
        end_offset = following.base_offset
        if is_dirty:
            dirty_bytes += segment.size_bytes
        else:
            clean_bytes += segment.size_bytes
    return Dirt(
        partition, tuple(sources), min(first_dirty, end_offset), end_offset, clean_bytes,
        dirty_bytes, is_overdue,
    )  # fmt: skip


def roll_if_overdue(store: LogStore, partition: PartitionLog) -> None:
    """Seals an active segment that holds a record older than `max.compaction.lag.ms`."""
    if not partition.segments:
        return
    lag_ms = partition.config.max_compaction_lag_ms
    written = partition.segments[-1].written
    if (
        lag_ms < INT64_MAX
        and written.size_bytes
        and _is_before(written.first_timestamp_ms, store.clock.now_ms() - lag_ms)
    ):
        partition.roll(lambda _: None)


def _is_before(timestamp_ms: int, limit_ms: int) -> bool:
    return timestamp_ms != NO_TIMESTAMP and timestamp_ms < limit_ms


async def _newest_ms(store: LogStore, segment: Segment) -> int:
    """Also fills in the segment's first timestamp."""
    if segment.written.max_timestamp_ms == NO_TIMESTAMP:
        await store.in_reader(_load, store.storage, segment)
    return segment.written.max_timestamp_ms


def _load(storage: Storage, segment: Segment) -> None:
    """(worker)"""
    segments_on_disk.load_timestamps(storage, segment)
