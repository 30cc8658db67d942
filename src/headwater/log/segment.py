"""One segment: a run of record batches in one file, with its indexes.

    00000000000000012345.log         batches, one behind the other; named by its first offset
    00000000000000012345.index       see index.py
    00000000000000012345.timeindex
    00000000000000012345.txnindex    see transactions.py; only if a transaction was aborted

The last segment of a partition is written to by one committing thread at a time (`write`); the
event loop then takes over the new size (`Written`), so readers only ever see whole, committed
batches. All others are sealed and never change again.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from headwater.errors import CorruptLog
from headwater.log import index
from headwater.log.disk import syncing
from headwater.log.disk.files import Files, OpenFiles
from headwater.log.index import OFFSET_ENTRY, TIME_ENTRY, OffsetEntry
from headwater.log.partitions.transactions import ENTRY as TXN_ENTRY
from headwater.protocol import records
from headwater.protocol.records import HEADER_BYTES, INT64_MAX, NO_TIMESTAMP, BatchHeader

log = logging.getLogger(__name__)

T = TypeVar("T")

WALK_BYTES = 64 << 10


class Batch(NamedTuple):
    """A batch that has its offset in the log and is to be written."""

    header: BatchHeader  # with the offsets that were given to it
    view: memoryview


@dataclass(slots=True)
class Written:
    """How far a segment's files have been written: what `write` returns and a reader may use."""

    size_bytes: int = 0
    offset_entries: int = 0
    time_entries: int = 0
    txn_entries: int = 0
    since_entry_bytes: int = 0  # appended since the last index entry
    first_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1  # last offset of the batch that has it
    indexed_timestamp_ms: int = NO_TIMESTAMP
    is_searched: bool = False  # for timestamps; not again if the records have none


@dataclass(slots=True)
class Storage:
    """The files of a log and the descriptors that are open on them."""

    files: Files
    open_files: OpenFiles
    is_short: bool = False  # of room: records are refused (ballast.py)
    root_fd: int = -1  # of the data directory, for syncs by checkpoints and at the start
    failed_together: object = None  # another one after each failed sync of the file system

    @contextlib.contextmanager
    def opened(self, segment: "Segment", kind: str) -> Iterator[int]:
        """A descriptor of one of the segment's files, and of no other segment's.

        Compaction gives a segment other names before its old ones are another's, so a name that is
        still its own when the file is open has led to its file.
        """
        while True:
            path = segment.path(kind)
            with contextlib.ExitStack() as stack:
                try:
                    fd = stack.enter_context(self.open_files.use(path))
                except FileNotFoundError:
                    if path == segment.path(kind):
                        raise
                    continue
                if path == segment.path(kind):
                    yield fd
                    return


class Segment:
    """See the module. `written` belongs to the event loop."""

    __slots__ = (
        "_stem", "asked_after", "base_offset", "corrupt", "directory", "doomed", "pins",
        "sync_error", "sync_lock", "synced", "written",
    )  # fmt: skip

    def __init__(self, directory: str, base_offset: int, written: Written) -> None:
        self.directory = directory
        self._stem = f"{directory}/{base_offset:020d}"
        self.base_offset = base_offset
        self.written = written
        self.corrupt = False
        self.pins = 0  # responses that still have to send bytes from here
        self.doomed = False  # no longer part of the log; files go with the last pin
        self.sync_lock = threading.Lock()  # for all below (syncing.py)
        self.sync_error: OSError | None = None
        self.synced: syncing.Sizes = (0, 0, 0, 0)  # surely on the disk
        self.asked_after: object = None  # `Storage.failed_together` when its files were all synced

    def path(self, kind: str) -> str:
        return f"{self._stem}.{kind}"

    def move_to(self, stem: str) -> None:
        """Its files have these names too; another segment gets the old ones (compaction)."""
        self._stem = stem

    @property
    def log_path(self) -> str:
        return self._stem + ".log"

    @property
    def index_path(self) -> str:
        return self._stem + ".index"

    @property
    def time_index_path(self) -> str:
        return self._stem + ".timeindex"

    @property
    def txn_index_path(self) -> str:
        return self._stem + ".txnindex"

    @property
    def paths(self) -> tuple[str, str, str]:
        """The files that every segment has."""
        return self.log_path, self.index_path, self.time_index_path

    @property
    def maybe_paths(self) -> tuple[str, str, str, str]:
        """The files that a segment may have."""
        return *self.paths, self.txn_index_path

    @property
    def size_bytes(self) -> int:
        return self.written.size_bytes


