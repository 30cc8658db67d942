"""One partition of a topic: appends in order, made durable by group commit.

Reading is in reads.py; the list of its segments is in segments.py.

Life of an append:

  1. `append` (event loop): the batch is checked against its producer's sequence, gets the next
     offsets, and joins the pending ones. Nothing is on disk yet, and no consumer can read it.
  2. One commit at a time per partition runs in a worker thread: it writes all that is pending,
     seals and begins segments on the way, and syncs once. What arrives meanwhile waits for the
     next commit: this is group commit.
  3. `_committed` (event loop): the high watermark moves, readers wake, producers are answered.

Invariants
  - log_start_offset <= high_watermark <= next_offset
  - everything below the high watermark is on disk (with `headwater.durability = os`: handed to
    the operating system), and nothing at or above it is ever shown to a reader
  - if a commit fails, nothing of it nor of what waits behind it was acknowledged: the offsets and
    the producers' state go back to the high watermark, and the files are cut there before the
    next write (a failed fsync leaves pages in an unknown state, so it is never just repeated)
"""

from typing import TYPE_CHECKING

from headwater.errors import StorageFailed
from headwater.log.config import TopicConfig
from headwater.log.partitions.commit import Append, Commit, Done
from headwater.log.partitions.epochs import LeaderEpochs
from headwater.log.partitions.producers import Changes, Producers
from headwater.log.partitions.reads import ReadablePartition
from headwater.log.segment import Batch
from headwater.protocol import records
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.records import INT64_MAX, NO_PRODUCER_ID, TRANSACTIONAL, BatchHeader, Marker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headwater.log.partitions.transactions import OpenTransaction
    from headwater.log.store import LogStore

# A commit takes at most this much: half of what one connection may have in work, so that the next
# one is being received while this one is synced. 16 MiB made producers wait for whole commits.
COMMIT_BYTES = 4 << 20
# Of one partition, each about half a kilobyte. Beyond that those make way that have sent nothing
# for longer than clients repeat a batch (delivery.timeout.ms is 2 minutes, librdkafka's 5); if all
# have sent, a new one has to wait. A producer that may still repeat a batch is never removed.
MAX_PRODUCERS = 20_000
PRODUCER_IDLE_MS = 15 * 60_000


