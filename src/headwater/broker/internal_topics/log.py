"""The log of an internal topic: how a coordinator appends its state to it and reads it again."""

import struct
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from headwater.broker.internal_topics.coordinator_log import StoredMarker, StoredRecord
from headwater.errors import CorruptLog, MalformedMessage
from headwater.log import segment as segments_on_disk
from headwater.log.partitions.commit import when_durable
from headwater.log.partitions.partition import PartitionLog
from headwater.log.segment import Segment, Storage
from headwater.log.store import LogStore
from headwater.protocol import records
from headwater.protocol.records import CONTROL, TRANSACTIONAL, Record

if TYPE_CHECKING:
    import asyncio

CHUNK_BYTES = 1 << 20  # read at a time
# The key of a control record: int16 version, int16 type.
_CONTROL_KEY = struct.Struct(">hh")
_ABORT, _COMMIT = 0, 1


class InternalLog:
    """The partitions of one such topic."""

    def __init__(self, store: LogStore, topic: str, partition_count: int) -> None:
        self._store = store
        self.topic = topic
        self.partition_count = partition_count

    def append(
        self,
        partition: int,
        pairs: Sequence[tuple[bytes, bytes | None]],
        producer: tuple[int, int] | None = None,
    ) -> "asyncio.Future[int]":
        """See `CoordinatorLog.append`. With a `producer` (id, epoch): in its transaction."""
        now_ms = self._store.clock.now_ms()
        stamped = [Record(0, now_ms, key, value) for key, value in pairs]
        if producer is None:
            batch = records.build_batch(stamped)
        else:
            producer_id, epoch = producer
            batch = records.build_batch(
                stamped,
                producer_id=producer_id,
                producer_epoch=epoch,
                attributes=TRANSACTIONAL,
            )
        log = self._store.partitions[self.topic, partition]
        header = records.read_header(batch)
        return when_durable(lambda done: log.append(memoryview(batch), header, done))

    async def read(self, partition: int) -> AsyncIterator[Sequence[StoredRecord | StoredMarker]]:
        log = self._store.partitions[self.topic, partition]
        held = list(log.segments)
        for segment in held:  # compaction must not take them away on the way
            segment.pins += 1
        try:
            async for stored in self._read(log, held):
                yield stored
        finally:
            for segment in held:
                log.unpin(segment)

    async def _read(
        self, log: PartitionLog, segments: Sequence[Segment]
    ) -> AsyncIterator[Sequence[StoredRecord | StoredMarker]]:
        store = self._store
        for segment in segments:
            position = 0
            while position < segment.size_bytes:
                try:
                    stored, position = await store.in_reader(
                        read_some, store.storage, segment, position
                    )
                except (CorruptLog, MalformedMessage, OSError) as error:
                    # The other segments may be all that others have.
                    log.out_of_service(segment, error)
                    if segment is log.segments[-1]:
                        log.roll(lambda _: None)  # what comes now can be read the next time
                    break
                yield stored


def read_some(
    storage: Storage, segment: Segment, position: int
) -> tuple[list[StoredRecord | StoredMarker], int]:
    """(worker) The records of some MiB from `position` on, and where they end.

    Raises CorruptLog, MalformedMessage or OSError if nothing can be read there.
    """
    stored: list[StoredRecord | StoredMarker] = []
    enough, began = position + CHUNK_BYTES, position
    try:
        for at, header in segments_on_disk.headers(storage, segment, position):
            if at >= enough:
                break
            batch = segments_on_disk.read_batch(storage, segment, at, header)
            records.check_stored(batch)
            if header.attributes & CONTROL:
                for record in records.records_of(batch):
                    _, kind = _CONTROL_KEY.unpack_from(record.key or b"\0\0\xff\xff")
                    if kind in (_ABORT, _COMMIT):
                        stored.append(StoredMarker(header.producer_id, kind == _COMMIT))
            else:
                producer_id = header.producer_id if header.attributes & TRANSACTIONAL else -1
                stored += [
                    StoredRecord(
                        record.key or b"",
                        record.value,
                        record.timestamp_ms,
                        header.base_offset,
                        producer_id,
                    )
                    for record in records.records_of(batch)
                ]
            position = at + header.size_bytes
    except (CorruptLog, MalformedMessage, OSError, struct.error):
        if position == began:  # else the next call begins with it
            raise
    return stored, position
