"""Session windows: rows of a key that are at most `gap` apart.

Rows of a key that are at most `gap` apart are one session, [first, last + gap). A row is late if
its own session, [t, t + gap), had ended at the watermark of its partition. So a row up to a gap
behind the watermark is in time, and can still reach a session that has ended. Hence a session is
final only when another gap has passed: last + 2 * gap <= watermark. No admitted row can touch it
then, and an emitted result never changes. The sessions are those of all admitted rows, whatever
batches they came in.

With late="correct" a session is emitted when it has ended, because it may be corrected: whatever
replaces it, it is retracted first. It is retained until no admitted row can touch it, that is
until last + 2 * gap + allowed lateness <= watermark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.runtime.lineage import (
    BEGINNING,
    admitted,
    points_within,
    same_keys,
)
from headwater.pipelines.operators.state.compatibility import check_layout_compatible
from headwater.pipelines.operators.state.fingerprints import NO_SETTING
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness, admit_and_advance, times_of
from headwater.pipelines.operators.time.watermarks import NEVER_US, watermark_of
from headwater.pipelines.operators.windows.results import (
    CHANGED_OP,
    CORRECTION_MARK,
    EARLY_MARK,
    FINAL_MARK,
    MARKS,
    NEW_OP,
    OPS,
    RETRACTED_OP,
    WINDOW_END,
    WINDOW_START,
    results_schema,
    results_table,
    window_floors,
)
from headwater.pipelines.operators.windows.session_merging import (
    EARLY,
    FINAL,
    FIRST,
    LAST,
    NOT_SHOWN,
    SHOWN,
    Changes,
    Ints,
    Merging,
    ints,
)
from headwater.pipelines.operators.windows.session_state import SessionState

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sessions:
    """The operator (contract.py)."""

    by: tuple[str, ...]
    gap_us: int
    time: EventTime
    lateness: Lateness
    early: bool
    aggregates: NamedAggregates
    topic: str = field(default="", metadata=NO_SETTING)  # in the positions of results

    @cached_property
    def output(self) -> pa.Schema:
        return results_schema(
            self.aggregates.schema,
            self.by,
            [*self.aggregates.results_schema],
            (None, 1),
            is_changing=self.early or self.lateness.is_corrected,
        )

    @property
    def floors_us(self) -> Mapping[str, int]:
        return window_floors(self.output)

    def output_watermark_us(self, document: Mapping[str, Any]) -> int:
        """Sessions that ended by then are final."""
        watermark_us = watermark_of(document)
        return watermark_us if watermark_us == NEVER_US else watermark_us - self.gap_us

    def with_topic(self, topic: str) -> "Sessions":
        return replace(self, topic=topic)

    @property
    def _lifetime_us(self) -> int:
        """How long after its last row a session can still get rows."""
        return 2 * self.gap_us + self.lateness.allowed_us

    @cached_property
    def _merging(self) -> Merging:
        return Merging(self.by, self.gap_us, self.aggregates)

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        (given,) = inputs
        self._check_compatible(state)
        time_us = times_of(given)
        admission = admit_and_advance(state, given, self.time, self.lateness, time_us + self.gap_us)
        is_admitted, now_us = admission.rows, admission.watermark_us
        merging = self._merging
        sessions = self._sessions(state)
        fresh = merging.sessions_of(given.rows.filter(pa.array(is_admitted)), time_us[is_admitted])
        changes = merging.merge(sessions.read(time_us[is_admitted], admission.before_us), fresh)
        result, after = self._emit(changes, now_us)
        if len(fresh) or len(result):
            sessions.write(after, now_us)
        sessions.expire(now_us)
        return result

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        stored = [self._sessions(state) for state in before]
        self._sessions(after).rescale(stored, share, self._merging.keys)

    def _check_compatible(self, state: State) -> None:
        layout = f"{self.gap_us} {self.by} {self.aggregates.layout(self.by)}"
        check_layout_compatible(state, "session", layout, self._lifetime_us)

    def _sessions(self, state: State) -> SessionState:
        return SessionState(
            state, self._merging.schema, gap_us=self.gap_us, lifetime_us=self._lifetime_us
        )

    def _emit(self, changes: Changes, now_us: int) -> tuple[pa.Table, pa.Table]:
        """Rows of the result, and the sessions as they are emitted now."""
        replaced, into, merged = changes.replaced, changes.into, changes.merged
        is_final = self._is_final(merged, now_us)
        is_emitted = is_final | self.early
        shown = ints(replaced, SHOWN)
        is_corrected = np.zeros(len(merged), np.bool_)
        is_corrected[into[shown == FINAL]] = True
        # A result stays the same row, with other values, as long as its bounds do.
        stays = (
            (shown == EARLY)
            & (ints(replaced, FIRST) == ints(merged, FIRST)[into])
            & (ints(replaced, LAST) == ints(merged, LAST)[into])
        )
        is_changed = np.zeros(len(merged), np.bool_)
        is_changed[into[stays]] = True
        is_retracted = (shown != NOT_SHOWN) & ~stays
        mark = np.where(is_final, np.where(is_corrected, CORRECTION_MARK, FINAL_MARK), EARLY_MARK)

        untouched = changes.untouched
        were_shown = ints(untouched, SHOWN)
        ends = (were_shown != FINAL) & self._is_final(untouched, now_us)
        result = pa.concat_tables(
            [
                self._rows(
                    replaced,
                    is_retracted,
                    np.where(shown == FINAL, CORRECTION_MARK, EARLY_MARK),
                    np.full(len(replaced), RETRACTED_OP),
                ),
                self._rows(
                    untouched,
                    ends,
                    np.full(len(untouched), FINAL_MARK),
                    np.where(were_shown == EARLY, CHANGED_OP, NEW_OP),
                ),
                self._rows(merged, is_emitted, mark, np.where(is_changed, CHANGED_OP, NEW_OP)),
            ]
        )
        after = pa.concat_tables(
            [
                _with_shown(untouched, np.where(ends, FINAL, were_shown)),
                _with_shown(
                    merged,
                    np.where(is_final, FINAL, np.where(is_emitted, EARLY, NOT_SHOWN)),
                ),
            ]
        )
        return result, after

    def _is_final(self, sessions: pa.Table, now_us: int) -> Flags:
        settling_us = 0 if self.lateness.is_corrected else self.gap_us
        final: Flags = ints(sessions, LAST) + self.gap_us + settling_us <= now_us
        return final

    def _rows(self, sessions: pa.Table, which: Flags, mark: Ints, op: Ints) -> pa.Table:
        if not which.all():
            sessions = sessions.filter(pa.array(which))
            mark, op = mark[which], op[which]
        start, end = ints(sessions, FIRST), ints(sessions, LAST) + self.gap_us
        return results_table(
            self.output,
            sessions.select(self._merging.keys).columns,
            start,
            end,
            self.aggregates.results(sessions, start, end),
            MARKS.take(pa.array(mark)),
            OPS.take(pa.array(op)),
            self.topic,
        )

    roles = ("event",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """All rows of the key from the first to the last of the session."""
        (given,) = inputs
        time_us = times_of(given)
        is_admitted = admitted(self.time, self.lateness, given, time_us + self.gap_us)
        key, row_key = same_keys(given.rows, rows, self.by)
        start_us, end_us = (
            rows[name].combine_chunks().cast(pa.int64()).to_numpy()
            for name in (WINDOW_START, WINDOW_END)
        )
        from_us = np.full(len(time_us), BEGINNING)
        begun = points_within(key, from_us, time_us, row_key, start_us)
        ended = points_within(key, from_us, time_us - 1, row_key, end_us - self.gap_us)
        return (is_admitted & (begun > ended),)


def _with_shown(sessions: pa.Table, shown: Ints) -> pa.Table:
    at = sessions.schema.get_field_index(SHOWN)
    return sessions.set_column(at, SHOWN, pa.array(shown.astype(np.int8)))
