"""Chunks of archived segments that were read back: small segments in files of their own.

    <data dir>/archive-cache/<topic id>-<partition>/00000000000000012345.<n>.log/.index/.timeindex

Bounded in bytes, least recently used out first; one that is just being sent stays. It begins
empty with every start, so none of its files has to survive anything. No name is used twice: a
chunk may be fetched again while its old files wait for a thread that removes them.
"""

import contextlib
import itertools
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from headwater.log import segment as segments_on_disk
from headwater.log.archive.descriptor import ChunkKey, ChunkOf
from headwater.log.disk.workers import Workers
from headwater.log.segment import Batch, Segment, Storage, Written
from headwater.protocol import records

if TYPE_CHECKING:
    from headwater.log.partitions.segments import PartitionSegments

NAME = "archive-cache"
_INDEX_INTERVAL_BYTES = 4096


class ChunkCache:
    """See the module. `get` and `discard` are for any thread, the rest is for the event loop."""

    def __init__(self, storage: Storage, data_dir: str, limit_bytes: int, workers: Workers) -> None:
        self._storage = storage
        self._directory = f"{data_dir}/{NAME}"
        self._limit_bytes = limit_bytes
        self._workers = workers
        self._lock = threading.Lock()
        self._serials = itertools.count(1)
        self._segments: OrderedDict[ChunkKey, Segment] = OrderedDict()
        self.size_bytes = 0
        self.hits = 0

    def clear(self) -> None:
        """(before serving) Removes what an earlier process left."""
        self._storage.files.rmtree(self._directory)

    def get(self, chunk: ChunkOf) -> Segment | None:
        with self._lock:
            segment = self._segments.get(chunk.key)
            if segment is not None:
                self._segments.move_to_end(chunk.key)
                self.hits += 1
            return segment

    def make_room(self, size_bytes: int) -> bool:
        """Whether so much more may be cached; the least recently used chunks are evicted for it."""
        with self._lock:
            for key, segment in list(self._segments.items()):
                if self.size_bytes + size_bytes <= self._limit_bytes:
                    break
                if segment.pins == 0:
                    self._remove(key)
            return self.size_bytes + size_bytes <= self._limit_bytes

    def add(self, chunk: ChunkOf, segment: Segment) -> None:
        with self._lock:
            self._segments[chunk.key] = segment
            self.size_bytes += segment.size_bytes

    def drop(self, partition: "PartitionSegments | None" = None) -> None:
        """Evicts all chunks that no reader has pinned: of one partition, or of all of them."""
        with self._lock:
            for key, segment in list(self._segments.items()):
                if partition in (None, key[0]) and (segment.pins == 0 or key[0].deleted):
                    self._remove(key)

    def evict(self, partition: "PartitionSegments") -> list[str]:
        """Evicts all chunks of a partition, also those that readers have pinned: their files go
        with the last one. Gives the paths of all of these files.
        """
        with self._lock:
            evicted = [key for key in self._segments if key[0] is partition]
            paths = [self._segments[key].log_path for key in evicted]
            for key in evicted:
                self._remove(key)
            return paths

    def discard(self, segment: Segment) -> None:
        """(any thread) It cannot be read; the archive still has what it was made of."""
        with self._lock:
            for key, cached in list(self._segments.items()):
                if cached is segment:
                    self._remove(key)

    def _remove(self, key: ChunkKey) -> None:
        segment = self._segments.pop(key)
        segment.doomed = True
        self.size_bytes -= segment.size_bytes
        if segment.pins == 0 or key[0].deleted:  # else with the last reader
            self._workers.submit(segments_on_disk.remove, self._storage, segment)

    def write(self, chunk: ChunkOf, data: bytes) -> Segment:
        """(worker) Puts a chunk's bytes into files, with an index. Raises OSError."""
        files = self._storage.files
        directory = f"{self._directory}/{chunk.partition.topic_id}-{chunk.partition.index}"
        files.makedirs(directory)
        base_offset = chunk.chunk.base_offset
        segment = Segment(directory, base_offset, Written())
        segment.move_to(f"{directory}/{base_offset:020d}.{next(self._serials)}")
        try:
            for path in (segment.log_path, segment.index_path, segment.time_index_path):
                with self._storage.open_files.use(path, create=True) as fd:
                    files.truncate(fd, 0)
            batches = list(_batches(data))
            segments_on_disk.write(
                self._storage, segment, segment.written, batches, _INDEX_INTERVAL_BYTES
            )
        except OSError:
            with contextlib.suppress(OSError):
                segments_on_disk.remove(self._storage, segment)
            raise
        return segment


def _batches(data: bytes) -> list[Batch]:
    """The chunk's checksum was right, so these are the batches that were written."""
    view, position, found = memoryview(data), 0, []
    while position < len(view):
        header = records.read_header(view, position)
        found.append(Batch(header, view[position : position + header.size_bytes]))
        position += header.size_bytes
    return found
