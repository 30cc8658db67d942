"""What is archived: a descriptor for each segment, beside the local log and in the archive.

    00000000000000012345.archived
      one line of JSON: offsets, sizes, timestamps, the files and their checksums, leader epochs
      the chunks, 36 bytes each:
        int64 base offset │ int64 position │ int32 size │ int64 timestamp │ uint32 crc │ int32 0
      the aborted transactions, as in the segment's .txnindex
      uint32 crc of all of it                                                (all CRCs are CRC-32C)

A chunk is a run of whole batches of some MiB, the unit in which a segment is read back. Its
timestamp is the largest in the segment up to its end, so the first chunk that has a time at or
after some moment is found without reading any of them.

The file is written at once and never changed, so there is nothing to recover. Only what `find`
and retention need stays in memory; the chunks are read when a consumer reads the segment.
"""

import logging
import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from headwater.errors import ArchiveUnavailable, CorruptLog
from headwater.log.disk.files import Files
from headwater.log.partitions.transactions import ENTRY, AbortedTransaction
from headwater.log.segment import Segment
from headwater.protocol.records import crc32c

if TYPE_CHECKING:
    from headwater.log.partitions.segments import PartitionSegments

log = logging.getLogger(__name__)

SUFFIX = ".archived"
DELETED_SUFFIX = ".archived.deleted"
# There while a segment is being archived: an empty file that says that there may be objects of it.
BEGUN_SUFFIX = ".archiving"
SIDE_FILES = (".index", ".timeindex", ".txnindex")
# 2: of a segment that was rewritten, whose objects have other names. An older Headwater would look
# for the wrong ones.
VERSIONS = (1, 2)
_CHUNK = struct.Struct(">qqiqIi")
_CRC = struct.Struct(">I")


class Chunk(NamedTuple):
    base_offset: int
    position: int  # in the segment's log
    size_bytes: int
    max_timestamp_ms: int  # of the segment up to the end of this chunk
    crc: int


class StoredFile(NamedTuple):
    """One of the segment's other files, as it is in the archive."""

    suffix: str
    size_bytes: int
    crc: int


class ArchivedSegment:
    """A segment that is in the archive, whole and compared. Never changes."""

    __slots__ = (
        "aborted", "base_offset", "end_offset", "files", "generation", "max_timestamp_ms",
        "newest_ms", "path", "size_bytes", "topic_id",
    )  # fmt: skip

    def __init__(self, path: str, fields: dict[str, Any]) -> None:
        self.path = path
        self.topic_id: str = fields["topic_id"]
        self.base_offset: int = fields["base_offset"]
        self.end_offset: int = fields["end_offset"]  # of the last record, + 1
        self.size_bytes: int = fields["size_bytes"]  # of the log
        self.max_timestamp_ms: int = fields["max_timestamp_ms"]
        self.newest_ms: int = fields["newest_ms"]  # the same, or the file's age if there is none
        self.aborted: int = fields["aborted"]  # transactions
        # How often it was rewritten since it was archived (erasure): part of its objects' names.
        self.generation: int = fields.get("generation", 0)
        self.files = tuple(StoredFile(*file) for file in fields["files"])
        if not all(file.suffix in SIDE_FILES for file in self.files):
            raise ValueError("a file that no segment has")  # names of objects are made of it


ChunkKey = tuple["PartitionSegments", int, int]  # partition, base offset, generation


class ChunkOf(NamedTuple):
    """A chunk, and where it belongs."""

    partition: "PartitionSegments"
    segment: ArchivedSegment
    chunk: Chunk

    def prefetch(self) -> None:
        """(any thread) Somebody will want it soon."""
        archive = self.partition.archive
        if archive is not None:
            archive.on_loop(archive.chunks.prefetch, self)

    @property
    def key(self) -> ChunkKey:
        return self.partition, self.chunk.base_offset, self.segment.generation

    @property
    def is_current(self) -> bool:
        """False: its segment was rewritten, or is no longer archived. On the event loop."""
        return any(
            segment.base_offset == self.segment.base_offset
            and segment.generation == self.segment.generation
            for segment in self.partition.archived
        )


class NotCached(Exception):
    """What was to be read is in the archive, and not here."""

    def __init__(self, chunk: ChunkOf) -> None:
        super().__init__(chunk.segment.path)
        self.chunk = chunk


class Descriptor(NamedTuple):
    segment: ArchivedSegment
    chunks: list[Chunk]
    aborted: list[AbortedTransaction]


def encode(fields: dict[str, Any], chunks: Sequence[Chunk], txn_index: bytes) -> bytes:
    version = 2 if fields["generation"] else 1
    line = orjson.dumps({"version": version, **fields, "chunks": len(chunks)}) + b"\n"
    data = line + b"".join(_CHUNK.pack(*chunk, 0) for chunk in chunks) + txn_index
    return data + _CRC.pack(crc32c(data))


