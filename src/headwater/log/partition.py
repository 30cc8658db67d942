"""One partition's log: records in, in order and durable; records out, from any offset.

Life of an append:

  1. `append` (event loop): the batch is checked against its producer's sequence, gets the next
     offsets, and joins the pending ones. Nothing is on disk; nobody can read it.
  2. One commit at a time per partition runs in a worker thread: it writes all that is pending,
     seals and begins segments on the way, and syncs once. What arrives meanwhile waits for the
     next commit: that is the group commit.
  3. `_committed` (event loop): the high watermark moves, readers wake, producers are answered.

Invariants
  - log_start_offset <= high_watermark <= next_offset
  - everything below the high watermark is on disk (with `headwater.durability = os`: handed to
    the operating system), and nothing at or above it is ever shown to a reader
  - if a commit fails, nothing of it nor of what waits behind it was acknowledged: the offsets and
    the producers' state go back to the high watermark, and the files are cut there before the
    next write (a failed fsync leaves pages in an unknown state, so it is never just repeated)
"""

import bisect
import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.errors import (
    ApiError,
    ArchiveUnavailable,
    CorruptLog,
    OffsetOutOfRange,
    StorageFailed,
)
from headwater.log import segment as segments_on_disk
from headwater.log import transactions
from headwater.log.archive.descriptor import (
    ArchivedPlace,
    ArchivedSegment,
    archived_place,
    read_aborted,
)
from headwater.log.commit import Append, Commit, Done
from headwater.log.config import TopicConfig
from headwater.log.epochs import LeaderEpochs
from headwater.log.producers import Changes, Producers
from headwater.log.segment import Batch, Segment, Storage
from headwater.log.transactions import AbortedTransaction, OpenTransaction
from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.primitives import Splice
from headwater.protocol.records import INT64_MAX, NO_PRODUCER_ID, TRANSACTIONAL, BatchHeader, Marker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headwater.log.archive.archive import Archive
    from headwater.log.archive.descriptor import ChunkOf
    from headwater.log.store import LogStore

# A commit takes at most this much: half of what one connection may have in work, so that the next
# one is being received while this one is synced. 16 MiB made producers wait for whole commits.
COMMIT_BYTES = 4 << 20
RECENT_BOUNDARIES = 64
# Of one partition, each about half a kilobyte. Beyond that those make way that have sent nothing
# for longer than clients repeat a batch (delivery.timeout.ms is 2 minutes, librdkafka's 5); if all
# have, a new one has to wait. A producer that may still repeat a batch is never forgotten.
MAX_PRODUCERS = 20_000
PRODUCER_IDLE_MS = 15 * 60_000


class Slice(Splice):
    """A run of whole batches in a segment's file, on its way to a client.

    Once pinned (`PartitionLog.pin`) its bytes stay on disk until `release`, so that retention
    cannot take them away after their number has been sent.
    """

    __slots__ = ("_partition", "next_offset", "position", "segment", "size_bytes")

    def __init__(
        self,
        partition: "PartitionLog",
        segment: Segment,
        position: int,
        size_bytes: int,
        next_offset: int = -1,
    ) -> None:
        self._partition = partition
        self.segment = segment
        self.position = position
        self.size_bytes = size_bytes
        self.next_offset = next_offset  # the offset after the run, -1 if not known

    def read_cached(self, buffer: memoryview, at: int) -> int:
        self._check_exists()
        storage = self._partition.storage
        with storage.open_files.use(self.segment.log_path) as fd:
            return storage.files.pread_cached(fd, buffer, self.position + at)

    def read(self, buffer: memoryview, at: int) -> int:
        self._check_exists()
        storage = self._partition.storage
        with storage.opened(self.segment, "log") as fd:
            return storage.files.pread_into(fd, buffer, self.position + at)

    def release(self) -> None:
        self._partition.unpin(self.segment)

    def _check_exists(self) -> None:
        if self._partition.deleted:
            raise FileNotFoundError(errno.ENOENT, "the topic was deleted", self.segment.log_path)


