"""Recovery of a partition: no scan after a clean stop, as little as possible after a crash.

Sealed segments were synced before their successor was begun, so only the last one can be torn, and
in it only what lies behind the recovery point (the last checkpoint). That part is read and every
CRC checked; the first batch that does not fit is where the log ends, and the rest is cut away.

The producers' state is that of the newest snapshot, brought to the end by the headers behind it.
On the way the aborted transactions are entered again whose markers no checkpoint has seen.

If whole batches follow behind a damaged one, it is not a torn tail but damage, and cutting would
take acknowledged records along: the bytes are then saved beside the segment, as `….log.<byte>.cut`.
"""

import contextlib
import itertools
import logging
import os
import re
from typing import NamedTuple

from headwater.errors import CorruptLog, MalformedMessage
from headwater.log import index, snapshots
from headwater.log import segment as segments_on_disk
from headwater.log.compaction import swap
from headwater.log.config import TopicConfig
from headwater.log.disk.files import Files
from headwater.log.disk.syncing import rewrite, whole_batches
from headwater.log.index import OFFSET_ENTRY, TIME_ENTRY
from headwater.log.partitions import transactions
from headwater.log.partitions.partition import COMMIT_BYTES, PartitionLog
from headwater.log.partitions.producers import Producers
from headwater.log.partitions.transactions import AbortedTransaction
from headwater.log.segment import IndexEntries, Segment, Storage, Written
from headwater.protocol import records
from headwater.protocol.records import (
    CONTROL,
    CRC_FROM,
    HEADER_BYTES,
    NO_PRODUCER_ID,
    crc32c,
)

log = logging.getLogger(__name__)

_SEGMENT = re.compile(r"(\d{20})\.log")
# An offset below 2^48, then length, epoch and the magic byte 2 (see protocol/records.py).
_MAYBE_A_BATCH = re.compile(rb"(?=\x00\x00.{14}\x02)", re.DOTALL)


class Opened(NamedTuple):
    """What opening a partition took, and which files the caller has to sync before it is used."""

    scanned_bytes: int = 0
    to_sync: tuple[str, ...] = ()
    is_ahead: bool = False  # of its snapshot: it has more producers, or newer state


def open_partition(
    partition: PartitionLog, storage: Storage, *, clean: bool, checkpoint: int | None, now_ms: int
) -> Opened:
    """Brings `partition` to the state of its files.

    `clean`: the last process closed the log, and `checkpoint` is where it ended. Otherwise
    `checkpoint` is a recovery point. None: there is none.
    """
    directory = partition.directory
    if not os.path.isdir(directory):
        return Opened()
    names = storage.files.listdir(directory)
    if swap.recover(storage.files, directory, names):
        names = storage.files.listdir(directory)
    bases = sorted(int(found[1]) for name in names if (found := _SEGMENT.fullmatch(name)))
    if not bases:
        return Opened()
    segments = [segments_on_disk.open_sealed(storage, directory, base) for base in bases]
    partition.segments = tuple(segments)
    partition.log_start_offset = bases[0]
    active = segments[-1]
    end, opened = checkpoint or 0, Opened()
    is_scanned = not clean or checkpoint is None
    if is_scanned or not _take_over_active(storage, active, checkpoint or 0):
        is_scanned = True
        end, opened = _recover(storage, active, checkpoint, partition.config)
    partition.next_offset = partition.high_watermark = end
    offset, producers = snapshots.newest(storage.files, directory, names, bases[0], end)
    if offset is None:
        # There was no producer at the last checkpoint.
        offset = min(max(checkpoint or 0, bases[0]), end)
    # Not further than there is a snapshot: the points of all partitions are written at once, also
    # before the next checkpoint of this one.
    partition.recovery_point = end if offset >= end else min(checkpoint or 0, end)
    aborted = _replay(storage, segments, producers, offset, now_ms) if offset < end else []
    snapshots.replace_behind(storage.files, directory, names, end, producers)
    changed = _renew_txn_index(storage, active, offset, aborted) if is_scanned else ()
    opened = Opened(opened.scanned_bytes, opened.to_sync + changed, offset < end)
    partition.producers = producers
    partition.durable_producers = producers.copy(tracks_changes=True)
    return opened


def _take_over_active(storage: Storage, active: Segment, checkpoint: int) -> bool:
    """Completes the indexes by the few batches behind their last entries.

    False: the log does not end at `checkpoint`, so the last process did not record all of it.
    The clean stop writes a last time entry only where something came after the last checkpoint.
    """
    for path in (active.index_path, active.time_index_path):
        with storage.open_files.use(path, create=True):  # it is written to from now on
            pass
    segments_on_disk.load_timestamps(storage, active)
    written, find = active.written, index.floor_by_offset
    last = segments_on_disk.in_index(
        storage, active, "index", find, written.offset_entries, 2**31 - 1
    )
    written.since_entry_bytes = written.size_bytes - last.position
    end = active.base_offset
    try:
        for _, header in segments_on_disk.headers(storage, active, last.position):
            end = header.last_offset + 1
            if header.max_timestamp > written.max_timestamp_ms:
                written.max_timestamp_ms = header.max_timestamp
                written.max_timestamp_offset = header.last_offset
    except CorruptLog:
        return checkpoint >= active.base_offset  # a reader of the batch gets the error
    if end != checkpoint:
        log.error("%s ends at %d, not at %d; it is checked", active.log_path, end, checkpoint)
    return end == checkpoint


