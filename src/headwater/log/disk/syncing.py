"""Syncs of segments: which bytes are surely on the disk, and what a failed sync means.

Linux reports a failed writeback once to each open file description, and counts the pages as clean
from then on: the next sync succeeds and writes nothing. Commits and checkpoints sync the same
files through the same descriptors, so whichever comes first hears of the failure for both.
Therefore

  - syncs of a segment take turns (`Segment.sync_lock`), and the one that fails leaves its error
    with the segment (`Segment.sync_error`): every later sync of it fails until a commit has
    written the doubtful bytes again (`segment.cut`). Only commits do so, one at a time for each
    partition: a commit that is under way can never take another one's repair for its own success.
  - what was synced is recorded by file (`Segment.synced`); all behind it is doubtful on failure.
  - a sync of the whole file system uses a descriptor of its own (`sync_many`). Where
    such a call has failed, it may have had the report of other files, too: the next one counts for
    a segment only if its files have been asked by themselves since (`Segment.asked_after`).
"""

import errno
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.log import index
from headwater.log.disk.files import Files
from headwater.log.index import OFFSET_ENTRY, TIME_ENTRY
from headwater.log.partitions.transactions import ENTRY as TXN_ENTRY
from headwater.protocol import records
from headwater.protocol.records import CRC_FROM, HEADER_BYTES, NO_TIMESTAMP, BatchHeader, crc32c

if TYPE_CHECKING:
    from headwater.log.segment import Segment, Storage, Written

log = logging.getLogger(__name__)

SCAN_BYTES = 4 << 20
# From so many files on a sync of the whole file system is cheaper.
SYNC_TOGETHER = 32

LOG, INDEX, TIME_INDEX, TXN_INDEX = range(4)
KINDS: Final = ("log", "index", "timeindex", "txnindex")
_ENTRIES: Final = {INDEX: OFFSET_ENTRY, TIME_INDEX: TIME_ENTRY, TXN_INDEX: TXN_ENTRY}

Sizes = tuple[int, int, int, int]  # in bytes, in the order of KINDS


class ToSync(NamedTuple):
    """Files of a segment that are to last, up to `written`."""

    segment: "Segment"
    written: "Written"
    kinds: tuple[int, ...]

    @classmethod
    def all_of(cls, segment: "Segment", written: "Written") -> "ToSync":
        """Every file that holds something."""
        has_aborted = written.txn_entries > 0
        kinds = (LOG, INDEX, TIME_INDEX, TXN_INDEX) if has_aborted else (LOG, INDEX, TIME_INDEX)
        return cls(segment, written, kinds)

    @property
    def paths(self) -> list[str]:
        return [self.segment.path(KINDS[kind]) for kind in self.kinds]


def sizes(written: "Written") -> Sizes:
    return (
        written.size_bytes,
        written.offset_entries * OFFSET_ENTRY.size,
        written.time_entries * TIME_ENTRY.size,
        written.txn_entries * TXN_ENTRY.size,
    )


def sync(storage: "Storage", wanted: ToSync) -> None:
    """Makes the files last. Raises OSError, also if an earlier sync of the segment failed."""
    with wanted.segment.sync_lock:
        _check(wanted.segment)
        failure = storage.failed_together
        fdatasync(storage, wanted.segment, wanted.kinds)
        _note(wanted)
        if INDEX in wanted.kinds:  # these were all of its files
            wanted.segment.asked_after = failure


def sync_many(storage: "Storage", root_fd: int, wanted: Sequence[ToSync]) -> list[OSError | None]:
    """Makes the files last, by themselves or, if they are many, with one call for all; says what
    became of each.

    `root_fd` was open before they were written, and only the caller uses it (`Files`).
    """
    paths = [path for segment in wanted for path in segment.paths]
    is_together = len(paths) >= SYNC_TOGETHER and storage.files.can_sync_together()
    if is_together and root_fd >= 0:
        try:
            storage.files.sync_together(root_fd, paths)
        except OSError as error:  # perhaps of another file than these: each is asked
            log.error("syncing %d files together failed: %s", len(paths), error)
            storage.failed_together = object()
        else:
            return [_outcome_together(storage, segment) for segment in wanted]
    return [_outcome(storage, segment) for segment in wanted]


def _outcome_together(storage: "Storage", wanted: ToSync) -> OSError | None:
    if wanted.segment.asked_after is not storage.failed_together:
        return _outcome(storage, wanted)
    with wanted.segment.sync_lock:
        try:
            _check(wanted.segment)
        except OSError as error:
            return error
        _note(wanted)
    return None


def _outcome(storage: "Storage", wanted: ToSync) -> OSError | None:
    try:
        sync(storage, wanted)
    except OSError as error:
        return error
    return None


def _check(segment: "Segment") -> None:
    if segment.sync_error is not None:
        raise OSError(errno.EIO, f"an earlier sync failed: {segment.sync_error}", segment.log_path)


