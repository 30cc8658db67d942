"""Fetches chunks from the archive: in the background, each once for all readers that wait.

A reader that needs a chunk which is not in the cache raises NotCached (in its thread). The event
loop then asks for it (`want`); the partition's waiters are called when it is there or cannot be
fetched. How many are in flight and how many wait is bounded; a reader that finds the queue full
asks again later, as a consumer does anyway.
"""

import asyncio
import errno
import logging
from typing import TYPE_CHECKING

from headwater.errors import ArchiveUnavailable, CorruptLog, LogError
from headwater.log.archive.cache import ChunkCache
from headwater.log.archive.descriptor import ChunkKey, ChunkOf
from headwater.log.archive.objects import Objects
from headwater.protocol.records import crc32c

if TYPE_CHECKING:
    from headwater.log.partitions.segments import PartitionSegments
    from headwater.log.store import LogStore

log = logging.getLogger(__name__)

AT_ONCE = 4
MAX_WANTED = 64
TIMEOUT_S = 15.0
# Readers that ask within that time get the same failure; then it is tried again.
FAILURE_S = 1.0
CORRUPT_S = 60.0
MAX_FAILURES = 1000


class ChunkReader:
    """See the module. Lives on the event loop."""

    def __init__(self, store: "LogStore", objects: Objects, cache: ChunkCache) -> None:
        self._store = store
        self._objects = objects
        self._cache = cache
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[ChunkKey, asyncio.Task[None]] = {}
        self._failures: dict[ChunkKey, tuple[float, LogError]] = {}
        self.fetched_bytes = 0
        self.failures = 0
        self.corrupt: set[str] = set()

    @property
    def waiting(self) -> int:
        return len(self._tasks)

    def want(self, chunk: ChunkOf) -> asyncio.Task[None] | None:
        """Begins to fetch a chunk, or joins those that wait for it; None if too much waits already.

        Raises what became of it if it failed a moment ago: ArchiveUnavailable or CorruptLog.
        """
        failure = self._failures.get(chunk.key)
        if failure is not None:
            if self._store.clock.monotonic_s() < failure[0]:
                raise failure[1]
            del self._failures[chunk.key]
        task = self._tasks.get(chunk.key)
        if task is None and len(self._tasks) < MAX_WANTED:
            task = asyncio.create_task(self._fetch(chunk))
            self._tasks[chunk.key] = task
        return task

    def prefetch(self, chunk: ChunkOf) -> None:
        """Whoever reads one chunk wants the next one soon; only if there is no hurry elsewhere."""
        if len(self._tasks) < AT_ONCE and self._cache.get(chunk) is None:
            try:
                self.want(chunk)
            except LogError:
                return  # a reader that needs it will get the error

    async def fetched(self, chunk: ChunkOf) -> None:
        """The chunk is in the cache. Raises ArchiveUnavailable or CorruptLog."""
        task = self.want(chunk)
        if task is None:
            raise ArchiveUnavailable("too many readers wait for the archive")
        await asyncio.wait([task])
        failure = self._failures.get(chunk.key)
        if failure is not None:
            raise failure[1]

    async def settled(self, partition: "PartitionSegments") -> None:
        """Nothing that was being fetched of the partition is on its way any more."""
        tasks = [task for key, task in self._tasks.items() if key[0] is partition]
        if tasks:
            await asyncio.wait(tasks)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _fetch(self, chunk: ChunkOf) -> None:
        try:
            async with self._turn:
                await self._fetch_into_cache(chunk)
        except LogError as error:
            self._record_failure(chunk, error)
        except OSError as error:  # the local disk
            if error.errno == errno.ENOSPC:
                self._cache.drop()
            self._record_failure(
                chunk, ArchiveUnavailable("the cache cannot be written", detail=str(error))
            )
        finally:
            self._tasks.pop(chunk.key, None)
            chunk.partition.wake()

    async def _fetch_into_cache(self, chunk: ChunkOf) -> None:
        if chunk.partition.deleted or self._cache.get(chunk) is not None or not chunk.is_current:
            return  # who wants it looks again
        data = await self.read(chunk)
        # At the last moment: two that arrive together must not both count on the same room.
        segment = await self._store.in_reader(self._cache.write, chunk, data)
        has_room = self._cache.make_room(len(data))
        self._cache.add(chunk, segment)
        if not has_room or chunk.partition.deleted:
            self._cache.drop(chunk.partition)
        if not has_room:
            raise ArchiveUnavailable("the cache is full of what is just being sent")
        self.fetched_bytes += len(data)

    async def read(self, chunk: ChunkOf) -> bytes:
        """The chunk's bytes, checked; a second time if they are not what was stored. Raises
        ArchiveUnavailable or CorruptLog.
        """
        _, segment, (_, position, size_bytes, _, crc) = chunk
        name = chunk.partition.object_name(segment.base_offset, ".log", segment.generation)
        for _ in range(2):
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    data = await self._objects.get(name, position, position + size_bytes)
            except TimeoutError:
                raise ArchiveUnavailable(
                    "the archive does not answer in time", detail=name
                ) from None
            if len(data) == size_bytes and await self._store.in_reader(crc32c, data) == crc:
                self.corrupt.discard(name)
                return data
        self.corrupt.add(name)
        raise CorruptLog(
            "an archived segment is damaged",
            detail=f"{self._objects.url}/{name} at byte {position}",
            hint="restore the object from a backup, or consume from an offset behind it",
        )

    def _record_failure(self, chunk: ChunkOf, error: LogError) -> None:
        self.failures += 1
        log.error("archived records cannot be read: %s", error)
        if len(self._failures) >= MAX_FAILURES:
            self._failures.clear()
        wait_s = CORRUPT_S if isinstance(error, CorruptLog) else FAILURE_S
        self._failures[chunk.key] = (self._store.clock.monotonic_s() + wait_s, error)
