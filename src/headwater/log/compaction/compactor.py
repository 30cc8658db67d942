"""Compaction in the background: the dirtiest partition first, one pass at a time.

The work is done by a child process (worker.py), started when something is due and ended when
nothing is. The broker only swaps in what the child has written. A pass that fails, because the
disk is full, say, or the child was killed, is given up and tried again in the next round; the old
segments stay in use.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import msgspec

from headwater import extras
from headwater.errors import CorruptLog
from headwater.log.compaction import swap
from headwater.log.compaction.due import Dirt, dirt_of, is_compacted, roll_if_overdue
from headwater.log.compaction.job import EraseJob, Job, Report, Source
from headwater.log.partitions.partition import PartitionLog
from headwater.log.partitions.transactions import AbortedTransaction
from headwater.log.store import LogStore

log = logging.getLogger(__name__)

NUMBA_CACHE = "numba-cache"  # compiled code, in the data directory: it is sure to be writable
LOOKED_AT = 500  # partitions, until the event loop may do something else
_LINE_BYTES = 64 << 20  # a million offsets that were erased


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    memory_bytes: int = 128 << 20  # of the map from key to offset
    bytes_per_s: int = 256 << 20  # read and written


@dataclass(slots=True)
class CompactionNumbers:
    """Since the start of the process, but for the ratio, which is of the last look."""

    passes: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    max_dirty_ratio: float = 0.0
    last_error: str = ""


Cleaner = Callable[[Job], AsyncGenerator[Report, None]]


class Compactor:
    """See the module. `cleaner` runs the passes: the child process, unless a test has its own."""

    def __init__(
        self, store: LogStore, limits: CompactionLimits, *, cleaner: Cleaner | None = None
    ) -> None:
        self._store = store
        self._limits = limits
        self._child = Child(store.path)
        self._cleaner = cleaner or self._child.run
        self._turn = asyncio.Lock()
        # Held by whatever rewrites segments: passes here, and erasures (log/erasure).
        self.rewriting = asyncio.Lock()
        self.numbers = CompactionNumbers()

    async def run(self) -> None:
        """Cleans until nothing is due any more."""
        async with self._turn:
            await self._run()

    async def _run(self) -> None:
        not_now: set[PartitionLog] = set()
        try:
            while (dirt := await self._dirtiest(not_now)) is not None:
                async with self.rewriting:
                    # What is in front of it may have been rewritten before it was our turn.
                    dirt = await dirt_of(self._store, dirt.partition)
                    if not dirt.sources or not await self._clean_or_give_up(dirt):
                        not_now.add(dirt.partition)
        finally:
            async with self.rewriting:
                await self._child.end()

    async def clean_now(self, partition: PartitionLog) -> None:
        """Does a pass although none is due, as far as one may go. The caller holds `rewriting`.

        If it fails, that is logged; another round does it again.
        """
        if is_compacted(partition) and not partition.is_stuck:
            dirt = await dirt_of(self._store, partition)
            if dirt.dirty_bytes:
                try:
                    await self._clean_or_give_up(dirt)
                finally:
                    await self._child.end()

    async def _clean_or_give_up(self, dirt: Dirt) -> bool:
        """Whether the pass was done, and all of it is in use."""
        try:
            return await self._clean(dirt)
        except (OSError, CorruptLog, msgspec.MsgspecError) as error:
            await self._give_up(dirt.partition, error)
            return False

    async def _dirtiest(self, but: set[PartitionLog]) -> Dirt | None:
        partitions = [
            partition for partition in self._store.partitions.values() if is_compacted(partition)
        ]
        dirtiest: Dirt | None = None
        self.numbers.max_dirty_ratio = 0.0
        for number, partition in enumerate(partitions, 1):
            if number % LOOKED_AT == 0:
                await asyncio.sleep(0)
            if partition in but or partition.deleted or partition.is_stuck:
                continue
            roll_if_overdue(self._store, partition)
            try:
                dirt = await dirt_of(self._store, partition)
            except OSError as error:  # a file of it was removed
                log.error("compaction: %s-%d: %s", partition.topic, partition.index, error)
                continue
            self.numbers.max_dirty_ratio = max(self.numbers.max_dirty_ratio, dirt.ratio)
            if dirt.is_due and (dirtiest is None or _urgency(dirt) > _urgency(dirtiest)):
                dirtiest = dirt
        return dirtiest

    async def _clean(self, dirt: Dirt) -> bool:
        """Does a pass. False: not all that was cleaned is in use; the next round does it again.

        Until then none of it counts as clean. What a tombstone deletes may still be there, and
        would come back if the tombstone went first.
        """
        partition = dirt.partition
        is_whole = True
        aborted = await self._aborted(dirt)
        async with contextlib.aclosing(self._cleaner(self._job(dirt, aborted))) as reports:
            async for report in reports:
                if report.error:
                    raise OSError(report.error)
                if partition.deleted:
                    await self._child.end()  # it works on files that were removed
                    return False
                if not is_compacted(partition):  # and perhaps archived, as it is
                    raise OSError("the topic is not compacted any more")
                if report.inputs:
                    is_whole &= await swap.swap_in(self._store, partition, report.inputs)
                if report.damaged is not None:
                    self._record_damage(partition, report)
                if report.clean_offset is not None and is_whole:
                    await self._record_pass(partition, report)
        return is_whole

    async def _aborted(self, dirt: Dirt) -> list[AbortedTransaction]:
        start = dirt.sources[0].base_offset
        if not dirt.partition.may_hold_aborted(start):
            return []
        find = dirt.partition.aborted_transactions
        return await self._store.in_reader(find, start, dirt.end_offset)

    def _job(self, dirt: Dirt, aborted: list[AbortedTransaction]) -> Job:
        partition = dirt.partition
        config = partition.config
        return Job(
            directory=partition.directory,
            sources=[Source(source.base_offset, source.size_bytes) for source in dirt.sources],
            first_dirty_offset=dirt.first_dirty_offset,
            end_offset=dirt.end_offset,
            now_ms=self._store.clock.now_ms(),
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            memory_bytes=self._limits.memory_bytes,
            bytes_per_s=self._limits.bytes_per_s,
            aborted=aborted,
        )

    async def _record_pass(self, partition: PartitionLog, report: Report) -> None:
        assert report.clean_offset is not None
        partition.clean_offset = report.clean_offset
        await self._store.checkpoints.save_clean_offsets()
        self.numbers.passes += 1
        self.numbers.bytes_read += report.bytes_read
        self.numbers.bytes_written += report.bytes_written
        log.info(
            "compaction: %s-%d is clean up to %d: %d keys, %d records retained, "
            "%d bytes read, %d written, %.2f s",
            partition.topic, partition.index, report.clean_offset, report.keys,
            report.records_kept, report.bytes_read, report.bytes_written, report.seconds,
        )  # fmt: skip

    def _record_damage(self, partition: PartitionLog, report: Report) -> None:
        self.numbers.last_error = report.detail
        log.error("compaction leaves a damaged segment alone: %s", report.detail)
        for segment in partition.segments:
            if segment.base_offset == report.damaged:
                partition.out_of_service(segment, OSError(report.detail))

    async def _give_up(self, partition: PartitionLog, error: Exception) -> None:
        self.numbers.failures += 1
        self.numbers.last_error = f"{partition.topic}-{partition.index}: {error}"
        then = "the next start completes it" if partition.is_stuck else "it is tried again"
        log.error(
            "compaction of %s-%d was given up, %s: %s",
            partition.topic, partition.index, then, error,
        )  # fmt: skip
        await self._child.end()  # it may still be writing
        if not partition.deleted and not partition.is_stuck:
            with contextlib.suppress(OSError):
                await self._store.in_worker(
                    swap.discard, self._store.storage.files, partition.directory
                )


def _urgency(dirt: Dirt) -> tuple[bool, float]:
    return dirt.is_overdue, dirt.ratio


class Child:
    """The process that rewrites segments, while there is one."""

    command: Sequence[str] = (sys.executable, "-P", "-m", "headwater.log.compaction.worker")

    def __init__(self, data_directory: str) -> None:
        self._cache = f"{data_directory}/{NUMBA_CACHE}"
        self._process: asyncio.subprocess.Process | None = None
        self._has_reported_plain_loops = False  # once per broker, not once per process

    async def run(self, job: Job | EraseJob) -> AsyncGenerator[Report, None]:
        """The reports of a job, up to the last. Raises OSError if the process ends before."""
        if self._process is None:
            self._process = await self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        await process.stdin.drain()
        while True:
            line = await process.stdout.readline()
            if not line:
                code = await process.wait()
                # A power cut may have torn the compiled code, which numba does not survive.
                await asyncio.to_thread(shutil.rmtree, self._cache, ignore_errors=True)
                raise OSError(f"the rewriting process ended: {code}")
            report = msgspec.json.decode(line, type=Report)
            yield report
            if report.is_last:
                return

    async def end(self) -> None:
        """Ends it, whatever it is doing."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        if not self._has_reported_plain_loops and not extras.is_installed("numba"):
            self._has_reported_plain_loops = True
            log.info("compaction runs without compiled loops: pip install 'headwater[fast]'")
        return await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
            env={"NUMBA_CACHE_DIR": self._cache, **os.environ},
            start_new_session=True,  # a Ctrl-C at the broker's terminal is not for it
        )  # fmt: skip