@dataclass(slots=True)
class IndexEntries:
    """Entries that belong to batches being written."""

    offsets: bytearray = field(default_factory=bytearray)
    times: bytearray = field(default_factory=bytearray)


def record_batch(
    base_offset: int,
    written: Written,
    entries: IndexEntries,
    header: BatchHeader,
    interval_bytes: int,
) -> None:
    """Counts a batch that goes behind `written`, adding the index entries that fall due."""
    if written.since_entry_bytes > interval_bytes:
        entries.offsets += OFFSET_ENTRY.pack(header.base_offset - base_offset, written.size_bytes)
        written.offset_entries += 1
        written.since_entry_bytes = 0
        _note_time(base_offset, written, entries)
    if written.first_timestamp_ms == NO_TIMESTAMP:
        written.first_timestamp_ms = header.max_timestamp
    if header.max_timestamp > written.max_timestamp_ms:
        written.max_timestamp_ms = header.max_timestamp
        written.max_timestamp_offset = header.last_offset
    written.size_bytes += header.size_bytes
    written.since_entry_bytes += header.size_bytes


def _note_time(base_offset: int, written: Written, entries: IndexEntries) -> None:
    if written.max_timestamp_ms > written.indexed_timestamp_ms:
        relative = written.max_timestamp_offset - base_offset
        entries.times += TIME_ENTRY.pack(written.max_timestamp_ms, relative)
        written.time_entries += 1
        written.indexed_timestamp_ms = written.max_timestamp_ms


def write(
    storage: Storage,
    segment: Segment,
    written: Written,
    batches: Sequence[Batch],
    interval_bytes: int,
) -> None:
    """Appends batches behind `written` and moves it on. Nothing is synced.

    On OSError the files may have grown beyond what `written` said before: `cut` repairs that.
    """
    position, offsets_at, times_at = (
        written.size_bytes,
        written.offset_entries * OFFSET_ENTRY.size,
        written.time_entries * TIME_ENTRY.size,
    )
    entries = IndexEntries()
    for batch in batches:
        record_batch(segment.base_offset, written, entries, batch.header, interval_bytes)
    with storage.open_files.use(segment.log_path) as fd:
        storage.files.pwritev(fd, [batch.view for batch in batches], position)
    _write_entries(storage, segment, entries, offsets_at, times_at)


def _write_entries(
    storage: Storage, segment: Segment, entries: IndexEntries, offsets_at: int, times_at: int
) -> None:
    if entries.offsets:
        with storage.open_files.use(segment.index_path) as fd:
            storage.files.pwrite(fd, entries.offsets, offsets_at)
    if entries.times:
        with storage.open_files.use(segment.time_index_path) as fd:
            storage.files.pwrite(fd, entries.times, times_at)


def create(storage: Storage, directory: str, base_offset: int) -> Segment:
    """A new, empty segment, lasting: its three names are on disk when this returns."""
    segment = Segment(directory, base_offset, Written())
    segment.asked_after = storage.failed_together  # nothing of it can have been lost before
    for path in segment.paths:
        with storage.open_files.use(path, create=True) as fd:
            storage.files.truncate(fd, 0)
    storage.files.unlink(segment.txn_index_path)  # of one of that name that a crash took away
    storage.files.sync_directory(directory)
    return segment


def seal(storage: Storage, segment: Segment, written: Written) -> None:
    """Ends a segment: the last time entry is written and all of its files are synced."""
    write_last_time(storage, segment, written)
    syncing.sync(storage, syncing.ToSync.all_of(segment, written))


def write_last_time(storage: Storage, segment: Segment, written: Written) -> None:
    """From then on the time index has the largest timestamp. Nothing is synced."""
    entries = IndexEntries()
    times_at = written.time_entries * TIME_ENTRY.size
    _note_time(segment.base_offset, written, entries)
    _write_entries(storage, segment, entries, 0, times_at)


