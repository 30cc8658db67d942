"""Deduplication: the operator of hw.deduplicate (deduplicate.py).

Rows of a partition are decided in the order of the log: a row is a repetition if an earlier row of
its key that was emitted is less than `within` away, before or after it. A row before the watermark
of its own partition is late. So emitted rows are stored until the watermark has passed them by
`within`: no row that is in time can be near them then, and each decision is that of the whole log.

State: the hash of the key (128 bits) and the time of each emitted row, in the runs of a join buffer
(join_buffer.py), sorted by hash: a batch looks its own keys up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.jit import kernel
from headwater.pipelines.operators.joins.interval_matching import matching
from headwater.pipelines.operators.joins.join_buffer import (
    JoinBuffer,
    rescale_join_buffer,
    sorted_run,
)
from headwater.pipelines.operators.joins.tables.table_changes import positions_of
from headwater.pipelines.operators.runtime.contract import TIME, Input, State
from headwater.pipelines.operators.runtime.grouping import number
from headwater.pipelines.operators.runtime.lineage import Flags, is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import hashes_of
from headwater.pipelines.operators.time.event_time import EventTime, time_floors
from headwater.pipelines.operators.time.lateness import Lateness, admit_and_advance, times_of
from headwater.pipelines.operators.time.watermarks import watermark_of
from headwater.pipelines.position import POSITION

_FIRST, _SECOND = "first", "second"  # the words of a key's hash
_EMITTED: Final = "emitted"
_ROW: Final = "row"
_STORED: Final = pa.schema([(_FIRST, pa.int64()), (_SECOND, pa.int64()), (TIME, pa.int64())])
_NONE_US: Final = -(2**62)
_REPEATED: Final = "repeated"  # a counter: rows that were left out

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Deduplication:
    """The operator (contract.py)."""

    key: tuple[str, ...]
    within_us: int
    time: EventTime
    lateness: Lateness
    output: pa.Schema

    @property
    def floors_us(self) -> Mapping[str, int]:
        return time_floors(self.time)

    def output_watermark_us(self, document: Mapping[str, Any]) -> int:
        """Rows before it are late."""
        return watermark_of(document)

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        (given,) = inputs
        self._check_compatible(state)
        times = times_of(given)
        # A row is in time as long as the watermark has not passed it.
        admission = admit_and_advance(state, given, self.time, self.lateness, times + 1)
        admitted = np.flatnonzero(admission.rows)
        rows = _with_position(given).take(pa.array(admitted))
        hashes = hashes_of([rows[name] for name in self.key]).view(np.int64)
        columns = [hashes[:, 0], hashes[:, 1], times[admitted]]
        asking = pa.Table.from_arrays([pa.array(column) for column in columns], schema=_STORED)
        buffer = JoinBuffer(
            state, _EMITTED, _STORED, (), _FIRST, 2 * self.within_us, is_outer=False
        )
        is_first = ~self._is_near(buffer, asking)
        is_first[is_first] = self._is_first(asking.filter(pa.array(is_first)))
        repeated = len(is_first) - int(is_first.sum())
        state.counters[_REPEATED] = state.counters.get(_REPEATED, 0) + repeated

        limit_us = admission.watermark_us - self.within_us + 1
        for _ in buffer.expire(limit_us):
            pass
        emitted = asking.filter(pa.array(is_first))
        buffer.add(sorted_run(emitted, _FIRST, None), limit_us)
        return rows.filter(pa.array(is_first)).select(self.output.names)

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        rescale_join_buffer(
            before,
            after,
            _EMITTED,
            lambda rows: share.of_hashes(rows[_FIRST].to_numpy().view(np.uint64)),
        )

    def _check_compatible(self, state: State) -> None:
        settings = f"key {self.key} within {self.within_us} us"
        check_settings_compatible(state, "a deduplication", settings)

    roles = ("row",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The row itself."""
        (given,) = inputs
        return (is_among(_with_position(given).select(self.output.names).columns, rows.columns),)

    def _is_near(self, buffer: JoinBuffer, asking: pa.Table) -> Flags:
        """Which rows are near one of their key that an earlier batch emitted."""
        is_near = np.zeros(len(asking), np.bool_)
        if not len(asking):
            return is_near
        numbered = asking.append_column(_ROW, pa.array(np.arange(len(asking))))
        run = sorted_run(numbered, _FIRST, None)
        row = run.rows[_ROW].to_numpy()
        second = run.rows[_SECOND].to_numpy()
        reach_us = self.within_us - 1
        least_us, last_us = int(run.times.min()) - reach_us, int(run.times.max()) + reach_us
        for stored in buffer.within(least_us, last_us):
            which, near = matching(
                run.hashes, run.times, stored.hashes, stored.times, reach_us, reach_us
            )
            is_same = second[which] == stored.rows[_SECOND].to_numpy()[near]
            is_near[row[which[is_same]]] = True
        return is_near

    def _is_first(self, asking: pa.Table) -> Flags:
        """Which rows are not near an earlier one of this batch."""
        rows = len(asking)
        times = asking[TIME].to_numpy()
        key, _ = number([asking[name].to_numpy() for name in (_FIRST, _SECOND)], rows)
        cell = times // self.within_us
        # Emitted rows of a key are `within` apart, so a cell of that length has at most one.
        around = np.concatenate([cell - 1, cell, cell + 1])
        cells, count = number([np.tile(key, 3), around], 3 * rows)
        found: Flags = _first_of(cells.reshape(3, rows), count, times, self.within_us)
        return found


def _with_position(given: Input) -> pa.Table:
    return given.rows.append_column(POSITION, positions_of(given))


@kernel
def _first_of(cells: npt.NDArray[np.intp], count: int, times: Int64s, within_us: int) -> Flags:
    """By the cells before, of and after each row: whether no earlier row that is first is near."""
    emitted_us = np.full(count, _NONE_US, np.int64)
    is_first = np.ones(len(times), np.bool_)
    for row in range(len(times)):
        for around in range(3):
            near_us = emitted_us[cells[around, row]]
            if near_us != _NONE_US and abs(near_us - times[row]) < within_us:
                is_first[row] = False
        if is_first[row]:
            emitted_us[cells[1, row]] = times[row]
    return is_first
