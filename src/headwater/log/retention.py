"""Deleting what a topic need not keep any longer: whole segments, oldest first.

By time: a segment goes when its newest record is older than `retention.ms`. By size: while the
partition without its oldest segment still has `retention.bytes`. The active segment may go too;
it is sealed first. Nothing goes from a topic that is only compacted.
"""

import asyncio
from collections.abc import Iterable

from headwater.errors import StorageFailed
from headwater.log import segment as segments_on_disk
from headwater.log.partition import PartitionLog
from headwater.log.segment import Segment, Storage
from headwater.log.store import LogStore
from headwater.protocol.records import NO_TIMESTAMP


async def apply(store: LogStore, partitions: Iterable[PartitionLog]) -> dict[PartitionLog, int]:
    """Deletes what is due; how many bytes of each partition that were."""
    starts: dict[PartitionLog, int] = {}
    for partition in partitions:
        start = await _first_kept_offset(store, partition)
        if start is not None:
            starts[partition] = start
    deleted = {
        partition: sum(each.size_bytes for each in partition.segments if each.base_offset < start)
        for partition, start in starts.items()
    }
    if starts:
        try:
            await store.delete_records(starts)
        except OSError:  # on a full disk room matters more than that a crash cannot undo it
            for partition, start in starts.items():
                partition.delete_before(start)
    return deleted


async def _first_kept_offset(store: LogStore, partition: PartitionLog) -> int | None:
    """Where the log begins without what is due; None if nothing is."""
    if "delete" not in partition.config.cleanup_policy or not partition.segments:
        return None
    kept = await _oldest_kept(store, partition)
    if kept is None and not partition.deleted and await _sealed(store, partition):
        # Something new may have come into it before it was sealed.
        kept = await _oldest_kept(store, partition)
    segments = partition.segments
    if not segments:  # the topic was deleted meanwhile
        return None
    start = (kept or segments[-1]).base_offset
    return start if start > segments[0].base_offset else None


async def _oldest_kept(store: LogStore, partition: PartitionLog) -> Segment | None:
    """The first segment that is not due; None if even the active one is."""
    config = partition.config
    has_size_limit = config.retention_bytes >= 0
    excess_bytes = partition.size_bytes - config.retention_bytes
    for segment in partition.segments:
        excess_bytes -= segment.size_bytes
        too_much = has_size_limit and excess_bytes >= 0
        is_new = segment.size_bytes == 0 and segment is partition.segments[-1]
        if is_new or not (too_much or await _too_old(store, segment, config.retention_ms)):
            return segment
    return None


async def _too_old(store: LogStore, segment: Segment, retention_ms: int) -> bool:
    if retention_ms < 0:
        return False
    newest_ms = segment.written.max_timestamp_ms
    if newest_ms == NO_TIMESTAMP:
        try:
            newest_ms = await store.in_reader(_newest_ms, store.storage, segment)
        except OSError:  # a file of it is gone; retention by size still takes it
            return False
    return store.clock.now_ms() - newest_ms > retention_ms


def _newest_ms(storage: Storage, segment: Segment) -> int:
    """(worker) If its records have no timestamps, the age of the file counts, as in Kafka."""
    segments_on_disk.load_timestamps(storage, segment)
    if segment.written.max_timestamp_ms != NO_TIMESTAMP:
        return segment.written.max_timestamp_ms
    return storage.files.modified_at_ms(segment.log_path)


async def _sealed(store: LogStore, partition: PartitionLog) -> bool:
    """Seals the active segment; False if the disk refuses."""
    future: asyncio.Future[StorageFailed | None] = asyncio.get_running_loop().create_future()

    def done(failure: StorageFailed | None) -> None:
        if not future.cancelled():
            future.set_result(failure)

    partition.roll(done)
    return await future is None