def cut(storage: Storage, segment: Segment, written: Written) -> None:
    """Takes away everything behind `written` and makes that last, together with what an earlier
    sync that failed may have lost.
    """
    with segment.sync_lock:
        try:
            for path, size_bytes in zip(segment.paths, sizes(written), strict=True):
                with storage.open_files.use(path, create=True) as fd:
                    shorten(storage.files, fd, size_bytes)
            if segment.sync_error is not None:
                syncing.write_doubtful_again(storage, segment, written)
            syncing.fdatasync(storage, segment, (syncing.LOG, syncing.INDEX, syncing.TIME_INDEX))
            cut_txn_index(storage, segment, written.txn_entries)
        except OSError as error:
            segment.sync_error = segment.sync_error or error
            raise
        segment.sync_error = None
        segment.synced = syncing.sizes(written)


def shorten(files: Files, fd: int, size_bytes: int) -> None:
    """Cuts a file so that the next sync makes it last, also if it seems to be cut already.

    If the sync behind an earlier cut failed, the file has its new length, the disk may have the old
    one, and nothing is left to be written: after a power cut what was taken away is there again.
    """
    files.truncate(fd, size_bytes + 1)
    files.truncate(fd, size_bytes)


def cut_txn_index(storage: Storage, segment: Segment, entries: int) -> None:
    """Takes away the entries behind the first `entries` and makes that last."""
    path = segment.txn_index_path
    if not os.path.exists(path):
        return
    if entries == 0:
        storage.open_files.forget(path)
        storage.files.unlink(path)
        storage.files.sync_directory(segment.directory)
        return
    with storage.open_files.use(path) as fd:
        shorten(storage.files, fd, entries * TXN_ENTRY.size)
        storage.files.fdatasync(fd)


def sizes(written: Written) -> tuple[int, int, int]:
    """Of the three files, in the order of `Segment.paths`."""
    return syncing.sizes(written)[:3]


def remove(storage: Storage, segment: Segment) -> None:
    for path in segment.maybe_paths:
        if path == segment.txn_index_path and segment.written.txn_entries:
            # A power cut may bring the records back. Not without what was aborted of them.
            storage.files.sync_directory(segment.directory)
        storage.files.unlink(path)
        storage.open_files.forget(path)  # not before: a reader could open it again


