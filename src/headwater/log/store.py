"""The log of a broker: the topics and partitions of one data directory (data_directory.py)."""

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from headwater.clock import Clock
from headwater.errors import ConfigError
from headwater.log import opening, staging
from headwater.log.archive.descriptor import NotCached
from headwater.log.archive.options import ArchiveOptions
from headwater.log.catalog import Catalog, Topic
from headwater.log.checkpoints import Checkpoints, PartitionCheckpoint
from headwater.log.config import TopicConfig, topic_config
from headwater.log.disk import ballast as room
from headwater.log.disk import checkpoint_file, data_directory
from headwater.log.disk.data_directory import (
    CLEAN_OFFSETS,
    CLEAN_SHUTDOWN,
    DELETED,
    LOG_STARTS,
    RECOVERY_POINTS,
)
from headwater.log.disk.files import Files, OpenFiles
from headwater.log.disk.workers import Workers
from headwater.log.partitions.committer import Committer
from headwater.log.partitions.epochs import LeaderEpochs
from headwater.log.partitions.partition import PartitionLog
from headwater.log.segment import Segment, Storage

if TYPE_CHECKING:
    from headwater.log.archive.archive import Archive

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBE = "write-probe"
PROBE_BYTES = 1 << 20  # room for a batch of the largest size that topics take by default
WORK_THREADS = 2  # the catalog, checkpoints, removing files
READ_THREADS = 4


