"""State of tumbling and hopping windows: accumulators by key and pane, in tables by time.

A pane is a piece of time, `hop` long; a window is several panes in a row ("No pane, no gain", Li et
al., 2005). An entry of the state aggregates the rows of one key that count in the windows `first` …
`last` (windows are numbered by their last pane): those of one pane, split only if some came too
late for the first of its windows.

A segment is a table of some panes in a row. A new pane gets a segment of its own, so a batch writes
those of the panes that it has rows of, and panes that only wait for late rows cost it nothing. If
there are many segments, the two smallest neighbours that get only late rows are merged.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.runtime.contract import State
from headwater.pipelines.operators.runtime.grouping import first_rows, number
from headwater.pipelines.operators.state.key_groups import Share

FIRST: Final = "first"
LAST: Final = "last"
_MOST_TABLES: Final = 64
_NEW_TABLES: Final = 16  # of a batch
_NO_LIMIT: Final = 2**62

Windows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Segment:
    """The entries of one table: those whose last window is in this range."""

    first: int
    last: int
    rows: int

    @property
    def name(self) -> str:
        return f"panes{self.first}"


class PaneState:
    """The panes of one bucket, `before` and `after` one batch."""

    def __init__(self, state: State, aggregates: NamedAggregates, schema: pa.Schema) -> None:
        self._state = state
        self._aggregates = aggregates
        self._schema = schema
        stored: list[Any] = state.document.get("panes", [])
        self._segments = [_Segment(*entry) for entry in stored]  # in the order of time
        self._changed: list[_Segment] = []
        self._merged = schema.empty_table()

    def rescale(self, before: Sequence[State], share: Share) -> None:
        """The entries of the share (contract.Rescalable), in new segments."""
        states = [PaneState(state, self._aggregates, self._schema) for state in before]
        entries = pa.concat_tables([state.before(lambda *_: True) for state in states])
        key = [name for name in entries.column_names if name[0] == "k"]
        self._segments = []
        self._merged = entries.filter(pa.array(share.of_rows(entries, key)))
        self.save(-_NO_LIMIT, _NO_LIMIT)

    def add(self, fresh: pa.Table) -> None:
        """Entries of the batch's rows, one for each key, first and last."""
        met = np.unique(windows_of(fresh, LAST))
        self._changed = [
            segment
            for segment in self._segments
            if np.searchsorted(met, segment.first) < np.searchsorted(met, segment.last, "right")
        ]
        if not self._changed:
            self._merged = fresh
            return
        entries = pa.concat_tables([self._read(self._changed), fresh])
        identity = [name for name in entries.column_names if name[0] != "a"]
        keys = [entries[name] for name in identity if name[0] == "k"]
        windows = [windows_of(entries, FIRST), windows_of(entries, LAST)]
        group, groups = number([*keys, *windows], len(entries))
        identities = entries.select(identity).take(pa.array(first_rows(group, groups)))
        merged = self._aggregates.merge(entries, group, groups)
        self._merged = pa.Table.from_arrays([*identities.columns, *merged], schema=self._schema)

    def before(self, is_wanted: Callable[[int, int], bool]) -> pa.Table:
        """Entries as they were before `add`, at least those whose last window is wanted.
        `is_wanted` gets a range of windows: the first and the last of them.
        """
        return self._read(
            segment for segment in self._segments if is_wanted(segment.first, segment.last)
        )

    def after(self, is_wanted: Callable[[int, int], bool]) -> pa.Table:
        untouched = [
            segment for segment in self._untouched() if is_wanted(segment.first, segment.last)
        ]
        return pa.concat_tables([self._read(untouched), self._merged])

    def save(self, alive_from: int, settled: int) -> None:
        """Entries that are still needed: those whose last window is not before `alive_from`.
        Windows up to `settled` get only late rows.
        """
        alive = self._merged.filter(pa.array(windows_of(self._merged, LAST) >= alive_from))
        untouched = [segment for segment in self._untouched() if segment.last >= alive_from]
        for segment in self._segments:
            if segment not in untouched:
                self._state.put(segment.name, None)
        written = self._put(alive)
        segments = sorted([*untouched, *written], key=lambda segment: segment.first)
        while len(segments) > _MOST_TABLES:
            self._merge_two(segments, settled)
        self._state.document["panes"] = [
            [segment.first, segment.last, segment.rows] for segment in segments
        ]

    def _untouched(self) -> list[_Segment]:
        return [segment for segment in self._segments if segment not in self._changed]

    def _put(self, entries: pa.Table) -> list[_Segment]:
        if not len(entries):
            return []
        last = windows_of(entries, LAST)
        order = np.argsort(last, kind="stable")
        entries = entries.take(pa.array(order)).combine_chunks()
        last = last[order]
        found, starts = np.unique(last, return_index=True)
        begins = self._begins(found)
        ends = [*starts[begins[1:]].tolist(), len(entries)]
        written = []
        for start, end in zip(starts[begins].tolist(), ends, strict=True):
            segment = _Segment(int(last[start]), int(last[end - 1]), end - start)
            self._state.put(segment.name, entries.slice(start, end - start))
            written.append(segment)
        return written

    def _begins(self, windows: Windows) -> npt.NDArray[np.intp]:
        """At which of these windows a segment begins. Windows stay in existing segments; new ones
        get one each, or share some if they are many, and never across an existing segment.
        """
        firsts = np.array([segment.first for segment in self._segments], np.int64)
        lasts = np.array([-_NO_LIMIT, *(segment.last for segment in self._segments)], np.int64)
        existing = np.searchsorted(firsts, windows, "right")
        is_new = windows > lasts[existing]
        most = max(int(is_new.sum()), _NEW_TABLES)
        piece = np.where(is_new, (np.cumsum(is_new) - 1) * _NEW_TABLES // most, -1)
        begins = np.flatnonzero((np.diff(existing) != 0) | (np.diff(piece) != 0)) + 1
        return np.concatenate([[0], begins])

    def _merge_two(self, segments: list[_Segment], settled: int) -> None:
        pairs = range(len(segments) - 1)
        settled_pairs = [at for at in pairs if segments[at + 1].last <= settled]
        at = min(settled_pairs or pairs, key=lambda at: segments[at].rows + segments[at + 1].rows)
        one, other = segments[at : at + 2]
        both = self._read([one, other])
        self._state.put(other.name, None)
        self._state.put(one.name, both)
        segments[at : at + 2] = [_Segment(one.first, other.last, len(both))]

    def _read(self, segments: Iterable[_Segment]) -> pa.Table:
        tables = []
        for segment in segments:
            table = self._state.table(segment.name)
            assert table is not None
            tables.append(table)
        return pa.concat_tables([self._schema.empty_table(), *tables])


def windows_of(entries: pa.Table, name: str) -> Windows:
    windows: Windows = entries[name].to_numpy()
    return windows
