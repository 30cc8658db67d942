"""The background work of erasures: partition after partition, segment after segment.

All erasures that wait are done in one round, so that a segment is rewritten once for all of them.
For each partition:

  1. Uploads to the archive pause: what is uploaded must not be what is being replaced.
  2. The active segment is sealed if it holds one of the records.
  3. A compacted topic gets a pass of compaction first, so that no older value of a key that is
     erased becomes its latest one.
  4. Every segment that holds one of the records is rewritten by the child process and swapped in.
  5. The archive's copies follow (archived.py).

It has then ended when nothing refers to the old files any more, and their removal is synced. After
a failure (a full disk, an archive that does not answer) the partition is tried again, later. What
cannot be read because it is damaged ends the erasure with an error.
"""

import asyncio
import bisect
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

import msgspec

from headwater.errors import CorruptLog, LogError
from headwater.log.compaction import swap
from headwater.log.compaction.compactor import Child, Compactor
from headwater.log.compaction.job import EraseJob, Report, Source
from headwater.log.disk.data_directory import DELETED
from headwater.log.erasure.archived import ArchivedErasing, holding
from headwater.log.erasure.erasures import DOCUMENTS, ErasedPartition, Erasure, offsets_of
from headwater.log.partitions.commit import when_durable
from headwater.log.partitions.partition import PartitionLog
from headwater.log.segment import Segment
from headwater.log.store import LogStore
from headwater.protocol import erased_records

log = logging.getLogger(__name__)

RETRY_S = 5.0
POLL_S = 0.02  # whether readers have let old files go
REMEMBERED_MS = 24 * 3600 * 1000  # how long the result of an erasure can be asked for
MAX_WAITING_OFFSETS = 1_000_000  # of all erasures that have not ended: they are in memory

Rewriter = Callable[[EraseJob], AsyncGenerator[Report, None]]