def decode(path: str, data: bytes) -> Descriptor:
    """Raises CorruptLog."""
    try:
        if _CRC.pack(crc32c(data[:-4])) != data[-4:]:
            raise ValueError("the checksum does not fit")
        line, _, rest = data[:-4].partition(b"\n")
        fields = orjson.loads(line)
        if fields["version"] not in VERSIONS:
            raise ValueError(f"version {fields['version']}")
        aborted_at = fields["chunks"] * _CHUNK.size
        chunks = [Chunk(*chunk[:5]) for chunk in _CHUNK.iter_unpack(rest[:aborted_at])]
        aborted = [AbortedTransaction(*entry[1:]) for entry in ENTRY.iter_unpack(rest[aborted_at:])]
        return Descriptor(ArchivedSegment(path, fields), chunks, aborted)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise CorruptLog(
            "the descriptor of an archived segment is damaged",
            detail=f"{path}: {error}",
            hint="the archive has a copy under the same name",
        ) from error


def read_chunks(files: Files, segment: ArchivedSegment) -> list[Chunk]:
    """(worker) Raises CorruptLog or ArchiveUnavailable."""
    return read(files, segment).chunks


def read_aborted(files: Files, segment: ArchivedSegment) -> list[AbortedTransaction]:
    """(worker) The transactions whose abort is in the segment. Raises as `read_chunks`."""
    return read(files, segment).aborted


def read(files: Files, segment: ArchivedSegment) -> Descriptor:
    """(worker) All of it, as it is now: of a later generation if the segment was rewritten just
    now. Raises as `read_chunks`.
    """
    try:
        return decode(segment.path, files.read(segment.path))
    except OSError as error:
        # Retention may just have removed it; another attempt gets that error.
        raise ArchiveUnavailable(
            "an archived segment's descriptor cannot be read", detail=str(error)
        ) from error


class ArchivedPosition(NamedTuple):
    """Somewhere in the archive, to a chunk's precision."""

    archived_bytes: int  # from there to where the local log begins
    timestamp_ms: int


def archived_position(
    files: Files, segments: Sequence[ArchivedSegment], offset: int
) -> ArchivedPosition | None:
    """(worker) Where `offset` is in the archive. Raises as `read_chunks`."""
    behind_bytes = 0
    for segment in reversed(segments):
        if segment.base_offset <= offset or segment is segments[0]:
            for chunk in reversed(read_chunks(files, segment)):
                behind_bytes += chunk.size_bytes
                if chunk.base_offset <= offset or chunk.position == 0:
                    return ArchivedPosition(behind_bytes, chunk.max_timestamp_ms)
        behind_bytes += segment.size_bytes
    return None


class Found(NamedTuple):
    """What lies beside a log: oldest first. `doomed` and `begun` have by their base offset what is
    still to be deleted from the archive, and what may be half in it.
    """

    segments: list[ArchivedSegment]
    doomed: list[int]
    begun: list[int]


def load(files: Files, directory: str, topic_id: str) -> Found:
    """The descriptors in a partition's directory; one that cannot be read, or is another topic's,
    is reported.
    """
    found = Found([], [], [])
    if not os.path.isdir(directory):
        return found
    for name in sorted(files.listdir(directory)):
        base, _, suffix = name.partition(".")
        if suffix == SUFFIX[1:]:
            path = f"{directory}/{name}"
            try:
                segment = decode(path, files.read(path)).segment
            except (CorruptLog, OSError) as error:
                log.error("an archived segment is left out: %s", error)
                continue
            if segment.topic_id == topic_id:
                found.segments.append(segment)
            else:
                log.error("an archived segment is left out, it is another topic's: %s", path)
        elif suffix == DELETED_SUFFIX[1:]:
            found.doomed.append(int(base))
        elif suffix == BEGUN_SUFFIX[1:]:
            found.begun.append(int(base))
    return found


def connected(
    archived: Sequence[ArchivedSegment], local: Sequence[Segment]
) -> tuple[ArchivedSegment, ...]:
    """Those from which one can read on, without a gap, into the local log."""
    reachable: list[ArchivedSegment] = []
    reaches = local[0].base_offset if local else None
    for segment in reversed(archived):
        if reaches is not None and segment.end_offset < reaches:
            log.error("archived records cannot be reached, a segment is missing: %s", segment.path)
            break
        reachable.append(segment)
        reaches = segment.base_offset if reaches is None else min(reaches, segment.base_offset)
    return tuple(reversed(reachable))


def local_start(archived: Sequence[ArchivedSegment], local: Sequence[Segment]) -> int:
    """The offset from which the local segments have no hole that only the archive fills.

    Local files are removed oldest first, but not synced in that order: after a power cut an older
    segment may be back while a newer one is not. A reader takes local segments for contiguous and
    would skip the hole without an error.
    """
    local_offsets = {segment.base_offset for segment in local}
    archived_offsets = {segment.base_offset for segment in archived}
    start = local[0].base_offset if local else 0
    for hole in archived:
        if hole.end_offset <= start or hole.base_offset in local_offsets:
            continue
        older = (it for it in local if it.base_offset < hole.base_offset and it.size_bytes)
        if all(segment.base_offset in archived_offsets for segment in older):
            start = hole.end_offset
    return start
