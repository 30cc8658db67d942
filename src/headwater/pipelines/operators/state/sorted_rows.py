"""A sorted table of a bucket's rows in its state: a base, deletions and a delta (two LSM levels).

    <name>        the base: all rows as they were some batches ago, sorted by their hashes
    <name>-gone   numbers of the base's rows that were deleted since
    <name>-new    the delta: rows that came since, sorted, too

A batch writes the delta and the deletions only. They are compacted into the base when they have
√(2·N·b) rows, for N rows of the base and b changes in a batch: that minimises the rows written.

A hash has two words, by which rows of a group are found, or two more, which identify a row within
its group (row_hashes.py).
"""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import State
from headwater.pipelines.operators.state.column_evolution import with_columns_of
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS, Hashes
from headwater.pipelines.operators.state.row_kernels import bounds, expanded, merged

RowNumbers = npt.NDArray[np.int64]  # those of the base first, then those of the delta

_HASH: Final = "__hash"
_NUMBER: Final = "number"


class SortedRows:
    """The rows before the batch. `change` writes those after it, and ends the use of the object."""

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
        deleted = state.table(f"{name}-gone")
        self._deleted = (
            deleted[_NUMBER].to_numpy() if deleted is not None else np.empty(0, np.int64)
        )
        self._is_live = np.ones(len(self._base) + len(self._new), np.bool_)
        self._is_live[self._deleted] = False

    def __len__(self) -> int:
        return len(self._is_live) - len(self._deleted)

    @property
    def size(self) -> int:
        """The number of row numbers, those of deleted rows included."""
        return len(self._is_live)

    def find(self, hashes: Hashes) -> RowNumbers:
        """The number of the row with each of these hashes; -1: there is none."""
        found = np.full(len(hashes), -1, np.int64)
        start = 0
        for lines in (self._base_hashes, self._new_hashes):
            begins, ends = bounds(lines, hashes, self._words)
            which = np.flatnonzero(begins < ends)
            numbers = begins[which] + start
            is_live = self._is_live[numbers]
            found[which[is_live]] = numbers[is_live]
            start = len(self._base)
        return found

    def groups(
        self, hashes: Hashes, without: npt.NDArray[np.bool_] | None = None
    ) -> tuple[npt.NDArray[np.int64], RowNumbers]:
        """All rows that share the first words with each of these: which one, and the row. `without`
        some: a flag for each row number.
        """
        parts = []
        is_live = self._is_live if without is None else self._is_live & ~without
        start = 0
        for lines in (self._base_hashes, self._new_hashes):
            which, numbers = expanded(*bounds(lines, hashes, WORDS))
            numbers += start
            taken = is_live[numbers]
            parts.append((which[taken], numbers[taken]))
            start = len(self._base)
        return np.concatenate([part[0] for part in parts]), np.concatenate(
            [part[1] for part in parts]
        )

    def count(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """How many rows share the first words with each of these."""
        begins, ends = bounds(self._base_hashes, hashes, WORDS)
        deleted = np.searchsorted(self._deleted, ends) - np.searchsorted(self._deleted, begins)
        of_base = ends - begins - deleted
        begins, ends = bounds(self._new_hashes, hashes, WORDS)
        counts: npt.NDArray[np.int64] = of_base + ends - begins
        return counts

    def numbers(self) -> RowNumbers:
        return np.flatnonzero(self._is_live)

    def take(self, numbers: RowNumbers, names: list[str] | None = None) -> pa.Table:
        """In this order, if rows of the base come before those of the delta."""
        of_base = int(np.searchsorted(numbers >= len(self._base), True))
        parts = [
            self._base.select(names or self._schema.names).take(pa.array(numbers[:of_base])),
            self._new.select(names or self._schema.names).take(
                pa.array(numbers[of_base:] - len(self._base))
            ),
        ]
        return pa.concat_tables(parts)

    def hashes(self, numbers: RowNumbers) -> Hashes:
        of_base = int(np.searchsorted(numbers >= len(self._base), True))
        parts = [
            self._base_hashes[numbers[:of_base]],
            self._new_hashes[numbers[of_base:] - len(self._base)],
        ]
        return np.concatenate(parts)

    def change(self, removed: RowNumbers, added: pa.Table, hashes: Hashes) -> int:
        """Puts the state after the batch; `added` are sorted by their hashes. Returns the number
        of rows.
        """
        base = len(self._base)
        count = len(self) - len(removed) + len(added)
        if not len(removed) and not len(added):
            return count
        self._is_live[removed] = False
        live = np.flatnonzero(self._is_live[base:])
        new, new_hashes = _merge(
            self._new.take(pa.array(live)), self._new_hashes[live], added, hashes
        )
        changed = len(removed) + len(added)
        deleted = int(base - np.count_nonzero(self._is_live[:base]))
        if (len(new) + deleted) ** 2 > 2 * base * changed:
            live = np.flatnonzero(self._is_live[:base])
            rows, row_hashes = self._base, self._base_hashes
            if len(live) < base:
                rows, row_hashes = rows.take(pa.array(live)), row_hashes[live]
            self._put("", *_merge(rows, row_hashes, new, new_hashes))
            self._state.put(f"{self._name}-gone", None)
            self._state.put(f"{self._name}-new", None)
            return count
        if deleted > len(self._deleted):
            all_deleted = np.flatnonzero(~self._is_live[:base])
            self._state.put(f"{self._name}-gone", pa.table({_NUMBER: all_deleted}))
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


def rescale_sorted_rows(
    before: Sequence[State],
    after: State,
    share: Share,
    name: str,
    schema: pa.Schema,
    key: Collection[str],
    *,
    words: int,
) -> int:
    """The rows of the share as a base (contract.Rescalable); the hashes' first words are those of
    the operator's key. Returns the number of rows.
    """
    parts, hash_parts = [], []
    for state in before:
        stored = SortedRows(state, name, schema, key, words=words)
        numbers = stored.numbers()
        numbers = numbers[share.of_hashes(stored.hashes(numbers)[:, 0])]
        parts.append(stored.take(numbers))
        hash_parts.append(stored.hashes(numbers))
    hashes = np.concatenate(hash_parts)
    order = sorted_order(hashes)
    rows = pa.concat_tables(parts).combine_chunks().take(pa.array(order))
    if len(rows):
        after.put(name, rows.append_column(_HASH, as_binary(hashes[order])))
    return len(rows)


def as_binary(hashes: Hashes) -> pa.Array:
    kind = pa.binary(8 * hashes.shape[1])
    buffer = pa.py_buffer(np.ascontiguousarray(hashes))
    return pa.Array.from_buffers(kind, len(hashes), [None, buffer])


def sorted_order(hashes: Hashes) -> npt.NDArray[np.int64]:
    """A stable order by hash."""
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
