"""Accumulators by key and pane, in tables by stretches of time.

A pane is a piece of time, `hop` long; a window is some panes in a row. An entry of the state holds
the rows of one key that count in the windows `first` … `last` (windows are numbered by their last
pane): those of one pane, apart only if some came too late for the first of its windows.

Entries of the same stretch are one table. A batch writes the tables whose entries it changes; those
that merely wait for late rows cost it nothing. How many panes a stretch has follows from how much
time is kept, so that there are neither many tables nor a few large ones.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.contract import State
from headwater.pipelines.operators.grouping import first_rows, number
from headwater.pipelines.operators.named_aggregates import NamedAggregates

FIRST: Final = "first"
LAST: Final = "last"
_MOST_TABLES: Final = 64
_FEW_TABLES: Final = 8

Windows = npt.NDArray[np.int64]


class PaneState:
    """Of one bucket, in one batch: `before` and `after` it."""

    def __init__(self, state: State, aggregates: NamedAggregates, schema: pa.Schema) -> None:
        kept: dict[str, Any] = state.document.get("panes", {})
        self._state = state
        self._aggregates = aggregates
        self._schema = schema
        self._length: int = kept.get("length", 1)  # of a stretch, in panes
        self._stretches: set[int] = set(kept.get("stretches", ()))
        self._changed: set[int] = set()
        self._merged = schema.empty_table()

    def add(self, fresh: pa.Table) -> None:
        """Entries of the batch's rows, one for each key, first and last."""
        self._changed = self._stretches.intersection(self._stretch_of(fresh).tolist())
        if not self._changed:
            self._merged = fresh
            return
        entries = pa.concat_tables([*map(self._table, sorted(self._changed)), fresh])
        told_apart = [name for name in entries.column_names if name[0] != "a"]
        windows = [windows_of(entries, FIRST), windows_of(entries, LAST)]
        keys = [entries[name] for name in told_apart if name[0] == "k"]
        group, groups = number([*keys, *windows], len(entries))
        kept = entries.select(told_apart).take(pa.array(first_rows(group, groups)))
        merged = self._aggregates.merge(entries, group, groups)
        self._merged = pa.Table.from_arrays([*kept.columns, *merged], schema=self._schema)

    def before(self, is_wanted: Callable[[int, int], bool]) -> pa.Table:
        """Entries as they were before `add`, at least those whose last window is wanted; asked for
        stretches of windows, the first and the last of them.
        """
        return self._read(self._wanted(self._stretches, is_wanted))

    def after(self, is_wanted: Callable[[int, int], bool]) -> pa.Table:
        untouched = self._wanted(self._stretches - self._changed, is_wanted)
        return pa.concat_tables([self._read(untouched), self._merged])

    def save(self, alive_from: int) -> None:
        """All that is still needed: entries whose last window is not before `alive_from`."""
        alive = self._merged.filter(pa.array(windows_of(self._merged, LAST) >= alive_from))
        gone = {each for each in self._stretches if (each + 1) * self._length <= alive_from}
        untouched = self._stretches - self._changed - gone
        length = self._fitting_length(alive, untouched, alive_from)
        if length != self._length:
            alive = pa.concat_tables([self._read(untouched), alive])
            alive = alive.filter(pa.array(windows_of(alive, LAST) >= alive_from))
            for stretch in self._stretches:
                self._state.put(self._name(stretch), None)
            self._length, untouched = length, set()
        else:
            for stretch in self._changed | gone:
                self._state.put(self._name(stretch), None)
        written = self._put(alive)
        self._state.document["panes"] = {
            "length": self._length,
            "stretches": sorted(untouched | written),
        }

    def _put(self, entries: pa.Table) -> set[int]:
        if not len(entries):
            return set()
        stretch = self._stretch_of(entries)
        order = np.argsort(stretch, kind="stable")
        entries = entries.take(pa.array(order)).combine_chunks()
        found, starts = np.unique(stretch[order], return_index=True)
        ends = [*starts[1:].tolist(), len(entries)]
        for each, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True):
            self._state.put(self._name(each), entries.slice(start, end - start))
        return set(found.tolist())

    def _fitting_length(self, alive: pa.Table, untouched: set[int], alive_from: int) -> int:
        last, length = windows_of(alive, LAST), self._length
        bounds = [bound for each in untouched for bound in (each * length, (each + 1) * length - 1)]
        if len(last):
            bounds += [int(last.min()), int(last.max())]
        high = max(bounds, default=0)
        low = max(min(bounds, default=0), min(alive_from, high))
        if high // length - low // length < _FEW_TABLES:
            length = 1
        if high // length - low // length >= _MOST_TABLES:
            length = max(1, -(-2 * (high - low + 1) // _MOST_TABLES))
        return length

    def _stretch_of(self, entries: pa.Table) -> npt.NDArray[np.int64]:
        stretch: npt.NDArray[np.int64] = windows_of(entries, LAST) // self._length
        return stretch

    def _wanted(self, stretches: set[int], is_wanted: Callable[[int, int], bool]) -> list[int]:
        length = self._length
        return [each for each in stretches if is_wanted(each * length, (each + 1) * length - 1)]

    def _read(self, stretches: Iterable[int]) -> pa.Table:
        tables = [self._table(each) for each in sorted(stretches)]
        return pa.concat_tables([self._schema.empty_table(), *tables])

    def _table(self, stretch: int) -> pa.Table:
        table = self._state.table(self._name(stretch))
        assert table is not None
        return table

    def _name(self, stretch: int) -> str:
        return f"panes{stretch}"


def windows_of(entries: pa.Table, name: str) -> Windows:
    windows: Windows = entries[name].to_numpy()
    return windows
