"""Uploads sealed segments to the archive, in the background, oldest first.

A few at a time and no faster than the rate that is set; after a failure again, later and later.
Nothing counts as archived before every byte was read back and compared.
"""

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NamedTuple

import orjson

from headwater.clock import sleep
from headwater.errors import ArchiveUnavailable, CorruptLog, LogError
from headwater.log import segment as segments_on_disk
from headwater.log.archive import descriptor
from headwater.log.archive.descriptor import (
    BEGUN_SUFFIX,
    SIDE_FILES,
    SUFFIX,
    ArchivedSegment,
    Chunk,
    StoredFile,
)
from headwater.log.archive.objects import Objects
from headwater.log.partitions.transactions import ENTRY
from headwater.log.segment import Segment, Storage
from headwater.protocol.records import HEADER_BYTES, NO_TIMESTAMP, crc32c

if TYPE_CHECKING:
    from headwater.log.partitions.segments import PartitionSegments
    from headwater.log.store import LogStore

log = logging.getLogger(__name__)

AT_ONCE = 2
CHUNK_BYTES = 4 << 20
FIRST_BACKOFF_S = 1.0
LAST_BACKOFF_S = 60.0


class _Names(NamedTuple):
    """The names of a segment's objects, by suffix."""

    partition: "PartitionSegments"
    segment: Segment
    generation: int

    def __call__(self, suffix: str) -> str:
        return self.partition.object_name(self.segment.base_offset, suffix, self.generation)


class _Read(NamedTuple):
    chunk: Chunk
    data: bytes


