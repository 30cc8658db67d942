"""A data directory: the catalog, all partitions, and the work that keeps them in order.

.headwater/
  lock                               held while a process uses the directory
  catalog.jsonl                      topics (catalog.py)
  clean-shutdown                     there if the last process closed everything
  recovery-point-offset-checkpoint   how far each partition needs no scan
  log-start-offset-checkpoint        where a partition begins inside its first segment
  cleaner-offset-checkpoint          how far each partition is compacted
  ballast                            room for deletions on a full disk (ballast.py)
  archive-cache/                     what was read back from the archive
  control                            socket for commands on this machine (broker/control.py)
  backup-….deleted/                  while a backup is made (staging.py)
  orders-0/                          a partition; made with its first record
    00000000000000000000.log/.index/.timeindex/.txnindex, ….snapshot, leader-epoch-checkpoint
"""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from headwater.clock import Clock
from headwater.errors import ConfigError, DataDirectoryInUse
from headwater.log import ballast as room
from headwater.log import checkpoint, progress, recovery, staging, syncing
from headwater.log import segment as segments_on_disk
from headwater.log.archive import descriptor
from headwater.log.archive.descriptor import NotCached
from headwater.log.archive.options import ArchiveOptions
from headwater.log.catalog import Catalog, Topic
from headwater.log.committer import Committer
from headwater.log.config import TopicConfig, topic_config
from headwater.log.epochs import LeaderEpochs
from headwater.log.files import Files, OpenFiles
from headwater.log.partition import PartitionLog
from headwater.log.progress import Progress
from headwater.log.segment import Segment, Storage
from headwater.log.syncing import ToSync
from headwater.log.workers import Workers
from headwater.private_files import open_lock

if TYPE_CHECKING:
    from headwater.log.archive.archive import Archive

log = logging.getLogger(__name__)

T = TypeVar("T")

