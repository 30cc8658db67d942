"""The segments of one partition, on this machine and in the archive, and when their files may go.

Both lists are tuples that the event loop replaces and never changes, so that a worker thread can
use the one it has read. A segment that leaves the list is `doomed`. Its files are removed when
nothing has it pinned, and by nothing at all once the partition is deleted: the paths may then
belong to another topic of the same name.
"""

import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.errors import CorruptLog
from headwater.log import segment as segments_on_disk
from headwater.log.archive.descriptor import ArchivedSegment
from headwater.log.config import TopicConfig
from headwater.log.partitions.epochs import LeaderEpochs
from headwater.log.segment import Segment, Storage
from headwater.protocol.records import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.log.archive.archive import Archive
    from headwater.log.store import LogStore


class PartitionSegments:
    """What a partition consists of: its segments, its bounds, and the readers that wait for more.

    This is all that compaction and the archive see of a partition. Runs on the event loop.
    """

    __slots__ = (
        "_store", "archived", "clean_offset", "config", "deleted", "directory", "epochs",
        "high_watermark", "index", "is_erasing", "is_stuck", "is_swapping", "log_start_offset",
        "segments", "stable_waiters", "topic", "topic_id", "waiters",
    )  # fmt: skip

    def __init__(
        self, store: "LogStore", topic: str, index: int, config: TopicConfig, epochs: LeaderEpochs
    ) -> None:
        self._store = store
        self.topic = topic
        self.topic_id = ""  # in hex; a name can be used again, an id never is
        self.index = index
        self.config = config
        self.epochs = epochs
        self.directory = f"{store.path}/{topic}-{index}"
        self.segments: tuple[Segment, ...] = ()
        self.archived: tuple[ArchivedSegment, ...] = ()
        self.log_start_offset = 0
        self.high_watermark = 0
        self.clean_offset = 0  # compaction has been so far
        self.is_swapping = False  # compaction is just changing the files' names
        self.is_erasing = False  # records are being erased: nothing is archived meanwhile
        self.is_stuck = False  # it could not, and will only at the next start
        self.deleted = False  # the paths may belong to another topic of the same name by now
        # Called with the number of bytes that have become readable; the others with those in
        # front of open transactions.
        self.waiters: set[Callable[[int], None]] | None = None
        self.stable_waiters: set[Callable[[int], None]] | None = None

    @property
    def storage(self) -> Storage:
        return self._store.storage

    @property
    def archive(self) -> "Archive | None":
        return self._store.archive

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def total_bytes(self) -> int:
        """On this machine and in the archive."""
        return self.size_bytes + sum(segment.size_bytes for segment in self.archived_only())

    @property
    def local_start_offset(self) -> int:
        """Where the part of the log begins that lies on this machine."""
        segments = self.segments
        first = segments[0].base_offset if segments else self.high_watermark
        return max(first, self.log_start_offset)

    def segments_from(self, offset: int) -> tuple[Segment, ...]:
        """The segments that may hold `offset` or something behind it."""
        segments = self.segments
        after = bisect.bisect_right(segments, offset, key=lambda segment: segment.base_offset)
        return segments[max(after - 1, 0) :]

    def unpin(self, segment: Segment) -> None:
        segment.pins -= 1
        if segment.doomed and segment.pins == 0 and not self.deleted:
            self._store.workers.submit(segments_on_disk.remove, self._store.storage, segment)

    def out_of_service(self, segment: Segment, error: Exception) -> CorruptLog:
        """Reports, once, a segment that cannot be read."""
        if not segment.corrupt and not segment.doomed:
            segment.corrupt = True
            self._store.record_corrupt(segment, error)
        return CorruptLog(
            "a segment is out of service",
            detail=f"{segment.log_path}: {error}",
            hint="restore the file from a backup, or consume from an offset behind it",
        )

    # ── removal ───────────────────────────────────────────────────────────────────────────────

    def delete_before(self, offset: int) -> None:
        """Moves the log's start, and removes the segments that lie wholly in front of it."""
        self.log_start_offset = max(self.log_start_offset, offset)
        self.drop_local(self.log_start_offset)
        dropped = [
            segment for segment in self.archived if segment.end_offset <= self.log_start_offset
        ]
        if self.archive is not None:
            self.archived = self.archived[len(dropped) :]
            self.archive.start_moved(self, dropped)

    def drop_local(self, offset: int) -> None:
        """Removes the local files of segments that lie wholly in front of `offset`."""
        retained = list(self.segments)
        while len(retained) > 1 and retained[1].base_offset <= offset:
            self._doom(retained.pop(0))
        if len(retained) != len(self.segments):
            self.segments = tuple(retained)

    def begin_swap(self, inputs: Sequence[Segment]) -> None:
        """Compaction is about to replace them: only it touches their files until `end_swap`."""
        self.is_swapping = True
        for segment in inputs:
            segment.pins += 1

    def replace(self, inputs: Sequence[Segment], cleaned: Segment) -> None:
        """Replaces segments by the cleaned one that was made from them."""
        if self.deleted:
            return
        if not any(segment in self.segments for segment in inputs):
            # They left the log meanwhile. Back in it, their successor could lie in front of a hole.
            self._doom(cleaned)
            return
        segments = [segment for segment in self.segments if segment not in inputs]
        bisect.insort(segments, cleaned, key=lambda segment: segment.base_offset)
        self.segments = tuple(segments)
        for segment in inputs:
            segment.doomed = True
        self.delete_before(self.log_start_offset)  # retention may have passed it meanwhile

    def end_swap(self, inputs: Sequence[Segment]) -> None:
        self.is_swapping = False
        for segment in inputs:
            self.unpin(segment)
        if self.archive is not None:
            self.archive.uploads.look_at(self)

    def doom_all(self) -> None:
        """The partition is being deleted: no path of it is touched from here on."""
        self.deleted = True
        for segment in self.segments:
            segment.doomed = True
        self.segments = ()
        self.wake()  # a waiting reader gets its error now

    def _doom(self, segment: Segment) -> None:
        segment.doomed = True
        if segment.pins == 0:
            self._store.workers.submit(segments_on_disk.remove, self._store.storage, segment)

    # ── the archive ───────────────────────────────────────────────────────────────────────────

    def object_name(self, base_offset: int, suffix: str, generation: int = 0) -> str:
        """The object that stores one file of a segment, as it was rewritten for that many times."""
        cluster_id = self._store.catalog.cluster_id
        middle = f".{generation}" if generation else ""
        return f"{cluster_id}/{self.topic_id}/{self.index}/{base_offset:020d}{middle}{suffix}"

    @property
    def archived_end(self) -> int:
        """The offset behind the last one that is archived, from the start of the log on."""
        return self.archived[-1].end_offset if self.archived else self.log_start_offset

    def archived_only(self) -> tuple[ArchivedSegment, ...]:
        """The archived segments whose files are not on this machine any longer."""
        segments = self.segments
        start = segments[0].base_offset if segments else self.high_watermark
        return tuple(segment for segment in self.archived if segment.base_offset < start)

    def add_archived(self, segment: ArchivedSegment) -> None:
        """Registers a segment whose upload is complete and durably recorded."""
        if self.deleted:
            return
        others = (other for other in self.archived if other.base_offset != segment.base_offset)
        self.archived = tuple(sorted((*others, segment), key=lambda archived: archived.base_offset))
        self.delete_before(self.log_start_offset)  # retention may have passed it meanwhile

    # ── readers that wait ─────────────────────────────────────────────────────────────────────

    def wake(self) -> None:
        """Makes every waiting reader look again."""
        for wake in (*(self.waiters or ()), *(self.stable_waiters or ())):
            wake(INT64_MAX)
