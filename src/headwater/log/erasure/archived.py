"""Erasure in the archive: a segment's objects are replaced by those of its next generation.

  1. The chunks that hold the records are read. If none of them has contents left, that is all.
  2. The segment is rewritten: the local one was, if it is still there. Otherwise it is fetched into
     a directory of its own, `erasure-….deleted`, which a start removes if it finds it.
  3. The new objects are put under names with the next generation, and compared.
  4. The descriptor is replaced, in the archive and then locally. From here on readers use them.
  5. What was cached of the old objects goes, and then they do.

A crash before 4 leaves the old objects in use; the erasure begins again, over the same names. A
crash after it leaves old objects, which are deleted when the erasure is continued; if retention is
faster, it deletes the generations around the current one too (archive/deletions.py).
"""

import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from headwater.errors import ArchiveUnavailable, CorruptLog, MalformedMessage
from headwater.log import segment as segments_on_disk
from headwater.log.archive import descriptor
from headwater.log.archive.deletions import object_names
from headwater.log.archive.descriptor import ArchivedSegment, Chunk, ChunkOf
from headwater.log.compaction import swap
from headwater.log.compaction.job import Report, Source
from headwater.log.disk.data_directory import DELETED
from headwater.log.partitions.partition import PartitionLog
from headwater.log.partitions.transactions import ENTRY
from headwater.log.segment import Segment
from headwater.log.store import LogStore
from headwater.protocol import erased_records, records

if TYPE_CHECKING:
    from headwater.log.archive.archive import Archive

Rewritten = Callable[[PartitionLog, str, Source, Sequence[int]], Awaitable[Report]]


def holding(partition: PartitionLog, offsets: Sequence[int]) -> list[ArchivedSegment]:
    """The archived segments that one of the offsets may lie in."""
    return [
        segment
        for segment in partition.archived
        if erased_records.any_between(offsets, segment.base_offset, segment.end_offset - 1)
    ]