class LogStore:
    """See the module. Lives on one event loop; one process at a time has the directory."""

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        files: Files | None = None,
        max_open_files: int = 1024,
        topic_defaults: dict[str, str] | None = None,
        archive: ArchiveOptions | None = None,
    ) -> None:
        self.path = os.path.abspath(path)
        self.clock = clock
        self.topic_defaults = topic_defaults or {}
        files = files or Files()
        self.storage = Storage(files, OpenFiles(files, max_open_files))
        self.ballast = room.Ballast(self.storage, self.path)
        self.catalog = Catalog(files, self.path)
        self.partitions: dict[tuple[str, int], PartitionLog] = {}
        self.committer = Committer(self.storage, self.path, self.on_loop)
        self.workers = Workers("work", WORK_THREADS)
        self.readers = Workers("read", READ_THREADS)
        self.checkpoints = Checkpoints(self)
        self._archive_options = archive
        self.archive: Archive | None = None
        self.dirty: set[PartitionLog] = set()  # written since the last checkpoint
        self.failed: set[PartitionLog] = set()
        # Bytes that retention would delete, were it not for groups that have not read them.
        self.retention_waits: dict[PartitionLog, int] = {}
        self.corrupt: list[str] = []
        self.bytes_written = 0
        self.scanned_bytes = 0
        self._lock_fd = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._catalog_turn = asyncio.Lock()
        self._serial = 0

    @property
    def leader_epoch(self) -> int:
        return self.catalog.leader_epoch

    # ── opening and closing ───────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Takes the directory and opens every partition. Blocks; called before serving."""
        files = self.storage.files
        self._loop = asyncio.get_running_loop()
        data_directory.create(files, self.path)
        self._lock_fd = data_directory.lock(self.path)
        self.storage.root_fd = files.open_directory(self.path)
        if self._archive_options is not None:
            from headwater.log.archive.archive import Archive

            self.archive = Archive(self, self._archive_options)
            self.archive.cache.clear()
        self.ballast.find()
        clean_path = f"{self.path}/{CLEAN_SHUTDOWN}"
        clean = os.path.exists(clean_path)
        existed = os.path.exists(f"{self.path}/catalog.jsonl")
        self.catalog.open()
        recovery_points = checkpoint_file.read(files, f"{self.path}/{RECOVERY_POINTS}")
        log_starts = checkpoint_file.read(files, f"{self.path}/{LOG_STARTS}")
        clean_offsets = checkpoint_file.read(files, f"{self.path}/{CLEAN_OFFSETS}")
        self.checkpoints.log_starts = log_starts
        if existed and not clean:
            log.warning("the last process did not close the log; checking what may be torn")
            self.catalog.next_leader_epoch()
        opening.open_partitions(self, recovery_points, clean=clean)
        for key, offset in clean_offsets.items():
            found = self.partitions.get(key)
            if found is not None and offset <= found.high_watermark:  # else the log was cut
                found.clean_offset = offset
        self._remove_leftovers()
        recorded = recovery_points.keys() | log_starts.keys() | clean_offsets.keys()
        if not self.partitions.keys() >= recorded:
            # A crash interrupted the deletion of a topic. A later one of that name starts empty.
            self.checkpoints.log_starts = {
                key: start for key, start in log_starts.items() if key in self.partitions
            }
            self.checkpoints.drop_deleted()
        files.unlink(clean_path)
        files.sync_directory(self.path)
        if self.archive is not None:
            self.archive.start()

    async def close(self) -> None:
        """Commits all appends and leaves the directory so that it opens without a scan."""
        while any(not partition.is_idle for partition in self.dirty):
            await asyncio.sleep(0.002)
        if self.archive is not None:
            await self.archive.close()
        try:
            async with self.checkpoints.turn:
                last = [PartitionCheckpoint.of(partition) for partition in self.dirty]
                await self.in_worker(self._finish, last)
        except OSError as error:
            log.error("the log could not be closed cleanly: %s", error)
        self.committer.close()
        self.workers.close()
        self.readers.close()
        self.storage.open_files.close()
        self._release()

    def abandon(self) -> None:
        """Releases the directory as a crash would; for tests."""
        if self.archive is not None:
            self.archive.abandon()
        self.committer.close()
        self.workers.close()
        self.readers.close()
        self.storage.open_files.close()
        self._release()

    def _finish(self, last: list[PartitionCheckpoint]) -> None:
        """(worker)"""
        self.checkpoints.finish(last)
        self.storage.files.write_atomically(f"{self.path}/{CLEAN_SHUTDOWN}", b"")

    def _release(self) -> None:
        if self.storage.root_fd >= 0:
            self.storage.files.close(self.storage.root_fd)
            self.storage.root_fd = -1
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _remove_leftovers(self) -> None:
        """Finishes deletions that a crash interrupted; reports what belongs to no topic."""
        for name in self.storage.files.listdir(self.path):
            path = f"{self.path}/{name}"
            topic, _, index = name.rpartition("-")
            if name.endswith(DELETED):
                self.workers.submit(self.storage.files.rmtree, path)
            elif (
                topic
                and index.isdigit()
                and (topic, int(index)) not in self.partitions
                and os.path.isdir(path)
            ):
                log.warning("a directory belongs to no topic and is left alone: %s", path)

    # ── topics ────────────────────────────────────────────────────────────────────────────────

    def has_topic(self, name: str) -> bool:
        """Whether it can be used. The catalog, in its thread, has a new topic before that."""
        return (name, 0) in self.partitions

    async def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> Topic:
        """The topic exists, durably, when this returns. The caller has checked that it may."""
        config = self.checked_config(configs)
        async with self._catalog_turn:
            existing = self.catalog.topics.get(name)
            if existing is not None:
                return existing
            await self.in_worker(self._move_orphans, name, 0, partitions)
            topic = await self.in_worker(self.catalog.create, name, partitions, configs)
            self._add_partitions(topic, 0, config)
        return topic

    async def add_partitions(self, name: str, count: int) -> None:
        async with self._catalog_turn:
            topic = self.catalog.topics[name]
            await self.in_worker(self._move_orphans, name, topic.partitions, count)
            grown = await self.in_worker(self._change, topic, {"partitions": count})
            config = topic_config(grown.configs, self.topic_defaults)
            self._add_partitions(grown, topic.partitions, config)

    async def set_configs(self, name: str, configs: dict[str, str]) -> None:
        async with self._catalog_turn:
            config = self.checked_config(configs, name)
            topic = self.catalog.topics[name]
            # It may be a shorter retention.
            await self._making_room(self._change, topic, {"configs": configs})
            partitions = self._partitions_of(topic)
            was_synced = all(partition.config.fsync for partition in partitions)
            for partition in partitions:
                partition.config = config
                if self.archive is not None:
                    self.archive.uploads.look_at(partition)
            if config.fsync and not was_synced:
                await (
                    self.checkpoints.write()
                )  # from here on a start relies on the syncs of commits

    def checked_config(self, configs: Mapping[str, str], topic: str | None = None) -> TopicConfig:
        """The settings of a new topic, or of one that is there. Raises ConfigError if they are
        wrong in themselves or cannot be had here.
        """
        config = topic_config(configs, self.topic_defaults)
        archived = topic is not None and any(
            partition.archived
            or (self.archive is not None and partition in self.archive.uploads.busy)
            for partition in self._partitions_of(self.catalog.topics[topic])
        )
        if config.remote_storage and self.archive is None and not archived:
            raise ConfigError(
                "remote.storage.enable needs an archive: the broker's setting `archive` names none",
                hint='set the broker\'s `archive`, for example "file:///mnt/archive"',
            )
        if archived and not config.remote_storage:
            raise ConfigError(
                "remote.storage.enable cannot be turned off: records of the topic are archived",
                detail=str(topic),
                hint="delete them (DeleteRecords up to the local start), or the topic",
            )
        return config

    async def delete_topic(self, name: str) -> None:
        """The topic is deleted, durably, when this returns; its files go in the background.

        Nothing of it is left that a topic of the same name could take for its own.
        """
        async with self._catalog_turn:
            topic = self.catalog.topics[name]
            partitions = self._partitions_of(topic)
            is_archived = any(
                partition.archived or partition.config.remote_storage for partition in partitions
            )
            if is_archived:
                from headwater.log.archive.deletions import TOPICS

                work = {topic.id.hex: name}
                await self._making_room(self.catalog.put, TOPICS, work)
            await self._making_room(self.catalog.delete, name)
            for index in range(topic.partitions):
                partition = self.partitions.pop((name, index))
                while not partition.is_idle or partition.is_swapping:
                    await asyncio.sleep(0.001)
                self.dirty.discard(partition)
                self.failed.discard(partition)
                self.retention_waits.pop(partition, None)
                partition.doom_all()
            if is_archived and self.archive is not None:
                self.archive.forget_topic(topic.id.hex, partitions)
            async with self.checkpoints.turn:
                starts = self.checkpoints.log_starts
                starts = {key: start for key, start in starts.items() if key[0] != name}
                self.checkpoints.log_starts = starts
                try:
                    await self._making_room(self._retire, topic, partitions)
                except OSError as error:  # the next start, or the next topic of the name, does it
                    log.error("files of a deleted topic are still there: %s: %s", name, error)

    async def put_documents(self, kind: str, changes: dict[str, Any]) -> None:
        """Stores another part's documents in the catalog; durable when it returns."""
        async with self._catalog_turn:
            await self.in_worker(self.catalog.put, kind, changes)

    async def next_producer_id(self) -> int:
        """An id that was never assigned before, not even before a crash."""
        async with self._catalog_turn:
            if self.catalog.has_producer_id():
                return self.catalog.next_producer_id()
            return await self.in_worker(self.catalog.next_producer_id)

    def _partitions_of(self, topic: Topic) -> list[PartitionLog]:
        return [self.partitions[topic.name, index] for index in range(topic.partitions)]

    def _change(self, topic: Topic, changes: dict[str, Any]) -> Topic:
        """(worker)"""
        return self.catalog.change(topic, **changes)

    def _add_partitions(self, topic: Topic, first: int, config: TopicConfig) -> None:
        for index in range(first, topic.partitions):
            partition = PartitionLog(self, topic.name, index, config, LeaderEpochs())
            partition.topic_id = topic.id.hex
            self.partitions[topic.name, index] = partition

    def _move_orphans(self, topic: str, first: int, end: int) -> None:
        """(worker) What a crash left of a deleted topic must not be taken for the new one's."""
        for index in range(first, end):
            directory = f"{self.path}/{topic}-{index}"
            if os.path.isdir(directory):
                orphan = f"{directory}.{uuid4().hex}.orphan"
                log.warning("a directory of no topic was renamed: %s is now %s", directory, orphan)
                self.storage.files.rename(directory, orphan)
                self.storage.open_files.forget_in([directory])
                self.storage.files.sync_directory(self.path)

    def _retire(self, topic: Topic, partitions: list[PartitionLog]) -> None:
        """(worker) Removes a deleted topic's names: directories, then checkpoints."""
        files = self.storage.files
        directories = [partition.directory for partition in partitions]
        directories = [directory for directory in directories if os.path.isdir(directory)]
        try:
            for directory in directories:
                doomed = f"{directory}.{topic.id.hex}{DELETED}"
                files.rename(directory, doomed)
                self.workers.submit(files.rmtree, doomed)
        finally:
            # Not before: a reader could open them again, and the next topic of the name would
            # write into removed files. Also those of segments that the log has dropped.
            self.storage.open_files.forget_in(directories)
        files.sync_directory(self.path)
        self.checkpoints.drop_deleted()

    async def delete_records(self, offsets: Mapping[PartitionLog, int]) -> None:
        """Moves the starts of logs on to `offsets`.

        Durable when it returns: the records do not come back after a crash. It costs the same for
        one partition as for all of them.
        """
        checkpoints = self.checkpoints
        async with checkpoints.turn:
            starts = {
                partition: max(partition.log_start_offset, offset)
                for partition, offset in offsets.items()
            }
            written = (partition for partition in starts if partition in self.dirty)
            dirty = [PartitionCheckpoint.of(partition) for partition in written]
            if dirty:
                # What the producers did in front of it can't be read again after a crash.
                await self._with_room(lambda: checkpoints.save(dirty))
            moved = _by_name(starts)
            await self._making_room(checkpoints.write_log_starts, checkpoints.log_starts | moved)
            starts = {
                partition: start for partition, start in starts.items() if not partition.deleted
            }
            checkpoints.log_starts |= _by_name(starts)
        # Only now do files go, so that none of them can come back into the log alone.
        for partition, start in starts.items():
            partition.delete_before(start)

    # ── upkeep ────────────────────────────────────────────────────────────────────────────────

    async def _making_room(self, job: Callable[..., T], *args: Any) -> T:
        """Runs in a thread what a deletion has to write; on a full disk the ballast makes way."""
        return await self._with_room(lambda: self.in_worker(job, *args))

    async def _with_room(self, write: Callable[[], Awaitable[T]]) -> T:
        try:
            return await write()
        except OSError as error:
            if not room.is_full(error) or not await self.in_worker(self.ballast.release):
                raise
        return await write()

    async def make_room(self) -> bool:
        """The ballast makes way if the disk is full. False: it is not, or has made way before."""
        if not await self.in_reader(self.ballast.is_needed):
            return False
        return await self.in_worker(self.ballast.release)

    async def stage(self) -> str:
        """A directory with the log as of one moment, which the caller removes (staging.py)."""
        async with self._catalog_turn, self.checkpoints.turn:
            return staging.stage(self)

    def next_serial(self) -> int:
        """A number that no file of this process has in its name yet."""
        self._serial += 1
        return self._serial

    async def probe(self) -> None:
        """Finds out whether a disk that refused writes takes them again, if no producer tries."""
        if not self.ballast.is_there:
            with contextlib.suppress(OSError):
                await self.in_worker(self.ballast.take)
        if not self.failed or self.storage.is_short:
            return
        try:
            await self.in_worker(self._write_probe)
        except OSError:
            return
        for partition in tuple(self.failed):
            partition.retry()

    def _write_probe(self) -> None:
        """(worker)"""
        files, path = self.storage.files, f"{self.path}/{PROBE}"
        fd = files.open(path, create=True)
        try:
            files.pwrite(fd, bytes(PROBE_BYTES), 0)
            files.fdatasync(fd)
        finally:
            files.close(fd)
            files.unlink(path)

    def record_failure(self, partition: PartitionLog, error: OSError) -> None:
        if partition not in self.failed:
            log.error("writing stopped: %s-%d: %s", partition.topic, partition.index, error)
        self.failed.add(partition)
        if error.errno == errno.ENOSPC and self.archive is not None:
            self.archive.cache.drop()  # what can be fetched again goes first

    def record_corrupt(self, segment: Segment, error: Exception) -> None:
        self.corrupt.append(segment.log_path)
        log.error("a segment is out of service: %s: %s", segment.log_path, error)

    # ── threads ───────────────────────────────────────────────────────────────────────────────

    def on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        """Called by workers: runs `callback` on the event loop."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: a crash in a test
            self._loop.call_soon_threadsafe(callback, *args)

    async def in_worker(self, job: Callable[..., T], *args: Any) -> T:
        """What `job(*args)` returns or raises, in a thread that writes; see `Workers.run`."""
        return await self.workers.run(job, *args)

    async def in_reader(self, job: Callable[..., T], *args: Any) -> T:
        """The same in a thread that reads; a caller that is cancelled does not wait for it."""
        return await self.readers.start(job, *args)

    async def in_reader_and_archive(self, job: Callable[..., T], *args: Any) -> T:
        """The same, for a job that may need archived records: they are fetched, then it is run
        again. Raises ArchiveUnavailable or CorruptLog if they cannot be fetched.
        """
        while True:
            try:
                return await self.in_reader(job, *args)
            except NotCached as missing:
                assert self.archive is not None
                await self.archive.chunks.fetched(missing.chunk)


def _by_name(offsets: Mapping[PartitionLog, int]) -> dict[tuple[str, int], int]:
    return {(partition.topic, partition.index): at for partition, at in offsets.items()}
