"""State of session windows: open sessions as base and delta, final ones in segments by time.

    open         the base: sessions that are not final, as they were some batches ago
    open-gone    numbers of the base's rows that were removed or changed since
    open-new     the delta: changed sessions, and those that came since
    final<N>     a segment: final sessions that late rows can still correct, by the time of their
                 last row; a batch reads the segments that its rows reach, and writes these and the
                 one that the watermark has come to

A batch changes few of the open sessions. When writing the delta and the numbers costs more than it
saves, they are compacted into the base (as in sorted_rows.py).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import State
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.windows.session_merging import (
    FINAL,
    FIRST,
    LAST,
    NO_SLOT,
    SHOWN,
    SLOT,
    Ints,
    ints,
)

_OPEN, _GONE, _NEW = "open", "open-gone", "open-new"
_NUMBER: Final = "number"
_MOST_TABLES: Final = 16
_FEW: Final = 64  # are written whole


class SessionState:
    def __init__(self, state: State, schema: pa.Schema, *, gap_us: int, lifetime_us: int) -> None:
        """`lifetime_us`: how long after its last row a session can still get rows."""
        self._state = state
        self._schema = schema
        self._gap_us = gap_us
        self._lifetime_us = lifetime_us
        self._segment_us = max(lifetime_us // _MOST_TABLES, 1)
        # Of each segment: the earliest first and the latest last row of its sessions.
        self._reach: dict[int, tuple[int, int]] = {
            int(segment): (first, last)
            for segment, (first, last) in state.document.get("final", {}).items()
        }
        self._read: set[int] = set()
        self._base, self._new = (self._stored(name) for name in (_OPEN, _NEW))
        self._is_live = np.ones(len(self._base) + len(self._new), np.bool_)
        removed = state.table(_GONE)
        if removed is not None:
            self._is_live[removed[_NUMBER].to_numpy()] = False

    def read(self, time_us: Ints, now_us: int) -> pa.Table:
        """All sessions that rows of these times can touch, and those that are not final.

        A final session ended before `now_us`, so only rows that are not after it can touch it.
        """
        behind = time_us[time_us <= now_us]
        self._read = {
            segment
            for segment, (first, last) in self._reach.items()
            if np.any((behind >= first - self._gap_us) & (behind <= last + self._gap_us))
        }
        live = self.open_sessions()
        final = [self.final_in(segment) for segment in sorted(self._read)]
        return pa.concat_tables(
            [
                self._with_slots(live, np.flatnonzero(self._is_live)),
                *(
                    self._with_slots(sessions, np.full(len(sessions), NO_SLOT))
                    for sessions in final
                ),
            ]
        )

    @property
    def segments(self) -> list[int]:
        """Those with final sessions."""
        return list(self._reach)

    def rescale(self, before: "Sequence[SessionState]", share: Share, key: Sequence[str]) -> None:
        """The sessions of the share (contract.Rescalable)."""

        def of_share(tables: list[pa.Table]) -> pa.Table:
            sessions = pa.concat_tables(tables)
            return sessions.filter(pa.array(share.of_rows(sessions, key)))

        self._state.put(_OPEN, of_share([state.open_sessions() for state in before]))
        self._reach = {}
        for segment in sorted({segment for state in before for segment in state.segments}):
            final = of_share([state.final_in(segment) for state in before])
            if len(final):
                self._put(segment, final)
        self._put_reach()

    def write(self, sessions: pa.Table, now_us: int) -> None:
        """Replaces all that was read."""
        is_final = ints(sessions, SHOWN) == FINAL
        is_alive = ints(sessions, LAST) + self._lifetime_us > now_us
        slot = ints(sessions, SLOT)
        sessions = sessions.drop_columns([SLOT])
        is_open = ~is_final & is_alive
        is_changed = is_open & (slot == NO_SLOT)
        self._put_open(slot[is_open & ~is_changed], sessions.filter(pa.array(is_changed)))
        for segment in self._read:
            self._put(segment, None)
        final = sessions.filter(pa.array(is_final & is_alive))
        segments = ints(final, LAST) // self._segment_us
        for segment in np.unique(segments).tolist():
            added = final.filter(pa.array(segments == segment))
            self._put(segment, pa.concat_tables([self.final_in(segment), added]))

    def expire(self, now_us: int) -> None:
        for segment, (_, last) in list(self._reach.items()):
            if last + self._lifetime_us <= now_us:
                self._put(segment, None)
        self._put_reach()

    def _put_reach(self) -> None:
        self._state.document["final"] = {
            str(segment): reach for segment, reach in self._reach.items()
        }

    def open_sessions(self) -> pa.Table:
        live = pa.concat_tables([self._base, self._new])
        return live if self._is_live.all() else live.filter(pa.array(self._is_live))

    def _put_open(self, stay: Ints, changed: pa.Table) -> None:
        """`stay`: slots of unchanged sessions."""
        base = len(self._base)
        before = int(np.count_nonzero(self._is_live))
        self._is_live[:] = False
        self._is_live[stay] = True
        new = pa.concat_tables([self._new.filter(pa.array(self._is_live[base:])), changed])
        changes = len(changed) + before - len(stay)
        removed = base - int(np.count_nonzero(self._is_live[:base]))
        if not changes:
            return
        if base < _FEW or (len(new) + removed) ** 2 > 2 * base * changes:
            live = self._base.filter(pa.array(self._is_live[:base]))
            self._state.put(_OPEN, pa.concat_tables([live, new]))
            self._state.put(_GONE, None)
            self._state.put(_NEW, None)
            return
        numbers = np.flatnonzero(~self._is_live[:base])
        self._state.put(_GONE, pa.table({_NUMBER: numbers}))
        self._state.put(_NEW, new)

    def _with_slots(self, stored: pa.Table, slots: Ints) -> pa.Table:
        at = self._schema.get_field_index(SLOT)
        return stored.add_column(at, self._schema.field(SLOT), pa.array(slots))

    def _stored(self, name: str) -> pa.Table:
        table = self._state.table(name)
        if table is not None:
            return table
        empty: pa.Table = self._schema.empty_table().drop_columns([SLOT])
        return empty

    def final_in(self, segment: int) -> pa.Table:
        return self._stored(f"final{segment}")

    def _put(self, segment: int, table: pa.Table | None) -> None:
        self._state.put(f"final{segment}", table)
        if table is None:
            self._reach.pop(segment, None)
        else:
            first, last = ints(table, FIRST), ints(table, LAST)
            self._reach[segment] = int(first.min()), int(last.max())
