"""Sliding windows: every event has an interval of its own, (t - size, t].

Each event gives one result: the aggregates over all events of its key in its interval, itself and
those of the same time included. It is final when the watermark is past t, since no event of that
time or before can come any more. An event is late if the watermark of its partition was past its
time. With late="correct" it is admitted nevertheless: it gets a result, and those of the events
within `size` after it are retracted and emitted again.

State: events of the last `size`, and with late="correct" of the allowed lateness before that
(sliding_state.py). A key without such events leaves nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.jit import kernel
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.runtime.contract import (
    OFFSET,
    ORIGIN,
    TIME,
    Input,
    State,
)
from headwater.pipelines.operators.runtime.grouping import keys_of
from headwater.pipelines.operators.runtime.lineage import admitted, points_within, same_keys
from headwater.pipelines.operators.state.compatibility import (
    check_layout_compatible,
    check_shared,
)
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness, admit_and_advance, times_of
from headwater.pipelines.operators.time.time_order import by_key_time_and_position
from headwater.pipelines.operators.time.watermarks import watermark_of
from headwater.pipelines.operators.windows.ranges import accumulate_ranges
from headwater.pipelines.operators.windows.results import (
    CHANGED_OP,
    CORRECTION_MARK,
    EARLY_MARK,
    FINAL_MARK,
    IN_TIME,
    MARK,
    MARKS,
    NEW_OP,
    OPS,
    RETRACTED_OP,
)
from headwater.pipelines.operators.windows.sliding_state import (
    KEY,
    STORED,
    Ints,
    Keys,
    SlidingRows,
    ints,
    is_among,
    rescale_sliding,
)
from headwater.pipelines.position import (
    CHANGING_EVENTS,
    EVENTS,
    POSITION,
    POSITION_TYPE,
    RESULTS,
    positions,
    with_metadata,
)
from headwater.sinks.contract import OP

EVENT_TIME: Final = "event_time"
RESERVED: Final = (EVENT_TIME, POSITION, MARK, OP)
_PARTITIONS: Final = "places"
_IS_NEW: Final = "__new"
_TIMESTAMP: Final = pa.timestamp("us", "UTC")

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sliding:
    """The operator (contract.py)."""

    by: tuple[str, ...]
    keep: tuple[str, ...]  # columns of the events, besides `by`
    size_us: int
    time: EventTime
    lateness: Lateness
    early: bool
    aggregates: NamedAggregates

    @cached_property
    def output(self) -> pa.Schema:
        rows = self.aggregates.schema
        kind = CHANGING_EVENTS if self.early or self.lateness.is_corrected else EVENTS
        return pa.schema(
            [
                *(rows.field(name) for name in self.by),
                with_metadata(pa.field(EVENT_TIME, _TIMESTAMP), {IN_TIME: 1}),
                *(rows.field(name) for name in self.keep),
                *self.aggregates.results_schema,
                with_metadata(pa.field(POSITION, POSITION_TYPE), {RESULTS: kind}),
                pa.field(MARK, pa.string()),
                pa.field(OP, pa.string()),
            ]
        )

    @property
    def floors_us(self) -> Mapping[str, int]:
        return {} if self.early or self.lateness.is_corrected else {EVENT_TIME: 0}

    def output_watermark_us(self, document: Mapping[str, Any]) -> int:
        return watermark_of(document)

    @cached_property
    def _columns(self) -> list[str]:
        return list(dict.fromkeys([*self.keep, *self.aggregates.columns]))

    @cached_property
    def _rows_schema(self) -> pa.Schema:
        placed = [pa.field(*column) for column in STORED]
        return pa.schema([*placed, *(self.aggregates.schema.field(name) for name in self._columns)])

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        (given,) = inputs
        retention_us = self._retention_us
        self._check_compatible(state)
        admission = admit_and_advance(state, given, self.time, self.lateness, times_of(given) + 1)
        is_admitted, now_us = admission.rows, admission.watermark_us
        keys = Keys(state, self._key_schema)
        stored = SlidingRows(
            state, self._rows_schema, size_us=self.size_us, retention_us=retention_us
        )
        partitions = _PartitionCodes(state)
        fresh = self._fresh(given, is_admitted, keys, partitions)
        pending = stored.pending()
        result = self._emit(keys, stored, partitions, pending, fresh, admission.before_us, now_us)

        waiting = pa.concat_tables([pending, fresh])
        is_past = ints(waiting, TIME) < now_us
        stored.save(waiting.filter(pa.array(~is_past)), waiting.filter(pa.array(is_past)), now_us)
        keys.save(now_us - retention_us)
        return result

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        check_shared(before, _PARTITIONS)
        rescale_sliding(before, after, share, self._key_schema, self._rows_schema)

    @property
    def _retention_us(self) -> int:
        return self.size_us + self.lateness.allowed_us

    @property
    def _key_schema(self) -> pa.Schema:
        return pa.schema([self.aggregates.schema.field(name) for name in self.by])

    def _check_compatible(self, state: State) -> None:
        columns = self.aggregates.layout((*self.by, *self.keep))
        settings = self.size_us, self.by, self.keep, self.early, columns
        check_layout_compatible(state, "sliding", str(settings), self._retention_us)

    def _fresh(
        self, given: Input, is_admitted: Flags, keys: Keys, partitions: "_PartitionCodes"
    ) -> pa.Table:
        rows = given.rows.filter(pa.array(is_admitted))
        time_us = ints(rows, TIME)
        columns = {
            KEY: pa.array(keys.numbered(keys_of(rows, self.by), time_us)),
            TIME: rows[TIME],
            ORIGIN: pa.array(partitions.codes(given.origins)[ints(rows, ORIGIN)]),
            OFFSET: rows[OFFSET],
        }
        columns |= {name: rows[name] for name in self._columns}
        return pa.Table.from_arrays(list(columns.values()), schema=self._rows_schema)

    def _emit(
        self,
        keys: Keys,
        stored: SlidingRows,
        partitions: "_PartitionCodes",
        pending: pa.Table,
        fresh: pa.Table,
        before_us: int,
        now_us: int,
    ) -> pa.Table:
        near = self._near(stored, pending, fresh, now_us)
        if not len(near):
            return self.output.empty_table()
        near = near.take(
            pa.array(
                by_key_time_and_position(
                    ints(near, KEY),
                    ints(near, TIME),
                    partitions.ranks()[ints(near, ORIGIN)],
                    ints(near, OFFSET),
                )
            )
        )
        time_us, is_new = ints(near, TIME), ints(near, _IS_NEW)
        low, high = _intervals(ints(near, KEY), time_us, self.size_us)
        new_before = np.concatenate([[0], np.cumsum(is_new)])
        is_touched = new_before[high] > new_before[low]

        is_final = time_us < now_us
        was_final = time_us < before_us  # a new one of that time is late
        is_corrected = ~is_new & was_final & is_touched
        ends = ~was_final & is_final
        is_emitted = is_corrected | ends | (is_new & is_final)
        if self.early:
            is_emitted |= is_touched
        mark = np.where(was_final, CORRECTION_MARK, np.where(is_final, FINAL_MARK, EARLY_MARK))
        op = np.where(is_new | was_final | (not self.early), NEW_OP, CHANGED_OP)
        results = [self._rows(keys, partitions, near, low, high, is_emitted, mark, op)]
        if is_corrected.any():
            results.insert(0, self._retracted(keys, partitions, near, is_corrected))
        return pa.concat_tables(results)

    def _near(
        self, stored: SlidingRows, pending: pa.Table, fresh: pa.Table, now_us: int
    ) -> pa.Table:
        """All rows that the results of this batch are computed of, in any order: of the keys that
        got rows or have results that end now, from the earliest interval on.
        """
        waiting = pa.concat_tables([pending, fresh])
        time_us = ints(waiting, TIME)
        is_new = np.arange(len(waiting)) >= len(pending)
        is_concerned = time_us < now_us
        if self.early:
            is_concerned |= is_new
        if not is_concerned.any():
            return self._rows_schema.append(pa.field(_IS_NEW, pa.bool_())).empty_table()
        concerned, key = np.unique(ints(waiting, KEY)[is_concerned], return_inverse=True)
        first_us = np.full(len(concerned), now_us)
        np.minimum.at(first_us, key, time_us[is_concerned])
        past = stored.past(concerned, first_us - self.size_us)
        is_near = is_among(ints(waiting, KEY), concerned)
        if not self.early:
            is_near &= time_us < now_us  # later rows are in no interval that ends now
        return pa.concat_tables(
            [
                past.append_column(_IS_NEW, pa.array(np.zeros(len(past), np.bool_))),
                waiting.append_column(_IS_NEW, pa.array(is_new)).filter(pa.array(is_near)),
            ]
        )

    def _retracted(
        self, keys: Keys, partitions: "_PartitionCodes", near: pa.Table, which: Flags
    ) -> pa.Table:
        """Results as they were before there were new rows."""
        is_old = ~ints(near, _IS_NEW)
        old = near.filter(pa.array(is_old))
        low, high = _intervals(ints(old, KEY), ints(old, TIME), self.size_us)
        mark, op = np.full(len(old), CORRECTION_MARK), np.full(len(old), RETRACTED_OP)
        return self._rows(keys, partitions, old, low, high, which[is_old], mark, op)

    def _rows(
        self,
        keys: Keys,
        partitions: "_PartitionCodes",
        near: pa.Table,
        low: Ints,
        high: Ints,
        which: Flags,
        mark: Ints,
        op: Ints,
    ) -> pa.Table:
        events = near.filter(pa.array(which))
        accumulators = accumulate_ranges(self.aggregates, near, low[which], high[which])
        end_us = ints(events, TIME)
        columns = [
            *keys.columns_of(ints(events, KEY)),
            events[TIME].cast(_TIMESTAMP),
            *(events[name] for name in self.keep),
            *self.aggregates.results(accumulators, end_us - self.size_us, end_us),
            partitions.positions(events),
            MARKS.take(pa.array(mark[which])),
            OPS.take(pa.array(op[which])),
        ]
        rows = pa.Table.from_arrays(columns, schema=self.output)
        return rows.take(pa.array(np.argsort(end_us, kind="stable")))  # as time went

    roles = ("event",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """Rows of the key in the interval of the event."""
        (given,) = inputs
        time_us = times_of(given)
        is_admitted = admitted(self.time, self.lateness, given, time_us + 1)
        key, row_key = same_keys(given.rows, rows, self.by)
        end_us = rows[EVENT_TIME].combine_chunks().cast(pa.int64()).to_numpy()
        count = points_within(key, time_us, time_us + self.size_us - 1, row_key, end_us)
        return (is_admitted & (count > 0),)


class _PartitionCodes:
    """Partitions by codes that are the same in all batches."""

    def __init__(self, state: State) -> None:
        self._partitions: list[tuple[str, int]] = [
            (topic, partition) for topic, partition in state.document.get(_PARTITIONS, ())
        ]
        self._state = state

    def codes(self, origins: tuple[tuple[str, int], ...]) -> npt.NDArray[np.int32]:
        self._partitions += [origin for origin in origins if origin not in self._partitions]
        self._state.document[_PARTITIONS] = self._partitions
        return np.array([self._partitions.index(origin) for origin in origins], np.int32)

    def ranks(self) -> Ints:
        """The rank of each code in the order of topic and partition."""
        ranks: Ints = np.argsort(
            sorted(range(len(self._partitions)), key=self._partitions.__getitem__)
        )
        return ranks

    def positions(self, rows: pa.Table) -> pa.Array:
        code = rows[ORIGIN].combine_chunks()
        return positions(self._partitions, code, rows[OFFSET].combine_chunks())


@kernel
def _intervals(key: Ints, time_us: Ints, size_us: int) -> tuple[Ints, Ints]:
    """The range of rows in each row's interval, for rows sorted by key and time (two pointers)."""
    low, high = np.empty(len(key), np.int64), np.empty(len(key), np.int64)
    start = 0
    for at in range(len(key)):
        while key[start] != key[at] or time_us[start] <= time_us[at] - size_us:
            start += 1
        low[at] = start
    end = len(key)
    for at in range(len(key) - 1, -1, -1):
        if at + 1 < len(key) and (key[at] != key[at + 1] or time_us[at] != time_us[at + 1]):
            end = at + 1
        high[at] = end
    return low, high
