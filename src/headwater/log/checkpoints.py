"""Checkpoints: what a start after a crash need not scan, per partition and in one file for all.

The event loop records how far each partition has come (`PartitionCheckpoint.of`); a thread makes
it durable while commits go on (`save`): segments synced, producer snapshots written, then the
recovery points. The starts of logs and the offsets up to which they are compacted are files of the
same kind (checkpoint_file.py).
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headwater.log import segment as segments_on_disk
from headwater.log import snapshots
from headwater.log.disk import checkpoint_file, syncing
from headwater.log.disk.data_directory import CLEAN_OFFSETS, LOG_STARTS, RECOVERY_POINTS
from headwater.log.disk.syncing import ToSync
from headwater.log.partitions.commit import repair
from headwater.log.partitions.partition import PartitionLog
from headwater.log.segment import Segment, Storage

if TYPE_CHECKING:
    from headwater.log.store import LogStore

log = logging.getLogger(__name__)


class PartitionCheckpoint(NamedTuple):
    """How far a partition has come, as the event loop saw it at one moment."""

    partition: PartitionLog
    active: Segment | None
    offset: int
    broken: bool

    @classmethod
    def of(cls, partition: PartitionLog) -> "PartitionCheckpoint":
        active = partition.segments[-1] if partition.segments else None
        # A copy of thousands of producers would hold the loop up: the worker has its own, and gets
        # what has changed since the last checkpoint.
        changes = partition.durable_producers.take_changes()
        if changes:
            partition.unsaved_producers.append(changes)
        return cls(partition, active, partition.high_watermark, partition.broken)

    @property
    def is_all(self) -> bool:
        """Whether nothing has come since, and nothing is under way."""
        partition = self.partition
        has_moved = partition.high_watermark != self.offset or not partition.is_idle
        return not has_moved and not self.broken and not partition.broken


class Checkpoints:
    """The checkpoint files of a data directory. `turn` is held by the one that writes to them."""

    def __init__(self, store: "LogStore") -> None:
        self._store = store
        self.turn = asyncio.Lock()
        self.log_starts: dict[tuple[str, int], int] = {}

    async def write(self) -> None:
        """Moves the recovery points on, so that a crash has less to scan."""
        store = self._store
        async with self.turn:
            checkpoints = [PartitionCheckpoint.of(partition) for partition in store.dirty]
            try:
                failed = {checkpoint.partition for checkpoint, _ in await self._save(checkpoints)}
            except OSError as error:
                log.error("a checkpoint could not be written: %s", error)
                return
            # Only now, so that a stop in between still has the list of what to write.
            written = {checkpoint.partition for checkpoint in checkpoints if checkpoint.is_all}
            store.dirty -= written - failed

    async def save(self, checkpoints: list[PartitionCheckpoint]) -> None:
        """Makes all of them durable, or raises the OSError of the first that is not."""
        for _, error in await self._save(checkpoints):
            raise error

    async def _save(
        self, checkpoints: list[PartitionCheckpoint]
    ) -> list[tuple[PartitionCheckpoint, OSError]]:
        """Writes a checkpoint; the partitions whose part of it failed, with the reason. Those
        whose bytes a failed sync may have lost accept no appends until they are repaired.
        """
        failed = await self._store.in_worker(self._save_now, checkpoints)
        for (partition, active, _, _), error in failed:
            name = f"{partition.topic}-{partition.index}"
            log.error("a checkpoint could not be written: %s: %s", name, error)
            if active is not None and active.sync_error is not None:
                partition.sync_failed(error)
        return failed

    def finish(self, checkpoints: list[PartitionCheckpoint]) -> None:
        """(worker) The last checkpoint before a clean stop. Raises OSError."""
        complete(self._store.storage, checkpoints)
        for _, error in self._save_now(checkpoints):
            raise error

    def _save_now(
        self, checkpoints: list[PartitionCheckpoint]
    ) -> list[tuple[PartitionCheckpoint, OSError]]:
        """(worker)"""
        failed = save(self._store.storage, checkpoints)
        self._write_recovery_points()
        return failed

    def drop_deleted(self) -> None:
        """(worker) Removes the entries of partitions that the store no longer has."""
        self._write_recovery_points()
        self.write_log_starts(self.log_starts)
        self._write_clean_offsets()

    def _write_recovery_points(self) -> None:
        """(worker)"""
        points = {
            key: partition.recovery_point
            for key, partition in list(self._store.partitions.items())
            if partition.recovery_point
        }
        self._write(RECOVERY_POINTS, points)

    def write_log_starts(self, starts: dict[tuple[str, int], int]) -> None:
        """(worker)"""
        self._write(LOG_STARTS, starts)

    async def save_clean_offsets(self) -> None:
        """Records how far compaction has come. Lost, they would only cost another pass."""
        async with self.turn:
            await self._store.in_worker(self._write_clean_offsets)

    def _write_clean_offsets(self) -> None:
        """(worker)"""
        offsets = {
            key: partition.clean_offset
            for key, partition in list(self._store.partitions.items())
            if partition.clean_offset
        }
        self._write(CLEAN_OFFSETS, offsets)

    def _write(self, name: str, offsets: dict[tuple[str, int], int]) -> None:
        path = f"{self._store.path}/{name}"
        checkpoint_file.write(self._store.storage.files, path, offsets)


def complete(storage: Storage, partitions: Sequence[PartitionCheckpoint]) -> None:
    """(worker) Leaves the files as a start after a clean stop expects them."""
    for partition, active, offset, broken in partitions:
        if partition.deleted:  # the directory may be another topic's by now
            continue
        if broken or (active is not None and active.sync_error is not None):
            repair(storage, partition.directory, active, offset)
        if active is not None:
            segments_on_disk.write_last_time(storage, active, active.written)


def save(
    storage: Storage, partitions: Sequence[PartitionCheckpoint]
) -> list[tuple[PartitionCheckpoint, OSError]]:
    """(worker) Syncs the segments, writes snapshots, and moves the recovery points on.

    Returns those of which this failed, with the reason: their recovery points stay where they are.
    """
    existing = [
        (checkpoint, checkpoint.active)
        for checkpoint in partitions
        if checkpoint.active and not checkpoint.partition.deleted
    ]
    for checkpoint, _ in existing:
        _follow(checkpoint.partition)
    # Also where every commit is synced: the topic may have been set so only just now.
    wanted = [ToSync.all_of(active, active.written) for _, active in existing]
    errors = syncing.sync_many(storage, storage.root_fd, wanted)
    failed = []
    for (checkpoint, active), error in zip(existing, errors, strict=True):
        # A segment that was removed meanwhile was sealed, and so synced, before.
        problem = _saved(storage, checkpoint) if error is None or active.doomed else error
        if problem is not None and not checkpoint.partition.deleted:
            failed.append((checkpoint, problem))
    return failed


def _saved(storage: Storage, checkpoint: PartitionCheckpoint) -> OSError | None:
    partition, offset = checkpoint.partition, checkpoint.offset
    try:
        snapshots.write_at_checkpoint(
            storage.files, partition.directory, offset, partition.saved_producers
        )
    except OSError as error:
        return error
    partition.recovery_point = offset
    return None


def _follow(partition: PartitionLog) -> None:
    """(worker) Brings `saved_producers` up to the newest checkpoint; one at a time calls it."""
    while partition.unsaved_producers:
        for producer_id, producer in partition.unsaved_producers.pop(0).items():
            partition.saved_producers.put(producer_id, producer)
