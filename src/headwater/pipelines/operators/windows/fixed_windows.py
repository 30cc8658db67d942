"""Tumbling and hopping windows: of fixed length, at fixed times (paned windows).

Windows are numbered by their last pane (pane_state.py): window w is from (w + 1) · hop − size to
(w + 1) · hop, so it ends when pane w does. A tumbling window has one pane.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.runtime.contract import TIME, WATERMARK, Input, State
from headwater.pipelines.operators.runtime.grouping import first_rows, keys_of, number
from headwater.pipelines.operators.runtime.lineage import Flags, admitted, points_within, same_keys
from headwater.pipelines.operators.state.compatibility import check_layout_compatible
from headwater.pipelines.operators.state.fingerprints import NO_SETTING
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.time.event_time import NEVER_US, EventTime
from headwater.pipelines.operators.time.lateness import Lateness, admit
from headwater.pipelines.operators.time.watermarks import watermark_of
from headwater.pipelines.operators.windows.emission import Emission
from headwater.pipelines.operators.windows.pane_state import FIRST, LAST, PaneState, Windows
from headwater.pipelines.operators.windows.results import (
    WINDOW_START,
    results_schema,
    window_floors,
)

_LATE_IN_PART: Final = "late_in_part"  # a counter: rows that were late for some of their windows


@dataclass(frozen=True)
class FixedWindows:
    """Operator (contract.py)."""

    aggregates: NamedAggregates
    by: tuple[str, ...]
    time: EventTime
    hop_us: int
    panes: int  # of a window: size / hop
    lateness: Lateness
    is_early: bool = False
    previous: tuple[tuple[str, str, int], ...] = ()  # name, of which aggregate, windows before
    topic: str = field(default="", metadata=NO_SETTING)  # in the positions of results

    @cached_property
    def output(self) -> pa.Schema:
        results = self.aggregates.results_schema
        later = [results.field(of).with_name(name) for name, of, _ in self.previous]
        return results_schema(
            self.aggregates.schema,
            self.by,
            [*results, *later],
            self._leads_us,
            is_changing=self.is_early or self.lateness.is_corrected,
        )

    @property
    def floors_us(self) -> Mapping[str, int]:
        return window_floors(self.output)

    def output_watermark_us(self, document: Mapping[str, Any]) -> int:
        """The end of the last windows that have closed."""
        watermark_us = watermark_of(document)
        if watermark_us == NEVER_US:
            return NEVER_US
        return int(self.start_of(self.pane_at(np.array([watermark_us])))[0])

    def with_topic(self, topic: str) -> "FixedWindows":
        return replace(self, topic=topic)

    @cached_property
    def _entries(self) -> pa.Schema:
        rows = self.aggregates.schema
        keys = [rows.field(name).with_name(f"k{at}") for at, name in enumerate(self.by)]
        identity = [*keys, pa.field(FIRST, pa.int64()), pa.field(LAST, pa.int64())]
        return pa.schema([*identity, *self.aggregates.accumulators_schema])

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        (given,) = inputs
        self._check_compatible(state)
        clock = self.time.watermarks(state.document.get("time"))
        own_us, before_us = clock.of_rows(given), clock.now_us
        clock.advance(given.progress, given.now_us)
        state.document["time"] = clock.to_json()
        if clock.now_us != NEVER_US:
            state.document[WATERMARK] = clock.now_us
        panes = PaneState(state, self.aggregates, self._entries)
        fresh = self._new_entries(state, given, np.maximum(own_us, before_us), before_us)
        panes.add(fresh)
        emission = Emission(
            aggregates=self.aggregates,
            output=self.output,
            start_of=self.start_of,
            panes=self.panes,
            is_early=self.is_early,
            previous=self.previous,
            closed=self._last_closed(before_us),
            closing=self._last_closed(clock.now_us),
            topic=self.topic,
        )
        result = emission.of(panes, fresh)
        panes.save(
            alive_from=self._last_closed(clock.now_us - self._retention_us) + 1,
            settled=emission.closing + self.panes - 1,
        )
        return result

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        PaneState(after, self.aggregates, self._entries).rescale(before, share)

    def _check_compatible(self, state: State) -> None:
        layout = f"{self._panes_layout} {self.by} {self.aggregates.layout(self.by)}"
        check_layout_compatible(state, "fixed", layout, self._retention_us)

    @property
    def _retention_us(self) -> int:
        """How long a window's state is retained after its end, for corrections and comparisons."""
        longest = max((ago for *_, ago in self.previous), default=0)
        return self.lateness.allowed_us + longest * self.hop_us

    def pane_at(self, time_us: Windows) -> Windows:
        """The numbers of the panes of these times."""
        return time_us // self.hop_us

    def start_of(self, pane: Windows) -> Windows:
        """When panes begin."""
        return pane * self.hop_us

    @property
    def _panes_layout(self) -> str:
        return f"{self.hop_us} {self.panes}"

    @property
    def _leads_us(self) -> tuple[int, int]:
        """Of the start and the end of later windows (results.LEAD)."""
        return self.hop_us - self.panes * self.hop_us, self.hop_us

    def _last_closed(self, watermark_us: int) -> int:
        return int(self.pane_at(np.array([watermark_us]))[0]) - 1

    def _new_entries(self, state: State, given: Input, own_us: Windows, before_us: int) -> pa.Table:
        """Entries of the rows that are in time for at least one of their windows."""
        pane = self._panes_of(given)
        is_admitted = admit(
            state,
            given,
            self.lateness,
            own_us=own_us,
            due_us=self.start_of(pane + self.panes),
            closed_us=before_us,
        )
        pane = pane[is_admitted]
        first = self._first_windows(pane, own_us[is_admitted])
        if self.panes > 1:
            late = int((first > pane).sum())
            state.counters[_LATE_IN_PART] = state.counters.get(_LATE_IN_PART, 0) + late
        rows = given.rows if is_admitted.all() else given.rows.filter(pa.array(is_admitted))
        windows = [first, pane + (self.panes - 1)]
        keys = keys_of(rows, self.by)
        group, groups = number([*keys, *windows[-min(self.panes, 2) :]], len(rows))
        found = pa.array(first_rows(group, groups))
        columns = [column.take(found) for column in (*keys, *map(pa.array, windows))]
        accumulated = self.aggregates.accumulate(rows, group, groups)
        return pa.Table.from_arrays([*columns, *accumulated], schema=self._entries)

    def _panes_of(self, given: Input) -> Windows:
        time_us = given.rows[TIME].combine_chunks().fill_null(0).to_numpy()
        return self.pane_at(time_us)

    def _first_windows(self, pane: Windows, own_us: Windows) -> Windows:
        """The first window of a row that had not closed at its offset."""
        first: Windows = np.maximum(pane, self.pane_at(own_us - self.lateness.allowed_us))
        return first

    roles = ("event",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """Rows of the window, and of earlier ones that it is compared with."""
        (given,) = inputs
        pane = self._panes_of(given)
        due_us = self.start_of(pane + self.panes)
        is_admitted = admitted(self.time, self.lateness, given, due_us)
        first = self._first_windows(pane, self.time.watermarks(None).of_rows(given))
        key, row_key = same_keys(given.rows, rows, self.by)
        start_us = rows[WINDOW_START].combine_chunks().cast(pa.int64()).to_numpy()
        window = self.pane_at(start_us) + self.panes - 1
        agos = sorted({0, *(ago for *_, ago in self.previous)})
        wanted = np.concatenate([window - ago for ago in agos])
        count = points_within(
            key, first, pane + (self.panes - 1), np.tile(row_key, len(agos)), wanted
        )
        return (is_admitted & (count > 0),)
