"""A cleaned segment while it is written, with its indexes, no faster than allowed (child)."""

import os
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from headwater.log.compaction.job import Rewrite, Source
from headwater.log.compaction.pass_state import (
    INDEX_WORDS,
    INDEXED_MS,
    MAX_MS,
    MAX_MS_OFFSET,
)
from headwater.log.disk.files import Files
from headwater.log.partitions.transactions import ENTRY as TXN_ENTRY
from headwater.log.partitions.transactions import AbortedTransaction

CLEANED = "cleaned"  # between base offset and suffix of a file that is not yet swapped in
SYNC_BYTES = 16 << 20  # written between two syncs, so that none of them holds the disk for long
_INT32_MAX = 2**31 - 1


@dataclass(slots=True)
class Throttle:
    """Sleeps so that no more than `bytes_per_s` are read and written."""

    bytes_per_s: int
    began_s: float = field(default_factory=time.monotonic)
    bytes_so_far: int = 0

    def spend(self, size_bytes: int) -> None:
        self.bytes_so_far += size_bytes
        ahead_s = self.bytes_so_far / self.bytes_per_s - (time.monotonic() - self.began_s)
        if ahead_s > 0.01:
            time.sleep(ahead_s)


def stem(directory: str, base_offset: int) -> str:
    return f"{directory}/{base_offset:020d}"


class Output:
    """A cleaned segment being written, with its indexes."""

    def __init__(
        self, files: Files, job: Rewrite, base_offset: int, throttle: Throttle, loops: Any
    ) -> None:
        """`loops` has `index_entries`, for the kind of buffers that are written: kernels or
        plain_loops.
        """
        self._files = files
        self._loops = loops
        self._job = job
        self._base_offset = base_offset
        self._throttle = throttle
        self._stem = f"{stem(job.directory, base_offset)}.{CLEANED}"
        self._fd = files.open(f"{self._stem}.log", create=True)
        files.truncate(self._fd, 0)
        files.unlink(f"{self._stem}.txnindex")  # of a pass that came to nothing
        self._unsynced_bytes = 0
        self._offsets = bytearray()
        self._times = bytearray()
        self._index = loops.words(INDEX_WORDS)
        self._index[MAX_MS] = self._index[INDEXED_MS] = -1
        self.aborted: list[AbortedTransaction] = []
        self.size_bytes = 0

    def has_room_for(self, source: Source, source_end: int) -> bool:
        """Whether a segment may be added, however little of it goes."""
        entries = source.size_bytes // max(self._job.index_interval_bytes, 1) + 1
        return (
            self.size_bytes + source.size_bytes <= self._job.segment_bytes
            and len(self._offsets) + entries * 8 <= self._job.segment_index_bytes
            and source_end - 1 - self._base_offset <= _INT32_MAX
        )

    def write(self, data: Any, size_bytes: int) -> None:
        """Appends whole batches."""
        if size_bytes == 0:
            return
        if self.size_bytes + size_bytes > _INT32_MAX:
            raise OSError("a cleaned segment would exceed 2 GiB")
        offsets, times = self._loops.index_entries(
            data, size_bytes, self._base_offset, self._job.index_interval_bytes, self._index
        )
        self._offsets += offsets
        for timestamp_ms, relative in times:
            self._times += struct.pack(">qi", timestamp_ms, relative)
        self._files.pwrite(self._fd, memoryview(data)[:size_bytes], self.size_bytes)
        self.size_bytes += size_bytes
        self._unsynced_bytes += size_bytes
        if self._unsynced_bytes >= SYNC_BYTES:
            self._files.fdatasync(self._fd)
            self._unsynced_bytes = 0
        self._throttle.spend(size_bytes)

    def finish(self, modified_ns: int) -> None:
        """The files last when this returns."""
        newest_ms = int(self._index[MAX_MS])
        if newest_ms > self._index[INDEXED_MS]:
            relative = int(self._index[MAX_MS_OFFSET]) - self._base_offset
            self._times += struct.pack(">qi", newest_ms, relative)
        self._files.fdatasync(self._fd)
        # Retention goes by it where records have no timestamps.
        os.utime(self._fd, ns=(modified_ns, modified_ns))
        self._close()
        self._write_file("index", self._offsets)
        self._write_file("timeindex", self._times)
        if self.aborted:
            entries = b"".join(TXN_ENTRY.pack(0, *transaction) for transaction in self.aborted)
            self._write_file("txnindex", entries)
        self._files.sync_directory(self._job.directory)

    def discard(self) -> None:
        self._close()
        for suffix in ("log", "index", "timeindex", "txnindex"):
            self._files.unlink(f"{self._stem}.{suffix}")

    def _write_file(self, suffix: str, data: bytes | bytearray) -> None:
        fd = self._files.open(f"{self._stem}.{suffix}", create=True)
        try:
            self._files.truncate(fd, 0)
            self._files.pwrite(fd, data, 0)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)

    def _close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
