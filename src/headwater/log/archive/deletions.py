"""Deletes objects that no topic retains any longer: in the background, with retries.

What is to be deleted is durable before the first object goes, so a crash cannot leave a log that
begins with records that were removed, nor objects that nothing refers to:
  - a segment: its descriptor is renamed to `….archived.deleted`, and removed after its objects;
    of one that was not archived to the end there is `….archiving`, which is removed then
  - a topic: its id stands in the catalog (`TOPICS`), from before the topic leaves it until
    nothing with that id is left in the archive
"""

import asyncio
import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headwater.clock import sleep
from headwater.errors import ArchiveUnavailable, CorruptLog
from headwater.log.archive.descriptor import (
    BEGUN_SUFFIX,
    DELETED_SUFFIX,
    SIDE_FILES,
    SUFFIX,
    decode,
)
from headwater.log.archive.objects import Objects

if TYPE_CHECKING:
    from headwater.log.partitions.segments import PartitionSegments
    from headwater.log.store import LogStore

log = logging.getLogger(__name__)

TOPICS = "archive-deletions"  # documents of the catalog: {topic id: topic name}
BACKOFF_S = 10.0

_Job = tuple["PartitionSegments", int] | str  # a segment by its base offset, or the id of a topic
# The descriptor first: without it the others mean nothing.
_FILES = (".log", *SIDE_FILES)


def object_names(partition: "PartitionSegments", base_offset: int, generation: int) -> list[str]:
    """The objects of a segment as it was rewritten for that many times, but for the descriptor."""
    return [partition.object_name(base_offset, suffix, generation) for suffix in _FILES]


class Deletions:
    """See the module. Lives on the event loop."""

    def __init__(
        self, store: "LogStore", objects: Objects, uploading: "dict[PartitionSegments, Any]"
    ) -> None:
        self._store = store
        self._objects = objects
        self._uploading = uploading
        self._jobs: deque[_Job] = deque()
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.deleted_segments = 0
        self.failures = 0

    @property
    def pending(self) -> int:
        return len(self._jobs)

    def start(self) -> None:
        for topic_id in self._store.catalog.documents.get(TOPICS, {}):
            self.topic(topic_id)
        self._task = asyncio.create_task(self._run())

    def stop(self) -> list[asyncio.Task[None]]:
        if self._task is None:
            return []
        self._task.cancel()
        return [self._task]

    def segment(self, partition: "PartitionSegments", base_offset: int) -> None:
        self._add((partition, base_offset))

    def topic(self, topic_id: str) -> None:
        self._add(topic_id)

    def _add(self, job: _Job) -> None:
        self._jobs.append(job)
        self._wakeup.set()

    async def _run(self) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            for _ in range(len(self._jobs)):
                job = self._jobs[0]
                try:
                    if isinstance(job, str):
                        await self._delete_topic(job)
                    else:
                        await self._delete_segment(*job)
                except (ArchiveUnavailable, OSError) as error:
                    self.failures += 1
                    log.warning("archived objects cannot be deleted yet: %s", error)
                    self._jobs.append(job)
                except Exception:
                    log.exception("deleting archived objects failed; it is tried again")
                    self._jobs.append(job)
                self._jobs.popleft()
            if self._jobs:
                await sleep(self._store.clock, BACKOFF_S)
                self._wakeup.set()

    async def _delete_segment(self, partition: "PartitionSegments", base_offset: int) -> None:
        if partition.deleted:
            return  # it goes with its topic
        stem = f"{partition.directory}/{base_offset:020d}"
        generation = await self._store.in_worker(self._note, partition.directory, stem)
        if partition.is_erasing:
            raise ArchiveUnavailable("records of the partition are just being erased")
        names = [partition.object_name(base_offset, SUFFIX)]
        # Also what an erasure that a crash interrupted has left, or has not yet deleted.
        for number in range(max(generation - 1, 0), generation + 2):
            names += object_names(partition, base_offset, number)
        await self._objects.delete(names)
        if not partition.deleted:
            for suffix in (DELETED_SUFFIX, BEGUN_SUFFIX):
                await self._store.in_worker(self._store.storage.files.unlink, stem + suffix)
        self.deleted_segments += 1

    def _note(self, directory: str, stem: str) -> int:
        """(worker) From here on the segment is not archived any more, also after a crash. Gives
        its generation.
        """
        files = self._store.storage.files
        if os.path.exists(stem + SUFFIX):
            files.rename(stem + SUFFIX, stem + DELETED_SUFFIX)
        files.sync_directory(directory)
        try:
            path = stem + DELETED_SUFFIX
            return decode(path, files.read(path)).segment.generation
        except (FileNotFoundError, CorruptLog):  # it was not archived to the end
            return 0

    async def _delete_topic(self, topic_id: str) -> None:
        if UUID(topic_id) not in self._store.catalog.by_id:  # else a crash prevented its deletion
            prefix = f"{self._store.catalog.cluster_id}/{topic_id}"
            if any(partition.topic_id == topic_id for partition in self._uploading):
                raise ArchiveUnavailable("a segment of the topic is just being archived")
            names = await self._objects.names(prefix)
            await self._objects.delete(names)
            log.info("archived objects of a deleted topic were deleted: %d", len(names))
        await self._store.put_documents(TOPICS, {topic_id: None})
