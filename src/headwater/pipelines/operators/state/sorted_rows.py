"""A table of a bucket's rows in its state, found by their hashes, of which a batch rewrites little.

    <name>        all rows as they were some batches ago, sorted by their hashes
    <name>-gone   numbers of those that are no more
    <name>-new    rows that came since, sorted, too

When the new rows are so many that writing them costs more than they save, all become one again:
with N rows and b new ones in a batch at √(2·N·b), which is what costs least.

A hash has two words, by which rows that belong together are found (`group`), or two more, by which
a row is told from others of its group (row_hashes.py).
"""

from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import State
from headwater.pipelines.operators.state.column_evolution import with_columns_of
from headwater.pipelines.operators.state.row_hashes import WORDS, Hashes
from headwater.pipelines.operators.state.row_kernels import bounds, expanded, merged

Places = npt.NDArray[np.int64]  # of rows: those of the base first, then the new ones

_HASH: Final = "__hash"
_NUMBER: Final = "number"


class SortedRows:
    """Before the batch, until `change`; nothing is to be asked after it."""

    def __init__(
        self, state: State, name: str, schema: pa.Schema, key: Collection[str], *, words: int
    ) -> None:
        """`key`: columns that the hashes are of."""
        self._state = state
        self._key = key
        self._name = name
        self._words = words
        self._schema = schema
        self._base, self._base_hashes = self._load(name)
        self._new, self._new_hashes = self._load(f"{name}-new")
        gone = state.table(f"{name}-gone")
        self._gone = gone[_NUMBER].to_numpy() if gone is not None else np.empty(0, np.int64)
        self._is_there = np.ones(len(self._base) + len(self._new), np.bool_)
        self._is_there[self._gone] = False

    def __len__(self) -> int:
        return len(self._is_there) - len(self._gone)

    @property
    def size(self) -> int:
        """How many places there are, also of rows that are gone."""
        return len(self._is_there)

    def find(self, hashes: Hashes) -> Places:
        """Of the one row with each of these hashes; -1: there is none."""
        found = np.full(len(hashes), -1, np.int64)
        start = 0
        for lines in (self._base_hashes, self._new_hashes):
            begins, ends = bounds(lines, hashes, self._words)
            which = np.flatnonzero(begins < ends)
            places = begins[which] + start
            is_there = self._is_there[places]
            found[which[is_there]] = places[is_there]
            start = len(self._base)
        return found

    def groups(
        self, hashes: Hashes, without: npt.NDArray[np.bool_] | None = None
    ) -> tuple[npt.NDArray[np.int64], Places]:
        """All rows that share the first words with each of these: which one, and the row. `without`
        some: a flag for each place.
        """
        parts = []
        is_there = self._is_there if without is None else self._is_there & ~without
        start = 0
        for lines in (self._base_hashes, self._new_hashes):
            which, places = expanded(*bounds(lines, hashes, WORDS))
            places += start
            taken = is_there[places]
            parts.append((which[taken], places[taken]))
            start = len(self._base)
        return np.concatenate([each[0] for each in parts]), np.concatenate(
            [each[1] for each in parts]
        )

    def count(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """How many rows share the first words with each of these."""
        begins, ends = bounds(self._base_hashes, hashes, WORDS)
        gone = np.searchsorted(self._gone, ends) - np.searchsorted(self._gone, begins)
        of_base = ends - begins - gone
        begins, ends = bounds(self._new_hashes, hashes, WORDS)
        counts: npt.NDArray[np.int64] = of_base + ends - begins
        return counts

    def places(self) -> Places:
        return np.flatnonzero(self._is_there)

    def take(self, places: Places, names: list[str] | None = None) -> pa.Table:
        """In this order, if places of the base come before new ones."""
        of_base = int(np.searchsorted(places >= len(self._base), True))
        parts = [
            self._base.select(names or self._schema.names).take(pa.array(places[:of_base])),
            self._new.select(names or self._schema.names).take(
                pa.array(places[of_base:] - len(self._base))
            ),
        ]
        return pa.concat_tables(parts)

    def hashes(self, places: Places) -> Hashes:
        of_base = int(np.searchsorted(places >= len(self._base), True))
        parts = [
            self._base_hashes[places[:of_base]],
            self._new_hashes[places[of_base:] - len(self._base)],
        ]
        return np.concatenate(parts)

    def change(self, removed: Places, added: pa.Table, hashes: Hashes) -> int:
        """Puts the state after the batch; `added` are sorted by their hashes. How many rows there
        are now.
        """
        base = len(self._base)
        count = len(self) - len(removed) + len(added)
        if not len(removed) and not len(added):
            return count
        self._is_there[removed] = False
        kept = np.flatnonzero(self._is_there[base:])
        new, new_hashes = _merge(
            self._new.take(pa.array(kept)), self._new_hashes[kept], added, hashes
        )
        changed = len(removed) + len(added)
        gone = int(base - np.count_nonzero(self._is_there[:base]))
        if (len(new) + gone) ** 2 > 2 * base * changed:
            kept = np.flatnonzero(self._is_there[:base])
            rows, row_hashes = self._base, self._base_hashes
            if len(kept) < base:
                rows, row_hashes = rows.take(pa.array(kept)), row_hashes[kept]
            self._put("", *_merge(rows, row_hashes, new, new_hashes))
            self._state.put(f"{self._name}-gone", None)
            self._state.put(f"{self._name}-new", None)
            return count
        if gone > len(self._gone):
            numbers = np.flatnonzero(~self._is_there[:base])
            self._state.put(f"{self._name}-gone", pa.table({_NUMBER: numbers}))
        self._put("-new", new, new_hashes)
        return count

    def _load(self, name: str) -> tuple[pa.Table, Hashes]:
        table = self._state.table(name)
        if table is None:
            return self._schema.empty_table(), np.empty((0, self._words), np.uint64)
        hashes = table[_HASH].combine_chunks()
        lines = np.frombuffer(hashes.buffers()[1], np.uint64).reshape(-1, self._words)
        rows = with_columns_of(self._schema, table.drop_columns([_HASH]), self._key)
        return rows, lines[hashes.offset : hashes.offset + len(hashes)]

    def _put(self, suffix: str, rows: pa.Table, hashes: Hashes) -> None:
        self._state.put(self._name + suffix, rows.append_column(_HASH, as_binary(hashes)))


def as_binary(hashes: Hashes) -> pa.Array:
    kind = pa.binary(8 * hashes.shape[1])
    buffer = pa.py_buffer(np.ascontiguousarray(hashes))
    return pa.Array.from_buffers(kind, len(hashes), [None, buffer])


def sorted_order(hashes: Hashes) -> npt.NDArray[np.int64]:
    """Rows of the same hash stay in order."""
    if not len(hashes):
        return np.empty(0, np.int64)
    return np.lexsort([hashes[:, word] for word in reversed(range(hashes.shape[1]))])


def _merge(
    one: pa.Table, one_hashes: Hashes, other: pa.Table, other_hashes: Hashes
) -> tuple[pa.Table, Hashes]:
    if not len(one):
        return other, other_hashes
    if not len(other):
        return one, one_hashes
    order = merged(one_hashes, other_hashes)
    both = pa.concat_tables([one, other]).combine_chunks()
    return both.take(pa.array(order)), np.concatenate([one_hashes, other_hashes])[order]
