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
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from headwater.errors import ApiError, CorruptLog, OffsetOutOfRange, StorageFailed
from headwater.log import segment as segments_on_disk
from headwater.log.config import TopicConfig
from headwater.log.epochs import LeaderEpochs
from headwater.log.producers import Producer, Producers
from headwater.log.segment import Batch, Segment, Storage, Written
from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.primitives import Splice
from headwater.protocol.records import NO_PRODUCER_ID, NO_TIMESTAMP, BatchHeader

if TYPE_CHECKING:
    from headwater.log.store import LogStore

# A commit takes at most this much, so that one burst does not delay its own first batch.
COMMIT_BYTES = 16 << 20
RECENT_BOUNDARIES = 64
_RELATIVE_OFFSET_MAX = 2**31 - 1

# Told once what became of an append: None when it is durable.
Done = Callable[[StorageFailed | None], None]


class _Append(NamedTuple):
    """A batch waiting to be committed; without one, a wish: wait until here, or begin a segment."""

    batch: Batch | None
    done: Done
    before: Producer | None = None
    roll: bool = False


class _Commit(NamedTuple):
    """What a commit did: the segments it wrote to, how far, and where each run began."""

    written: list[tuple[Segment, Written]]
    boundaries: list[tuple[int, Segment, int]]


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
        with storage.open_files.use(self.segment.log_path) as fd:
            return storage.files.pread_into(fd, buffer, self.position + at)

    def release(self) -> None:
        self._partition.unpin(self.segment)

    def _check_exists(self) -> None:
        if self._partition.deleted:
            raise FileNotFoundError(errno.ENOENT, "the topic was deleted", self.segment.log_path)


