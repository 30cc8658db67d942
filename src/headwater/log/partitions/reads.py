"""Reading one partition: from an offset to the bytes of whole batches, here or in the archive."""

import bisect
import errno
from typing import TYPE_CHECKING

from headwater.errors import ArchiveUnavailable, CorruptLog, OffsetOutOfRange
from headwater.log import segment as segments_on_disk
from headwater.log.archive.descriptor import ArchivedPosition, archived_position, read_aborted
from headwater.log.config import TopicConfig
from headwater.log.partitions import transactions
from headwater.log.partitions.epochs import LeaderEpochs
from headwater.log.partitions.segments import PartitionSegments
from headwater.log.partitions.transactions import AbortedTransaction
from headwater.log.segment import Segment
from headwater.protocol.primitives import Splice
from headwater.protocol.records import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.log.archive.descriptor import ChunkOf
    from headwater.log.store import LogStore

RECENT_BOUNDARIES = 64


class Slice(Splice):
    """A run of whole batches in a segment's file, on its way to a client.

    Once pinned (`ReadablePartition.pin`) its bytes stay on disk until `release`, so that retention
    cannot take them away after their number has been sent.
    """

    __slots__ = ("_partition", "next_offset", "position", "segment", "size_bytes")

    def __init__(
        self,
        partition: PartitionSegments,
        segment: Segment,
        position: int,
        size_bytes: int,
        next_offset: int = -1,
    ) -> None:
        self._partition = partition
        self.segment = segment
        self.position = position
        self.size_bytes = size_bytes
        self.next_offset = next_offset  # the offset after the run, -1 if it was not looked up

    def read_cached(self, buffer: memoryview, at: int) -> int:
        self._check_exists()
        storage = self._partition.storage
        with storage.open_files.use(self.segment.log_path) as fd:
            return storage.files.pread_cached(fd, buffer, self.position + at)

    def read(self, buffer: memoryview, at: int) -> int:
        self._check_exists()
        storage = self._partition.storage
        with storage.opened(self.segment, "log") as fd:
            return storage.files.pread_into(fd, buffer, self.position + at)

    def release(self) -> None:
        self._partition.unpin(self.segment)

    def _check_exists(self) -> None:
        if self._partition.deleted:
            raise FileNotFoundError(errno.ENOENT, "the topic was deleted", self.segment.log_path)