class PartitionLog(ReadablePartition):
    """See the module. Runs on the event loop."""

    __slots__ = (
        "_commit_bytes", "_committing", "_pending", "broken", "committed_bytes",
        "durable_producers", "failure", "producers", "recovery_point", "saved_producers",
        "unsaved_producers",
    )  # fmt: skip

    def __init__(
        self, store: "LogStore", topic: str, index: int, config: TopicConfig, epochs: LeaderEpochs
    ) -> None:
        super().__init__(store, topic, index, config, epochs)
        self.recovery_point = 0  # everything below needs no scan after a crash
        self.producers = Producers()  # as of the next offset: an append is checked against it
        self.durable_producers = Producers(tracks_changes=True)  # as of the high watermark
        # For checkpoints: a copy as of the last one, and the changes since then.
        self.saved_producers = Producers()
        self.unsaved_producers: list[Changes] = []
        self.failure: StorageFailed | None = None
        self.committed_bytes = 0  # since the partition was opened; only ever grows
        self._pending: list[Append] = []
        self._committing: list[Append] | None = None
        self._commit_bytes = 0
        self.broken = False  # a failed commit has left something in the files

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

    def tracks(self, producer_id: int) -> bool:
        """Whether the producer's last batch, and so its next sequence, is in memory."""
        return producer_id in self.producers.by_id

    @property
    def is_idle(self) -> bool:
        return self._committing is None and not self._pending

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    def append(self, view: memoryview, header: BatchHeader, done: Done) -> int:
        """Appends a batch and returns its base offset; `done` is called when it is durable.

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
        header = self._assigned(view, header, now_ms)
        before = producer = None
        if has_producer:
            before = self.producers.by_id.get(header.producer_id)
            producer = self.producers.record(header, now_ms)
        self._enqueue(Append(Batch(header, view), done, before, producer))
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
        that cannot be sure that it has written one writes it again. Raises ApiError if epochs
        show that the coordinator has been replaced.
        """
        if self.deleted:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        now_ms = self._store.clock.now_ms()
        marker = Marker(commit, coordinator_epoch)
        view = memoryview(records.build_marker(producer_id, producer_epoch, marker, now_ms))
        header = self._assigned(view, records.read_header(view), now_ms)
        before = self.producers.by_id.get(producer_id)
        producer, aborted = self.producers.record_marker(header, marker, now_ms)
        self._enqueue(Append(Batch(header, view), done, before, producer, aborted))
        return header.base_offset

    def _assigned(self, view: memoryview, header: BatchHeader, now_ms: int) -> BatchHeader:
        """Writes the offset into a batch, and the time if the broker sets that."""
        records.assign(view, self.next_offset, self._store.leader_epoch)
        if self.config.log_append_time:
            records.stamp_append_time(view, header.attributes, now_ms)
            header = header._replace(max_timestamp=now_ms)
        return header._replace(base_offset=self.next_offset)

    def _enqueue(self, append: Append) -> None:
        assert append.batch is not None
        self.next_offset = append.batch.header.last_offset + 1
        self._pending.append(append)
        if self._committing is None:
            self._start_commit()

    def pass_over(self, header: BatchHeader) -> None:
        """Counts a batch as its producer's next without appending it: a policy discards it.

        Only memory has it. After a crash an idempotent producer whose last batches were discarded
        gets an error for the gap in its sequence, and begins a new epoch.
        """
        if header.producer_id == NO_PRODUCER_ID or self.producers.duplicate_of(header) is not None:
            return
        self.producers.check(header)
        self._check_room_for(header.producer_id, self._store.clock.now_ms())
        discarded = header._replace(
            base_offset=-1 - header.last_offset_delta,
            attributes=header.attributes & ~TRANSACTIONAL,  # it begins none
        )
        self.producers.record(discarded, self._store.clock.now_ms())

    def _check_room_for(self, producer_id: int, now_ms: int) -> None:
        """Raises an error code that clients retry if there are too many producers."""
        tracked = self.producers.by_id
        if len(tracked) < MAX_PRODUCERS or producer_id in tracked:
            return
        self.expire_producers(now_ms - PRODUCER_IDLE_MS)
        if len(tracked) >= MAX_PRODUCERS:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                "the partition has too many active producers",
                detail=f"{self.topic}-{self.index}: {len(tracked)} producer ids in"
                f" {PRODUCER_IDLE_MS // 60_000} minutes",
            )

    def roll(self, done: Done) -> None:
        """Seals the active segment, behind all appends before this call."""
        self._pending.append(Append(None, done, roll=True))
        if self._committing is None:
            self._start_commit()

    def retry(self) -> None:
        """After a failed write, repairs what it left, without waiting for a producer."""
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
        active = self.segments[-1] if self.segments else None
        for segment, written in commit.written:
            segment.written = written
            if segment is not active:
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

    def sync_failed(self, error: OSError) -> None:
        """A checkpoint's sync failed. The next commit, of a producer or by `retry`, begins with
        a repair of what that may have lost (`commit.repair`).
        """
        if not self.deleted:
            self._record_failure(error)

    def _record_failure(self, error: OSError) -> StorageFailed:
        self.failure = StorageFailed(
            "the disk refused a write",
            detail=f"{self.topic}-{self.index}: {error}",
            hint="free some space or repair the disk; writing resumes by itself",
        )
        self._store.record_failure(self, error)
        return self.failure

    def _failed(self, error: OSError) -> None:
        appends = (self._committing or []) + self._pending
        self._committing, self._pending = None, []
        self.broken = True
        failure = self._record_failure(error)
        now_ms = self._store.clock.now_ms()
        for append in reversed(appends):  # latest first, so that the oldest entry stays
            if append.batch is not None and append.producer is not None:
                self.producers.undo(append.batch.header, append.before, now_ms)
        self.next_offset = self.high_watermark
        for append in appends:
            append.done(failure)

    def expire_producers(self, before_ms: int) -> None:
        """Removes those that have sent nothing since, unless they have a transaction open."""
        for producer_id in self.producers.expired(before_ms):
            self.producers.put(producer_id, None)
            self.durable_producers.put(producer_id, None)
