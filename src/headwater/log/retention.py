"""Deleting what a topic need not keep any longer: whole segments, oldest first.

By time: a segment goes when its newest record is older than `retention.ms`. By size: while the
partition without its oldest segment still has `retention.bytes`. The active segment may go too;
it is sealed first. Nothing goes from a topic that is only compacted.
"""

import asyncio

from headwater.errors import StorageFailed
from headwater.log import segment as segments_on_disk
from headwater.log.partition import PartitionLog
from headwater.log.segment import Segment
from headwater.log.store import LogStore
from headwater.protocol.records import NO_TIMESTAMP


async def apply(store: LogStore, partition: PartitionLog) -> int:
    """Deletes what is due; returns how many bytes that were."""
    config = partition.config
    if "delete" not in config.cleanup_policy or not partition.segments:
        return 0
    size_before = partition.size_bytes
    while partition.segments:
        oldest = partition.segments[0]
        excess_bytes = partition.size_bytes - oldest.size_bytes - config.retention_bytes
        too_much = config.retention_bytes >= 0 and excess_bytes >= 0
        if not too_much and not await _too_old(store, oldest, config.retention_ms):
            break
        if len(partition.segments) == 1:
            if oldest.size_bytes == 0 or not await _sealed(store, partition):
                break
        else:
            await _delete_oldest(store, partition)
    return size_before - partition.size_bytes


async def _delete_oldest(store: LogStore, partition: PartitionLog) -> None:
    start = partition.segments[1].base_offset
    try:
        await store.delete_records(partition, start)
    except OSError:  # on a full disk room matters more than a start that a crash cannot move back
        partition.delete_before(start)


async def _too_old(store: LogStore, segment: Segment, retention_ms: int) -> bool:
    if retention_ms < 0 or segment.size_bytes == 0:
        return False
    if segment.written.max_timestamp_ms == NO_TIMESTAMP:
        try:
            await store.in_reader(segments_on_disk.load_timestamps, store.storage, segment)
        except OSError:  # its time index is gone; retention by size still takes it
            return False
    newest_ms = segment.written.max_timestamp_ms
    return newest_ms != NO_TIMESTAMP and store.clock.now_ms() - newest_ms > retention_ms


async def _sealed(store: LogStore, partition: PartitionLog) -> bool:
    """Seals the active segment; False if the disk refuses."""
    future: asyncio.Future[StorageFailed | None] = asyncio.get_running_loop().create_future()

    def done(failure: StorageFailed | None) -> None:
        if not future.cancelled():
            future.set_result(failure)

    partition.roll(done)
    return await future is None
