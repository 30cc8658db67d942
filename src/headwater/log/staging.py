"""A snapshot of the log by hard links: what a backup copies while the broker continues.

In one turn of the event loop nothing moves: what is durable then, over all partitions, is what a
power cut in that moment would have left, and every start can begin with that. So the turn records
how long each file is and gives it a second name (a hard link); whatever is written, deleted or
compacted afterwards does not touch those bytes.

    <data_dir>/backup-<id>.deleted/       a start removes it, if it is still there
      staged.json                         [[file, size in bytes], …]
      catalog.jsonl, log-start-offset-checkpoint
      orders-0/00000000000000000000.log …

No recovery points are staged, so a start reads the last segment of each partition and checks it.
"""

import json
import os
from typing import TYPE_CHECKING
from uuid import uuid4

from headwater.log import snapshots
from headwater.log.catalog import NAME as CATALOG
from headwater.log.disk import checkpoint_file
from headwater.log.disk.data_directory import DELETED, LOG_STARTS
from headwater.log.index import OFFSET_ENTRY, TIME_ENTRY
from headwater.log.partitions import epochs
from headwater.log.partitions.transactions import ENTRY as TXN_ENTRY

if TYPE_CHECKING:
    from headwater.log.partitions.partition import PartitionLog
    from headwater.log.segment import Segment
    from headwater.log.store import LogStore

LIST = "staged.json"

Staged = list[tuple[str, int]]  # file below the directory, and how much of it


def stage(store: "LogStore") -> str:
    """The directory. Called on the event loop, while nothing changes the catalog or a checkpoint;
    does not yield to the loop. Raises OSError.
    """
    directory = f"{store.path}/backup-{uuid4().hex}{DELETED}"
    os.mkdir(directory, 0o700)
    try:
        _stage_into(directory, store)
    except OSError:  # a disk that is full
        store.storage.files.rmtree(directory)
        raise
    return directory


def _stage_into(directory: str, store: "LogStore") -> None:
    staged: Staged = []
    for partition in store.partitions.values():
        if partition.segments or partition.archived:
            staged += _partition(partition, directory)
    starts = {
        key: partition.log_start_offset
        for key, partition in store.partitions.items()
        if partition.log_start_offset
    }
    catalog = store.storage.files.read(f"{store.path}/{CATALOG}")
    for name, data in ((LOG_STARTS, checkpoint_file.encode(starts)), (CATALOG, catalog)):
        with open(f"{directory}/{name}", "wb") as file:
            file.write(data)
        staged.append((name, len(data)))
    with open(f"{directory}/{LIST}", "w", encoding="utf-8") as listed:
        json.dump(staged, listed)


def _partition(partition: "PartitionLog", directory: str) -> Staged:
    name = f"{partition.topic}-{partition.index}"
    os.mkdir(f"{directory}/{name}", 0o700)
    staged: Staged = []

    def link(source: str, file: str, size_bytes: int) -> None:
        os.link(source, f"{directory}/{name}/{file}")
        staged.append((f"{name}/{file}", size_bytes))

    for segment in partition.segments:
        for kind, size_bytes in _sizes(segment):
            # Under the name that is its own, whatever compaction calls it just now.
            source = segment.path(kind)
            if size_bytes or kind == "log":
                link(source, f"{segment.base_offset:020d}.{kind}", size_bytes)
    for archived in partition.archived:
        link(archived.path, os.path.basename(archived.path), os.path.getsize(archived.path))
    for file in os.listdir(partition.directory):
        offset = snapshots.offset_of(file)
        if file == epochs.NAME or (offset is not None and offset <= partition.high_watermark):
            source = f"{partition.directory}/{file}"
            link(source, file, os.path.getsize(source))
    return staged


def _sizes(segment: "Segment") -> tuple[tuple[str, int], ...]:
    """How much of each of its files belongs to what is durable."""
    written = segment.written
    return (
        ("log", written.size_bytes),
        ("index", written.offset_entries * OFFSET_ENTRY.size),
        ("timeindex", written.time_entries * TIME_ENTRY.size),
        ("txnindex", written.txn_entries * TXN_ENTRY.size),
    )
