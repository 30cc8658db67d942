"""Opening all partitions of a data directory: recovered, synced, and joined to their archive."""

import logging
from typing import TYPE_CHECKING

from headwater.log import recovery
from headwater.log import segment as segments_on_disk
from headwater.log.archive import descriptor
from headwater.log.catalog import Topic
from headwater.log.config import TopicConfig, topic_config
from headwater.log.disk import syncing
from headwater.log.disk.syncing import ToSync
from headwater.log.partitions.epochs import LeaderEpochs
from headwater.log.partitions.partition import PartitionLog

if TYPE_CHECKING:
    from headwater.log.store import LogStore

log = logging.getLogger(__name__)


def open_partitions(
    store: "LogStore", recovery_points: dict[tuple[str, int], int], *, clean: bool
) -> None:
    """Fills `store.partitions` from the catalog and the files. Blocks.

    `clean`: the last process closed the log, so nothing can be torn.
    """
    to_sync: list[ToSync] = []
    for topic in store.catalog.topics.values():
        config = topic_config(topic.configs, store.topic_defaults)
        for index in range(topic.partitions):
            to_sync += _open_partition(store, topic, index, config, recovery_points, clean=clean)
    _sync_opened(store, to_sync)  # before a reader sees what a crash left


def _open_partition(
    store: "LogStore",
    topic: Topic,
    index: int,
    config: TopicConfig,
    recovery_points: dict[tuple[str, int], int],
    *,
    clean: bool,
) -> tuple[ToSync, ...]:
    key = (topic.name, index)
    files = store.storage.files
    partition = PartitionLog(store, topic.name, index, config, LeaderEpochs())
    partition.topic_id = topic.id.hex
    partition.epochs = LeaderEpochs.load(files, partition.directory)
    store.partitions[key] = partition
    opened = recovery.open_partition(
        partition,
        store.storage,
        clean=clean,
        checkpoint=recovery_points.get(key),
        now_ms=store.clock.now_ms(),
    )
    store.scanned_bytes += opened.scanned_bytes
    _find_archived(store, partition)
    # Segments in front of it are still there if a crash interrupted their removal.
    log_start = store.checkpoints.log_starts.get(key, 0)
    partition.delete_before(min(log_start, partition.high_watermark))
    if opened.to_sync or opened.is_ahead:
        store.dirty.add(partition)
    if not opened.to_sync:
        return ()
    active = partition.segments[-1]
    return (ToSync.all_of(active, active.written),)


def _sync_opened(store: "LogStore", to_sync: list[ToSync]) -> None:
    errors = syncing.sync_many(store.storage, store.storage.root_fd, to_sync)
    for opened, error in zip(to_sync, errors, strict=True):
        if error is not None:  # perhaps of what the last process wrote: once more, then
            log.warning("%s is written again: %s", opened.segment.log_path, error)
            segments_on_disk.cut(store.storage, opened.segment, opened.written)
    for partition in store.partitions.values():
        if partition.segments:
            active = partition.segments[-1]
            active.synced = syncing.sizes(active.written)


def _find_archived(store: "LogStore", partition: PartitionLog) -> None:
    if store.archive is None and not partition.config.remote_storage:
        return  # ten thousand directories need not be listed for nothing
    found = descriptor.load(store.storage.files, partition.directory, partition.topic_id)
    partition.archived = descriptor.connected(found.segments, partition.segments)
    if partition.archived:
        if not partition.segments:  # all that is left of it is in the archive
            end = partition.archived[-1].end_offset
            partition.next_offset = partition.high_watermark = partition.recovery_point = end
            partition.log_start_offset = end
        start = min(partition.log_start_offset, partition.archived[0].base_offset)
        partition.log_start_offset = start
        partition.drop_local(descriptor.local_start(partition.archived, partition.segments))
    if store.archive is not None:
        store.archive.take_over(partition, found)
