"""Sessions that a bucket remembers.

    open         those that are not final, as they were some batches ago
    open-gone    numbers of those that are no more, or are others now
    open-new     the others, and those that came since
    final<N>     final ones that late rows can still correct, by the time of their last row; a batch
                 reads those that its rows reach, and writes these and the one that time has come to

A batch changes few of the open ones. When writing the new ones and the numbers costs more than it
saves, all open ones become one table again (as in sorted_rows.py).
"""

from typing import Final

import numpy as np
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import State
from headwater.pipelines.operators.windows.session_merging import (
    FINAL,
    FIRST,
    LAST,
    NOWHERE,
    PLACE,
    SHOWN,
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
        self._stretch_us = max(lifetime_us // _MOST_TABLES, 1)
        # Of each table of final sessions, by number: its earliest first and its latest last row.
        self._reach: dict[int, tuple[int, int]] = {
            int(stretch): (first, last)
            for stretch, (first, last) in state.document.get("final", {}).items()
        }
        self._read: set[int] = set()
        self._base, self._new = (self._stored(name) for name in (_OPEN, _NEW))
        self._is_there = np.ones(len(self._base) + len(self._new), np.bool_)
        gone = state.table(_GONE)
        if gone is not None:
            self._is_there[gone[_NUMBER].to_numpy()] = False

    def read(self, time_us: Ints, now_us: int) -> pa.Table:
        """All sessions that rows of these times can touch, and those that are not final.

        A final session ended before `now_us`, so only rows that are not after it can touch it.
        """
        behind = time_us[time_us <= now_us]
        self._read = {
            stretch
            for stretch, (first, last) in self._reach.items()
            if np.any((behind >= first - self._gap_us) & (behind <= last + self._gap_us))
        }
        still = pa.concat_tables([self._base, self._new])
        if not self._is_there.all():
            still = still.filter(pa.array(self._is_there))
        final = [self._table(each) for each in sorted(self._read)]
        return pa.concat_tables(
            [
                self._placed(still, np.flatnonzero(self._is_there)),
                *(self._placed(each, np.full(len(each), NOWHERE)) for each in final),
            ]
        )

    def write(self, sessions: pa.Table, now_us: int) -> None:
        """In place of all that was read."""
        is_final = ints(sessions, SHOWN) == FINAL
        is_alive = ints(sessions, LAST) + self._lifetime_us > now_us
        place = ints(sessions, PLACE)
        sessions = sessions.drop_columns([PLACE])
        is_open = ~is_final & is_alive
        is_changed = is_open & (place == NOWHERE)
        self._put_open(place[is_open & ~is_changed], sessions.filter(pa.array(is_changed)))
        for stretch in self._read:
            self._put(stretch, None)
        final = sessions.filter(pa.array(is_final & is_alive))
        stretches = ints(final, LAST) // self._stretch_us
        for stretch in np.unique(stretches).tolist():
            added = final.filter(pa.array(stretches == stretch))
            self._put(stretch, pa.concat_tables([self._table(stretch), added]))

    def expire(self, now_us: int) -> None:
        for stretch, (_, last) in list(self._reach.items()):
            if last + self._lifetime_us <= now_us:
                self._put(stretch, None)
        self._state.document["final"] = {str(each): reach for each, reach in self._reach.items()}

    def _put_open(self, stay: Ints, changed: pa.Table) -> None:
        """`stay`: places of those that are as they were."""
        base = len(self._base)
        before = int(np.count_nonzero(self._is_there))
        self._is_there[:] = False
        self._is_there[stay] = True
        new = pa.concat_tables([self._new.filter(pa.array(self._is_there[base:])), changed])
        changes = len(changed) + before - len(stay)
        gone = base - int(np.count_nonzero(self._is_there[:base]))
        if not changes:
            return
        if base < _FEW or (len(new) + gone) ** 2 > 2 * base * changes:
            still = self._base.filter(pa.array(self._is_there[:base]))
            self._state.put(_OPEN, pa.concat_tables([still, new]))
            self._state.put(_GONE, None)
            self._state.put(_NEW, None)
            return
        numbers = np.flatnonzero(~self._is_there[:base])
        self._state.put(_GONE, pa.table({_NUMBER: numbers}))
        self._state.put(_NEW, new)

    def _placed(self, stored: pa.Table, places: Ints) -> pa.Table:
        at = self._schema.get_field_index(PLACE)
        return stored.add_column(at, self._schema.field(PLACE), pa.array(places))

    def _stored(self, name: str) -> pa.Table:
        kept = self._state.table(name)
        if kept is not None:
            return kept
        empty: pa.Table = self._schema.empty_table().drop_columns([PLACE])
        return empty

    def _table(self, stretch: int) -> pa.Table:
        return self._stored(f"final{stretch}")

    def _put(self, stretch: int, table: pa.Table | None) -> None:
        self._state.put(f"final{stretch}", table)
        if table is None:
            self._reach.pop(stretch, None)
        else:
            first, last = ints(table, FIRST), ints(table, LAST)
            self._reach[stretch] = int(first.min()), int(last.max())
