"""Erasing step by step: segments are rewritten inside the test's process, on its faulty files."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import uuid4

from headwater.log.compaction.compactor import Compactor
from headwater.log.compaction.job import EraseJob, Report
from headwater.log.erasure.eraser import Eraser
from headwater.log.erasure.erasures import ErasedPartition, Erasure
from headwater.log.erasure.rewriting import erase
from support.log.archive_harness import ArchivedLog
from support.log.compaction_harness import CompactedLog

PATIENCE_S = 60


class ErasableLog(CompactedLog):
    """A log in which records of partition `t` are erased when a test says so."""

    def eraser(self) -> Eraser:
        """The background work as the broker begins it at a start."""
        compactor = Compactor(self.store, self.limits, cleaner=self.clean)
        eraser = Eraser(self.store, compactor, bytes_per_s=1 << 40, rewriter=self.rewrite)
        eraser.load()
        return eraser

    async def rewrite(self, job: EraseJob) -> AsyncGenerator[Report, None]:
        reports: list[Report] = []
        try:
            erase(job, self.files, reports.append)
        except OSError as error:
            reports.append(Report(error=str(error)))
        for report in reports:
            yield report

    def key(self, topic: str = "t", index: int = 0) -> ErasedPartition:
        return ErasedPartition(topic, self.partition(topic, index).topic_id, index)

    def erase(self, *offsets: int, topic: str = "t") -> Erasure:
        """Erases and waits for the end."""
        erasure_id = uuid4().hex

        async def add(eraser: Eraser) -> None:
            await eraser.add(erasure_id, {self.key(topic): offsets})

        eraser = self.eraser()
        self.run(add(eraser))
        return self.finish(eraser)[erasure_id]

    def accept(self, *offsets: int) -> str:
        """Asks for an erasure that no process has begun yet."""
        eraser, erasure_id = self.eraser(), uuid4().hex
        self.run(eraser.add(erasure_id, {self.key(): offsets}))
        return erasure_id

    def finish(self, eraser: Eraser | None = None, *, hurried: bool = False) -> dict[str, Erasure]:
        """Runs what is waiting to its end, or until only the next start can complete it. Raises
        OSError if the disk is dead. `hurried`: the clock advances, so that retries come soon.
        """
        eraser = eraser or self.eraser()

        async def work() -> None:
            running = asyncio.create_task(eraser.run())
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while eraser.waiting and not self.partition().is_stuck:
                        if hurried:
                            self.clock.advance(1)
                        if self.files.is_dead:
                            raise OSError("the process is dead")
                        if running.done():
                            running.result()
                        await asyncio.sleep(0.001)
            finally:
                running.cancel()
                await asyncio.wait([running])

        self.run(work())
        self.settle()
        return dict(eraser._erasures)


class ErasableArchivedLog(ErasableLog, ArchivedLog):
    """The same with an archive behind it."""

    def create(self, topic: str = "t", partitions: int = 1, **configs: Any) -> Any:
        return ArchivedLog.create(
            self, topic, partitions, **{"cleanup_policy": "delete", **configs}
        )

    def stored_bytes(self) -> bytes:
        """All that is stored: in the data directory and in the archive."""
        return bytes_in(self.path) + b"".join(self.objects.objects.values())


def bytes_in(directory: str | Path) -> bytes:
    """All that lies in any file below a directory."""
    files = sorted(path for path in Path(directory).rglob("*") if path.is_file())
    return b"".join(path.read_bytes() for path in files)