class Uploads:
    """See the module. Lives on the event loop."""

    def __init__(self, store: "LogStore", objects: Objects, max_bytes_per_s: int) -> None:
        self._store = store
        self._objects = objects
        self._max_bytes_per_s = max_bytes_per_s
        self._free_at_s = 0.0  # when the rate allows the next byte
        self._queue: asyncio.Queue[PartitionSegments] = asyncio.Queue()
        self._queued: set[PartitionSegments] = set()
        self._backoff_s: dict[PartitionSegments, float] = {}
        self._described: set[str] = set()  # topics whose topic.json is there
        self._tasks: list[asyncio.Task[None]] = []
        self.busy: dict[PartitionSegments, Segment] = {}
        # Segments of which there may be objects, and which are not archived.
        self.begun: dict[PartitionSegments, set[int]] = {}
        self.uploaded_bytes = 0
        self.uploaded_segments = 0
        self.failures = 0
        self.last_error = ""  # "" as long as all is well

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run()) for _ in range(AT_ONCE)]

    def stop(self) -> list[asyncio.Task[None]]:
        for task in self._tasks:
            task.cancel()
        return self._tasks

    def look_at(self, partition: "PartitionSegments") -> None:
        """Something may be there to be archived."""
        if partition.config.remote_storage and partition not in self._queued:
            self._queued.add(partition)
            self._queue.put_nowait(partition)

    async def _run(self) -> None:
        while True:
            partition = await self._queue.get()
            self._queued.discard(partition)
            segment = next_to_archive(partition)
            if segment is None or partition in self.busy:
                continue
            self.busy[partition] = segment
            try:
                await self._archive(partition, segment)
            except CorruptLog as error:  # here, not there: the next one may be well
                partition.out_of_service(segment, error)
                self.look_at(partition)
            except (LogError, OSError) as error:
                self._failed(partition, error)
            except Exception:
                log.exception("archiving failed; it is tried again")
                self._try_later(partition)
            else:
                self._backoff_s.pop(partition, None)
                if self.last_error:
                    log.info("the archive takes segments again")
                    self.last_error = ""
                self.look_at(partition)
            finally:
                del self.busy[partition]
                if segment.doomed and not partition.deleted:  # it was deleted meanwhile
                    partition.delete_before(partition.log_start_offset)

    def give_up(self, partition: "PartitionSegments") -> list[int]:
        """The segments of which there may be objects, and which will never be archived."""
        busy = self.busy.get(partition)
        retained = {segment.base_offset for segment in partition.segments}
        retained |= {segment.base_offset for segment in partition.archived}
        if busy is not None:
            retained.add(busy.base_offset)
        dropped = self.begun.get(partition, set()) - retained
        self.begun[partition] = self.begun.get(partition, set()) - dropped
        if not self.begun[partition]:
            del self.begun[partition]
        return sorted(dropped)

    def forget(self, partition: "PartitionSegments") -> None:
        """It is deleted: what there is of it in the archive goes with its topic."""
        self.begun.pop(partition, None)
        self._backoff_s.pop(partition, None)
        self._described.discard(partition.topic_id)

    def _failed(self, partition: "PartitionSegments", error: Exception) -> None:
        if partition.deleted:
            return
        self.failures += 1
        if not self.last_error:
            log.error(
                "a segment cannot be archived; local files stay until it is: %s-%d: %s",
                partition.topic, partition.index, error,
            )  # fmt: skip
        self.last_error = str(error)
        self._try_later(partition)

    def _try_later(self, partition: "PartitionSegments") -> None:
        wait_s = self._backoff_s.get(partition, FIRST_BACKOFF_S)
        self._backoff_s[partition] = min(2 * wait_s, LAST_BACKOFF_S)
        self._store.clock.call_later(wait_s, self.look_at, partition)

    # ── one segment ───────────────────────────────────────────────────────────────────────────

    async def _archive(self, partition: "PartitionSegments", segment: Segment) -> None:
        """The segment is archived, and that is recorded durably, when this returns."""
        end_offset = _end_of(partition, segment)
        segment.pins += 1  # its files stay, whatever retention says meanwhile
        try:
            await self._begin(partition, segment)
            await self._describe_topic(partition)
            await self.put_segment(partition, segment, end_offset, 0)
            if not partition.deleted:
                self.begun.get(partition, set()).discard(segment.base_offset)
                await self._store.in_worker(self._ended, partition, segment)
        finally:
            partition.unpin(segment)
        self.uploaded_segments += 1
        log.debug("archived: %s-%d at %d", partition.topic, partition.index, segment.base_offset)

    async def put_segment(
        self, partition: "PartitionSegments", segment: Segment, end_offset: int, generation: int
    ) -> None:
        """The segment is archived as its `generation`, compared, and the descriptor of an earlier
        one is replaced durably, when this returns. The objects of an earlier one are still there.
        """
        segment.pins += 1
        try:
            name_of = _Names(partition, segment, generation)
            chunks = await self._put_log(name_of, segment)
            side_files = await self._store.in_reader(_read_side_files, self._store.storage, segment)
            files = await self._put_side_files(name_of, side_files)
            await self._compare(name_of, chunks, files)
            newest_ms = max_timestamp_ms = chunks[-1].max_timestamp_ms
            if newest_ms == NO_TIMESTAMP:
                files_on_disk = self._store.storage.files
                newest_ms = await self._store.in_reader(
                    files_on_disk.modified_at_ms, segment.log_path
                )
            fields = {
                "topic": partition.topic,
                "topic_id": partition.topic_id,
                "partition": partition.index,
                "base_offset": segment.base_offset,
                "end_offset": end_offset,
                "size_bytes": segment.size_bytes,
                "max_timestamp_ms": max_timestamp_ms,
                "newest_ms": newest_ms,
                "files": [list(file) for file in files],
                "aborted": segment.written.txn_entries,
                "epochs": partition.epochs.entries,
                "generation": generation,
            }
            txn_index = side_files.get(".txnindex", b"")
            if len(txn_index) != segment.written.txn_entries * ENTRY.size:
                raise CorruptLog("an index of aborted transactions is not what was written",
                                 detail=segment.txn_index_path)  # fmt: skip
            data = descriptor.encode(fields, chunks, txn_index)
            await self._put(partition.object_name(segment.base_offset, SUFFIX), data)
            path = f"{partition.directory}/{segment.base_offset:020d}{SUFFIX}"
            if not partition.deleted:
                await self._store.in_worker(self._store.storage.files.write_atomically, path, data)
                partition.add_archived(ArchivedSegment(path, fields))
        finally:
            partition.unpin(segment)

    async def _begin(self, partition: "PartitionSegments", segment: Segment) -> None:
        """Records durably that there may be objects of it from here on."""
        path = f"{partition.directory}/{segment.base_offset:020d}{BEGUN_SUFFIX}"
        begun = self.begun.setdefault(partition, set())
        if segment.base_offset not in begun:
            begun.add(segment.base_offset)
            await self._store.in_worker(self._store.storage.files.write_atomically, path, b"")

    def _ended(self, partition: "PartitionSegments", segment: Segment) -> None:
        """(worker)"""
        path = f"{partition.directory}/{segment.base_offset:020d}{BEGUN_SUFFIX}"
        if not partition.deleted:
            self._store.storage.files.unlink(path)

    async def _describe_topic(self, partition: "PartitionSegments") -> None:
        """For a person who finds the archive without the broker."""
        topic = self._store.catalog.topics.get(partition.topic)
        if topic is None or topic.id.hex != partition.topic_id or topic.id.hex in self._described:
            return
        fields = {"name": topic.name, "partitions": topic.partitions, "configs": topic.configs}
        name = f"{self._store.catalog.cluster_id}/{topic.id.hex}/topic.json"
        self._described.add(topic.id.hex)  # at once: the other upload may be of the same topic
        try:
            await self._objects.put(name, _once(orjson.dumps(fields)))
        except BaseException:
            self._described.discard(topic.id.hex)
            raise

    async def _put_log(self, name_of: "_Names", segment: Segment) -> list[Chunk]:
        chunks: list[Chunk] = []
        failure: Exception | None = None

        async def parts() -> AsyncIterator[bytes]:
            nonlocal failure
            position, newest_ms = 0, NO_TIMESTAMP
            while position < segment.size_bytes:
                try:
                    found = await self._store.in_reader(
                        _read_chunk, self._store.storage, segment, position, newest_ms
                    )
                except (CorruptLog, OSError) as error:
                    failure = error
                    raise
                await self._pace(len(found.data))
                chunks.append(found.chunk)
                newest_ms = found.chunk.max_timestamp_ms
                position += len(found.data)
                yield found.data
                self.uploaded_bytes += len(found.data)

        try:
            await self._objects.put(name_of(".log"), parts())
        except Exception:
            if failure is not None:  # our own disk's, whatever the store's client made of it
                raise failure from None
            raise
        return chunks

    async def _put_side_files(
        self, name_of: "_Names", side_files: dict[str, bytes]
    ) -> list[StoredFile]:
        stored: list[StoredFile] = []
        for suffix, data in side_files.items():
            await self._put(name_of(suffix), data)
            stored.append(StoredFile(suffix, len(data), crc32c(data)))
        return stored

    async def _put(self, name: str, data: bytes) -> None:
        await self._pace(len(data))
        await self._objects.put(name, _once(data))

    async def _compare(
        self, name_of: "_Names", chunks: list[Chunk], files: list[StoredFile]
    ) -> None:
        """Reads everything back. Raises ArchiveUnavailable if it is not what was put there."""
        stored = [(".log", chunk.position, chunk.size_bytes, chunk.crc) for chunk in chunks]
        stored += [(file.suffix, 0, file.size_bytes, file.crc) for file in files]
        for suffix, start, size_bytes, crc in stored:
            name = name_of(suffix)
            await self._pace(size_bytes)
            data = await self._objects.get(name, start, start + size_bytes)
            if len(data) != size_bytes or await self._store.in_reader(crc32c, data) != crc:
                raise ArchiveUnavailable("the archive holds something else than it was given",
                                         detail=name)  # fmt: skip

    async def _pace(self, size_bytes: int) -> None:
        """Waits until the rate allows so many bytes more."""
        now_s = self._store.clock.monotonic_s()
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self._max_bytes_per_s
        # A second ahead is fine: what counts is the rate, not the burst.
        if self._free_at_s - now_s > 1.0:
            await sleep(self._store.clock, self._free_at_s - now_s - 1.0)