class PartitionLog:
    """See the module. Everything but the parts marked (worker) runs on the event loop."""

    __slots__ = (
        "_commit_bytes", "_committing", "_pending", "_recent", "_store", "archived", "broken",
        "clean_offset", "committed_bytes", "config", "deleted", "directory", "durable_producers",
        "epochs", "failure", "high_watermark", "index", "is_stuck", "is_swapping",
        "log_start_offset", "next_offset", "producers", "recovery_point", "saved_producers",
        "segments", "stable_waiters", "topic", "topic_id", "unsaved_producers", "waiters",
    )  # fmt: skip

    def __init__(
        self, store: "LogStore", topic: str, index: int, config: TopicConfig, epochs: LeaderEpochs
    ) -> None:
        self._store = store
        self.topic = topic
        self.topic_id = ""  # in hex; names come back, ids never do
        self.index = index
        self.config = config
        self.directory = f"{store.path}/{topic}-{index}"
        self.segments: tuple[Segment, ...] = ()  # replaced, never changed: workers hold it
        self.archived: tuple[ArchivedSegment, ...] = ()  # likewise
        self.log_start_offset = 0
        self.high_watermark = 0
        self.next_offset = 0
        self.clean_offset = 0  # compaction has been so far
        self.is_swapping = False  # compaction is just changing the files' names
        self.is_stuck = False  # it could not, and will only at the next start
        self.recovery_point = 0  # everything below needs no scan after a crash
        self.producers = Producers()  # as of the next offset: what an append is judged by
        self.durable_producers = Producers(tracks_changes=True)  # as of the high watermark
        # Of checkpoints: a copy as of the last one, and what has changed until this one.
        self.saved_producers = Producers()
        self.unsaved_producers: list[Changes] = []
        self.epochs = epochs
        self.failure: StorageFailed | None = None
        self.committed_bytes = 0  # since the partition was opened; only ever grows
        # Told how many bytes have become readable; the others, in front of open transactions.
        self.waiters: set[Callable[[int], None]] | None = None
        self.stable_waiters: set[Callable[[int], None]] | None = None
        self._pending: list[Append] = []
        self._committing: list[Append] | None = None
        self._commit_bytes = 0
        self.broken = False  # a failed commit has left something in the files
        self.deleted = False  # the paths may belong to another topic of the same name by now
        # Offsets at which a read is likely to begin, with their place: tailing costs no search.
        self._recent: dict[int, tuple[Segment, int]] | None = None

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
        """Here and in the archive."""
        return self.size_bytes + sum(each.size_bytes for each in self.archived_only())

    @property
    def last_stable_offset(self) -> int:
        """Up to where a reader of committed records may read: no transaction in front of it is
        open, and their markers are durable.
        """
        first_open = self.durable_producers.first_open_offset
        if first_open is None:
            return self.high_watermark
        return max(min(first_open, self.high_watermark), self.log_start_offset)

    @property
    def open_transactions(self) -> "Mapping[int, OpenTransaction]":
        """By producer id: what has begun, durable or not, and has no marker on its way."""
        return self.producers.open_transactions()

    def knows(self, producer_id: int) -> bool:
        """Whether the producer's last batch, and so its next sequence, is known."""
        return producer_id in self.producers.by_id

    @property
    def local_start_offset(self) -> int:
        """Where the part of the log begins that lies on this machine."""
        segments = self.segments
        first = segments[0].base_offset if segments else self.high_watermark
        return max(first, self.log_start_offset)

    @property
    def is_idle(self) -> bool:
        return self._committing is None and not self._pending

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    def append(self, view: memoryview, header: BatchHeader, done: Done) -> int:
        """Takes a batch in and returns its base offset; `done` is called when it is durable.

        The caller has checked the batch (`records.check_produced`) and leaves its bytes alone
        until `done`. A batch that the producer sent before is not appended again: its first
        offset is returned. Raises ApiError if it is not the producer's next.
        """
        if self.deleted:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
        has_producer = header.producer_id != NO_PRODUCER_ID
        if has_producer:
            if header.base_sequence >= 0:
                original = self.producers.duplicate_of(header)
                if original is not None:
                    self._after_commit(original.last_offset, done)
                    return max(original.base_offset, -1)  # discarded: it has none
            self.producers.check(header)
        now_ms = self._store.clock.now_ms()
        if has_producer:
            self._check_room_for(header.producer_id, now_ms)
        header = self._place(view, header, now_ms)
        before = producer = None
        if has_producer:
            before = self.producers.by_id.get(header.producer_id)
            producer = self.producers.note(header, now_ms)
        self._take(Append(Batch(header, view), done, before, producer))
        return header.base_offset

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        done: Done,
    ) -> int:
        """Ends a producer's transaction; returns the marker's offset. `done` as in `append`.

        Without an open transaction the marker is written all the same, as in Kafka: a coordinator
        that does not know whether it has written one writes it again. Raises ApiError if epochs
        say that the coordinator is one of the past.
        """
        if self.deleted:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        now_ms = self._store.clock.now_ms()
        marker = Marker(commit, coordinator_epoch)
        view = memoryview(records.build_marker(producer_id, producer_epoch, marker, now_ms))
        header = self._place(view, records.read_header(view), now_ms)
        before = self.producers.by_id.get(producer_id)
        producer, aborted = self.producers.note_marker(header, marker, now_ms)
        self._take(Append(Batch(header, view), done, before, producer, aborted))
        return header.base_offset

    def _place(self, view: memoryview, header: BatchHeader, now_ms: int) -> BatchHeader:
        """Gives a batch its offset, and its time if the broker sets that."""
        records.place(view, self.next_offset, self._store.leader_epoch)
        if self.config.log_append_time:
            records.stamp_append_time(view, header.attributes, now_ms)
            header = header._replace(max_timestamp=now_ms)
        return header._replace(base_offset=self.next_offset)

    def _take(self, append: Append) -> None:
        assert append.batch is not None
        self.next_offset = append.batch.header.last_offset + 1
        self._pending.append(append)
        if self._committing is None:
            self._start_commit()

    def pass_over(self, header: BatchHeader) -> None:
        """Counts a batch as its producer's next without taking it in: a policy discards it.

        Only memory knows. After a crash an idempotent producer whose last batches were discarded
        is told of a gap, and begins a new epoch.
        """
        if header.producer_id == NO_PRODUCER_ID or self.producers.duplicate_of(header) is not None:
            return
        self.producers.check(header)
        self._check_room_for(header.producer_id, self._store.clock.now_ms())
        nowhere = header._replace(
            base_offset=-1 - header.last_offset_delta,
            attributes=header.attributes & ~TRANSACTIONAL,  # it begins none
        )
        self.producers.note(nowhere, self._store.clock.now_ms())

    def _check_room_for(self, producer_id: int, now_ms: int) -> None:
        """Raises an error code that clients retry if there are too many producers."""
        known = self.producers.by_id
        if len(known) < MAX_PRODUCERS or producer_id in known:
            return
        self.expire_producers(now_ms - PRODUCER_IDLE_MS)
        if len(known) >= MAX_PRODUCERS:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                "the partition has too many active producers",
                detail=f"{self.topic}-{self.index}: {len(known)} producer ids in"
                f" {PRODUCER_IDLE_MS // 60_000} minutes",
            )

    def roll(self, done: Done) -> None:
        """Seals the active segment, behind all appends before this call."""
        self._pending.append(Append(None, done, roll=True))
        if self._committing is None:
            self._start_commit()

    def retry(self) -> None:
        """After a failed write, makes good what it left, without waiting for a producer."""
        if self.failure is not None and self.is_idle:
            self._pending.append(Append(None, lambda _: None))
            self._start_commit()

    def _after_commit(self, offset: int, done: Done) -> None:
        if offset < self.high_watermark:
            done(None)
        else:  # the original is still on its way to the disk
            self._pending.append(Append(None, done))

    def _start_commit(self) -> None:
        taken, size_bytes = 0, 0
        for append in self._pending:
            if size_bytes >= COMMIT_BYTES:
                break
            taken += 1
            if append.batch is not None:
                size_bytes += append.batch.header.size_bytes
        self._committing = self._pending[:taken]
        self._pending = self._pending[taken:]
        self._commit_bytes = size_bytes
        self._store.dirty.add(self)
        self._store.committer.submit(
            Commit(
                storage=self._store.storage,
                directory=self.directory,
                config=self.config,
                appends=self._committing,
                active=self.segments[-1] if self.segments else None,
                end_offset=self.high_watermark,
                producers=self.durable_producers,
                is_broken=self.broken,
                leader_epoch=self._store.leader_epoch,
                epochs=self.epochs,
                finish=self._finish,
            )
        )

    def _finish(self, commit: Commit) -> None:
        self.epochs = commit.epochs
        if commit.error is None:
            self._committed(commit)
        else:
            self._failed(commit.error)

    def _committed(self, commit: Commit) -> None:
        appends = self._committing or []
        self._committing = None
        self.broken = False
        if self.failure is not None:
            self.failure = None
            self._store.failed.discard(self)
        known = self.segments[-1] if self.segments else None
        for segment, written in commit.written:
            segment.written = written
            if segment is not known:
                self.segments = (*self.segments, segment)
        if len(commit.written) > 1 and self._store.archive is not None:
            self._store.archive.uploads.look_at(self)  # one was sealed
        self._remember(commit.boundaries)
        size_bytes = self._commit_bytes
        self._store.bytes_written += size_bytes
        self.committed_bytes += size_bytes
        stable_before, end_before = self.last_stable_offset, self.high_watermark
        for append in appends:
            if append.batch is not None:
                header = append.batch.header
                self.high_watermark = header.last_offset + 1
                if append.producer is not None:
                    self.durable_producers.put(header.producer_id, append.producer)
        if self._pending:
            self._start_commit()
        for append in appends:
            append.done(None)
        if size_bytes:
            for wake in tuple(self.waiters or ()):
                wake(size_bytes)
            if self.stable_waiters and self.last_stable_offset != stable_before:
                # When a transaction ends, what was written since it began is readable at once.
                stable_bytes = size_bytes if stable_before == end_before else INT64_MAX
                for wake in tuple(self.stable_waiters):
                    wake(stable_bytes)

    def wake(self) -> None:
        """Whoever waits here should look again."""
        for wake in (*(self.waiters or ()), *(self.stable_waiters or ())):
            wake(INT64_MAX)

    def sync_failed(self, error: OSError) -> None:
        """A checkpoint's sync failed. The next commit, of a producer or by `retry`, begins with
        making good what that may have lost (`commit.mend`).
        """
        if not self.deleted:
            self._note_failure(error)

    def _note_failure(self, error: OSError) -> StorageFailed:
        self.failure = StorageFailed(
            "the disk refused a write",
            detail=f"{self.topic}-{self.index}: {error}",
            hint="free some space or mend the disk; writing resumes by itself",
        )
        self._store.note_failure(self, error)
        return self.failure

    def _failed(self, error: OSError) -> None:
        appends = (self._committing or []) + self._pending
        self._committing, self._pending = None, []
        self.broken = True
        failure = self._note_failure(error)
        now_ms = self._store.clock.now_ms()
        for append in reversed(appends):  # latest first, so that the oldest entry stays
            if append.batch is not None and append.producer is not None:
                self.producers.undo(append.batch.header, append.before, now_ms)
        self.next_offset = self.high_watermark
        for append in appends:
            append.done(failure)

    def expire_producers(self, before_ms: int) -> None:
        """Forgets those that have sent nothing since, unless they have a transaction open."""
        for producer_id in self.producers.expired(before_ms):
            self.producers.put(producer_id, None)
            self.durable_producers.put(producer_id, None)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def check_offset(self, offset: int) -> None:
        """Raises OffsetOutOfRange unless a consumer may stand at `offset`."""
        if not self.log_start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(
                "the offset is not in the log",
                detail=f"{offset} is not in {self.log_start_offset}..{self.next_offset}",
            )

    def read_recent(self, offset: int, max_bytes: int) -> Slice | None:
        """All that is readable from `offset` on, if that needs no search and fits."""
        place = self._recent.get(offset) if self._recent else None
        if place is None:
            return None
        segment, position = place
        size_bytes = segment.size_bytes - position
        if segment.doomed or not 0 < size_bytes <= max_bytes:
            return None
        return Slice(self, segment, position, size_bytes)

    def find(self, offset: int, max_bytes: int, end_offset: int = INT64_MAX) -> Slice | None:
        """(worker) The whole batches from the one that holds `offset`; None at the end.

        At least one batch, and then no more than `max_bytes`, and none from `end_offset` on, if
        that is where one begins. Raises CorruptLog if the segment that should hold it cannot be
        read; that segment is out of service from then on. Raises NotCached if it has to be fetched
        from the archive first, ArchiveUnavailable if that cannot be.
        """
        storage = self._store.storage
        for segment, next_offset, following in self._readable_from(offset):
            try:
                found = segments_on_disk.locate(storage, segment, offset)
                if found is None:
                    continue
                position, header = found
                if header.base_offset >= end_offset:
                    return None
                size_bytes, in_segment = segments_on_disk.run_from(
                    storage, segment, position, header, max_bytes, end_offset
                )
            except (CorruptLog, OSError) as error:
                if segment.doomed:  # retention was faster, or it had to make room in the cache
                    return None
                if self.archive is not None and next_offset >= 0:
                    self.archive.cache.discard(segment)  # who asks again gets another copy
                    raise ArchiveUnavailable("the cache is damaged", detail=str(error)) from error
                raise self.out_of_service(segment, error) from error
            if following is not None and position + size_bytes > segment.size_bytes // 2:
                following.prefetch()
            if in_segment >= 0:
                next_offset = in_segment  # noqa: PLW2901
            return Slice(self, segment, position, size_bytes, next_offset)
        return None

    def _readable_from(self, offset: int) -> "Iterator[tuple[Segment, int, ChunkOf | None]]":
        """(worker) What may hold `offset` or something behind it: chunks of archived segments, then
        local ones. With the offset behind it, if that is known, and with the chunk that follows.
        """
        # Before what is archived is looked at: a segment that leaves the one is in the other.
        local = self._segments_from(offset)
        if self.archived and (not local or offset < local[0].base_offset):
            if self.archive is None:
                raise ArchiveUnavailable(
                    "the records are in an archive", hint="set the broker's `archive`"
                )
            yield from self.archive.chunks_from(self, offset)
        for segment in local:
            yield segment, -1, None

    def place_of(self, offset: int) -> Slice | ArchivedPlace | None:
        """(worker) Where somebody stands who reads on at `offset`; nothing is fetched for it."""
        if self.archived and offset < self.local_start_offset:
            return archived_place(self.storage.files, self.archived_only(), offset)
        return self.find(offset, 0)

    def bytes_from(self, part: Slice | ArchivedPlace) -> int:
        """What lies between the beginning of a place that was found and the end of the log."""
        segments = self.segments
        if isinstance(part, ArchivedPlace):
            return part.archived_bytes + self.size_bytes
        behind = bisect.bisect_right(
            segments, part.segment.base_offset, key=lambda segment: segment.base_offset
        )
        later_bytes = sum(segment.size_bytes for segment in segments[behind:])
        return part.segment.size_bytes - part.position + later_bytes

    def may_hold_aborted(self, offset: int) -> bool:
        """Whether a transaction with records from `offset` on may have been aborted."""
        if any(each.written.txn_entries for each in self._segments_from(offset)):
            return True
        return offset < self.local_start_offset and any(
            each.aborted for each in self.archived_only() if each.end_offset > offset
        )

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """(worker) Those with records in first_offset..end_offset. Raises CorruptLog, or
        ArchiveUnavailable.
        """
        while True:
            segments = self._segments_from(first_offset)  # then what is archived; see above
            found = self._aborted_in_archive(first_offset, end_offset)
            if not found or found[-1].last_stable_offset < end_offset:
                found += transactions.overlapping(self.storage, segments, first_offset, end_offset)
            if not any(segment.doomed for segment in segments):
                return found  # else others are in their place, or they are archived only

    def _aborted_in_archive(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """(worker)"""
        found: list[AbortedTransaction] = []
        for each in self.archived_only():
            if each.aborted and each.end_offset > first_offset:
                for entry in read_aborted(self.storage.files, each):
                    if entry.first_offset < end_offset and entry.last_offset >= first_offset:
                        found.append(entry)
                    if entry.last_stable_offset >= end_offset:
                        return found
        return found

    def pin(self, part: Slice) -> bool:
        """Keeps the slice's bytes on disk until its release. False: retention was faster."""
        if part.segment.doomed:
            return False
        part.segment.pins += 1
        if part.next_offset >= 0:
            place = (part.next_offset, part.segment, part.position + part.size_bytes)
            self._remember([place])
        return True

    def unpin(self, segment: Segment) -> None:
        segment.pins -= 1
        if segment.doomed and segment.pins == 0 and not self.deleted:
            self._store.workers.submit(segments_on_disk.remove, self._store.storage, segment)

    def _segments_from(self, offset: int) -> tuple[Segment, ...]:
        """The segments that may hold `offset` or something behind it."""
        segments = self.segments
        after = bisect.bisect_right(segments, offset, key=lambda segment: segment.base_offset)
        return segments[max(after - 1, 0) :]

    def _remember(self, places: list[tuple[int, Segment, int]]) -> None:
        if self._recent is None:
            self._recent = {}
        for offset, segment, position in places:
            self._recent[offset] = (segment, position)
        while len(self._recent) > RECENT_BOUNDARIES:
            del self._recent[next(iter(self._recent))]

    def out_of_service(self, segment: Segment, error: Exception) -> CorruptLog:
        """Reports, once, a segment that cannot be read."""
        if not segment.corrupt and not segment.doomed:
            segment.corrupt = True
            self._store.note_corrupt(self, segment, error)
        return CorruptLog(
            "a segment is out of service",
            detail=f"{segment.log_path}: {error}",
            hint="restore the file from a backup, or consume from an offset behind it",
        )

    # ── forgetting ────────────────────────────────────────────────────────────────────────────

    def delete_before(self, offset: int) -> None:
        """Moves the log's start, and lets go of the segments that lie wholly in front of it."""
        self.log_start_offset = max(self.log_start_offset, offset)
        self.drop_local(self.log_start_offset)
        gone = [each for each in self.archived if each.end_offset <= self.log_start_offset]
        if self.archive is not None:
            self.archived = self.archived[len(gone) :]
            self.archive.start_moved(self, gone)

    def drop_local(self, offset: int) -> None:
        """Lets go of the local files of segments that lie wholly in front of `offset`."""
        kept = list(self.segments)
        while len(kept) > 1 and kept[1].base_offset <= offset:
            self._doom(kept.pop(0))
        if len(kept) != len(self.segments):
            self.segments = tuple(kept)

    def begin_swap(self, inputs: Sequence[Segment]) -> None:
        """Compaction is about to replace them: their names are its business until `end_swap`."""
        self.is_swapping = True
        for segment in inputs:
            segment.pins += 1

    def replace(self, inputs: Sequence[Segment], cleaned: Segment) -> None:
        """Puts a cleaned segment in the place of those it was made from."""
        if self.deleted:
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
        self.wake()  # whoever waits should learn of it now

    def _doom(self, segment: Segment) -> None:
        segment.doomed = True
        if segment.pins == 0:
            self._store.workers.submit(segments_on_disk.remove, self._store.storage, segment)

    # ── in the archive ────────────────────────────────────────────────────────────────────────

    def object_name(self, base_offset: int, suffix: str) -> str:
        """Of one file of a segment."""
        cluster_id = self._store.catalog.cluster_id
        return f"{cluster_id}/{self.topic_id}/{self.index}/{base_offset:020d}{suffix}"

    @property
    def archived_end(self) -> int:
        """The offset behind the last one that is archived, from the start of the log on."""
        return self.archived[-1].end_offset if self.archived else self.log_start_offset

    def archived_only(self) -> tuple[ArchivedSegment, ...]:
        """The archived segments whose files are not on this machine any longer."""
        segments = self.segments
        start = segments[0].base_offset if segments else self.high_watermark
        return tuple(each for each in self.archived if each.base_offset < start)

    def add_archived(self, segment: ArchivedSegment) -> None:
        """It is in the archive, and that is written down."""
        if self.deleted:
            return
        others = (each for each in self.archived if each.base_offset != segment.base_offset)
        self.archived = tuple(sorted((*others, segment), key=lambda each: each.base_offset))
        self.delete_before(self.log_start_offset)  # which may have passed it meanwhile
