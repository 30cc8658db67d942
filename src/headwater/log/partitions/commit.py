"""One commit of one partition: the pending appends go into the segment files.

Runs in a committing thread. It changes nothing that the event loop reads: it works on copies, and
the partition takes over the result (`PartitionLog._finish`).
"""

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from headwater.errors import StorageFailed
from headwater.log import segment as segments_on_disk
from headwater.log import snapshots
from headwater.log.config import TopicConfig
from headwater.log.disk import syncing
from headwater.log.disk.syncing import ToSync
from headwater.log.index import OFFSET_ENTRY
from headwater.log.partitions import transactions
from headwater.log.partitions.epochs import LeaderEpochs
from headwater.log.partitions.producers import Producer, Producers
from headwater.log.partitions.transactions import AbortedTransaction
from headwater.log.segment import Batch, Segment, Storage, Written
from headwater.protocol.records import NO_TIMESTAMP, BatchHeader

_RELATIVE_OFFSET_MAX = 2**31 - 1

T = TypeVar("T")

# Called once with the outcome of an append: None when it is durable.
Done = Callable[[StorageFailed | None], None]


def when_durable(append: Callable[[Done], T]) -> asyncio.Future[T]:
    """What `append` returns, as soon as the log has called the `Done` that it gets. On the event
    loop. Fails with StorageFailed; what `append` itself raises is raised here.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    result: Any = None

    def done(error: StorageFailed | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    result = append(done)
    return future


class Append(NamedTuple):
    """A batch that waits for its commit. Without one: a wait until here, or a new segment."""

    batch: Batch | None
    done: Done
    before: Producer | None = None  # its producer's state without it
    producer: Producer | None = None  # and with it
    aborted: AbortedTransaction | None = None  # what it is the marker of
    roll: bool = False


@dataclass(slots=True)
class Commit:
    """What is to be committed, and then what was: the segments written to, and how far."""

    storage: Storage
    directory: str
    config: TopicConfig
    appends: list[Append]
    active: Segment | None
    end_offset: int  # of the log before this commit
    producers: Producers  # as of then
    is_broken: bool  # the commit before failed
    leader_epoch: int
    epochs: LeaderEpochs
    finish: "Callable[[Commit], None]"  # called on the event loop
    error: OSError | None = None
    written: list[tuple[Segment, Written]] = field(default_factory=list)
    boundaries: list[tuple[int, Segment, int]] = field(default_factory=list)  # where runs begin
    has_aborted: bool = False  # in the last segment

    @property
    def needs_sync(self) -> bool:
        return self.error is None and self.config.fsync and bool(self.boundaries)

    @property
    def to_sync(self) -> ToSync:
        """What acknowledgements wait for. Indexes are hints: a checkpoint syncs them."""
        segment, written = self.written[-1]
        kinds = (syncing.LOG, syncing.TXN_INDEX) if self.has_aborted else (syncing.LOG,)
        return ToSync(segment, written, kinds)

    def write(self) -> None:
        """Writes everything, without a last sync. Sets `error` instead of raising."""
        try:
            if self.storage.is_short and any(append.batch for append in self.appends):
                raise OSError(errno.ENOSPC, "the disk is full; what is left is for deletions")
            if self.is_broken or (self.active is not None and self.active.sync_error is not None):
                repair(self.storage, self.directory, self.active, self.end_offset)
            self._write()
        except OSError as error:
            self.error = error
        except Exception as error:  # a bug must not leave producers waiting indefinitely
            self.error = OSError(f"internal: {error!r}")
            raise

    def _write(self) -> None:
        first = next(
            (append.batch.header.base_offset for append in self.appends if append.batch), -1
        )
        active = self.active
        if active is None and first >= 0:
            active = self._first_segment(first)
        if active is None:
            return
        if first >= 0:
            self._record_epoch(first)
        segment, written = active, replace(active.written)
        self.written.append((segment, written))
        run: list[Append] = []
        run_bytes = 0
        end_offset = self.end_offset
        for number, append in enumerate(self.appends):
            header = append.batch.header if append.batch else None
            is_full = self._is_full(segment, written, run_bytes, header) if header else append.roll
            if is_full and end_offset > segment.base_offset:
                self._write_run(segment, written, run)
                run, run_bytes = [], 0
                segments_on_disk.seal(self.storage, segment, written)
                self._write_snapshot(end_offset, self.appends[:number])
                segment = segments_on_disk.create(self.storage, self.directory, end_offset)
                written = segment.written
                self.written.append((segment, written))
                self.has_aborted = False
            if append.batch and header:
                run.append(append)
                run_bytes += header.size_bytes
                end_offset = header.last_offset + 1
        self._write_run(segment, written, run)

    def _write_run(self, segment: Segment, written: Written, run: list[Append]) -> None:
        batches = [append.batch for append in run if append.batch]
        if not batches:
            return
        start_offset = batches[0].header.base_offset
        self.boundaries.append((start_offset, segment, written.size_bytes))
        interval_bytes = self.config.index_interval_bytes
        segments_on_disk.write(self.storage, segment, written, batches, interval_bytes)
        aborted = [append.aborted for append in run if append.aborted]
        transactions.append(self.storage, segment, written, aborted)
        self.has_aborted = bool(aborted)

    def _write_snapshot(self, offset: int, appends: list[Append]) -> None:
        """The producers as of a new segment's first offset.

        The segments in front of it may be deleted; the rest does not have these producers.
        """
        producers = self.producers.copy()
        for append in appends:
            if append.batch and append.producer:
                producers.put(append.batch.header.producer_id, append.producer)
        snapshots.write_at_roll(self.storage.files, self.directory, offset, producers)

    def _first_segment(self, base_offset: int) -> Segment:
        files = self.storage.files
        files.makedirs(self.directory)
        files.sync_directory(os.path.dirname(self.directory))
        return segments_on_disk.create(self.storage, self.directory, base_offset)

    def _is_full(
        self, segment: Segment, written: Written, run_bytes: int, header: BatchHeader
    ) -> bool:
        """Whether a batch has to go into a new segment."""
        size_bytes = written.size_bytes + run_bytes
        if size_bytes == 0:
            return False
        config = self.config
        return (
            size_bytes + header.size_bytes > config.segment_bytes
            or header.last_offset - segment.base_offset > _RELATIVE_OFFSET_MAX
            or written.offset_entries * OFFSET_ENTRY.size >= config.segment_index_bytes
            or (
                written.first_timestamp_ms != NO_TIMESTAMP
                and header.max_timestamp - written.first_timestamp_ms > config.segment_ms
            )
        )

    def _record_epoch(self, offset: int) -> None:
        """The first append under a new leader epoch is recorded for the clients."""
        if self.epochs.latest != self.leader_epoch:
            epochs = self.epochs.assign(self.leader_epoch, offset)
            epochs.save(self.storage.files, self.directory)
            self.epochs = epochs  # only now: a failed save is tried again


def repair(storage: Storage, directory: str, active: Segment | None, end_offset: int) -> None:
    """Removes what a failed commit left, and writes again what a failed sync may have lost, before
    anything else is written.
    """
    if not os.path.isdir(directory):
        return
    active_base = -1 if active is None else active.base_offset
    later: list[str] = []
    for name in storage.files.listdir(directory):
        base, _, suffix = name.partition(".")
        is_new = suffix in ("log", "index", "timeindex", "txnindex") and int(base) > active_base
        if is_new or snapshots.is_behind(name, end_offset):
            storage.open_files.forget(f"{directory}/{name}")
            if suffix == "txnindex":  # a log that comes back must not come without it
                later.append(name)
            else:
                storage.files.unlink(f"{directory}/{name}")
    # Should a name come back after a power cut, its records would follow on the new ones.
    storage.files.sync_directory(directory)
    for name in later:
        storage.files.unlink(f"{directory}/{name}")
    if active is not None:
        segments_on_disk.cut(storage, active, active.written)
