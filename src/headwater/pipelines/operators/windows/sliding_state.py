"""State of sliding windows: numbered keys, pending rows, and past rows in segments by time.

    keys       each key by a number (KEY) that it has as long as it has rows, and the time of its
               latest row
    pending    rows whose own interval has not ended
    rows<n>    a segment: rows of a range of time whose interval has ended, sorted by key and time,
               so that those of some keys are found by binary search

A batch writes the keys, the pending rows and the segments that the watermark has passed through. A
segment is removed as a whole when no future row needs its rows.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, TIME, State
from headwater.pipelines.operators.runtime.grouping import first_rows, may_be_among, number
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.time.time_order import by_key_and_time

KEY: Final = "__key"
STORED: Final = ((KEY, pa.int64()), (TIME, pa.int64()), (ORIGIN, pa.int32()), (OFFSET, pa.int64()))
_LATEST: Final = "latest"
_KEYS: Final = "keys"
_PENDING: Final = "pending"
_NEXT_KEY: Final = "next_key"  # in the document
_SEGMENTS: Final = "stretches"
_SEGMENTS_OF_INTERVAL: Final = 8
_MOST_SEGMENTS: Final = 128
_MANY: Final = 4  # times as many keys: those that the rows do not have are filtered out first

Ints = npt.NDArray[np.int64]


class Keys:
    """Numbers of keys, given in ascending order."""

    def __init__(self, state: State, schema: pa.Schema) -> None:
        """`schema`: of the columns of the key."""
        self._state = state
        self._names = [f"k{at}" for at in range(len(schema))]
        fields = [field.with_name(name) for field, name in zip(schema, self._names, strict=True)]
        fields += [pa.field(KEY, pa.int64()), pa.field(_LATEST, pa.int64())]
        self._schema = pa.schema(fields)
        stored = state.table(_KEYS)
        self._keys = self._schema.empty_table() if stored is None else stored
        self._is_changed = False

    @property
    def rows(self) -> pa.Table:
        """Of the columns of the key, KEY and the latest time."""
        return self._keys

    def numbered(self, columns: Sequence[pa.Array], time_us: Ints) -> Ints:
        """The key numbers of rows; updates the latest time of their keys."""
        if not len(time_us):
            return np.empty(0, np.int64)
        self._is_changed = True
        rows = pa.Table.from_arrays(list(columns), self._names) if columns else None
        near = np.arange(len(self._keys))
        if rows is not None and len(near) >= _MANY * len(rows):
            stored = [self._keys[name] for name in self._names]
            near = np.flatnonzero(may_be_among(stored, rows.columns, len(near)))
        both = self._keys.select(self._names).take(pa.array(near))
        if rows is not None:
            both = pa.concat_tables([both, rows.cast(both.schema)])
        group, groups = number(both.columns, len(near) + len(time_us))
        of_rows = group[len(near) :]
        added = groups - len(near)
        following: int = self._state.document.get(_NEXT_KEY, 0)
        self._state.document[_NEXT_KEY] = following + added
        numbers = np.arange(following, following + added)
        numbers = np.concatenate([ints(self._keys, KEY)[near], numbers])
        met = np.full(groups, np.iinfo(np.int64).min)
        np.maximum.at(met, of_rows, time_us)
        latest = ints(self._keys, _LATEST).copy()
        latest[near] = np.maximum(latest[near], met[: len(near)])
        first = first_rows(group, groups)[len(near) :]
        columns_of_added = both.take(pa.array(first)).columns if columns else []
        more = [pa.array(numbers[len(near) :]), pa.array(met[len(near) :])]
        self._keys = pa.concat_tables(
            [
                self._keys.set_column(
                    self._schema.get_field_index(_LATEST), _LATEST, pa.array(latest)
                ),
                pa.Table.from_arrays([*columns_of_added, *more], schema=self._schema),
            ]
        )
        found: Ints = numbers[of_rows]
        return found

    def columns_of(self, numbers: Ints) -> list[pa.ChunkedArray]:
        """The columns of these keys, by ascending numbers."""
        at = np.searchsorted(ints(self._keys, KEY), numbers)
        found: list[pa.ChunkedArray] = self._keys.select(self._names).take(pa.array(at)).columns
        return found

    def save(self, needed_after_us: int) -> None:
        alive = ints(self._keys, _LATEST) > needed_after_us
        if self._is_changed or not alive.all():
            self._state.put(_KEYS, self._keys.filter(pa.array(alive)))


class SlidingRows:
    def __init__(self, state: State, schema: pa.Schema, *, size_us: int, retention_us: int) -> None:
        """`retention_us`: how far behind the watermark rows are needed."""
        self._state = state
        self._schema = schema
        self._retention_us = retention_us
        # Fixed by the first batch, though the retention may have become shorter.
        self._segment_us: int = state.document.setdefault(
            "stretch_us", max(size_us // _SEGMENTS_OF_INTERVAL, retention_us // _MOST_SEGMENTS, 1)
        )
        self._segments: set[int] = set(state.document.get(_SEGMENTS, ()))

    def pending(self) -> pa.Table:
        table = self._state.table(_PENDING)
        return self._schema.empty_table() if table is None else table

    def past(self, keys: Ints, after_us: Ints) -> pa.Table:
        """Of each of these ascending keys, all rows after a time of its own, and some before."""
        found = [self._schema.empty_table()]
        for segment in sorted(self._segments):
            wanted = keys[after_us < (segment + 1) * self._segment_us]
            if len(wanted):
                table = self._state.table(f"rows{segment}")
                assert table is not None
                found.append(table.take(pa.array(_indexes(ints(table, KEY), wanted))))
        return pa.concat_tables(found)

    def save(self, pending: pa.Table, past: pa.Table, now_us: int) -> None:
        """`past`: rows whose interval ended in this batch."""
        if len(past) or len(pending) != len(self.pending()):
            self._state.put(_PENDING, pending)
        needed_after_us = now_us - self._retention_us
        past = past.filter(pa.array(ints(past, TIME) > needed_after_us))
        segments = ints(past, TIME) // self._segment_us
        for segment in np.unique(segments).tolist():
            added = past.filter(pa.array(segments == segment))
            if segment in self._segments:
                added = pa.concat_tables([self._state.table(f"rows{segment}"), added])
            order = by_key_and_time(ints(added, KEY), ints(added, TIME))
            self._state.put(f"rows{segment}", added.take(pa.array(order)))
            self._segments.add(segment)
        for segment in list(self._segments):
            if (segment + 1) * self._segment_us - 1 <= needed_after_us:
                self._state.put(f"rows{segment}", None)
                self._segments.remove(segment)
        self._state.document[_SEGMENTS] = sorted(self._segments)


def rescale_sliding(
    before: Sequence[State], after: State, share: Share, key: pa.Schema, rows: pa.Schema
) -> None:
    """The keys of the share and their rows (contract.Rescalable), by new numbers. Rows whose key
    has no number any more are not needed; only their segment is not removed yet.
    """
    keys, pending = [], [rows.empty_table()]
    segments: dict[int, list[pa.Table]] = {}
    count = 0
    for state in before:
        stored = Keys(state, key).rows
        stored = stored.filter(pa.array(share.of_rows(stored, stored.column_names[: len(key)])))
        numbers = ints(stored, KEY)
        keys.append(_with_numbers(stored, np.arange(count, count + len(numbers))))
        tables = {f"rows{segment}": segment for segment in state.document.get(_SEGMENTS, ())}
        for name in (_PENDING, *tables):
            table = state.table(name)
            if table is None:
                continue
            table = table.filter(pa.array(is_among(ints(table, KEY), numbers)))
            table = _with_numbers(table, count + np.searchsorted(numbers, ints(table, KEY)))
            of_name = pending if name == _PENDING else segments.setdefault(tables[name], [])
            of_name.append(table)
        count += len(numbers)
    after.put(_KEYS, pa.concat_tables(keys))
    after.put(_PENDING, pa.concat_tables(pending))
    filled = []
    for segment, parts in sorted(segments.items()):
        past = pa.concat_tables(parts)
        if len(past):
            order = by_key_and_time(ints(past, KEY), ints(past, TIME))
            after.put(f"rows{segment}", past.take(pa.array(order)))
            filled.append(segment)
    after.document |= {_NEXT_KEY: count, _SEGMENTS: filled}


def _with_numbers(table: pa.Table, numbers: Ints) -> pa.Table:
    return table.set_column(table.schema.get_field_index(KEY), KEY, pa.array(numbers))


def ints(table: pa.Table, name: str) -> npt.NDArray[Any]:
    column: npt.NDArray[Any] = table[name].to_numpy()
    return column


def is_among(values: Ints, rising: Ints) -> npt.NDArray[np.bool_]:
    if not len(rising):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(rising, values), len(rising) - 1)
    found: npt.NDArray[np.bool_] = rising[at] == values
    return found


def _indexes(rising: Ints, wanted: Ints) -> npt.NDArray[np.int64]:
    """Indexes of the wanted values in `rising`, which may have several each; both are sorted."""
    low = np.searchsorted(rising, wanted, "left")
    count = np.searchsorted(rising, wanted, "right") - low
    before = np.cumsum(count) - count
    indexes: Ints = np.repeat(low - before, count) + np.arange(int(count.sum()))
    return indexes