class Eraser:
    """See the module. Lives on the event loop. `rewriter` does the jobs: the child process, unless
    a test has its own.
    """

    def __init__(
        self,
        store: LogStore,
        compactor: Compactor,
        *,
        bytes_per_s: int,
        rewriter: Rewriter | None = None,
    ) -> None:
        self._store = store
        self._compactor = compactor
        self._bytes_per_s = bytes_per_s
        self._child = Child(store.path)
        self._rewriter = rewriter or self._child.run
        self._archived = ArchivedErasing(store, self._rewritten)
        self._erasures: dict[str, Erasure] = {}
        self._erased: dict[ErasedPartition, set[int]] = {}  # in partitions that are not done yet
        self._finishing: dict[str, asyncio.Task[None]] = {}
        self._wakeup = asyncio.Event()
        self.erased_records = 0  # since the start of the process

    @property
    def waiting(self) -> int:
        """How many erasures have not ended."""
        return sum(not erasure.has_ended for erasure in self._erasures.values())

    def load(self) -> None:
        """Takes over what earlier processes accepted. The log is open."""
        for erasure_id, document in self._store.catalog.documents.get(DOCUMENTS, {}).items():
            self._erasures[erasure_id] = Erasure.from_document(erasure_id, document)
        if self.waiting:
            log.info("erasures are continued: %d", self.waiting)
            self._wakeup.set()

    def find(self, erasure_id: str) -> Erasure | None:
        return self._erasures.get(erasure_id)

    def has_room_for(self, offsets: int) -> bool:
        waiting = sum(
            len(wanted)
            for erasure in self._erasures.values()
            if not erasure.has_ended
            for wanted in erasure.offsets.values()
        )
        return waiting + offsets <= MAX_WAITING_OFFSETS

    async def add(
        self, erasure_id: str, offsets: Mapping[ErasedPartition, Sequence[int]]
    ) -> Erasure:
        """Accepts an erasure: durable when this returns, and done in the background from then on.

        One that was accepted before, under the same id, stays as it is. Raises OSError.
        """
        if erasure_id not in self._erasures:
            now_ms = self._store.clock.now_ms()
            erasure = Erasure(erasure_id, now_ms)
            for key, of_partition in offsets.items():
                erasure.offsets[key] = sorted(set(of_partition))
            old = [
                erasure.id
                for erasure in self._erasures.values()
                if erasure.ended_ms is not None and erasure.ended_ms < now_ms - REMEMBERED_MS
            ]
            changes = {erasure_id: erasure.accepted()} | dict.fromkeys(old)
            await self._store.put_documents(DOCUMENTS, changes)
            for id_ in old:
                self._erasures.pop(id_, None)
            self._erasures.setdefault(erasure_id, erasure)
            self._wakeup.set()
        return self._erasures[erasure_id]

    async def run(self) -> None:
        """Does what is asked for, until it is cancelled."""
        try:
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                try:
                    await self._round()
                except Exception:
                    log.exception("erasing records failed; it is tried again")
                if any(
                    erasure.unfinished and not erasure.has_ended
                    for erasure in self._erasures.values()
                ):
                    self._store.clock.call_later(RETRY_S, self._wakeup.set)
        finally:
            for task in self._finishing.values():
                task.cancel()
            await asyncio.gather(*self._finishing.values(), return_exceptions=True)

    # ── a round ───────────────────────────────────────────────────────────────────────────────

    async def _round(self) -> None:
        erasures = [erasure for erasure in self._erasures.values() if not erasure.has_ended]
        todo = offsets_of(erasures)
        for erasure in erasures:
            erasure.segments = erasure.segments_done
        for key, (offsets, askers) in todo.items():
            partition = self._partition(key)
            if partition is not None:
                segments = len(self._holding(partition, offsets))
                segments += len(holding(partition, offsets))
                for erasure in askers:
                    erasure.segments += segments
        try:
            for key, (offsets, askers) in todo.items():
                await self._erase_for(key, offsets, askers)
        finally:
            await self._child.end()
        for erasure in erasures:
            if not erasure.unfinished and erasure.id not in self._finishing:
                self._finishing[erasure.id] = asyncio.create_task(self._finish(erasure))

    async def _erase_for(
        self, key: ErasedPartition, offsets: list[int], askers: list[Erasure]
    ) -> None:
        """Erases in one partition; what comes of it is recorded with those who asked."""
        partition = self._partition(key)
        # Also of earlier rounds, which failed after some segments: they count as erased by this.
        erased = self._erased.setdefault(key, set())
        try:
            if partition is not None:
                await self._erase_in(partition, offsets, askers, erased)
        except CorruptLog as error:
            log.error("records cannot be erased: %s-%d: %s", key.topic, key.partition, error)
            for erasure in askers:
                erasure.waits.pop(key, None)
                erasure.failed[key] = str(error)
        except (OSError, LogError, msgspec.MsgspecError) as error:
            if partition is None or not partition.deleted:
                text = f"{key.topic}-{key.partition}: {error}"
                log.error("erasing records is tried again: %s", text)
                for erasure in askers:
                    erasure.waits[key] = text
                return
        del self._erased[key]
        self.erased_records += len(erased)
        log.info("records erased: %s-%d: %d", key.topic, key.partition, len(erased))
        for erasure in askers:
            if key not in erasure.failed:
                erasure.record(key, erased)

    async def _erase_in(
        self, partition: PartitionLog, offsets: list[int], askers: list[Erasure], erased: set[int]
    ) -> None:
        """Adds the offsets that had contents to `erased`. Raises OSError or LogError: nothing is
        lost by trying again. Raises CorruptLog when all that is not damaged is done.
        """
        damage: CorruptLog | None = None
        partition.is_erasing = True
        try:
            await self._wait_for_upload(partition)
            async with self._compactor.rewriting:
                if partition.is_stuck:
                    raise OSError("a swap of segments could not be completed; the next start does")
                await self._seal(partition, offsets)
                if offsets[-1] >= partition.clean_offset:  # else it has passed them already
                    await self._compactor.clean_now(partition)
                for segment in self._holding(partition, offsets):
                    try:
                        erased |= await self._erase_in_segment(partition, segment, offsets, askers)
                    except CorruptLog as error:
                        damage = damage or error
                    self._count_segment(askers)
            for archived in holding(partition, offsets):
                try:
                    found, old_files = await self._archived.erase_in(partition, archived, offsets)
                except CorruptLog as error:
                    damage = damage or error
                    continue
                erased |= found
                for erasure in askers:
                    erasure.leaving += old_files
                self._count_segment(askers)
            # Also those that an earlier process has left: a start removes them in the background.
            staged = await self._store.in_reader(self._staged_backups)
            for erasure in askers:
                erasure.leaving += staged
        finally:
            partition.is_erasing = False
            if self._store.archive is not None:
                self._store.archive.uploads.look_at(partition)
        if damage is not None:
            raise damage

    def _count_segment(self, askers: list[Erasure]) -> None:
        for erasure in askers:
            erasure.segments_done = min(erasure.segments_done + 1, erasure.segments)

    async def _wait_for_upload(self, partition: PartitionLog) -> None:
        """Until no segment of it is on its way to the archive; no other one begins."""
        while self._store.archive is not None and partition in self._store.archive.uploads.busy:
            await asyncio.sleep(POLL_S)

    async def _seal(self, partition: PartitionLog, offsets: Sequence[int]) -> None:
        if partition.segments and offsets[-1] >= partition.segments[-1].base_offset:
            await when_durable(partition.roll)

    def _holding(self, partition: PartitionLog, offsets: Sequence[int]) -> list[Segment]:
        """The segments that one of the offsets may lie in; also in front of the log's start, where
        the bytes are as long as their segment is.
        """
        segments = partition.segments
        ends = [segment.base_offset for segment in segments[1:]] + [partition.next_offset]
        return [
            segment
            for segment, end in zip(segments, ends, strict=True)
            if segment.size_bytes
            and erased_records.any_between(offsets, segment.base_offset, end - 1)
        ]

    async def _erase_in_segment(
        self,
        partition: PartitionLog,
        segment: Segment,
        offsets: Sequence[int],
        askers: list[Erasure],
    ) -> set[int]:
        source = Source(segment.base_offset, segment.size_bytes)
        try:
            report = await self._rewritten(partition, partition.directory, source, offsets)
        except OSError:
            if segment.doomed or partition.deleted:  # retention was faster
                return set()
            raise
        if not report.inputs:
            return set()
        if not await swap.swap_in(self._store, partition, report.inputs):
            return set()  # retention was faster
        for erasure in askers:
            erasure.leaving.append(segment.log_path)
        return set(report.erased or ())

    async def _rewritten(
        self, partition: PartitionLog, directory: str, source: Source, offsets: Sequence[int]
    ) -> Report:
        """What the child reports when it has rewritten a segment that lies in `directory`. Raises
        OSError or CorruptLog; nothing is left of what it has written then.
        """
        config = partition.config
        job = EraseJob(
            directory=directory,
            source=source,
            offsets=list(offsets[bisect.bisect_left(offsets, source.base_offset) :]),
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            bytes_per_s=self._bytes_per_s,
        )
        try:
            async with contextlib.aclosing(self._rewriter(job)) as reports:
                report = await anext(reports)
            if report.error:
                raise OSError(report.error)
        except OSError:
            await self._child.end()  # it may still be writing
            if not partition.deleted:
                with contextlib.suppress(OSError):
                    files = self._store.storage.files
                    await self._store.in_worker(swap.discard, files, directory, source.base_offset)
            raise
        if report.damaged is not None:
            raise CorruptLog(
                "a segment is damaged; records in it cannot be erased",
                detail=report.detail,
                hint="restore the file from a backup, or delete the records up to its end",
            )
        return report

    # ── the end ───────────────────────────────────────────────────────────────────────────────

    async def _finish(self, erasure: Erasure) -> None:
        """Waits until the old files are off the disk, and records durably that it has ended.

        A slow consumer of an old file holds up this erasure, and no other one.
        """
        directories = {os.path.dirname(path) for path in erasure.leaving}
        while erasure.leaving:
            erasure.leaving = await self._store.in_reader(_existing, erasure.leaving)
            if erasure.leaving:
                await asyncio.sleep(POLL_S)
        while not erasure.has_ended:
            ended_ms = self._store.clock.now_ms()
            document = erasure.ended(ended_ms)
            try:
                await self._store.in_worker(self._sync_removals, directories)
                await self._store.put_documents(DOCUMENTS, {erasure.id: document})
            except OSError as error:
                erasure.ended_error = str(error)
                log.error("the end of an erasure cannot be recorded yet: %s", error)
                await asyncio.sleep(RETRY_S)
            else:
                erasure.ended_ms, erasure.ended_error = ended_ms, document["error"]
        erasure.offsets = {}
        del self._finishing[erasure.id]

    def _sync_removals(self, directories: Iterable[str]) -> None:
        """(worker) A power cut must not bring them back."""
        for directory in directories:
            with contextlib.suppress(FileNotFoundError):  # its topic was deleted
                self._store.storage.files.sync_directory(directory)

    def _staged_backups(self) -> list[str]:
        """(worker) Where a backup may hold old files (staging.py): their second names."""
        root = self._store.path
        names = self._store.storage.files.listdir(root)
        return [
            f"{root}/{name}"
            for name in names
            if name.startswith("backup-") and name.endswith(DELETED)
        ]

    def _partition(self, key: ErasedPartition) -> PartitionLog | None:
        """None: the topic was deleted."""
        partition = self._store.partitions.get((key.topic, key.partition))
        return partition if partition is not None and partition.topic_id == key.topic_id else None


def _existing(paths: Sequence[str]) -> list[str]:
    """(worker)"""
    return [path for path in paths if os.path.exists(path)]
