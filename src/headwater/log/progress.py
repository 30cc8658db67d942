"""How far partitions have come, and the files beside their segments that say so.

The event loop notes it at one moment (`Progress.of`); a thread makes all of it last while commits
go on (`save`). The recovery points themselves are one file for all partitions (store.py).
"""

from collections.abc import Sequence
from typing import NamedTuple

from headwater.log import segment as segments_on_disk
from headwater.log import snapshots, syncing
from headwater.log.commit import mend
from headwater.log.partition import PartitionLog
from headwater.log.segment import Segment, Storage
from headwater.log.syncing import ToSync


class Progress(NamedTuple):
    """How far a partition has come, as the event loop saw it at one moment."""

    partition: PartitionLog
    active: Segment | None
    offset: int
    broken: bool

    @classmethod
    def of(cls, partition: PartitionLog) -> "Progress":
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


def complete(storage: Storage, partitions: Sequence[Progress]) -> None:
    """(worker) Leaves the files as a start after a clean stop believes them to be."""
    for each in partitions:
        if each.partition.deleted:  # the directory may be another topic's by now
            continue
        if each.broken or (each.active is not None and each.active.sync_error is not None):
            mend(storage, each.partition.directory, each.active, each.offset)
        if each.active is not None:
            segments_on_disk.write_last_time(storage, each.active, each.active.written)


def save(storage: Storage, partitions: Sequence[Progress]) -> list[tuple[Progress, OSError]]:
    """(worker) Syncs the segments, writes snapshots, and moves the recovery points on.

    Returns those of which this failed, with the reason: their recovery points stay where they are.
    """
    existing = [
        (each, each.active) for each in partitions if each.active and not each.partition.deleted
    ]
    for each, _ in existing:
        _follow(each.partition)
    # Also where every commit is synced: the topic may have been set so only just now.
    wanted = [ToSync.all_of(active, active.written) for _, active in existing]
    errors = syncing.sync_many(storage, storage.root_fd, wanted)
    failed = []
    for (each, active), error in zip(existing, errors, strict=True):
        # A segment that has gone meanwhile was sealed, and so synced, before.
        problem = _saved(storage, each) if error is None or active.doomed else error
        if problem is not None and not each.partition.deleted:
            failed.append((each, problem))
    return failed


def _saved(storage: Storage, progress: Progress) -> OSError | None:
    partition, offset = progress.partition, progress.offset
    try:
        snapshots.write_at_checkpoint(
            storage.files, partition.directory, offset, partition.saved_producers
        )
    except OSError as error:
        return error
    partition.recovery_point = offset
    return None


def _follow(partition: PartitionLog) -> None:
    """(worker) Makes `saved_producers` what the newest `Progress` saw; one checkpoint at a time."""
    while partition.unsaved_producers:
        for producer_id, producer in partition.unsaved_producers.pop(0).items():
            partition.saved_producers.put(producer_id, producer)