def _recover(
    storage: Storage, active: Segment, checkpoint: int | None, config: TopicConfig
) -> tuple[int, Opened]:
    """Scans what may be torn, cuts the tail; gives the next offset."""
    interval_bytes = config.index_interval_bytes
    size_bytes = active.size_bytes
    start, written, end = _trusted_part(storage, active, checkpoint, interval_bytes)
    written.txn_entries = active.written.txn_entries
    entries = IndexEntries()
    offsets_at = written.offset_entries * OFFSET_ENTRY.size
    times_at = written.time_entries * TIME_ENTRY.size
    largest_bytes = 0
    with storage.open_files.use(active.log_path) as fd:
        for header in whole_batches(storage.files, fd, start, size_bytes, end):
            largest_bytes = max(largest_bytes, header.size_bytes)
            segments_on_disk.record_batch(
                active.base_offset, written, entries, header, interval_bytes
            )
            end = header.last_offset + 1
        files_bytes = segments_on_disk.sizes(active.written)
        active.written = written
        if (
            end <= (checkpoint or 0)
            and files_bytes == segments_on_disk.sizes(written)
            and all(os.path.exists(path) for path in active.paths)  # else they are made below
        ):
            # Nothing came after the last checkpoint, which has synced all of it.
            return end, Opened(size_bytes - start)
        if written.size_bytes < size_bytes:
            _save_if_damaged(storage.files, fd, active, written.size_bytes, size_bytes)
        # If a sync failed before the process died, the pages read well but are not on the disk.
        unsure_from = start
        if config.fsync:  # all but the last commit was synced
            unsure_from = max(start, written.size_bytes - COMMIT_BYTES - largest_bytes)
        rewrite(storage.files, fd, unsure_from, written.size_bytes)
        segments_on_disk.shorten(storage.files, fd, written.size_bytes)
    for path, data, at in (
        (active.index_path, entries.offsets, offsets_at),
        (active.time_index_path, entries.times, times_at),
    ):
        with storage.open_files.use(path, create=True) as fd:
            segments_on_disk.shorten(storage.files, fd, at)
            storage.files.pwrite(fd, data, at)
    # Not `unsure_from`, which may lie inside a batch: a repair reads whole ones from here on.
    active.synced = (start, offsets_at, times_at, 0)
    return end, Opened(size_bytes - start, active.paths)


def _trusted_part(
    storage: Storage, active: Segment, checkpoint: int | None, interval_bytes: int
) -> tuple[int, Written, int]:
    """(position, written so far, next offset) up to which the segment needs no scan."""
    nothing = (0, Written(), active.base_offset)
    if checkpoint is None or checkpoint <= active.base_offset:
        return nothing
    with storage.open_files.use(active.index_path, create=True) as fd:
        entries = active.written.offset_entries
        entry = index.floor_by_offset(
            storage.files, fd, entries, checkpoint - 1 - active.base_offset
        )
        count = _entries_upto(storage.files, fd, entries, entry.relative_offset)
    if entry.position <= 0:
        return nothing
    with storage.open_files.use(active.log_path) as fd:
        head = storage.files.pread(fd, HEADER_BYTES, entry.position)
    if len(head) < HEADER_BYTES:
        return nothing
    header = records.read_header(head)
    if header.base_offset != active.base_offset + entry.relative_offset:
        return nothing
    # The entry itself is written again by the scan, which begins with its batch.
    written = Written(
        size_bytes=entry.position, offset_entries=count - 1, since_entry_bytes=interval_bytes + 1
    )
    _trusted_times(storage, active, written, entry.relative_offset)
    return entry.position, written, header.base_offset


