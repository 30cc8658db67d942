"""A write that runs in the driver: batch after batch, as soon as its topics have something new.

    next_ends     offsets of the batch, as far as records have arrived   (batch_planner.py)
    plan          recorded in the offset log, with the batch's time      (offset_log.py)
    compute       segments and operators                                 (local_batch.py)
    commit        the operators' state                                   (local_state.py)
    apply         rows and position to the store                         (batch_applier.py)
    commit        recorded in the offset log

After a crash the store's position and the offset log show which of these was the last one; the
batch runs again from the state before it, with the same offsets and time, to the same rows.

A backlog that is too large for the driver is left to a streaming query of Spark's, which starts
from the same checkpoint and ends when it has caught up.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.engine.batch_planner import BatchPlanner
from headwater.pipelines.engine.local_batch import LocalBatch
from headwater.pipelines.engine.local_plan import LocalPlan
from headwater.pipelines.engine.local_state import LocalState
from headwater.pipelines.engine.offset_log import OffsetLog, PlannedBatch
from headwater.pipelines.engine.pacing import Pacing
from headwater.pipelines.engine.shared_log import SharedLog, shared_log
from headwater.pipelines.engine.tailed_source import MOST_ROWS, TailedSource
from headwater.pipelines.source.reading import close_fetchers, settle

MOST_BACKLOG: Final = 200_000  # records; from here on Spark's tasks are faster
_RATE_S: Final = 10.0
_IDLE_S: Final = 1.0  # how often an idle write looks for new partitions, and ticks
_SETTLED_S: Final = 10.0  # until the modules that batches need are imported


class Applier(Protocol):
    """What a batch is given to."""

    def run(self, batch: int, compute: Callable[[], pa.Table]) -> None: ...


class LocalRun:
    """Runs one write in a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        plan: LocalPlan,
        state: LocalState,
        offsets: OffsetLog,
        applier: Applier,
        *,
        catch_up: Callable[[], None],
        idle: Callable[[], None] = lambda: None,
        every_s: float = 0.0,
        has_cuts: bool = True,
        name: str = "",
    ) -> None:
        """Without `has_cuts`, batches end wherever records have arrived."""
        self._plan = plan
        self._state = state
        self._offsets = offsets
        self._applier = applier
        self._catch_up = catch_up  # runs a streaming query until the log's current end
        self._idle = idle  # called when there is nothing to do
        self._every_s = every_s
        self._has_cuts = has_cuts
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headwater-write-{name}")
        self._thread.daemon = True
        self._log: SharedLog | None = None
        self.error: Exception | None = None
        self.progress: dict[str, Any] = {}  # of the last batch that had rows
        self._input_rate = _Rate()
        self._ticked_s = 0.0
        self._ending = threading.Lock()
        self._has_ended = False
        self._then: Callable[[], None] | None = None
        self.is_running = False  # whether it has come as far as reading the log

    def start(self) -> None:
        self._thread.start()

    @property
    def is_active(self) -> bool:
        return self._thread.is_alive()

    def stop_soon(self) -> None:
        """The batch in flight is finished, or given up; both are correct."""
        self._stopping.set()
        if self._log is not None:
            self._log.tail.wake()

    def stop(self, timeout_s: float, then: Callable[[], None]) -> None:
        """`then` is called when it has ended: now, or later by its own thread if it still waits for
        a broker or a store after `timeout_s`.
        """
        self.stop_soon()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        with self._ending:
            if self._thread.is_alive() and not self._has_ended:
                self._then = then
                return
        then()

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                stack.callback(close_fetchers)
                stack.callback(self._plan.close)
                # All sources of a pipeline read the same cluster.
                log = stack.enter_context(shared_log(self._plan.sources[0].options))
                self._log = log
                self._loop(log)
        except Exception as error:
            self.error = error
        finally:
            with self._ending:
                self._has_ended = True
            if self._then is not None:
                self._then()

    def _loop(self, log: SharedLog) -> None:
        sources = [TailedSource(source, log) for source in self._plan.sources]
        planner = BatchPlanner(sources, log.cuts if self._has_cuts else None)
        self._offsets.begin()
        last = self._resume(sources)
        settles_s = time.monotonic() + _SETTLED_S
        with closing(Pacing(self._every_s)) as pacing:
            self.is_running = True
            while not self._stopping.is_set():
                version = log.tail.version
                planned = self._planned(planner, last)
                if planned is None:
                    planned = self._tick(last)
                if planned is None:
                    self._idle()
                    log.tail.wait(version, _IDLE_S)
                elif self._backlog(sources, last) > MOST_BACKLOG:
                    last = self._leave_to_spark(sources, last)
                elif pacing.wait(self._stopping, is_behind=self._is_behind(sources, last)):
                    with pacing.batch():
                        if log.tail.version != version:
                            # What has arrived meanwhile belongs to the same batch.
                            planned = self._planned(planner, last) or planned
                        self._check_running()
                        self._offsets.plan(planned)
                        self._run_batch(sources, last, planned)
                    last = planned
                if time.monotonic() > settles_s:
                    # A full collection takes some 60 ms for the objects of modules alone, and the
                    # chunks of the tail, which live for seconds, bring it about again and again.
                    settle()
                    settles_s = math.inf

    # Batches

    def _resume(self, sources: list[TailedSource]) -> PlannedBatch | None:
        """Finishes the batch that was under way when the last process ended, if there was one."""
        last = self._offsets.last()
        if last is None:
            self._state.load(-1)
            return None
        if self._offsets.is_committed(last.number):
            self._state.load(last.number)
            return last
        before = self._offsets.read(last.number - 1) if last.number else None
        starts = before.ends if before else last.ends
        ranges = zip(sources, starts, last.ends, strict=True)
        if any(source.is_oversize(start, end) for source, start, end in ranges):
            # A batch of a query, too large for the driver.
            self._catch_up()
            self._check_running()
            return self._resume(sources)
        self._state.load(last.number - 1)
        self._run_batch(sources, before, last)
        return last

    def _planned(self, planner: BatchPlanner, last: PlannedBatch | None) -> PlannedBatch | None:
        """None if there is nothing new."""
        starts = last.ends if last else [{} for _ in self._plan.sources]
        ends = planner.next_ends(starts)
        if last is not None and ends == starts:
            return None
        number = last.number + 1 if last else 0
        return PlannedBatch(number, _now_ms(last), ends)

    def _backlog(self, sources: list[TailedSource], last: PlannedBatch | None) -> int:
        if last is None:
            return 0
        return sum(source.backlog(start) for source, start in zip(sources, last.ends, strict=True))

    def _is_behind(self, sources: list[TailedSource], last: PlannedBatch | None) -> bool:
        return self._backlog(sources, last) > MOST_ROWS

    def _check_running(self) -> None:
        """Before anything is written: the next run may have begun, if this one was slow to end."""
        if self._stopping.is_set():
            raise PipelineError("the pipeline was stopped")

    def _tick(self, last: PlannedBatch | None) -> PlannedBatch | None:
        """A batch without records, if time alone changes something."""
        if last is None or not self._plan.follows_clock:
            return None
        if time.monotonic() < self._ticked_s + _IDLE_S:
            return None
        self._ticked_s = time.monotonic()
        planned = PlannedBatch(last.number + 1, _now_ms(last), last.ends)
        tried = self._state.copy()
        nothing = {source.number: source.no_rows for source in self._plan.sources}
        rows = LocalBatch(tried, nothing, planned.now_ms, is_tick=True).rows(self._plan)
        return planned if len(rows) or not tried.is_like(self._state) else None

    def _run_batch(
        self, sources: list[TailedSource], before: PlannedBatch | None, batch: PlannedBatch
    ) -> None:
        began_s = time.monotonic()
        rows_read = 0

        def compute() -> pa.Table:
            nonlocal rows_read
            starts = before.ends if before else [{} for _ in sources]
            given = {
                number: source.read_batch(start, end)
                for number, (source, start, end) in enumerate(
                    zip(sources, starts, batch.ends, strict=True)
                )
            }
            rows_read = sum(map(len, given.values()))
            self._state.begin_batch()
            is_tick = before is not None and before.ends == batch.ends
            rows = LocalBatch(self._state, given, batch.now_ms, is_tick=is_tick).rows(self._plan)
            self._check_running()
            self._state.commit(batch.number)
            return rows

        self._applier.run(batch.number, compute)
        self._offsets.commit(batch.number)
        if rows_read:
            took_s = time.monotonic() - began_s
            self.progress = {
                "batch": batch.number,
                "rows": rows_read,
                "rows_per_s": rows_read / max(took_s, 1e-6),
                "input_rows_per_s": self._input_rate.per_s(rows_read),
                "batch_ms": round(took_s * 1000),
                "at": datetime.fromtimestamp(batch.now_ms / 1000, UTC).isoformat(
                    timespec="milliseconds"
                ),
                "state_rows": 0,  # of Spark's own operators
                "state_bytes": 0,
            }

    def _leave_to_spark(
        self, sources: list[TailedSource], last: PlannedBatch | None
    ) -> PlannedBatch | None:
        if last is not None:
            self._state.hand_over(last.number)
        self._catch_up()
        self._check_running()
        return self._resume(sources)


class _Rate:
    """Rows per second over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def per_s(self, rows: int) -> float:
        """With these rows, which were read just now."""
        now_s = time.monotonic()
        self._seen.append((now_s, rows))
        while len(self._seen) > 2 and now_s - self._seen[1][0] > _RATE_S:
            self._seen.popleft()
        since_s = self._seen[0][0]
        return sum(count for at_s, count in self._seen if at_s > since_s) / max(
            now_s - since_s, 1e-3
        )


def _now_ms(last: PlannedBatch | None) -> int:
    """Time does not go back, also if the machine's clock does."""
    now_ms = int(time.time() * 1000)
    return max(now_ms, last.now_ms) if last else now_ms
