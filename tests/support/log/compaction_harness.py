"""Compaction step by step: passes run inside the test's process, on its faulty files."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from support.log.log_harness import Log

# Compiled once for all tests; a broker would do it once for its data directory.
NUMBA_CACHE = Path(__file__).parents[3] / ".work" / "numba-cache"
os.environ.setdefault("NUMBA_CACHE_DIR", str(NUMBA_CACHE))

from headwater.log.compaction import cleaning  # noqa: E402
from headwater.log.compaction.compactor import CompactionLimits, Compactor  # noqa: E402
from headwater.log.compaction.job import Job, Report  # noqa: E402
from headwater.protocol.records import (  # noqa: E402
    Record,
    build_batch,
    read_header,
    records_of,
)

NOW_MS = 1_700_000_000_000


class CompactedLog(Log):
    """A log whose partition `t` is compacted when a test says so."""

    limits = CompactionLimits()

    def create(self, topic: str = "t", partitions: int = 1, **configs: Any) -> Any:
        defaults = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0}
        return super().create(topic, partitions, **{**defaults, **configs})

    def put(self, *pairs: tuple[bytes | None, bytes | None], **batch: Any) -> int:
        """Appends one batch of (key, value) and gives its first offset."""
        now_ms = self.clock.now_ms()
        return self.append(build_batch([Record(0, now_ms, *pair) for pair in pairs], **batch))

    def compact(self, *, roll: bool = True) -> Compactor:
        """Seals what there is and cleans all of it, as far as it may be."""
        if roll:
            assert self.roll() is None
        compactor = Compactor(self.store, self.limits, cleaner=self.clean)
        self.run(compactor.run())
        self.settle()
        return compactor

    async def clean(self, job: Job) -> AsyncGenerator[Report, None]:
        reports: list[Report] = []
        try:
            cleaning.clean(job, self.files, reports.append)
        except OSError as error:
            reports.append(Report(error=str(error)))
        for report in reports:
            yield report

    def records(self, offset: int | None = None) -> list[Record]:
        return [record for batch in self.batches(offset) for record in records_of(batch)]

    def pairs(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(record.key, record.value) for record in self.records()]

    def headers(self) -> list[Any]:
        return [read_header(batch) for batch in self.batches()]
