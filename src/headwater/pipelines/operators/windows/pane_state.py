"""Accumulators by key and pane, in tables by stretches of time.

A pane is a piece of time, `hop` long; a window is some panes in a row. An entry of the state holds
the rows of one key that count in the windows `first` … `last` (windows are numbered by their last
pane): those of one pane, apart only if some came too late for the first of its windows.

A new pane gets a table of its own, so a batch writes those of the panes that it has rows of, and
what merely waits for late rows costs it nothing. When there are many tables, the two smallest of
those that are next to each other and get no rows in time any more become one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.runtime.contract import State
from headwater.pipelines.operators.runtime.grouping import first_rows, number

FIRST: Final = "first"
LAST: Final = "last"
_MOST_TABLES: Final = 64
_NEW_TABLES: Final = 16  # of a batch
_NO_LIMIT: Final = 2**62

Windows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Stretch:
    """The entries of one table: those whose last window is one of these."""

    first: int
    last: int
    rows: int

    @property
    def name(self) -> str:
        return f"panes{self.first}"


class PaneState:
    """Of one bucket, in one batch: `before` and `after` it."""

    def __init__(self, state: State, aggregates: NamedAggregates, schema: pa.Schema) -> None:
        self._state = state
        self._aggregates = aggregates
        self._schema = schema
        kept: list[Any] = state.document.get("panes", [])
        self._stretches = [_Stretch(*each) for each in kept]  # in the order of time
        self._changed: list[_Stretch] = []
        self._merged = schema.empty_table()

    def add(self, fresh: pa.Table) -> None:
        """Entries of the batch's rows, one for each key, first and last."""
        met = np.unique(windows_of(fresh, LAST))
        self._changed = [
            each
            for each in self._stretches
            if np.searchsorted(met, each.first) < np.searchsorted(met, each.last, "right")
        ]
        if not self._changed:
            self._merged = fresh
            return
        entries = pa.concat_tables([self._read(self._changed), fresh])
        told_apart = [name for name in entries.column_names if name[0] != "a"]
        keys = [entries[name] for name in told_apart if name[0] == "k"]
        windows = [windows_of(entries, FIRST), windows_of(entries, LAST)]
        group, groups = number([*keys, *windows], len(entries))
        kept = entries.select(told_apart).take(pa.array(first_rows(group, groups)))
        merged = self._aggregates.merge(entries, group, groups)
        self._merged = pa.Table.from_arrays([*kept.columns, *merged], schema=self._schema)

    def before(self, is_wanted: Callable[[int, int], bool]) -> pa.Table:
        """Entries as they were before `add`, at least those whose last window is wanted; asked for
        stretches of windows, the first and the last of them.
        """
        return self._read(each for each in self._stretches if is_wanted(each.first, each.last))

    def after(self, is_wanted: Callable[[int, int], bool]) -> pa.Table:
        untouched = [each for each in self._untouched() if is_wanted(each.first, each.last)]
        return pa.concat_tables([self._read(untouched), self._merged])

    def save(self, alive_from: int, settled: int) -> None:
        """All that is still needed: entries whose last window is not before `alive_from`. Those up
        to `settled` get no rows any more, but late ones.
        """
        alive = self._merged.filter(pa.array(windows_of(self._merged, LAST) >= alive_from))
        untouched = [each for each in self._untouched() if each.last >= alive_from]
        for each in self._stretches:
            if each not in untouched:
                self._state.put(each.name, None)
        written = self._put(alive)
        stretches = sorted([*untouched, *written], key=lambda each: each.first)
        while len(stretches) > _MOST_TABLES:
            self._unite_two(stretches, settled)
        self._state.document["panes"] = [[each.first, each.last, each.rows] for each in stretches]

    def _untouched(self) -> list[_Stretch]:
        return [each for each in self._stretches if each not in self._changed]

    def _put(self, entries: pa.Table) -> list[_Stretch]:
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
            stretch = _Stretch(int(last[start]), int(last[end - 1]), end - start)
            self._state.put(stretch.name, entries.slice(start, end - start))
            written.append(stretch)
        return written

    def _begins(self, windows: Windows) -> npt.NDArray[np.intp]:
        """At which of these windows a table begins. They stay in the stretches that there were;
        others are one each, or share some if they are many, and never with a stretch in between.
        """
        firsts = np.array([each.first for each in self._stretches], np.int64)
        lasts = np.array([-_NO_LIMIT, *(each.last for each in self._stretches)], np.int64)
        stretch = np.searchsorted(firsts, windows, "right")
        is_new = windows > lasts[stretch]
        most = max(int(is_new.sum()), _NEW_TABLES)
        piece = np.where(is_new, (np.cumsum(is_new) - 1) * _NEW_TABLES // most, -1)
        begins = np.flatnonzero((np.diff(stretch) != 0) | (np.diff(piece) != 0)) + 1
        return np.concatenate([[0], begins])

    def _unite_two(self, stretches: list[_Stretch], settled: int) -> None:
        pairs = range(len(stretches) - 1)
        waiting = [at for at in pairs if stretches[at + 1].last <= settled]
        at = min(waiting or pairs, key=lambda at: stretches[at].rows + stretches[at + 1].rows)
        one, other = stretches[at : at + 2]
        both = self._read([one, other])
        self._state.put(other.name, None)
        self._state.put(one.name, both)
        stretches[at : at + 2] = [_Stretch(one.first, other.last, len(both))]

    def _read(self, stretches: Iterable[_Stretch]) -> pa.Table:
        tables = []
        for each in stretches:
            table = self._state.table(each.name)
            assert table is not None
            tables.append(table)
        return pa.concat_tables([self._schema.empty_table(), *tables])


def windows_of(entries: pa.Table, name: str) -> Windows:
    windows: Windows = entries[name].to_numpy()
    return windows