class PartitionLog:
    """See the module. Everything but the parts marked (worker) runs on the event loop."""

    __slots__ = (
        "_commit_bytes", "_committing", "_pending", "_recent", "_store", "broken", "config",
        "deleted", "directory", "epochs", "failure", "high_watermark", "index", "log_start_offset",
        "next_offset", "producers", "recovery_point", "segments", "topic", "waiters",
    )  # fmt: skip

    def __init__(
        self, store: "LogStore", topic: str, index: int, config: TopicConfig, epochs: LeaderEpochs
    ) -> None:
        self._store = store
        self.topic = topic
        self.index = index
        self.config = config
        self.directory = f"{store.path}/{topic}-{index}"
        self.segments: tuple[Segment, ...] = ()  # replaced, never changed: workers hold it
        self.log_start_offset = 0
        self.high_watermark = 0
        self.next_offset = 0
        self.recovery_point = 0  # everything below needs no scan after a crash
        self.producers = Producers()
        self.epochs = epochs
        self.failure: StorageFailed | None = None
        self.waiters: set[Callable[[], None]] | None = None  # called when records become readable
        self._pending: list[_Append] = []
        self._committing: list[_Append] | None = None
        self._commit_bytes = 0
        self.broken = False  # a failed commit has left something in the files
        self.deleted = False  # the paths may belong to another topic of the same name by now
        # Offsets at which a read is likely to begin, with their place: tailing costs no search.
        self._recent: dict[int, tuple[Segment, int]] | None = None

    @property
    def storage(self) -> Storage:
        return self._store.storage

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

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
        before: Producer | None = None
        if header.producer_id != NO_PRODUCER_ID:
            original = self.producers.duplicate_of(header)
            if original is not None:
                self._after_commit(original.last_offset, done)
                return original.base_offset
            self.producers.check(header)
        base_offset = self.next_offset
        records.place(view, base_offset, self._store.leader_epoch)
        if self.config.log_append_time:
            now_ms = self._store.clock.now_ms()
            records.stamp_append_time(view, header.attributes, now_ms)
            header = header._replace(max_timestamp=now_ms)
        header = header._replace(base_offset=base_offset)
        if header.producer_id != NO_PRODUCER_ID:
            before = self.producers.note(header)
        self.next_offset = base_offset + header.last_offset_delta + 1
        self._pending.append(_Append(Batch(header, view), done, before))
        if self._committing is None:
            self._start_commit()
        return base_offset

    def roll(self, done: Done) -> None:
        """Seals the active segment, behind all appends before this call."""
        self._pending.append(_Append(None, done, roll=True))
        if self._committing is None:
            self._start_commit()

    def retry(self) -> None:
        """After a failed write, makes good what it left, without waiting for a producer."""
        if self.failure is not None and self.is_idle:
            self._pending.append(_Append(None, lambda _: None))
            self._start_commit()

    def _after_commit(self, offset: int, done: Done) -> None:
        if offset < self.high_watermark:
            done(None)
        else:  # the original is still on its way to the disk
            self._pending.append(_Append(None, done))

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
        active = self.segments[-1] if self.segments else None
        self._store.dirty.add(self)
        self._store.workers.submit(self._commit, self._committing, active, self.broken)

    def _commit(self, appends: list[_Append], active: Segment | None, broken: bool) -> None:
        """(worker)"""
        try:
            if broken:
                self.mend(active)
            commit = self._write(appends, active)
        except OSError as error:
            self._store.on_loop(self._failed, error)
        except Exception as error:  # a bug must not leave producers waiting for ever
            self._store.on_loop(self._failed, OSError(f"internal: {error!r}"))
            raise
        else:
            self._store.on_loop(self._committed, commit)

    def _write(self, appends: list[_Append], active: Segment | None) -> _Commit:
        """(worker)"""
        storage, config = self._store.storage, self.config
        first = next((each.batch.header.base_offset for each in appends if each.batch), -1)
        if active is None and first >= 0:
            storage.files.makedirs(self.directory)
            storage.files.sync_directory(self._store.path)
            active = segments_on_disk.create(storage, self.directory, first)
        if active is None:
            return _Commit([], [])
        segment, written = active, replace(active.written)
        commit = _Commit([(segment, written)], [])
        if first >= 0:
            self._note_epoch(first)
        run: list[Batch] = []
        run_bytes = 0

        def flush() -> None:
            nonlocal run, run_bytes
            if run:
                start = run[0].header.base_offset
                commit.boundaries.append((start, segment, written.size_bytes))
                segments_on_disk.write(storage, segment, written, run, config.index_interval_bytes)
                run, run_bytes = [], 0

        for append in appends:
            header = append.batch.header if append.batch else None
            if self._is_full(segment, written, run_bytes, header) if header else append.roll:
                flush()
                next_base = header.base_offset if header else self._end_of(appends, append)
                if next_base > segment.base_offset:
                    segments_on_disk.seal(storage, segment, written)
                    segment = segments_on_disk.create(storage, self.directory, next_base)
                    written = segment.written
                    commit.written.append((segment, written))
            if append.batch:
                run.append(append.batch)
                run_bytes += append.batch.header.size_bytes
        flush()
        if config.fsync and first >= 0:
            segments_on_disk.sync_log(storage, segment)
        return commit

    def _end_of(self, appends: list[_Append], upto: _Append) -> int:
        """(worker) The next offset after everything in front of a wish to roll."""
        end = self.high_watermark
        for append in appends:
            if append is upto:
                break
            if append.batch:
                end = append.batch.header.last_offset + 1
        return end

    def _is_full(
        self, segment: Segment, written: Written, run_bytes: int, header: BatchHeader
    ) -> bool:
        """(worker) Whether a batch has to go into a new segment."""
        size_bytes = written.size_bytes + run_bytes
        if size_bytes == 0:
            return False
        config = self.config
        return (
            size_bytes + header.size_bytes > config.segment_bytes
            or header.last_offset - segment.base_offset > _RELATIVE_OFFSET_MAX
            or written.offset_entries * 8 >= config.segment_index_bytes
            or (
                written.first_timestamp_ms != NO_TIMESTAMP
                and header.max_timestamp - written.first_timestamp_ms > config.segment_ms
            )
        )

    def _note_epoch(self, offset: int) -> None:
        """(worker) The first append under a new leader epoch is remembered for the clients."""
        if self.epochs.latest != self._store.leader_epoch:
            epochs = self.epochs.assign(self._store.leader_epoch, offset)
            epochs.save(self._store.storage.files, self.directory)
            self.epochs = epochs  # only now: a failed save is tried again

    def mend(self, active: Segment | None) -> None:
        """(worker) Takes away what a failed commit left, before anything is written again."""
        storage = self._store.storage
        if not os.path.isdir(self.directory):
            return
        keep = -1 if active is None else active.base_offset
        for name in storage.files.listdir(self.directory):
            base, _, suffix = name.partition(".")
            if suffix in ("log", "index", "timeindex") and int(base) > keep:
                storage.open_files.forget(f"{self.directory}/{name}")
                storage.files.unlink(f"{self.directory}/{name}")
        # Should a name come back after a power cut, its records would follow on the new ones.
        storage.files.sync_directory(self.directory)
        if active is not None:
            segments_on_disk.cut(storage, active, active.written)

    def _committed(self, commit: _Commit) -> None:
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
        self._remember(commit.boundaries)
        self._store.bytes_written += self._commit_bytes
        for append in appends:
            if append.batch is not None:
                self.high_watermark = append.batch.header.last_offset + 1
        if self._pending:
            self._start_commit()
        for append in appends:
            append.done(None)
        if self.waiters:
            for wake in tuple(self.waiters):
                wake()

    def _failed(self, error: OSError) -> None:
        appends = (self._committing or []) + self._pending
        self._committing, self._pending = None, []
        self.broken = True
        self.failure = StorageFailed(
            "the disk refused a write",
            detail=f"{self.topic}-{self.index}: {error}",
            hint="free some space or mend the disk; writing resumes by itself",
        )
        self._store.note_failure(self, error)
        for append in reversed(appends):  # latest first, so that the oldest entry stays
            if append.batch is not None and append.batch.header.producer_id != NO_PRODUCER_ID:
                self.producers.undo(append.batch.header, append.before)
        self.next_offset = self.high_watermark
        for append in appends:
            append.done(self.failure)

    def producers_snapshot(self) -> bytes:
        """The producers' state as of the high watermark, without what is still pending."""
        producers = Producers()
        producers.by_id = dict(self.producers.by_id)
        for append in reversed((self._committing or []) + self._pending):
            if append.batch is not None and append.batch.header.producer_id != NO_PRODUCER_ID:
                producers.restore(append.batch.header.producer_id, append.before)
        return producers.to_snapshot() if producers.by_id else b""

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

    def find(self, offset: int, max_bytes: int) -> Slice | None:
        """(worker) The whole batches from the one that holds `offset`; None at the end.

        At least one batch, and then no more than `max_bytes`. Raises CorruptLog if the segment
        that should hold it cannot be read; that segment is out of service from then on.
        """
        storage = self._store.storage
        for segment in self._segments_from(offset):
            try:
                found = segments_on_disk.locate(storage, segment, offset)
                if found is None:
                    continue
                position, header = found
                size_bytes, next_offset = segments_on_disk.run_from(
                    storage, segment, position, header, max_bytes
                )
            except (CorruptLog, OSError) as error:
                if segment.doomed:  # retention was faster: the log begins behind it now
                    return None
                raise self._out_of_service(segment, error) from error
            return Slice(self, segment, position, size_bytes, next_offset)
        return None

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

    def _out_of_service(self, segment: Segment, error: Exception) -> CorruptLog:
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
        kept = list(self.segments)
        while len(kept) > 1 and kept[1].base_offset <= self.log_start_offset:
            self._doom(kept.pop(0))
        if len(kept) != len(self.segments):
            self.segments = tuple(kept)

    def doom_all(self) -> None:
        """The partition is being deleted: no path of it is touched from here on."""
        self.deleted = True
        for segment in self.segments:
            segment.doomed = True
        self.segments = ()
        if self.waiters:
            for wake in tuple(self.waiters):
                wake()

    def _doom(self, segment: Segment) -> None:
        segment.doomed = True
        if segment.pins == 0:
            self._store.workers.submit(segments_on_disk.remove, self._store.storage, segment)
