"""Retention: deletes whole segments that a topic need not store any longer, oldest first.

By time: a segment goes when its newest record is older than `retention.ms`. By size: while the
partition without its oldest segment still has `retention.bytes`. The active segment may go too;
it is sealed first. Nothing goes from a topic that is only compacted, and nothing that a group has
not read which the topic waits for (`headwater.retention.wait.groups`).

Of an archived topic that counts for the whole log, here and in the archive. Apart from it, the
local files of a segment go by `local.retention.ms` and `local.retention.bytes`, by the same rules,
but not before the segment is archived; the bytes that have to wait for that are counted.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from headwater.errors import StorageFailed
from headwater.log import segment as segments_on_disk
from headwater.log.archive.descriptor import ArchivedSegment
from headwater.log.partitions.commit import when_durable
from headwater.log.partitions.partition import PartitionLog
from headwater.log.segment import Segment, Storage
from headwater.log.store import LogStore
from headwater.protocol.records import INT64_MAX, NO_TIMESTAMP


def _nothing_needed(_: PartitionLog) -> int:
    return INT64_MAX


async def apply(
    store: LogStore,
    partitions: Iterable[PartitionLog],
    needed_from: Callable[[PartitionLog], int] = _nothing_needed,
) -> dict[PartitionLog, int]:
    """Deletes what is due and not needed; how many bytes of each partition that were.

    What is due and needed is recorded in `store.retention_waits`, in bytes.
    """
    starts: dict[PartitionLog, int] = {}
    for partition in partitions:
        start = await _first_retained_offset(store, partition)
        needed = needed_from(partition)
        store.retention_waits.pop(partition, None)
        if start is None:
            continue
        if needed < start:
            waiting_bytes = _bytes_before(partition, start) - _bytes_before(partition, needed)
            store.retention_waits[partition] = waiting_bytes
        start = min(start, needed)
        if start > partition.log_start_offset:
            starts[partition] = start
    deleted = {partition: _bytes_before(partition, start) for partition, start in starts.items()}
    if starts:
        try:
            await store.delete_records(starts)
        except OSError:  # on a full disk room matters more than that a crash cannot undo it
            for partition, start in starts.items():
                partition.delete_before(start)
    return deleted


async def apply_locally(store: LogStore, partitions: Iterable[PartitionLog]) -> None:
    """Takes away local files whose segments are archived and need not be here any longer."""
    for partition in partitions:
        if store.archive is None or not partition.config.remote_storage:
            continue
        start, waiting_bytes = await _first_retained_locally(store, partition)
        if partition.deleted:
            continue
        partition.drop_local(start)
        store.archive.waiting_bytes[partition] = waiting_bytes
        if not waiting_bytes:
            del store.archive.waiting_bytes[partition]


def _bytes_before(partition: PartitionLog, start: int) -> int:
    return sum(
        segment.size_bytes for segment in _all_segments(partition) if segment.base_offset < start
    )


def _all_segments(partition: PartitionLog) -> list[Segment | ArchivedSegment]:
    """Each once, oldest first, wherever it lies."""
    return [*partition.archived_only(), *partition.segments]


async def _first_retained_offset(store: LogStore, partition: PartitionLog) -> int | None:
    """Where the log begins without what is due; None if nothing is."""
    if "delete" not in partition.config.cleanup_policy or not partition.segments:
        return None
    retained = await _oldest_retained(store, partition)
    if retained is None and not partition.deleted and await _sealed_with_room(store, partition):
        # Something new may have come into it before it was sealed.
        retained = await _oldest_retained(store, partition)
    segments = partition.segments
    if not segments:  # the topic was deleted meanwhile
        return None
    start = (retained or segments[-1]).base_offset
    return start if start > _all_segments(partition)[0].base_offset else None


async def _oldest_retained(
    store: LogStore, partition: PartitionLog
) -> Segment | ArchivedSegment | None:
    """The first segment that is not due; None if even the active one is."""
    segments, config = _all_segments(partition), partition.config
    async for segment, is_due in _due(store, segments, config.retention_ms, config.retention_bytes):
        if not is_due:
            return segment
    return None


async def _first_retained_locally(store: LogStore, partition: PartitionLog) -> tuple[int, int]:
    """Where the local log begins without what is due and archived, and how many bytes are due but
    not archived yet.
    """
    config, segments = partition.config, partition.segments
    archived = {segment.base_offset for segment in partition.archived}
    start, waiting_bytes = partition.local_start_offset, 0
    async for segment, is_due in _due(
        store, segments, config.local_retention_ms, config.local_retention_bytes
    ):
        if not waiting_bytes:
            start = segment.base_offset
        if not is_due or segment is segments[-1]:
            break
        if segment.base_offset not in archived:
            waiting_bytes += segment.size_bytes
    return start, waiting_bytes


async def _due(
    store: LogStore,
    segments: Sequence[Segment | ArchivedSegment],
    retention_ms: int,
    retention_bytes: int,
) -> AsyncIterator[tuple[Segment | ArchivedSegment, bool]]:
    """Each segment, oldest first, with whether retention may delete it."""
    excess_bytes = sum(segment.size_bytes for segment in segments) - retention_bytes
    for segment in segments:
        excess_bytes -= segment.size_bytes
        too_much = retention_bytes >= 0 and excess_bytes >= 0
        is_new = segment.size_bytes == 0 and segment is segments[-1]
        is_due = not is_new and (too_much or await _too_old(store, segment, retention_ms))
        yield segment, is_due


async def _too_old(store: LogStore, segment: Segment | ArchivedSegment, retention_ms: int) -> bool:
    if retention_ms < 0:
        return False
    if isinstance(segment, ArchivedSegment):
        return store.clock.now_ms() - segment.newest_ms > retention_ms
    newest_ms = segment.written.max_timestamp_ms
    if newest_ms == NO_TIMESTAMP:
        try:
            newest_ms = await store.in_reader(_newest_ms, store.storage, segment)
        except OSError:  # a file of it was removed; retention by size still applies
            return False
    return store.clock.now_ms() - newest_ms > retention_ms


def _newest_ms(storage: Storage, segment: Segment) -> int:
    """(worker) If its records have no timestamps, the age of the file counts, as in Kafka."""
    segments_on_disk.load_timestamps(storage, segment)
    if segment.written.max_timestamp_ms != NO_TIMESTAMP:
        return segment.written.max_timestamp_ms
    return storage.files.modified_at_ms(segment.log_path)


async def _sealed_with_room(store: LogStore, partition: PartitionLog) -> bool:
    """Also on a full disk, where beginning a segment may take what is left of it."""
    return await _sealed(store, partition) or (
        await store.make_room() and await _sealed(store, partition)
    )


async def _sealed(store: LogStore, partition: PartitionLog) -> bool:
    """Seals the active segment; False if the disk refuses."""
    try:
        await when_durable(partition.roll)
    except StorageFailed:
        return False
    return True
