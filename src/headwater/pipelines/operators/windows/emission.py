"""Emission of tumbling and hopping windows: those that close in a batch, and those it changes.

Changed windows are open ones if early results are wanted, and closed ones as corrections. Emitted
results are not stored. They follow from the state before the batch, just as the results of this
batch follow from the state after it: every batch emits all that it changes. So a retraction gives
the last emitted result, to the bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.aggregates.contract import Groups
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.runtime.grouping import first_rows, number
from headwater.pipelines.operators.windows.pane_state import (
    FIRST,
    LAST,
    PaneState,
    Windows,
    windows_of,
)
from headwater.pipelines.operators.windows.results import (
    CHANGED,
    CORRECTION,
    EARLY,
    FINAL,
    NEW,
    RETRACTED,
    results_table,
)

_NO_LIMIT: Final = 2**62

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Emission:
    aggregates: NamedAggregates
    output: pa.Schema
    start_of: Callable[[Windows], Windows]  # the time at which panes begin, in microseconds
    panes: int
    is_early: bool
    previous: tuple[tuple[str, str, int], ...]
    closed: int  # the last window that had closed before the batch
    closing: int  # and after it
    topic: str  # of positions

    def of(self, panes: PaneState, fresh: pa.Table) -> pa.Table:
        """`fresh` are the entries of the batch's rows, which are in `panes` already."""
        touched = self._touched_windows(fresh)
        if self.closing == self.closed and not len(touched):
            return self.output.empty_table()
        is_wanted = self._is_wanted(touched)
        after_table = panes.after(is_wanted)
        has_before = self.is_early or len(touched) > 0
        before_table = panes.before(is_wanted) if has_before else after_table.slice(0, 0)
        keys, (before, after, added) = _numbered([before_table, after_table, fresh])
        emitted = self._emitted(after, added)
        is_closed = emitted.window <= self.closed
        was_there = _is_there(emitted, before)
        retracted = emitted.where(is_closed & was_there)
        is_open = emitted.window > self.closing
        mark = _chosen((FINAL, EARLY, CORRECTION), is_open + 2 * is_closed)
        op = _chosen((NEW, CHANGED), was_there & ~is_closed & self.is_early)
        return pa.concat_tables(
            [
                self._table(
                    keys,
                    retracted,
                    before,
                    pa.repeat(CORRECTION, len(retracted)),
                    pa.repeat(RETRACTED, len(retracted)),
                ),
                self._table(keys, emitted, after, mark, op),
            ]
        )

    def _touched_windows(self, fresh: pa.Table) -> Windows:
        """Those that the batch has rows of, and that are emitted although they do not close now."""
        first, last = windows_of(fresh, FIRST), windows_of(fresh, LAST)
        found = first_rows(*number([first, last], len(first)))
        high = _NO_LIMIT if self.is_early else self.closed
        _, windows = _spread(first[found], last[found], -_NO_LIMIT, high)
        return np.unique(windows)

    @property
    def _agos(self) -> list[int]:
        return sorted({ago for *_, ago in self.previous})

    def _is_wanted(self, touched: Windows) -> Callable[[int, int], bool]:
        """A test of entries by the range of their last windows: whether a window that is emitted,
        or an earlier one that it is compared with, may have such entries.
        """
        changed = [touched, *(touched + ago for ago in self._agos)]
        compared = [numbers - ago for numbers in changed for ago in self._agos]
        windows = np.unique(np.concatenate([*changed, *compared]))
        low = self.closed + 1 - max(self._agos, default=0)

        def is_wanted(first: int, last: int) -> bool:
            first -= self.panes - 1
            if low <= last and first <= self.closing:
                return True
            return bool(np.searchsorted(windows, first) < np.searchsorted(windows, last, "right"))

        return is_wanted

    def _emitted(self, after: "_Entries", fresh: "_Entries") -> "_Pairs":
        changed = fresh.pairs(-_NO_LIMIT, _NO_LIMIT if self.is_early else self.closed)
        depending = [changed.later(ago) for ago in self._agos]
        closing = after.pairs(self.closed + 1, self.closing)
        found = _distinct(_joined([changed, *depending, closing]))
        if not self.is_early:
            found = found.where(found.window <= self.closing)
        if depending:
            found = found.where(_is_there(found, after))
        return found.at(np.argsort(found.window, kind="stable"))  # operators that follow go by time

    def _table(
        self,
        keys: Sequence[pa.Array],
        pairs: "_Pairs",
        entries: "_Entries",
        mark: pa.Array,
        op: pa.Array,
    ) -> pa.Table:
        if not len(pairs):
            return self.output.empty_table()
        key = pa.array(pairs.key)
        start_us, end_us = self._bounds(pairs.window)
        return results_table(
            self.output,
            [column.take(key) for column in keys],
            start_us,
            end_us,
            self._results(pairs, entries),
            mark,
            op,
            self.topic,
        )

    def _bounds(self, windows: Windows) -> tuple[Windows, Windows]:
        return self.start_of(windows + 1 - self.panes), self.start_of(windows + 1)

    def _results(self, pairs: "_Pairs", entries: "_Entries") -> list[pa.Array]:
        """The aggregates, and after them those of earlier windows."""
        if not self.previous:
            return self._aggregated(pairs, entries)
        every = _joined([pairs, *(pairs.later(-ago) for ago in self._agos)])
        pair, pairs_count = every.numbered()
        of_all = self._aggregated(every.at(first_rows(pair, pairs_count)), entries)
        names = [name for name, _ in self.aggregates.aggregates]
        results = [column.slice(0, len(pairs)) for column in of_all]
        for _, of, ago in self.previous:
            start = len(pairs) * (1 + self._agos.index(ago))
            before = pa.array(pair[start : start + len(pairs)])
            results.append(of_all[names.index(of)].take(before))
        return results

    def _aggregated(self, pairs: "_Pairs", entries: "_Entries") -> list[pa.Array]:
        """Null where there are no entries."""
        entry, group = entries.members(pairs)
        if self.panes > 1:  # earlier panes before later ones
            order = np.argsort(entries.last[entry], kind="stable")
            entry, group = entry[order], group[order]
        is_there = np.bincount(group, minlength=len(pairs)) > 0
        dense = np.cumsum(is_there) - 1
        groups = int(is_there.sum())
        stored = entries.table.take(pa.array(entry))
        merged = pa.Table.from_arrays(
            self.aggregates.merge(stored, dense[group], groups),
            schema=self.aggregates.accumulators_schema,
        )
        found = self.aggregates.results(merged, *self._bounds(pairs.window[is_there]))
        if groups == len(pairs):
            return found
        return [column.take(pa.array(dense, mask=~is_there)) for column in found]


