"""Transactions as a partition's log sees them: which are open, and which were aborted.

A transaction opens with the first transactional batch of its producer and ends with a marker, a
control batch that the coordinator has written (`protocol/records.py: build_marker`). Whether it is
open is a part of its producer's state (producers.py). Readers of committed records only stop in
front of the first open one (the last stable offset) and leave out what was aborted.

The aborted ones stand beside the segment that holds their marker, in Kafka's format. The file is
there only if there are any:

    .txnindex   int16 version (0), int64 producer id, int64 first offset, int64 last offset (the
                marker's), int64 last stable offset when it was written          34 bytes an entry

Entries ascend by their last offset. Everything below an entry's last stable offset was decided
when the entry was written, so a later entry does not reach back behind it: that ends a search.
Other than the hints of the other indexes an entry is part of the truth: it is synced with its
marker, before anyone sees either.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headwater.errors import CorruptLog

if TYPE_CHECKING:
    from headwater.log.segment import Segment, Storage, Written

ENTRY = struct.Struct(">hqqqq")
_READ_ENTRIES = 1024


class OpenTransaction(NamedTuple):
    """A transaction without a marker yet."""

    producer_epoch: int
    first_offset: int
    seen_ms: int  # when its producer last wrote, by the broker's clock
    coordinator_epoch: int  # of the producer's last marker, -1 if there was none


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def append(
    storage: "Storage",
    segment: "Segment",
    written: "Written",
    aborted: Sequence[AbortedTransaction],
) -> None:
    """Adds entries behind `written` and moves it on; the file's name is made to last, its bytes
    are not. On OSError the file may have grown: `segment.cut` repairs that.
    """
    if not aborted:
        return
    path = segment.txn_index_path
    with storage.open_files.use(path, create=True) as fd:
        if written.txn_entries == 0:
            storage.files.truncate(fd, 0)
            storage.files.sync_directory(segment.directory)
        data = b"".join(ENTRY.pack(0, *transaction) for transaction in aborted)
        storage.files.pwrite(fd, data, written.txn_entries * ENTRY.size)
    written.txn_entries += len(aborted)


def overlapping(
    storage: "Storage", segments: Sequence["Segment"], first_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions with records in first_offset..end_offset, by their last offset.

    `segments` are those from the one with `first_offset` on: a marker never lies in front of the
    records it decides. Raises CorruptLog if an entry cannot be read.
    """
    found: list[AbortedTransaction] = []
    for segment in segments:
        try:
            for entry in entries_from(storage, segment, first_offset):
                if entry.first_offset < end_offset:
                    found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return found
        except (CorruptLog, OSError) as error:
            if segment.doomed:  # retention was faster: its entries were removed with it
                continue
            if isinstance(error, CorruptLog):
                raise
            raise CorruptLog(
                "an index of aborted transactions cannot be read",
                detail=f"{segment.txn_index_path}: {error}",
                hint="restore the file from a backup",
            ) from error
    return found


def entries_from(
    storage: "Storage", segment: "Segment", offset: int
) -> Iterator[AbortedTransaction]:
    """The entries whose marker is at or behind `offset`."""
    count = segment.written.txn_entries
    number = count_before(storage, segment, offset) if count else 0
    while number < count:
        size_bytes = min(count - number, _READ_ENTRIES) * ENTRY.size
        with storage.opened(segment, "txnindex") as fd:
            data = storage.files.pread(fd, size_bytes, number * ENTRY.size)
        if len(data) < ENTRY.size:
            raise _corrupt(segment, number)
        for at in range(0, len(data) - ENTRY.size + 1, ENTRY.size):
            yield _entry(segment, number, data, at)
            number += 1


def read_entry(storage: "Storage", segment: "Segment", number: int) -> AbortedTransaction:
    """Raises CorruptLog if it cannot be one."""
    with storage.opened(segment, "txnindex") as fd:
        data = storage.files.pread(fd, ENTRY.size, number * ENTRY.size)
    if len(data) < ENTRY.size:
        raise _corrupt(segment, number)
    return _entry(segment, number, data, 0)


def count_before(storage: "Storage", segment: "Segment", offset: int) -> int:
    """How many entries have a marker in front of `offset`; a damaged one counts as behind it, so
    that a consumer that reads from there on finds it.
    """
    low, high = 0, segment.written.txn_entries
    while low < high:
        middle = (low + high) // 2
        try:
            is_before = read_entry(storage, segment, middle).last_offset < offset
        except CorruptLog:
            is_before = False
        low, high = (middle + 1, high) if is_before else (low, middle)
    return low


def _entry(segment: "Segment", number: int, data: bytes, at: int) -> AbortedTransaction:
    version, *fields = ENTRY.unpack_from(data, at)
    entry = AbortedTransaction._make(fields)
    if (
        version != 0
        or entry.last_offset < segment.base_offset
        or not 0 <= entry.first_offset < entry.last_offset
    ):
        raise _corrupt(segment, number)
    return entry


def _corrupt(segment: "Segment", number: int) -> CorruptLog:
    return CorruptLog(
        "an index of aborted transactions is damaged",
        detail=f"{segment.txn_index_path}, entry {number}",
        hint="restore the file from a backup; a read_uncommitted consumer does not need it",
    )
