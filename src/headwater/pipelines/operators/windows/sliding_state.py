"""Rows that sliding windows remember.

    keys       each key by a number (KEY) that it keeps as long as it has rows, and when its latest
               row was
    pending    rows whose own interval has not ended
    rows<n>    rows of a stretch of time whose interval has ended, by key and time: those of some
               keys are found without a look at the others

A batch writes the keys, the pending rows and the stretches that time has come through. A stretch is
removed as a whole when no row that can come needs its rows.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, TIME, State
from headwater.pipelines.operators.runtime.grouping import first_rows, may_be_among, number
from headwater.pipelines.operators.time.time_order import by_key_and_time

KEY: Final = "__key"
PLACED: Final = ((KEY, pa.int64()), (TIME, pa.int64()), (ORIGIN, pa.int32()), (OFFSET, pa.int64()))
_LATEST: Final = "latest"
_KEYS: Final = "keys"
_PENDING: Final = "pending"
_STRETCHES_OF_INTERVAL: Final = 8
_MOST_STRETCHES: Final = 128
_MANY: Final = 4  # so many times as many keys are looked through for those of the rows

Ints = npt.NDArray[np.int64]


class Keys:
    """Numbers of keys; those of new keys are the next ones."""

    def __init__(self, state: State, schema: pa.Schema) -> None:
        """`schema`: of the columns of the key."""
        self._state = state
        self._names = [f"k{at}" for at in range(len(schema))]
        fields = [each.with_name(name) for each, name in zip(schema, self._names, strict=True)]
        fields += [pa.field(KEY, pa.int64()), pa.field(_LATEST, pa.int64())]
        self._schema = pa.schema(fields)
        known = state.table(_KEYS)
        self._known = self._schema.empty_table() if known is None else known
        self._is_changed = False

    def numbered(self, columns: Sequence[pa.Array], time_us: Ints) -> Ints:
        """Of rows, and notes when they were."""
        if not len(time_us):
            return np.empty(0, np.int64)
        self._is_changed = True
        rows = pa.Table.from_arrays(list(columns), self._names) if columns else None
        near = np.arange(len(self._known))
        if rows is not None and len(near) >= _MANY * len(rows):
            known = [self._known[name] for name in self._names]
            near = np.flatnonzero(may_be_among(known, rows.columns, len(near)))
        both = self._known.select(self._names).take(pa.array(near))
        if rows is not None:
            both = pa.concat_tables([both, rows.cast(both.schema)])
        group, groups = number(both.columns, len(near) + len(time_us))
        of_rows = group[len(near) :]
        added = groups - len(near)
        following: int = self._state.document.get("next_key", 0)
        self._state.document["next_key"] = following + added
        numbers = np.arange(following, following + added)
        numbers = np.concatenate([ints(self._known, KEY)[near], numbers])
        met = np.full(groups, np.iinfo(np.int64).min)
        np.maximum.at(met, of_rows, time_us)
        latest = ints(self._known, _LATEST).copy()
        latest[near] = np.maximum(latest[near], met[: len(near)])
        first = first_rows(group, groups)[len(near) :]
        columns_of_added = both.take(pa.array(first)).columns if columns else []
        more = [pa.array(numbers[len(near) :]), pa.array(met[len(near) :])]
        self._known = pa.concat_tables(
            [
                self._known.set_column(
                    self._schema.get_field_index(_LATEST), _LATEST, pa.array(latest)
                ),
                pa.Table.from_arrays([*columns_of_added, *more], schema=self._schema),
            ]
        )
        found: Ints = numbers[of_rows]
        return found

    def columns_of(self, numbers: Ints) -> list[pa.ChunkedArray]:
        """The columns of keys that are known; their numbers rise."""
        at = np.searchsorted(ints(self._known, KEY), numbers)
        found: list[pa.ChunkedArray] = self._known.select(self._names).take(pa.array(at)).columns
        return found

    def save(self, needed_after_us: int) -> None:
        alive = ints(self._known, _LATEST) > needed_after_us
        if self._is_changed or not alive.all():
            self._state.put(_KEYS, self._known.filter(pa.array(alive)))


class SlidingRows:
    def __init__(self, state: State, schema: pa.Schema, *, size_us: int, retention_us: int) -> None:
        """`retention_us`: how far behind time rows are needed."""
        self._state = state
        self._schema = schema
        self._retention_us = retention_us
        # As it was at first, though less may be kept by now.
        self._stretch_us: int = state.document.setdefault(
            "stretch_us", max(size_us // _STRETCHES_OF_INTERVAL, retention_us // _MOST_STRETCHES, 1)
        )
        self._stretches: set[int] = set(state.document.get("stretches", ()))

    def pending(self) -> pa.Table:
        table = self._state.table(_PENDING)
        return self._schema.empty_table() if table is None else table

    def past(self, keys: Ints, after_us: Ints) -> pa.Table:
        """Of each of these keys, which rise, all rows after a time of its own, and some before."""
        found = [self._schema.empty_table()]
        for stretch in sorted(self._stretches):
            wanted = keys[after_us < (stretch + 1) * self._stretch_us]
            if len(wanted):
                table = self._state.table(f"rows{stretch}")
                assert table is not None
                found.append(table.take(pa.array(_places(ints(table, KEY), wanted))))
        return pa.concat_tables(found)

    def save(self, pending: pa.Table, past: pa.Table, now_us: int) -> None:
        """`past`: what is new among the rows whose interval has ended."""
        if len(past) or len(pending) != len(self.pending()):
            self._state.put(_PENDING, pending)
        needed_after_us = now_us - self._retention_us
        past = past.filter(pa.array(ints(past, TIME) > needed_after_us))
        stretches = ints(past, TIME) // self._stretch_us
        for stretch in np.unique(stretches).tolist():
            added = past.filter(pa.array(stretches == stretch))
            if stretch in self._stretches:
                added = pa.concat_tables([self._state.table(f"rows{stretch}"), added])
            order = by_key_and_time(ints(added, KEY), ints(added, TIME))
            self._state.put(f"rows{stretch}", added.take(pa.array(order)))
            self._stretches.add(stretch)
        for stretch in list(self._stretches):
            if (stretch + 1) * self._stretch_us - 1 <= needed_after_us:
                self._state.put(f"rows{stretch}", None)
                self._stretches.remove(stretch)
        self._state.document["stretches"] = sorted(self._stretches)


def ints(table: pa.Table, name: str) -> npt.NDArray[Any]:
    column: npt.NDArray[Any] = table[name].to_numpy()
    return column


def is_among(values: Ints, rising: Ints) -> npt.NDArray[np.bool_]:
    if not len(rising):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(rising, values), len(rising) - 1)
    found: npt.NDArray[np.bool_] = rising[at] == values
    return found


def _places(rising: Ints, wanted: Ints) -> npt.NDArray[np.int64]:
    """Where those values are, of which `rising` may have several each; both are in order."""
    low = np.searchsorted(rising, wanted, "left")
    count = np.searchsorted(rising, wanted, "right") - low
    before = np.cumsum(count) - count
    places: Ints = np.repeat(low - before, count) + np.arange(int(count.sum()))
    return places