CLEAN_SHUTDOWN = "clean-shutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEAN_OFFSETS = "cleaner-offset-checkpoint"
PROBE = "write-probe"
PROBE_BYTES = 1 << 20  # room for a batch of the largest size that topics take by default
_DELETED = ".deleted"
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
        self._checkpoint_turn = asyncio.Lock()  # one writer at a time to each checkpoint file
        self._log_starts: dict[tuple[str, int], int] = {}
        self._serial = 0

    @property
    def leader_epoch(self) -> int:
        return self.catalog.leader_epoch

    # ── opening and closing ───────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Takes the directory and opens every partition. Blocks; called before serving."""
        files = self.storage.files
        self._loop = asyncio.get_running_loop()
        self._make_directory()
        self._take_lock()
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
        recovery_points = checkpoint.read(files, f"{self.path}/{RECOVERY_POINTS}")
        self._log_starts = checkpoint.read(files, f"{self.path}/{LOG_STARTS}")
        clean_offsets = checkpoint.read(files, f"{self.path}/{CLEAN_OFFSETS}")
        if existed and not clean:
            log.warning("the last process did not close the log; checking what may be torn")
            self.catalog.next_leader_epoch()
        to_sync: list[ToSync] = []
        for topic in self.catalog.topics.values():
            config = topic_config(topic.configs, self.topic_defaults)
            for index in range(topic.partitions):
                to_sync += self._open_partition(topic, index, config, clean, recovery_points)
        for key, offset in clean_offsets.items():
            found = self.partitions.get(key)
            if found is not None and offset <= found.high_watermark:  # else the log was cut
                found.clean_offset = offset
        self._sync_opened(to_sync)  # before anyone sees what a crash left
        self._remove_leftovers()
        known = recovery_points.keys() | self._log_starts.keys() | clean_offsets.keys()
        if not self.partitions.keys() >= known:
            # A crash interrupted the deletion of a topic. A later one of that name begins anew.
            self._log_starts = {k: v for k, v in self._log_starts.items() if k in self.partitions}
            self._write_recovery_points()
            self._write_log_starts(self._log_starts)
            self._write_clean_offsets()
        files.unlink(clean_path)
        files.sync_directory(self.path)
        if self.archive is not None:
            self.archive.start()

    def _make_directory(self) -> None:
        """Makes the data directory if need be, lasting: a power cut must not take all of it."""
        files, missing = self.storage.files, []
        path = self.path
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        files.makedirs(self.path)
        for each in missing:
            files.sync_directory(os.path.dirname(each))

    def _open_partition(
        self,
        topic: Topic,
        index: int,
        config: TopicConfig,
        clean: bool,
        recovery_points: dict[tuple[str, int], int],
    ) -> tuple[ToSync, ...]:
        key = (topic.name, index)
        files = self.storage.files
        partition = PartitionLog(self, topic.name, index, config, LeaderEpochs())
        partition.topic_id = topic.id.hex
        partition.epochs = LeaderEpochs.load(files, partition.directory)
        self.partitions[key] = partition
        opened = recovery.open_partition(
            partition,
            self.storage,
            clean=clean,
            checkpoint=recovery_points.get(key),
            now_ms=self.clock.now_ms(),
        )
        self.scanned_bytes += opened.scanned_bytes
        self._find_archived(partition)
        # Segments in front of it are still there if a crash interrupted their removal.
        partition.delete_before(min(self._log_starts.get(key, 0), partition.high_watermark))
        if opened.to_sync or opened.is_ahead:
            self.dirty.add(partition)
        if not opened.to_sync:
            return ()
        active = partition.segments[-1]
        return (ToSync.all_of(active, active.written),)

    def _sync_opened(self, to_sync: list[ToSync]) -> None:
        errors = syncing.sync_many(self.storage, self.storage.root_fd, to_sync)
        for each, error in zip(to_sync, errors, strict=True):
            if error is not None:  # perhaps of what the last process wrote: once more, then
                log.warning("%s is written again: %s", each.segment.log_path, error)
                segments_on_disk.cut(self.storage, each.segment, each.written)
        for partition in self.partitions.values():
            if partition.segments:
                active = partition.segments[-1]
                active.synced = syncing.sizes(active.written)

    def _find_archived(self, partition: PartitionLog) -> None:
        if self.archive is None and not partition.config.remote_storage:
            return  # ten thousand directories need not be listed for nothing
        found = descriptor.load(self.storage.files, partition.directory, partition.topic_id)
        partition.archived = descriptor.connected(found.kept, partition.segments)
        if partition.archived:
            if not partition.segments:  # all that is left of it is in the archive
                end = partition.archived[-1].end_offset
                partition.next_offset = partition.high_watermark = partition.recovery_point = end
                partition.log_start_offset = end
            start = min(partition.log_start_offset, partition.archived[0].base_offset)
            partition.log_start_offset = start
            partition.drop_local(descriptor.local_start(partition.archived, partition.segments))
        if self.archive is not None:
            self.archive.take_over(partition, found)

    async def close(self) -> None:
        """Commits what was taken in and leaves the directory so that it opens without a scan."""
        while any(not partition.is_idle for partition in self.dirty):
            await asyncio.sleep(0.002)
        if self.archive is not None:
            await self.archive.close()
        try:
            async with self._checkpoint_turn:
                await self.in_worker(self._finish, [Progress.of(each) for each in self.dirty])
        except OSError as error:
            log.error("the log could not be closed cleanly: %s", error)
        self.committer.close()
        self.workers.close()
        self.readers.close()
        self.storage.open_files.close()
        self._release_lock()

    def abandon(self) -> None:
        """Lets go of the directory as a crash would; for tests."""
        if self.archive is not None:
            self.archive.abandon()
        self.committer.close()
        self.workers.close()
        self.readers.close()
        self.storage.open_files.close()
        self._release_lock()

    def _finish(self, partitions: list[Progress]) -> None:
        """(worker)"""
        progress.complete(self.storage, partitions)
        for _, error in self._checkpoint(partitions):
            raise error
        self.storage.files.write_atomically(f"{self.path}/{CLEAN_SHUTDOWN}", b"")

    def _take_lock(self) -> None:
        self._lock_fd = open_lock(f"{self.path}/lock")
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock_fd, 32, 0).decode("ascii", "replace").strip()
            self._release_lock()
            raise DataDirectoryInUse(
                "another process uses this data directory",
                detail=f"{self.path}, process {holder or 'unknown'}",
                hint="stop it, or choose another --data-dir",
            ) from None
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, f"{os.getpid()}\n".encode(), 0)

    def _release_lock(self) -> None:
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
            if name.endswith(_DELETED):
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
            await self.in_worker(self._clear_the_way, name, 0, partitions)
            topic = await self.in_worker(self.catalog.create, name, partitions, configs)
            self._add_partitions(topic, 0, config)
        return topic

    async def add_partitions(self, name: str, count: int) -> None:
        async with self._catalog_turn:
            topic = self.catalog.topics[name]
            await self.in_worker(self._clear_the_way, name, topic.partitions, count)
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
            was_synced = all(each.config.fsync for each in partitions)
            for partition in partitions:
                partition.config = config
                if self.archive is not None:
                    self.archive.uploads.look_at(partition)
            if config.fsync and not was_synced:
                await self.checkpoint()  # from here on a start relies on the syncs of commits

    def checked_config(self, configs: Mapping[str, str], topic: str | None = None) -> TopicConfig:
        """The settings of a new topic, or of one that is there. Raises ConfigError if they are
        wrong in themselves or cannot be had here.
        """
        config = topic_config(configs, self.topic_defaults)
        archived = topic is not None and any(
            each.archived or (self.archive is not None and each in self.archive.uploads.busy)
            for each in self._partitions_of(self.catalog.topics[topic])
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
        """The topic is gone, durably, when this returns; its files go in the background.

        Nothing of it is left that a topic of the same name could take for its own.
        """
        async with self._catalog_turn:
            topic = self.catalog.topics[name]
            partitions = self._partitions_of(topic)
            is_archived = any(each.archived or each.config.remote_storage for each in partitions)
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
            async with self._checkpoint_turn:
                self._log_starts = {k: v for k, v in self._log_starts.items() if k[0] != name}
                try:
                    await self._making_room(self._retire, topic, partitions, self._log_starts)
                except OSError as error:  # the next start, or the next topic of the name, does it
                    log.error("files of a deleted topic are still there: %s: %s", name, error)

    async def put_documents(self, kind: str, changes: dict[str, Any]) -> None:
        """Stores what another part keeps in the catalog; durable when it returns."""
        async with self._catalog_turn:
            await self.in_worker(self.catalog.put, kind, changes)

    async def next_producer_id(self) -> int:
        """An id that was never given out before, also not before a crash."""
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

    def _clear_the_way(self, topic: str, first: int, end: int) -> None:
        """(worker) What a crash left of a deleted topic must not be taken for the new one's."""
        for index in range(first, end):
            directory = f"{self.path}/{topic}-{index}"
            if os.path.isdir(directory):
                kept = f"{directory}.{uuid4().hex}.orphan"
                log.warning("a directory of no topic makes way: %s is now %s", directory, kept)
                self.storage.files.rename(directory, kept)
                self.storage.open_files.forget_in([directory])
                self.storage.files.sync_directory(self.path)

    def _retire(
        self,
        topic: Topic,
        partitions: list[PartitionLog],
        log_starts: dict[tuple[str, int], int],
    ) -> None:
        """(worker) Takes a deleted topic's names away: directories, then checkpoints."""
        files = self.storage.files
        directories = [each.directory for each in partitions if os.path.isdir(each.directory)]
        try:
            for directory in directories:
                doomed = f"{directory}.{topic.id.hex}{_DELETED}"
                files.rename(directory, doomed)
                self.workers.submit(files.rmtree, doomed)
        finally:
            # Not before: a reader could open them again, and the next topic of the name would
            # write into files that are gone. Also those of segments that the log has forgotten.
            self.storage.open_files.forget_in(directories)
        files.sync_directory(self.path)
        self._write_recovery_points()
        self._write_log_starts(log_starts)
        self._write_clean_offsets()

    async def delete_records(self, offsets: Mapping[PartitionLog, int]) -> None:
        """Moves the starts of logs on to `offsets`.

        Durable when it returns: the records do not come back after a crash. It costs the same for
        one partition as for all of them.
        """
        async with self._checkpoint_turn:
            starts = {each: max(each.log_start_offset, at) for each, at in offsets.items()}
            dirty = [Progress.of(each) for each in starts if each in self.dirty]
            if dirty:
                # What the producers did in front of it can't be read again after a crash.
                await self._with_room(lambda: self._save_all(dirty))
            log_starts = self._log_starts | {(p.topic, p.index): at for p, at in starts.items()}
            await self._making_room(self._write_log_starts, log_starts)
            starts = {each: at for each, at in starts.items() if not each.deleted}
            self._log_starts |= {(p.topic, p.index): at for p, at in starts.items()}
        # Only now do files go, so that none of them can come back into the log alone.
        for partition, start in starts.items():
            partition.delete_before(start)

    # ── keeping ───────────────────────────────────────────────────────────────────────────────

    async def checkpoint(self) -> None:
        """Moves the recovery points on, so that a crash has less to scan."""
        async with self._checkpoint_turn:
            partitions = [Progress.of(each) for each in self.dirty]
            try:
                failed = {each.partition for each, _ in await self._saved(partitions)}
            except OSError as error:
                log.error("a checkpoint could not be written: %s", error)
                return
            # Only now, so that a stop in between still knows what it has to write.
            self.dirty -= {each.partition for each in partitions if each.is_all} - failed

    async def _saved(self, partitions: list[Progress]) -> list[tuple[Progress, OSError]]:
        """Writes a checkpoint; the partitions whose part of it failed, with the reason. Those
        whose bytes a failed sync may have lost take no more until they are mended.
        """
        failed = await self.in_worker(self._checkpoint, partitions)
        for each, error in failed:
            name = f"{each.partition.topic}-{each.partition.index}"
            log.error("a checkpoint could not be written: %s: %s", name, error)
            if each.active is not None and each.active.sync_error is not None:
                each.partition.sync_failed(error)
        return failed

    async def _save_all(self, partitions: list[Progress]) -> None:
        for _, error in await self._saved(partitions):
            raise error

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
        async with self._catalog_turn, self._checkpoint_turn:
            return staging.stage(self)

    def _checkpoint(self, partitions: list[Progress]) -> list[tuple[Progress, OSError]]:
        """(worker)"""
        failed = progress.save(self.storage, partitions)
        self._write_recovery_points()
        return failed

    def _write_recovery_points(self) -> None:
        """(worker)"""
        points = {
            key: partition.recovery_point
            for key, partition in list(self.partitions.items())
            if partition.recovery_point
        }
        checkpoint.write(self.storage.files, f"{self.path}/{RECOVERY_POINTS}", points)

    def _write_log_starts(self, starts: dict[tuple[str, int], int]) -> None:
        """(worker)"""
        checkpoint.write(self.storage.files, f"{self.path}/{LOG_STARTS}", starts)

    async def save_clean_offsets(self) -> None:
        """What compaction has reached is remembered; forgotten, it would only be done again."""
        async with self._checkpoint_turn:
            await self.in_worker(self._write_clean_offsets)

    def _write_clean_offsets(self) -> None:
        """(worker)"""
        offsets = {
            key: partition.clean_offset
            for key, partition in list(self.partitions.items())
            if partition.clean_offset
        }
        checkpoint.write(self.storage.files, f"{self.path}/{CLEAN_OFFSETS}", offsets)

    def next_serial(self) -> int:
        """A number that no file of this process has in its name yet."""
        self._serial += 1
        return self._serial

    async def probe(self) -> None:
        """Finds out whether a disk that refused writes takes them again, if nobody else tries."""
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

    def note_failure(self, partition: PartitionLog, error: OSError) -> None:
        if partition not in self.failed:
            log.error("writing stopped: %s-%d: %s", partition.topic, partition.index, error)
        self.failed.add(partition)
        if error.errno == errno.ENOSPC and self.archive is not None:
            self.archive.cache.drop()  # what can be had again goes first

    def note_corrupt(self, partition: PartitionLog, segment: Segment, error: Exception) -> None:
        self.corrupt.append(segment.log_path)
        log.error("a segment is out of service: %s: %s", segment.log_path, error)

    # ── threads ───────────────────────────────────────────────────────────────────────────────

    def on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        """Called by workers: runs `callback` on the event loop."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is gone: a crash in a test
            self._loop.call_soon_threadsafe(callback, *args)

    async def in_worker(self, job: Callable[..., T], *args: Any) -> T:
        """What `job(*args)` returns or raises, run in a thread.

        A job cannot be stopped. A caller that is cancelled therefore waits for its end, holding
        what it holds: whoever has the lock next must not write to the same file.
        """
        future = self._run(self.workers, job, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # counts as seen: nobody waits for it any more
            raise

    async def in_reader(self, job: Callable[..., T], *args: Any) -> T:
        """The same, among the threads that read; commits do not wait for it."""
        return await self._run(self.readers, job, *args)

    async def in_reader_and_archive(self, job: Callable[..., T], *args: Any) -> T:
        """The same, for a job that may need archived records: they are fetched, then it is run
        again. Raises ArchiveUnavailable or CorruptLog if they cannot be had.
        """
        while True:
            try:
                return await self.in_reader(job, *args)
            except NotCached as missing:
                assert self.archive is not None
                await self.archive.chunks.fetched(missing.chunk)

    def _run(self, workers: Workers, job: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        assert self._loop is not None
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = job(*args)
            except BaseException as error:
                self.on_loop(_settle, future, None, error)
            else:
                self.on_loop(_settle, future, result, None)

        workers.submit(run)
        return future


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
