"""One batch in the driver: rows of the sources through segments and operators, to a write."""

from collections.abc import Mapping

import pyarrow as pa

from headwater.pipelines.engine.local_operator import run_operator
from headwater.pipelines.engine.local_plan import LocalPlan, OperatorPlan, SegmentPlan, Source
from headwater.pipelines.engine.local_state import LocalState
from headwater.pipelines.operators.runtime.contract import FollowsClock
from headwater.pipelines.operators.runtime.watermark_rows import Watermark, output_watermark


class LocalBatch:
    """Computes the rows of one batch, and changes the operators' state in memory."""

    def __init__(
        self, state: LocalState, sources: Mapping[int, pa.Table], now_ms: int, *, is_tick: bool
    ) -> None:
        self._state = state
        self._sources = sources
        self._now_ms = now_ms
        self._is_tick = is_tick  # without records: only time has passed
        self._results: dict[str, pa.Table] = {}  # of operators: a frame may be used twice
        self._watermarks: dict[str, Watermark | None] = {}  # of operators that have run

    def rows(self, plan: LocalPlan) -> pa.Table:
        return self._of_segment(plan.top)

    def _of_segment(self, plan: SegmentPlan) -> pa.Table:
        return plan.segment.run([self._of_input(given) for given in plan.inputs], self._now_ms)

    def _of_input(self, given: Source | OperatorPlan) -> pa.Table:
        if isinstance(given, Source):
            return self._sources[given.number]
        if given.name not in self._results:
            self._results[given.name] = self._of_operator(given)
        return self._results[given.name]

    def _of_operator(self, plan: OperatorPlan) -> pa.Table:
        operator = plan.built.operator
        assert operator is not None
        rows = [self._of_segment(side.segment) for side in plan.sides]
        watermarks = [self._watermarks.get(side.before or "") for side in plan.sides]
        is_due = (
            any(map(len, rows))
            or any(watermarks)
            or (self._is_tick and plan.follows_clock)
            or isinstance(operator, FollowsClock)
        )
        if not is_due:
            return operator.output.empty_table()
        states = self._state.of[plan.name]
        result = run_operator(plan, states, rows, watermarks, self._now_ms * 1000)
        self._watermarks[plan.name] = output_watermark(operator, plan.name, states)
        return result
