"""Micro-batches of a streaming query that works off a backlog: each ends at a consistent cut.

    plan_next     before the query starts: the ends of its first micro-batch, in all sources
    micro-batch   Spark asks the sources (source/planned_ends.py), records the offsets, runs it
    plan_next     when it is applied, and so on, from the offsets that Spark has recorded last

The query ends when nothing is left of what the log had when it began. Nothing has to survive a
crash: the next process plans from the offsets in the checkpoint.
"""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headwater.pipelines.engine.batch_planner import BatchPlanner
from headwater.pipelines.engine.local_plan import LocalPlan, Source
from headwater.pipelines.engine.offset_log import OffsetLog
from headwater.pipelines.engine.shared_log import shared_log
from headwater.pipelines.engine.tailed_source import TailedSource
from headwater.pipelines.source.planned_ends import planned, write_ends
from headwater.pipelines.source.reading import close_fetchers


@dataclass(frozen=True)
class _Query:
    sources: Sequence[Source]
    offsets: OffsetLog
    planner: BatchPlanner
    path: Path

    def plan_next(self) -> None:
        last = self.offsets.last()
        starts = last.ends if last else [{} for _ in self.sources]
        try:
            ends = self.planner.next_ends(starts)
        finally:
            close_fetchers()  # of this thread
        given = zip(self.sources, starts, ends, strict=True)
        write_ends(self.path, [planned(one.options, start, end) for one, start, end in given])


class QueryBatches:
    """Plans the micro-batches of a query, from `begin` to `close`; of one after another."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._query: _Query | None = None
        self._planning = threading.Lock()  # a thread of Spark's may be late

    def begin(self, plan: LocalPlan, offsets: OffsetLog) -> None:
        """From here on micro-batches are planned, up to the current end of the log. Not if the
        function reads the log by other means than `flow`.
        """
        options = [source.options for source in plan.sources]
        path, *others = {found.ends for found in options}
        log = self._stack.enter_context(shared_log(options[0]))
        if log.cuts is None or path is None or others:
            return
        sources = [TailedSource(source, log, is_query=True) for source in plan.sources]
        for source in sources:
            source.prepareForTriggerAvailableNow()
        most_rows = min(found.max_rows for found in options)
        planner = BatchPlanner(sources, log.cuts, backlog_rows=most_rows)
        self._stack.callback(Path(path).unlink, missing_ok=True)
        self._query = _Query(plan.sources, offsets, planner, Path(path))
        self.plan_next()

    def plan_next(self) -> None:
        """The micro-batch behind the last one that is recorded, if a query is at work."""
        with self._planning:
            if self._query is not None:
                self._query.plan_next()

    def close(self) -> None:
        with self._planning:
            self._query = None
            self._stack.close()
