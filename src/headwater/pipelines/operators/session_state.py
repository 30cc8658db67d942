"""Sessions that a bucket remembers: those that are not final in one table, and final ones that
late rows can still correct in tables by the time of their last row, of which a batch reads those
that its rows reach, and writes these and the one that time has come to.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from headwater.pipelines.operators.contract import State
from headwater.pipelines.operators.session_merging import FINAL, FIRST, LAST, SHOWN, Ints, ints

_OPEN: Final = "open"
_MOST_TABLES: Final = 16


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
        tables = [self._state.table(_OPEN), *(self._table(each) for each in sorted(self._read))]
        return pa.concat_tables(
            [self._schema.empty_table(), *(each for each in tables if each is not None)]
        )

    def write(self, sessions: pa.Table, now_us: int) -> None:
        """In place of all that was read."""
        is_final = ints(sessions, SHOWN) == FINAL
        is_alive = ints(sessions, LAST) + self._lifetime_us > now_us
        self._state.put(_OPEN, sessions.filter(pa.array(~is_final & is_alive)))
        for stretch in self._read:
            self._put(stretch, None)
        final = sessions.filter(pa.array(is_final & is_alive))
        stretches = ints(final, LAST) // self._stretch_us
        for stretch in np.unique(stretches).tolist():
            added = final.filter(pa.array(stretches == stretch))
            before = self._table(stretch)
            self._put(stretch, added if before is None else pa.concat_tables([before, added]))

    def expire(self, now_us: int) -> None:
        for stretch, (_, last) in list(self._reach.items()):
            if last + self._lifetime_us <= now_us:
                self._put(stretch, None)
        self._state.document["final"] = {str(each): reach for each, reach in self._reach.items()}

    def _table(self, stretch: int) -> pa.Table | None:
        return self._state.table(f"final{stretch}") if stretch in self._reach else None

    def _put(self, stretch: int, table: pa.Table | None) -> None:
        self._state.put(f"final{stretch}", table)
        if table is None:
            self._reach.pop(stretch, None)
        else:
            first, last = ints(table, FIRST), ints(table, LAST)
            self._reach[stretch] = int(first.min()), int(last.max())