class ArchivedErasing:
    """See the module. Lives on the event loop; nothing is uploaded meanwhile by anything else
    (`partition.is_erasing`). `rewritten` runs the child process on a segment in a directory.
    """

    def __init__(self, store: LogStore, rewritten: Rewritten) -> None:
        self._store = store
        self._rewritten = rewritten

    async def erase_in(
        self, partition: PartitionLog, segment: ArchivedSegment, offsets: Sequence[int]
    ) -> tuple[set[int], list[str]]:
        """The offsets that had contents in an archived segment, and files that may still be there:
        of readers of the cache, or of a process that crashed. Raises ArchiveUnavailable, CorruptLog
        or OSError.
        """
        archive = self._store.archive
        if archive is None:
            raise ArchiveUnavailable(
                "the records are in an archive", hint="set the broker's `archive`"
            )
        if segment.generation:  # a crash may have come before these were deleted
            await self._delete(archive, partition, segment, segment.generation - 1)
        found = await self._with_contents(archive, partition, segment, offsets)
        old_files = [self._directory(partition)]
        if found and segment in partition.archived:  # else retention was faster
            old_files += await self._replace(archive, partition, segment, offsets)
        return found, old_files

    def _directory(self, partition: PartitionLog) -> str:
        """Where an archived segment lies while it is rewritten."""
        return f"{self._store.path}/erasure-{partition.topic_id}-{partition.index}{DELETED}"

    async def _with_contents(
        self,
        archive: "Archive",
        partition: PartitionLog,
        segment: ArchivedSegment,
        offsets: Sequence[int],
    ) -> set[int]:
        """The offsets at which the archived segment has a record that is not erased yet."""
        found: set[int] = set()
        chunks = await self._chunks(segment)
        ends = [chunk.base_offset for chunk in chunks[1:]] + [segment.end_offset]
        for chunk, end in zip(chunks, ends, strict=True):
            if erased_records.any_between(offsets, chunk.base_offset, end - 1):
                data = await archive.chunks.read(ChunkOf(partition, segment, chunk))
                found |= await self._store.in_reader(_contents_in, data, offsets)
        return found

    async def _chunks(self, segment: ArchivedSegment) -> list[Chunk]:
        files = self._store.storage.files
        return await self._store.in_reader(descriptor.read_chunks, files, segment)

    async def _replace(
        self,
        archive: "Archive",
        partition: PartitionLog,
        segment: ArchivedSegment,
        offsets: Sequence[int],
    ) -> list[str]:
        local = [
            local_segment
            for local_segment in partition.segments
            if local_segment.base_offset == segment.base_offset
        ]
        root = self._directory(partition)
        try:
            source = local[0] if local else await self._fetched(archive, partition, segment, root)
            if not local:
                await self._rewrite(partition, root, source, offsets)
                source = await self._store.in_worker(
                    segments_on_disk.open_sealed, self._store.storage, root, segment.base_offset
                )
            await archive.uploads.put_segment(
                partition, source, segment.end_offset, segment.generation + 1
            )
        finally:
            with contextlib.suppress(OSError):  # the next start removes it
                await self._store.in_worker(self._remove, root)
        await archive.chunks.settled(partition)
        old_files = archive.cache.evict(partition)
        await self._delete(archive, partition, segment, segment.generation)
        return old_files

    async def _fetched(
        self, archive: "Archive", partition: PartitionLog, segment: ArchivedSegment, root: str
    ) -> Segment:
        """The archived segment as files in the directory `root`."""
        in_worker, files = self._store.in_worker, self._store.storage.files
        await in_worker(self._remove, root)
        await in_worker(files.makedirs, root)
        stem = f"{root}/{segment.base_offset:020d}"
        found = await self._store.in_reader(descriptor.read, files, segment)
        for chunk in found.chunks:
            data = await archive.chunks.read(ChunkOf(partition, segment, chunk))
            await in_worker(self._write, f"{stem}.log", data, chunk.position)
        if found.aborted:  # the other indexes are written by the child
            entries = b"".join(ENTRY.pack(0, *aborted) for aborted in found.aborted)
            await in_worker(self._write, f"{stem}.txnindex", entries, 0)
        # Retention goes by it where records have no timestamps.
        newest_ns = segment.newest_ms * 1_000_000
        await in_worker(lambda: os.utime(f"{stem}.log", ns=(newest_ns, newest_ns)))
        return await in_worker(
            segments_on_disk.open_sealed, self._store.storage, root, segment.base_offset
        )

    async def _rewrite(
        self, partition: PartitionLog, root: str, fetched: Segment, offsets: Sequence[int]
    ) -> None:
        source = Source(fetched.base_offset, fetched.size_bytes)
        report = await self._rewritten(partition, root, source, offsets)
        if not report.inputs:
            raise CorruptLog(
                "an archived segment is not what its descriptor says", detail=fetched.log_path
            )
        await self._store.in_worker(self._use_cleaned, fetched)

    def _use_cleaned(self, fetched: Segment) -> None:
        """(worker) Nothing else reads these files."""
        files, stem = self._store.storage.files, fetched.log_path.removesuffix(".log")
        for suffix in swap.SUFFIXES:
            if os.path.exists(cleaned := f"{stem}.cleaned.{suffix}"):
                files.rename(cleaned, f"{stem}.{suffix}")
        self._store.storage.open_files.forget_in([fetched.directory])

    def _write(self, path: str, data: bytes, position: int) -> None:
        """(worker)"""
        files = self._store.storage.files
        fd = files.open(path, create=True)
        try:
            files.pwrite(fd, data, position)
        finally:
            files.close(fd)

    def _remove(self, root: str) -> None:
        """(worker)"""
        self._store.storage.open_files.forget_in([root])
        if os.path.isdir(root):
            self._store.storage.files.rmtree(root)

    async def _delete(
        self, archive: "Archive", partition: PartitionLog, segment: ArchivedSegment, generation: int
    ) -> None:
        await archive.objects.delete(object_names(partition, segment.base_offset, generation))


def _contents_in(data: bytes, offsets: Sequence[int]) -> set[int]:
    """(worker) Of a chunk whose checksum is right: whole batches. Raises CorruptLog."""
    found: set[int] = set()
    view, at = memoryview(data), 0
    while at < len(view):
        header = records.read_header(view, at)
        if erased_records.any_between(offsets, header.base_offset, header.last_offset):
            try:
                batch = view[at : at + header.size_bytes]
                found.update(erased_records.contents_at(batch, offsets))
            except MalformedMessage as error:
                detail = f"offset {header.base_offset}: {error}"
                raise CorruptLog("an archived batch has no records", detail=detail) from error
        at += header.size_bytes
    return found
