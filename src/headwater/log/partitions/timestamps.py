"""Finding records by time (ListOffsets). All of it runs in a worker thread.

The time index leads to the neighbourhood, batch headers to the batch; only that one batch is
decompressed and looked into. Of what is archived the descriptors have the chunk; if that
has to be fetched first, NotCached says so.
"""

from collections.abc import Iterator
from typing import NamedTuple

from headwater.errors import ArchiveUnavailable
from headwater.log import index
from headwater.log import segment as segments_on_disk
from headwater.log.partitions.partition import PartitionLog
from headwater.log.segment import Segment, Storage
from headwater.protocol import records
from headwater.protocol.records import LOG_APPEND_TIME, NO_TIMESTAMP, BatchHeader


class TimedOffset(NamedTuple):
    timestamp_ms: int
    offset: int


def first_at_or_after(partition: PartitionLog, timestamp_ms: int) -> TimedOffset | None:
    """The first record whose timestamp is not before `timestamp_ms`; None if there is none."""
    start_offset = partition.log_start_offset
    for segment in _from_time(partition, timestamp_ms):
        segments_on_disk.load_timestamps(partition.storage, segment)
        if segment.size_bytes == 0 or segment.written.max_timestamp_ms < timestamp_ms:
            continue
        position = _position_before(partition.storage, segment, timestamp_ms)
        for at, header in segments_on_disk.headers(partition.storage, segment, position):
            if header.max_timestamp >= timestamp_ms and header.last_offset >= start_offset:
                found = _record_in(
                    partition.storage, segment, at, header, timestamp_ms, start_offset
                )
                if found is not None:
                    return found
    return None


def latest_timestamp(partition: PartitionLog) -> TimedOffset | None:
    """The first record that has the largest timestamp of the partition (KIP-734)."""
    largest_ms = max(
        (segment.max_timestamp_ms for segment in partition.archived), default=NO_TIMESTAMP
    )
    for segment in partition.segments:
        segments_on_disk.load_timestamps(partition.storage, segment)
        largest_ms = max(largest_ms, segment.written.max_timestamp_ms)
    return None if largest_ms == NO_TIMESTAMP else first_at_or_after(partition, largest_ms)


def _from_time(partition: PartitionLog, timestamp_ms: int) -> Iterator[Segment]:
    """What may hold such a record, oldest first. Raises NotCached at what is only archived."""
    local = partition.segments  # first: one that leaves them meanwhile is archived
    if partition.archive is not None:
        yield from partition.archive.chunks_at_or_after(partition, timestamp_ms)
    elif any(segment.max_timestamp_ms >= timestamp_ms for segment in partition.archived_only()):
        raise ArchiveUnavailable("the records are in an archive")
    yield from local


def _position_before(storage: Storage, segment: Segment, timestamp_ms: int) -> int:
    """Where to begin: every batch in front of it is older than `timestamp_ms`."""
    find, written = segments_on_disk.in_index, segment.written
    entry = find(
        storage, segment, "timeindex", index.floor_by_time, written.time_entries, timestamp_ms
    )
    if entry is None:
        return 0
    return find(
        storage,
        segment,
        "index",
        index.floor_by_offset,
        written.offset_entries,
        entry.relative_offset,
    ).position


def _record_in(
    storage: Storage,
    segment: Segment,
    position: int,
    header: BatchHeader,
    timestamp_ms: int,
    start_offset: int,
) -> TimedOffset | None:
    if header.attributes & LOG_APPEND_TIME:
        return TimedOffset(header.max_timestamp, max(header.base_offset, start_offset))
    batch = segments_on_disk.read_batch(storage, segment, position, header)
    for record in records.records_of(batch):
        if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
            return TimedOffset(record.timestamp_ms, record.offset)
    return None