def _entries_upto(files: Files, fd: int, count: int, relative_offset: int) -> int:
    """How many entries there are up to the one of that offset."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        (found,) = OFFSET_ENTRY.unpack(
            files.pread(fd, OFFSET_ENTRY.size, middle * OFFSET_ENTRY.size)
        )[:1]
        if found <= relative_offset:
            low = middle + 1
        else:
            high = middle
    return low


def _trusted_times(
    storage: Storage, active: Segment, written: Written, relative_offset: int
) -> None:
    """Retains the time entries of the part in front of `relative_offset`."""
    with storage.open_files.use(active.time_index_path, create=True) as fd:
        for number in range(active.written.time_entries - 1, -1, -1):
            data = storage.files.pread(fd, TIME_ENTRY.size, number * TIME_ENTRY.size)
            before = index.last_time(storage.files, fd, number) or (-1, -1)
            timestamp_ms, relative = TIME_ENTRY.unpack(data)
            # Both columns ascend; what does not is a part of the file that never got its data.
            if before < (timestamp_ms, relative) and relative < relative_offset:
                written.time_entries = number + 1
                written.max_timestamp_ms = written.indexed_timestamp_ms = timestamp_ms
                written.max_timestamp_offset = active.base_offset + relative
                break
    with contextlib.suppress(CorruptLog):  # a reader of the batch gets the error
        first = next(segments_on_disk.headers(storage, active, 0), None)
        if first is not None:
            written.first_timestamp_ms = first[1].max_timestamp


def _replay(
    storage: Storage, segments: list[Segment], producers: Producers, offset: int, now_ms: int
) -> list[AbortedTransaction]:
    """Replays the batches from `offset` on into `producers`; gives the transactions aborted there.

    Damage costs producers, not the start.
    """
    aborted: list[AbortedTransaction] = []
    for segment, following in itertools.zip_longest(segments, segments[1:]):
        if following is not None and following.base_offset <= offset:
            continue
        try:
            found = segments_on_disk.locate(storage, segment, offset)
            start = segment.size_bytes if found is None else found[0]
            for position, header in segments_on_disk.headers(storage, segment, start):
                if header.producer_id == NO_PRODUCER_ID:
                    continue
                if not header.attributes & CONTROL:
                    producers.record(header, now_ms)
                    continue
                batch = segments_on_disk.read_batch(storage, segment, position, header)
                marker = records.read_marker(batch)
                if marker is not None:
                    _, ended = producers.record_marker(header, marker, now_ms)
                    aborted += [ended] if ended else []
        except (CorruptLog, MalformedMessage, OSError) as error:
            log.error(
                "the state of producers may be incomplete, a segment is unreadable: %s", error
            )
    return aborted


def _renew_txn_index(
    storage: Storage, active: Segment, offset: int, aborted: list[AbortedTransaction]
) -> tuple[str, ...]:
    """Enters again the aborted transactions whose markers lie at or behind `offset`.

    Those in front of it were synced before the snapshot, or the checkpoint, of that offset was
    written. Gives the file to sync.
    """
    retained = active.written.txn_entries
    # From behind: a damaged one among those that were synced has to stay an error for readers.
    while retained and not _is_synced(storage, active, retained - 1, offset):
        retained -= 1
    aborted = [
        transaction for transaction in aborted if transaction.last_offset >= active.base_offset
    ]
    if retained == active.written.txn_entries and not aborted:
        return ()
    segments_on_disk.cut_txn_index(storage, active, retained)
    active.written.txn_entries = retained
    active.synced = (*active.synced[:3], retained * transactions.ENTRY.size)
    transactions.append(storage, active, active.written, aborted)
    return (active.txn_index_path,) if active.written.txn_entries else ()


def _is_synced(storage: Storage, active: Segment, number: int, offset: int) -> bool:
    """Whether an entry is of a marker in front of `offset`, and not just torn so that it seems so:
    the log has that marker.
    """
    try:
        entry = transactions.read_entry(storage, active, number)
        if entry.last_offset >= offset:
            return False
        found = segments_on_disk.locate(storage, active, entry.last_offset)
    except CorruptLog:
        return False
    if found is None or found[1].base_offset != entry.last_offset:
        return False
    header = found[1]
    if header.producer_id != entry.producer_id or not header.attributes & CONTROL:
        return False
    return not number or _ascends(storage, active, number, entry.last_offset)


def _ascends(storage: Storage, active: Segment, number: int, last_offset: int) -> bool:
    try:
        return transactions.read_entry(storage, active, number - 1).last_offset < last_offset
    except CorruptLog:
        return True


def _holds_a_batch(data: bytes, base_offset: int) -> bool:
    """Whether a whole batch begins anywhere behind the first byte."""
    for found in _MAYBE_A_BATCH.finditer(data, 1):
        position = found.start()
        if position + HEADER_BYTES > len(data):
            return False
        header = records.read_header(data, position)
        end = position + header.size_bytes
        if (
            records.header_is_sane(header)
            and header.base_offset >= base_offset
            and end <= len(data)
            and crc32c(data[position + CRC_FROM : end]) == header.crc
        ):
            return True
    return False


def _save_if_damaged(files: Files, fd: int, active: Segment, cut_at: int, end: int) -> None:
    lost_bytes = end - cut_at
    if not _holds_a_batch(files.pread(fd, lost_bytes, cut_at), active.base_offset):
        log.warning("a torn tail is cut: %s: %d bytes at %d", active.log_path, lost_bytes, cut_at)
        return
    saved = f"{active.log_path}.{cut_at}.cut"
    files.write_atomically(saved, files.pread(fd, lost_bytes, cut_at))
    log.error(
        "a damaged batch ends the log: %s at byte %d; the %d bytes behind it are stored in %s",
        active.log_path, cut_at, lost_bytes, saved,
    )  # fmt: skip
