"""The archive as the log and the broker use it; its parts are in __init__.py."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from headwater.log.archive import descriptor
from headwater.log.archive.cache import ChunkCache
from headwater.log.archive.chunks import ChunkReader
from headwater.log.archive.deletions import Deletions
from headwater.log.archive.descriptor import ArchivedSegment, ChunkOf, NotCached
from headwater.log.archive.objects import open_objects
from headwater.log.archive.options import ArchiveOptions
from headwater.log.archive.uploads import Uploads
from headwater.log.segment import Segment

if TYPE_CHECKING:
    from headwater.log.partitions.segments import PartitionSegments
    from headwater.log.store import LogStore


class Archive:
    """Lives on the event loop, but for what is marked (worker)."""

    def __init__(self, store: "LogStore", options: ArchiveOptions) -> None:
        self._store = store
        self.objects = options.objects or open_objects(
            options.url, endpoint=options.endpoint, region=options.region
        )
        self.cache = ChunkCache(store.storage, store.path, options.cache_bytes, store.workers)
        self.chunks = ChunkReader(store, self.objects, self.cache)
        self.uploads = Uploads(store, self.objects, options.max_bytes_per_s)
        self.deletions = Deletions(store, self.objects, self.uploads.busy)
        self.waiting_bytes: dict[PartitionSegments, int] = {}  # due to go, and not archived yet

    @property
    def on_loop(self) -> Callable[..., None]:
        return self._store.on_loop

    @property
    def url(self) -> str:
        return self.objects.url

    def start(self) -> None:
        """Begins the background work; the partitions are open."""
        self.uploads.start()
        self.deletions.start()
        for partition in self._store.partitions.values():
            self.uploads.look_at(partition)

    async def close(self) -> None:
        """Ends the background work where it stands; the next start takes it up again."""
        tasks = self._stop()
        if tasks:
            await asyncio.wait(tasks)
        self.objects.close()

    def abandon(self) -> None:
        self._stop()
        self.objects.close()

    def _stop(self) -> list[asyncio.Task[None]]:
        self.chunks.close()
        return self.uploads.stop() + self.deletions.stop()

    def take_over(self, partition: "PartitionSegments", found: descriptor.Found) -> None:
        """What an earlier process left half done."""
        if found.begun:
            self.uploads.begun[partition] = set(found.begun)
        for base_offset in found.doomed:
            self.deletions.segment(partition, base_offset)

    def start_moved(self, partition: "PartitionSegments", dropped: list[ArchivedSegment]) -> None:
        """The objects go of what is in front of the log's start now, archived or half archived."""
        base_offsets = [segment.base_offset for segment in dropped] + self.uploads.give_up(
            partition
        )
        for base_offset in base_offsets:
            self.deletions.segment(partition, base_offset)
        if dropped:
            self.cache.drop(partition)

    def forget_topic(self, topic_id: str, partitions: "Sequence[PartitionSegments]") -> None:
        for partition in partitions:
            self.cache.drop(partition)
            self.waiting_bytes.pop(partition, None)
            self.uploads.forget(partition)
        self.deletions.topic(topic_id)

    # ── reading, in a worker thread ───────────────────────────────────────────────────────────

    def chunks_from(
        self, partition: "PartitionSegments", offset: int
    ) -> Iterator[tuple[Segment, int, ChunkOf | None]]:
        """(worker) Archived chunks, as segments, from the one that holds `offset` on, each with
        the offset behind it and the next one of the same segment. Raises NotCached at one that is
        not here, CorruptLog or ArchiveUnavailable if a descriptor cannot be read.
        """
        for archived in partition.archived_only():
            if archived.end_offset > offset:
                segment, chunks, _ = descriptor.read(self._store.storage.files, archived)
                following = [*chunks[1:], None]
                for chunk, next_chunk in zip(chunks, following, strict=True):
                    end = segment.end_offset if next_chunk is None else next_chunk.base_offset
                    if end > offset:
                        after = next_chunk and ChunkOf(partition, segment, next_chunk)
                        yield self._cached(ChunkOf(partition, segment, chunk)), end, after

    def chunks_at_or_after(
        self, partition: "PartitionSegments", timestamp_ms: int
    ) -> Iterator[Segment]:
        """(worker) The same, of chunks that may have a record with such a timestamp."""
        for archived in partition.archived_only():
            if archived.max_timestamp_ms >= timestamp_ms:
                segment, chunks, _ = descriptor.read(self._store.storage.files, archived)
                for chunk in chunks:
                    if chunk.max_timestamp_ms >= timestamp_ms:
                        yield self._cached(ChunkOf(partition, segment, chunk))

    def _cached(self, chunk: ChunkOf) -> Segment:
        segment = self.cache.get(chunk)
        if segment is None:
            raise NotCached(chunk)
        return segment

    # ── what lies where ───────────────────────────────────────────────────────────────────────

    def not_archived_bytes(self, partition: "PartitionSegments") -> int:
        """Bytes of sealed segments that are still to be archived."""
        if not partition.config.remote_storage:
            return 0
        archived = {segment.base_offset for segment in partition.archived}
        return sum(
            segment.size_bytes
            for segment, _ in itertools.pairwise(partition.segments)
            if segment.base_offset not in archived
        )