@dataclass(frozen=True)
class _Pairs:
    """Pairs of a key, by its number, and a window."""

    key: Groups
    window: Windows

    def __len__(self) -> int:
        return len(self.key)

    def at(self, rows: Groups) -> "_Pairs":
        return _Pairs(self.key[rows], self.window[rows])

    def where(self, which: Mask) -> "_Pairs":
        return _Pairs(self.key[which], self.window[which])

    def later(self, windows: int) -> "_Pairs":
        return _Pairs(self.key, self.window + windows)

    def numbered(self) -> tuple[Groups, int]:
        return number([self.key, self.window], len(self))


@dataclass(frozen=True)
class _Entries:
    """Entries of the state, with the number of each one's key."""

    table: pa.Table
    key: Groups
    first: Windows
    last: Windows

    def pairs(self, low: int, high: int) -> _Pairs:
        """All windows from `low` to `high` that there are entries of; some several times."""
        entry, window = _spread(self.first, self.last, low, high)
        return _Pairs(self.key[entry], window)

    def members(self, pairs: _Pairs) -> tuple[Groups, Groups]:
        """Which entries count in the pairs, and which of the pairs each counts in."""
        if not len(pairs) or not len(self.key):
            return np.empty(0, np.intp), np.empty(0, np.intp)
        low, high = int(pairs.window.min()), int(pairs.window.max())
        is_wanted = np.zeros(1 + int(max(self.key.max(), pairs.key.max())), np.bool_)
        is_wanted[pairs.key] = True
        chosen = np.flatnonzero(is_wanted[self.key] & (self.last >= low) & (self.first <= high))
        entry, window = _spread(self.first[chosen], self.last[chosen], low, high)
        entry = chosen[entry]
        group, _ = _joined([pairs, _Pairs(self.key[entry], window)]).numbered()
        group = group[len(pairs) :]
        found = group < len(pairs)
        return entry[found], group[found]


def _numbered(tables: Sequence[pa.Table]) -> tuple[list[pa.Array], list[_Entries]]:
    """The columns of the keys by their number, and each table's entries."""
    every = pa.concat_tables(tables)
    columns = [every[name].combine_chunks() for name in every.column_names if name[0] == "k"]
    key, keys = number(columns, len(every))
    found = pa.array(first_rows(key, keys))
    entries, start = [], 0
    for table in tables:
        of_table = key[start : start + len(table)]
        start += len(table)
        windows = windows_of(table, FIRST), windows_of(table, LAST)
        entries.append(_Entries(table, of_table, *windows))
    return [column.take(found) for column in columns], entries


def _is_there(pairs: _Pairs, entries: _Entries) -> Mask:
    _, group = entries.members(pairs)
    found: Mask = np.bincount(group, minlength=len(pairs)) > 0
    return found


def _chosen(words: Sequence[str], which: npt.NDArray[Any]) -> pa.Array:
    return pa.array(words).take(pa.array(which.astype(np.int8)))


def _joined(pairs: Sequence[_Pairs]) -> _Pairs:
    key = np.concatenate([part.key for part in pairs])
    return _Pairs(key, np.concatenate([part.window for part in pairs]))


def _distinct(pairs: _Pairs) -> _Pairs:
    return pairs.at(first_rows(*pairs.numbered()))


def _spread(first: Windows, last: Windows, low: int, high: int) -> tuple[Groups, Windows]:
    """Each window from first to last that is between low and high, and whose it is."""
    first, last = np.maximum(first, low), np.minimum(last, high)
    lengths = np.maximum(last - first + 1, 0)
    whose = np.repeat(np.arange(len(first)), lengths)
    starts = np.cumsum(lengths) - lengths
    return whose, first[whose] + np.arange(len(whose)) - starts[whose]