def _note(wanted: ToSync) -> None:
    new, synced = sizes(wanted.written), list(wanted.segment.synced)
    for kind in wanted.kinds:
        synced[kind] = max(synced[kind], new[kind])
    wanted.segment.synced = (synced[0], synced[1], synced[2], synced[3])


def fdatasync(storage: "Storage", segment: "Segment", kinds: Sequence[int]) -> None:
    """The caller has the segment's `sync_lock`. Raises OSError and leaves it with the segment.

    All files are asked, also behind one that failed: an error that is reported now does not come
    up when all of them have been written again.
    """
    failed: OSError | None = None
    try:
        for kind in kinds:
            # A lost index is begun again, for it is only a hint; a lost log is an error.
            with storage.open_files.use(segment.path(KINDS[kind]), create=kind != LOG) as fd:
                try:
                    storage.files.fdatasync(fd)
                except OSError as error:
                    failed = failed or error
    except OSError:  # one cannot be opened; what another has reported counts all the same
        if failed is None:
            raise
    if failed is not None:
        segment.sync_error = failed
        raise failed


# ── after a failure ───────────────────────────────────────────────────────────────────────────


def write_doubtful_again(storage: "Storage", segment: "Segment", written: "Written") -> None:
    """Writes what may not be on the disk once more, from the page cache, for a sync.

    If the page cache no longer has it either, an index is cut in front of it, for an index is only
    a hint. Raises OSError if it is of the log: a start then cuts that.
    """
    for kind, start, end in zip(range(4), segment.synced, sizes(written), strict=True):
        if start >= end:
            continue
        with storage.open_files.use(segment.path(KINDS[kind])) as fd:
            rewrite(storage.files, fd, start, end)
            # Not before: what is written again stays in the page cache until the sync.
            if _is_whole(storage.files, fd, kind, start, end, segment.base_offset):
                continue
            if kind in (LOG, TXN_INDEX):
                name = os.path.basename(segment.path(KINDS[kind]))
                raise OSError(
                    errno.EIO,
                    f"{name} lost bytes behind {start} on the disk and in memory: after a restart"
                    " the log ends there",
                )
            _cut_hints(storage.files, fd, kind, start, written)


def _cut_hints(files: Files, fd: int, kind: int, start: int, written: "Written") -> None:
    log.warning("an index is cut at byte %d: the disk lost what follows", start)
    files.truncate(fd, start)
    if kind == INDEX:
        written.offset_entries = start // OFFSET_ENTRY.size
        return
    written.time_entries = start // TIME_ENTRY.size
    last = index.last_time(files, fd, written.time_entries)
    written.indexed_timestamp_ms = NO_TIMESTAMP if last is None else last.timestamp_ms


def rewrite(files: Files, fd: int, position: int, end: int) -> None:
    """Makes a part of a file dirty, so that the next sync writes it whatever became of an earlier
    one: after a failed sync the pages read well, and a sync does nothing for them.
    """
    while position < end:
        data = files.pread(fd, min(SCAN_BYTES, end - position), position)
        if not data:
            raise OSError(errno.EIO, "a file is shorter than what was written to it")
        files.pwrite(fd, data, position)
        position += len(data)


def _is_whole(files: Files, fd: int, kind: int, start: int, end: int, base_offset: int) -> bool:
    if kind == LOG:
        sizes_bytes = (h.size_bytes for h in whole_batches(files, fd, start, end, base_offset))
        return sum(sizes_bytes) == end - start
    layout = _ENTRIES[kind]
    data = files.pread(fd, end - start, start)
    entries = list(layout.iter_unpack(data))
    # The offset of a marker, or both columns of the others, ascend.
    keys = [entry[3:4] if kind == TXN_INDEX else entry for entry in entries]
    return all(any(key) for key in keys) and all(
        a < b
        for before, after in itertools.pairwise(keys)
        for a, b in zip(before, after, strict=True)
    )


def whole_batches(
    files: Files, fd: int, start: int, end: int, offset: int
) -> Iterator[BatchHeader]:
    """The headers of the batches that are whole and follow on from `offset`, up to the first
    that is not.
    """
    window, window_at, position = memoryview(b""), start, start
    while position + HEADER_BYTES <= end:
        at = position - window_at
        if at + HEADER_BYTES > len(window):
            window, window_at, at = memoryview(files.pread(fd, SCAN_BYTES, position)), position, 0
            if len(window) < HEADER_BYTES:
                return
        header = records.read_header(window, at)
        if (
            not records.header_is_sane(header)
            or header.base_offset < offset
            or position + header.size_bytes > end
        ):
            return
        if at + header.size_bytes > len(window):
            wanted = max(SCAN_BYTES, header.size_bytes)
            window, window_at, at = memoryview(files.pread(fd, wanted, position)), position, 0
            if len(window) < header.size_bytes:
                return
        if crc32c(window[at + CRC_FROM : at + header.size_bytes]) != header.crc:
            return
        yield header
        position += header.size_bytes
        offset = header.last_offset + 1