def next_to_archive(partition: "PartitionSegments") -> Segment | None:
    """The oldest sealed segment that is not archived.

    None while a last compaction changes what the segments' names mean (a topic was compacted until
    just now); for good, until the next start, if it could not. None while records are erased: what
    is uploaded must not be what is being replaced.
    """
    is_changing = partition.is_swapping or partition.is_stuck or partition.is_erasing
    if partition.deleted or is_changing or not partition.config.remote_storage:
        return None
    return next(unarchived(partition), None)


def unarchived(partition: "PartitionSegments") -> Iterator[Segment]:
    """The sealed segments that are not archived, oldest first."""
    archived = {archived_segment.base_offset for archived_segment in partition.archived}
    for segment, _ in itertools.pairwise(partition.segments):
        if segment.base_offset not in archived and segment.size_bytes > 0 and not segment.corrupt:
            yield segment


def _end_of(partition: "PartitionSegments", segment: Segment) -> int:
    """Where the next one begins that has records or will have: nothing lies in between."""
    behind = [other for other in partition.segments if other.base_offset > segment.base_offset]
    return next((other.base_offset for other in behind if other.size_bytes), behind[-1].base_offset)


def _read_chunk(storage: Storage, segment: Segment, position: int, newest_ms: int) -> _Read:
    """(worker) Whole batches from `position` on; one at least. Raises CorruptLog or OSError."""
    start, base_offset = position, -1
    for at, header in segments_on_disk.headers(storage, segment, start):
        if at + header.size_bytes - start > CHUNK_BYTES and at > start:
            break
        if base_offset < 0:
            base_offset = header.base_offset
        newest_ms = max(newest_ms, header.max_timestamp)
        position = at + header.size_bytes
    with storage.open_files.use(segment.log_path) as fd:
        data = storage.files.pread(fd, position - start, start)
    if len(data) != position - start or len(data) < HEADER_BYTES:
        raise OSError(f"{segment.log_path} is shorter than it was")
    chunk = Chunk(base_offset, start, len(data), newest_ms, crc32c(data))
    return _Read(chunk, data)


def _read_side_files(storage: Storage, segment: Segment) -> dict[str, bytes]:
    """(worker) Those that are there, by suffix. A lost index is only slow."""
    stem = segment.log_path.removesuffix(".log")
    return {
        suffix: storage.files.read(stem + suffix)
        for suffix in SIDE_FILES
        if os.path.exists(stem + suffix)
    }


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