class ReadablePartition(PartitionSegments):
    """A partition as readers see it: everything below the high watermark, from any offset on.

    What is marked (worker) runs in a reading thread, the rest on the event loop.
    """

    __slots__ = ("_recent", "next_offset")

    def __init__(
        self, store: "LogStore", topic: str, index: int, config: TopicConfig, epochs: LeaderEpochs
    ) -> None:
        super().__init__(store, topic, index, config, epochs)
        self.next_offset = 0
        # Offsets at which a read is likely to begin, with their position: a consumer at the end
        # of the log needs no search.
        self._recent: dict[int, tuple[Segment, int]] | None = None

    def check_offset(self, offset: int) -> None:
        """Raises OffsetOutOfRange unless a consumer may stand at `offset`."""
        if not self.log_start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(
                "the offset is not in the log",
                detail=f"{offset} is not in {self.log_start_offset}..{self.next_offset}",
            )

    def read_recent(self, offset: int, max_bytes: int) -> Slice | None:
        """All that is readable from `offset` on, if that needs no search and fits."""
        recent = self._recent.get(offset) if self._recent else None
        if recent is None:
            return None
        segment, position = recent
        size_bytes = segment.size_bytes - position
        if segment.doomed or not 0 < size_bytes <= max_bytes:
            return None
        return Slice(self, segment, position, size_bytes)

    def find(self, offset: int, max_bytes: int, end_offset: int = INT64_MAX) -> Slice | None:
        """(worker) The whole batches from the one that holds `offset`; None at the end.

        At least one batch, and then no more than `max_bytes`, and none from `end_offset` on, if
        that is where one begins. Raises CorruptLog if the segment that should hold it cannot be
        read; that segment is out of service from then on. Raises NotCached if it has to be fetched
        from the archive first, ArchiveUnavailable if that cannot be.
        """
        storage = self._store.storage
        for segment, next_offset, following in self._readable_from(offset):
            try:
                found = segments_on_disk.locate(storage, segment, offset)
                if found is None:
                    continue
                position, header = found
                if header.base_offset >= end_offset:
                    return None
                size_bytes, in_segment = segments_on_disk.run_from(
                    storage, segment, position, header, max_bytes, end_offset
                )
            except (CorruptLog, OSError) as error:
                if segment.doomed:  # retention was faster, or it had to make room in the cache
                    return None
                if self.archive is not None and next_offset >= 0:
                    self.archive.cache.discard(segment)  # the next read fetches another copy
                    raise ArchiveUnavailable("the cache is damaged", detail=str(error)) from error
                raise self.out_of_service(segment, error) from error
            if following is not None and position + size_bytes > segment.size_bytes // 2:
                following.prefetch()
            if in_segment >= 0:
                next_offset = in_segment  # noqa: PLW2901
            return Slice(self, segment, position, size_bytes, next_offset)
        return None

    def _readable_from(self, offset: int) -> "Iterator[tuple[Segment, int, ChunkOf | None]]":
        """(worker) What may hold `offset` or something behind it: chunks of archived segments, then
        local ones. With the offset behind it (-1: not looked up), and with the chunk that follows.
        """
        # Read before the list of archived ones: a segment that leaves the first is in the second.
        local = self.segments_from(offset)
        if self.archived and (not local or offset < local[0].base_offset):
            if self.archive is None:
                raise ArchiveUnavailable(
                    "the records are in an archive", hint="set the broker's `archive`"
                )
            yield from self.archive.chunks_from(self, offset)
        for segment in local:
            yield segment, -1, None

    def position_of(self, offset: int) -> Slice | ArchivedPosition | None:
        """(worker) The position of a reader that continues at `offset`. Fetches nothing."""
        if self.archived and offset < self.local_start_offset:
            return archived_position(self.storage.files, self.archived_only(), offset)
        return self.find(offset, 0)

    def bytes_from(self, part: Slice | ArchivedPosition) -> int:
        """How many bytes lie between a position that was found and the end of the log."""
        segments = self.segments
        if isinstance(part, ArchivedPosition):
            return part.archived_bytes + self.size_bytes
        behind = bisect.bisect_right(
            segments, part.segment.base_offset, key=lambda segment: segment.base_offset
        )
        later_bytes = sum(segment.size_bytes for segment in segments[behind:])
        return part.segment.size_bytes - part.position + later_bytes

    def may_hold_aborted(self, offset: int) -> bool:
        """Whether a transaction with records from `offset` on may have been aborted."""
        if any(segment.written.txn_entries for segment in self.segments_from(offset)):
            return True
        return offset < self.local_start_offset and any(
            segment.aborted for segment in self.archived_only() if segment.end_offset > offset
        )

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """(worker) Those with records in first_offset..end_offset. Raises CorruptLog, or
        ArchiveUnavailable.
        """
        while True:
            segments = self.segments_from(
                first_offset
            )  # then the archived ones: see `_readable_from`
            found = self._aborted_in_archive(first_offset, end_offset)
            if not found or found[-1].last_stable_offset < end_offset:
                found += transactions.overlapping(self.storage, segments, first_offset, end_offset)
            if not any(segment.doomed for segment in segments):
                return found  # else they were replaced, or are only in the archive by now

    def _aborted_in_archive(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """(worker)"""
        found: list[AbortedTransaction] = []
        for segment in self.archived_only():
            if segment.aborted and segment.end_offset > first_offset:
                for entry in read_aborted(self.storage.files, segment):
                    if entry.first_offset < end_offset and entry.last_offset >= first_offset:
                        found.append(entry)
                    if entry.last_stable_offset >= end_offset:
                        return found
        return found

    def pin(self, part: Slice) -> bool:
        """Retains the slice's bytes on disk until its release. False: retention was faster."""
        if part.segment.doomed:
            return False
        part.segment.pins += 1
        if part.next_offset >= 0:
            boundary = (part.next_offset, part.segment, part.position + part.size_bytes)
            self._remember([boundary])
        return True

    def _remember(self, boundaries: list[tuple[int, Segment, int]]) -> None:
        if self._recent is None:
            self._recent = {}
        for offset, segment, position in boundaries:
            self._recent[offset] = (segment, position)
        while len(self._recent) > RECENT_BOUNDARIES:
            del self._recent[next(iter(self._recent))]
