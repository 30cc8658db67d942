"""Read-ahead: positions of the next batches of a log, so that most fetches need no search.

A walk over the headers of some batches costs a thread's turn. It is made for many fetches at once:
a consumer takes a few hundred records at a time, which are a few batches.
"""

from bisect import bisect_left
from typing import NamedTuple

from headwater.errors import CorruptLog
from headwater.log import segment as segments_on_disk
from headwater.log.partitions.partition import PartitionLog
from headwater.log.partitions.transactions import AbortedTransaction
from headwater.log.segment import Segment
from headwater.protocol import records
from headwater.protocol.records import CONTROL, TRANSACTIONAL, BatchHeader

AHEAD_BATCHES = 128
AHEAD_BYTES = 4 << 20


class LocatedBatch(NamedTuple):
    """One batch in its segment's file."""

    base_offset: int
    last_offset: int
    position: int
    size_bytes: int
    is_hidden: bool  # a marker, or of an aborted transaction: no consumer is to get it


class ReadAhead(NamedTuple):
    """Consecutive batches of one segment, from the one that holds `from_offset`."""

    segment: Segment
    from_offset: int
    is_committed_only: bool
    batches: list[LocatedBatch]
    last_offsets: list[int]

    def covers(self, offset: int, *, is_committed_only: bool) -> bool:
        return (
            self.from_offset <= offset
            and offset <= self.last_offsets[-1]
            and self.is_committed_only == is_committed_only
            and not self.segment.doomed
        )

    def suffices(self, offset: int, end_offset: int, max_records: int, min_bytes: int) -> bool:
        """Whether a fetch from `offset`, which is covered, would find no more with another walk."""
        last, ends_at = (
            self.last_offsets[-1],
            self.batches[-1].position + self.batches[-1].size_bytes,
        )
        if last + 1 >= end_offset or ends_at >= self.segment.size_bytes:
            return True
        if self.is_all_from(offset):
            return True
        found_bytes = ends_at - self.batches[self.index_of(offset)].position
        return last - offset + 1 >= max_records and found_bytes >= min_bytes

    def is_all_from(self, offset: int) -> bool:
        """Whether it is as much as one walk from `offset` finds."""
        first, last = self.batches[0], self.batches[-1]
        return offset == self.from_offset and (
            len(self.batches) >= AHEAD_BATCHES
            or last.position + last.size_bytes - first.position >= AHEAD_BYTES
        )

    def index_of(self, offset: int) -> int:
        """The batch that holds `offset`, or the first one behind it."""
        return bisect_left(self.last_offsets, offset)


def end_offset_of(log: PartitionLog, *, is_committed_only: bool) -> int:
    """Up to where records may be delivered."""
    return log.last_stable_offset if is_committed_only else log.high_watermark


def read_ahead(log: PartitionLog, offset: int, is_committed_only: bool) -> ReadAhead | None:
    """(worker) None if nothing is there. Raises CorruptLog if it cannot be read.

    Of committed records only those are looked at whose transactions are decided by now.
    """
    end_offset = end_offset_of(log, is_committed_only=is_committed_only)
    found = log.find(offset, 0)
    if found is None:
        return None
    headers: list[tuple[int, BatchHeader]] = []
    for position, header in segments_on_disk.headers(log.storage, found.segment, found.position):
        if (
            header.base_offset >= end_offset
            or len(headers) >= AHEAD_BATCHES
            or position - found.position >= AHEAD_BYTES
        ):
            break
        headers.append((position, header))
    if not headers:
        return None
    aborted: list[AbortedTransaction] = []
    if is_committed_only and log.may_hold_aborted(offset):
        aborted = log.aborted_transactions(offset, headers[-1][1].last_offset + 1)
    batches = [
        LocatedBatch(
            header.base_offset,
            header.last_offset,
            position,
            header.size_bytes,
            bool(header.attributes & CONTROL) or _is_aborted(header, aborted),
        )
        for position, header in headers
    ]
    last_offsets = [batch.last_offset for batch in batches]
    return ReadAhead(found.segment, offset, is_committed_only, batches, last_offsets)


def _is_aborted(header: BatchHeader, aborted: list[AbortedTransaction]) -> bool:
    return bool(header.attributes & TRANSACTIONAL) and any(
        transaction.producer_id == header.producer_id
        and transaction.first_offset <= header.base_offset <= transaction.last_offset
        for transaction in aborted
    )


def read_batch(log: PartitionLog, ahead: ReadAhead, located: LocatedBatch) -> bytes:
    """(worker) Its bytes. Raises CorruptLog unless they are as they were written."""
    storage = log.storage
    with storage.open_files.use(ahead.segment.log_path) as fd:
        batch = storage.files.pread(fd, located.size_bytes, located.position)
    if len(batch) < located.size_bytes:
        raise CorruptLog("a batch is cut short", detail=f"offset {located.base_offset}")
    records.check_stored(batch)
    return batch
