"""One segment written again without the contents of some records. Runs in the child process.

The batches that hold the records are found by the offset index, so a segment in which nothing is
left to erase is not read. Otherwise all of it is written again into `….cleaned.*` files: the
batches in question with blanks (protocol/erased_records.py), all others byte for byte. What is
written is synced and then reported; the broker swaps it in (compaction/swap.py). Until it does,
nothing has happened.

No compiled loop is used: most bytes are only copied, and numba would take longer to start than most
erasures take.

Memory: one window of the file, or the largest batch and its records, whatever the segment's size.
"""

import os
import struct
from collections.abc import Callable, Sequence

from headwater.errors import CorruptLog, MalformedMessage
from headwater.log import segment as segments_on_disk
from headwater.log.compaction import plain_loops
from headwater.log.compaction.job import EraseJob, Report
from headwater.log.compaction.output import Output, Throttle, stem
from headwater.log.disk.files import Files, OpenFiles
from headwater.log.partitions.transactions import ENTRY as TXN_ENTRY
from headwater.log.partitions.transactions import AbortedTransaction
from headwater.log.segment import Segment, Storage
from headwater.protocol import erased_records
from headwater.protocol.records import HEADER_BYTES, LENGTH_ENDS_AT

WINDOW_BYTES = 4 << 20
_OPEN_FILES = 4
_BATCH_HEAD = struct.Struct(">qi4xb6xi")  # base offset, length, magic, last offset delta


def erase(job: EraseJob, files: Files, report: Callable[[Report], None]) -> None:
    """Does the job, with one report: a swap is due if it has `inputs`. Raises OSError if the disk
    refuses; then nothing was written that anything uses.
    """
    base_offset = job.source.base_offset
    storage = Storage(files, OpenFiles(files, _OPEN_FILES))
    try:
        segment = segments_on_disk.open_sealed(storage, job.directory, base_offset)
        segment.written.size_bytes = job.source.size_bytes
        found = _with_contents(storage, segment, job.offsets)
        if found:
            _Rewriting(job, storage, segment, found).run()
    except (MalformedMessage, CorruptLog) as error:
        detail = f"{stem(job.directory, base_offset)}.log: {error}"
        report(Report(damaged=base_offset, detail=detail, erased=[]))
    else:
        report(Report(inputs=[base_offset] if found else [], erased=found))
    finally:
        storage.open_files.close()


def _with_contents(storage: Storage, segment: Segment, offsets: Sequence[int]) -> list[int]:
    """Those of `offsets` at which the segment has a record that is not erased yet."""
    found: list[int] = []
    checked_to = -1
    for offset in offsets:
        if offset <= checked_to:
            continue
        located = segments_on_disk.locate(storage, segment, offset)
        if located is None:
            break
        position, header = located
        if header.base_offset <= offset:
            batch = segments_on_disk.read_batch(storage, segment, position, header)
            if len(batch) < header.size_bytes:
                raise MalformedMessage("the segment ends early")
            found += erased_records.contents_at(batch, offsets)
            checked_to = header.last_offset
        else:
            checked_to = header.base_offset - 1  # compaction has removed what was there
    return found


class _Rewriting:
    def __init__(
        self, job: EraseJob, storage: Storage, segment: Segment, offsets: Sequence[int]
    ) -> None:
        self._files = storage.files
        self._segment = segment
        self._offsets = offsets
        self._throttle = Throttle(job.bytes_per_s)
        self._output = Output(self._files, job, segment.base_offset, self._throttle, plain_loops)
        self._window = plain_loops.buffer(WINDOW_BYTES)

    def run(self) -> None:
        """The cleaned files last when this returns."""
        path = self._segment.log_path
        fd = self._files.open(path)
        try:
            position = 0
            while position < self._segment.size_bytes:
                position += self._write_window(self._read(fd, position))
            self._output.aborted = self._aborted()
            self._output.finish(os.stat(path).st_mtime_ns)
        except BaseException:
            self._output.discard()
            raise
        finally:
            self._files.close(fd)

    def _read(self, fd: int, position: int) -> int:
        """How many bytes of the file are in the window now; at least one batch."""
        rest_bytes = self._segment.size_bytes - position
        while True:
            wanted = min(len(self._window), rest_bytes)
            size_bytes = self._files.pread_into(fd, self._window[:wanted], position)
            if size_bytes < wanted or wanted < HEADER_BYTES:
                raise MalformedMessage("the segment ends early")
            first_bytes = LENGTH_ENDS_AT + _head(self._window, 0)[1]
            if first_bytes <= wanted:
                self._throttle.spend(size_bytes)
                return size_bytes
            if first_bytes > rest_bytes:
                raise MalformedMessage("half a batch")
            self._window = plain_loops.buffer(first_bytes)

    def _write_window(self, size_bytes: int) -> int:
        """Writes the whole batches of the window; how many bytes of it they were."""
        window, at, copied = self._window, 0, 0
        while at + HEADER_BYTES <= size_bytes:
            base_offset, length, last_delta = _head(window, at)
            end = at + LENGTH_ENDS_AT + length
            if end > size_bytes:
                break
            if erased_records.any_between(self._offsets, base_offset, base_offset + last_delta):
                self._output.write(window[copied:at], at - copied)
                blanked = erased_records.erase(window[at:end], self._offsets)
                self._output.write(memoryview(blanked), len(blanked))
                copied = end
            at = end
        self._output.write(window[copied:at], at - copied)
        return at

    def _aborted(self) -> list[AbortedTransaction]:
        """What the index of aborted transactions has: no offset of it changes."""
        if not self._segment.written.txn_entries:
            return []
        data = self._files.read(self._segment.txn_index_path)
        data = data[: self._segment.written.txn_entries * TXN_ENTRY.size]
        return [AbortedTransaction(*entry[1:]) for entry in TXN_ENTRY.iter_unpack(data)]


def _head(window: memoryview, at: int) -> tuple[int, int, int]:
    """Base offset, length and last offset delta of the batch there."""
    base_offset, length, magic, last_delta = _BATCH_HEAD.unpack_from(window, at)
    if magic != 2 or length < HEADER_BYTES - LENGTH_ENDS_AT or last_delta < 0:
        raise MalformedMessage("bytes that are no record batch", detail=f"offset {base_offset}")
    return base_offset, length, last_delta