def open_sealed(storage: Storage, directory: str, base_offset: int) -> Segment:
    """A segment as its files are, without reading the log."""
    segment = Segment(directory, base_offset, Written())
    written = segment.written
    written.size_bytes = storage.files.size_bytes(segment.log_path)
    for path, entry_bytes, counter in (
        (segment.index_path, OFFSET_ENTRY.size, "offset_entries"),
        (segment.time_index_path, TIME_ENTRY.size, "time_entries"),
        (segment.txn_index_path, TXN_ENTRY.size, "txn_entries"),
    ):
        if os.path.exists(path):
            setattr(written, counter, storage.files.size_bytes(path) // entry_bytes)
    return segment


def in_index(
    storage: Storage,
    segment: Segment,
    kind: str,
    search: Callable[..., T],
    count: int,
    *target: int,
) -> T:
    """What `search` finds among the first `count` entries of an index; in a missing one, none.

    It is not created: if retention is faster than the reader, nothing would ever remove it.
    """
    try:
        with storage.opened(segment, kind) as fd:
            return search(storage.files, fd, count, *target)
    except FileNotFoundError:
        return search(storage.files, -1, 0, *target)


def load_timestamps(storage: Storage, segment: Segment) -> None:
    """Fills in the timestamps of a segment opened without a scan, from its time index."""
    written = segment.written
    if written.max_timestamp_ms != NO_TIMESTAMP or written.size_bytes == 0 or written.is_searched:
        return
    last = in_index(storage, segment, "timeindex", index.last_time, written.time_entries)
    if last is not None:
        written.max_timestamp_ms = written.indexed_timestamp_ms = last.timestamp_ms
        written.max_timestamp_offset = segment.base_offset + last.relative_offset
    else:
        _find_timestamps(storage, segment)
    with contextlib.suppress(CorruptLog):  # a reader of the batch gets the error
        first = next(headers(storage, segment, 0), None)
        if first is not None:
            written.first_timestamp_ms = first[1].max_timestamp


def _find_timestamps(storage: Storage, segment: Segment) -> None:
    """The time index is lost, or there was nothing to enter: the batches themselves have it."""
    written = segment.written
    written.is_searched = True
    with contextlib.suppress(CorruptLog):  # a reader of the batch gets the error
        for _, header in headers(storage, segment, 0):
            if header.max_timestamp > written.max_timestamp_ms:
                written.max_timestamp_ms = header.max_timestamp
                written.max_timestamp_offset = header.last_offset


def headers(
    storage: Storage, segment: Segment, position: int, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Walks the batches from `position` on: (position, header) of each.

    Raises CorruptLog where the bytes cannot be a batch that was written.
    """
    end = segment.size_bytes if end is None else end
    window, window_at = b"", 0
    with storage.opened(segment, "log") as fd:
        while position < end:
            at = position - window_at
            if at < 0 or at + HEADER_BYTES > len(window):
                window, window_at, at = storage.files.pread(fd, WALK_BYTES, position), position, 0
                if len(window) < HEADER_BYTES:
                    raise _corrupt(segment, position)
            header = records.read_header(window, at)
            if not records.header_is_sane(header) or position + header.size_bytes > end:
                raise _corrupt(segment, position)
            yield position, header
            position += header.size_bytes


def _corrupt(segment: Segment, position: int) -> CorruptLog:
    return CorruptLog(
        "a segment holds bytes that are no record batch",
        detail=f"{segment.log_path} at byte {position}",
        hint="restore the file from a backup, or consume from an offset behind it",
    )


def read_batch(storage: Storage, segment: Segment, position: int, header: BatchHeader) -> bytes:
    with storage.opened(segment, "log") as fd:
        return storage.files.pread(fd, header.size_bytes, position)


def locate(storage: Storage, segment: Segment, offset: int) -> tuple[int, BatchHeader] | None:
    """The batch that holds `offset`, or the first one behind it; None if there is none."""
    entries, relative_offset = segment.written.offset_entries, offset - segment.base_offset
    entry = in_index(storage, segment, "index", index.floor_by_offset, entries, relative_offset)
    start = entry.position if _is_boundary(storage, segment, entry) else 0
    for position, header in headers(storage, segment, start):
        if header.last_offset >= offset:
            return position, header
    return None


def _is_boundary(storage: Storage, segment: Segment, entry: OffsetEntry) -> bool:
    """Whether the batch is there that an index entry names; a damaged index is only slow."""
    with storage.opened(segment, "log") as fd:
        head = storage.files.pread(fd, HEADER_BYTES, max(entry.position, 0))
    if len(head) < HEADER_BYTES:
        return False
    header = records.read_header(head)
    return (
        records.header_is_sane(header)
        and header.base_offset == segment.base_offset + entry.relative_offset
    )


def run_from(
    storage: Storage,
    segment: Segment,
    position: int,
    header: BatchHeader,
    max_bytes: int,
    end_offset: int = INT64_MAX,
) -> tuple[int, int]:
    """(size, next offset) of the longest run of whole batches from `position` in `max_bytes` and
    in front of `end_offset`.

    At least the batch at `position` is in it, however large it is (KIP-74).
    """
    limit = position + max_bytes
    size_bytes = segment.size_bytes
    if end_offset != INT64_MAX:
        end = locate(storage, segment, end_offset)
        if end is not None:
            limit = min(limit, end[0])
    boundary, next_offset = position + header.size_bytes, header.last_offset + 1
    if boundary >= limit:
        return header.size_bytes, next_offset
    if limit >= size_bytes:
        return size_bytes - position, -1
    entries = segment.written.offset_entries
    entry = in_index(storage, segment, "index", index.floor_by_position, entries, limit)
    if entry.position > boundary and _is_boundary(storage, segment, entry):
        boundary, next_offset = entry.position, segment.base_offset + entry.relative_offset
    for at, following in headers(storage, segment, boundary):
        if at + following.size_bytes > limit:
            break
        boundary, next_offset = at + following.size_bytes, following.last_offset + 1
    return boundary - position, next_offset
