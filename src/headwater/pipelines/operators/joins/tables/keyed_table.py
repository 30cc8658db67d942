"""A versioned table in an operator's state, in LSM levels that double (the logarithmic method).

    rows0, rows1, …    levels: versions sorted by (hash of the key, valid from, offset), in each at
                       most twice as many as in the one before; most levels are empty

A batch writes its versions as one more level. If that level exists, both are merged, and the result
with the next level, as digits are carried when counting (Bentley and Saxe, 1980): so a version is
written again only when as many others have come, and the cost of a change grows with the logarithm
of the table. The merge removes versions that no event can need any more: those before `oldest_us`,
but for the newest of each key.

A row is looked up by binary search for the hash and the time in all levels, all rows of a batch at
once; then the keys themselves are compared. The latest version counts, whichever level it is in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.jit import kernel
from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, State
from headwater.pipelines.operators.state.column_evolution import with_columns_of
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import hashes_of

HASH: Final = "__hash"
VALID: Final = "__valid"  # int64: from when on, in microseconds
DELETED: Final = "__gone"  # bool: a deletion, from then on there is no row
_ORDERED_BY: Final = (
    (HASH, pa.int64()),
    (VALID, pa.int64()),
    (DELETED, pa.bool_()),
    (ORIGIN, pa.int32()),
    (OFFSET, pa.int64()),
)
_LEAST_ROWS: Final = 64  # of level 1; fewer are not worth a level of their own
_LEVELS: Final = 48

Times = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Truncation:
    """From `valid_us` on, all rows that came before are deleted: in its own partition by offset, in
    others by time.
    """

    origin: int
    offset: int
    valid_us: int

    def removes(
        self,
        origins: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        valid: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Which versions."""
        before: npt.NDArray[np.bool_] = np.where(
            origins == self.origin, offsets < self.offset, valid < self.valid_us
        )
        return before


class KeyedTable:
    """The versions of one bucket, in one batch."""

    def __init__(self, state: State, key: Sequence[str], columns: Sequence[pa.Field]) -> None:
        """`columns` with those of the key."""
        self._state = state
        self._key = tuple(key)
        self._schema = pa.schema([*columns, *(pa.field(*column) for column in _ORDERED_BY)])
        self._parts: dict[int, _Part] = {}  # by level
        for level in range(_LEVELS):
            stored = state.table(f"rows{level}")
            if stored is not None:
                rows = with_columns_of(self._schema, stored, self._key)
                self._parts[level] = _Part(rows, self._key)
        self._added = _Part(self._schema.empty_table(), self._key)
        self._truncations = [
            Truncation(*entry) for entry in state.document.get("table_truncated", ())
        ]

    def __len__(self) -> int:
        """Versions."""
        return sum(len(part.rows) for part in (*self._parts.values(), self._added))

    def rescale(self, before: "Sequence[KeyedTable]", share: Share) -> int:
        """The versions of the share (contract.Rescalable), in one level. Returns their number.
        A truncation may be applied in some buckets and not in others, by what their events need; it
        does no harm where it is applied.
        """
        rows = _ordered(pa.concat_tables([table.versions_of(share) for table in before]))
        if len(rows):
            self._state.put(f"rows{_level(len(rows))}", rows)
        truncations = [truncation for table in before for truncation in table.truncations]
        self._truncations = list(dict.fromkeys(truncations))
        self._put_truncations()
        return len(rows)

    def versions_of(self, share: Share) -> pa.Table:
        parts = [
            part.rows.filter(pa.array(share.of_hashes(part.hashes.view(np.uint64))))
            for part in self._parts.values()
        ]
        return pa.concat_tables([self._schema.empty_table(), *parts])

    @property
    def truncations(self) -> tuple[Truncation, ...]:
        """Those that are not applied to all versions."""
        return tuple(self._truncations)

    def add(self, versions: pa.Table) -> None:
        """Rows with `columns`, VALID, GONE, ORIGIN and OFFSET; keys without nulls."""
        if not len(versions):
            return
        hashes = _hashes([versions[name] for name in self._key])
        versions = versions.append_column(HASH, pa.array(hashes)).select(self._schema.names)
        both = pa.concat_tables([self._added.rows, versions.cast(self._schema)])
        self._added = _Part(_ordered(both), self._key)

    def truncate(self, origin: int, offset: int, valid_us: int) -> None:
        self._truncations.append(Truncation(origin, offset, valid_us))

    def find(self, keys: Sequence[pa.ChunkedArray], at_us: Times) -> "Found":
        """The row of each key as it was at that time. A null finds nothing."""
        hashes = _hashes(keys)
        has_key = np.ones(len(hashes), np.bool_)
        for column in keys:
            if column.null_count:
                has_key &= column.is_valid().to_numpy()
        found = Found(self._schema, np.full(len(hashes), -1, np.int64))
        for part in (*self._parts.values(), self._added):
            if len(part.rows):
                found.take(part, self._find_in(part, keys, hashes, at_us, has_key))
        found.drop_deleted()
        return found

    def save(self, oldest_us: int, read_us: int) -> None:
        """No event will need a time before `oldest_us`; versions that are valid before `read_us`
        have all been added.
        """
        due = [e for e in self._truncations if e.valid_us <= oldest_us and e.valid_us < read_us]
        before = set(self._parts)
        level: int | None = None
        if due:
            level = self._merge(before, oldest_us, due)
        elif len(self._added.rows):
            level = _level(len(self._added.rows))
            while level in self._parts:
                level = self._merge({level}, oldest_us, ())
        if level is not None:
            self._parts[level] = self._added
            self._added = _Part(self._schema.empty_table(), self._key)
            for removed in before - set(self._parts):
                self._state.put(f"rows{removed}", None)
            self._state.put(f"rows{level}", self._parts[level].rows)
        self._truncations = [
            truncation for truncation in self._truncations if truncation not in due
        ]
        self._put_truncations()

    def _put_truncations(self) -> None:
        self._state.document["table_truncated"] = [
            [truncation.origin, truncation.offset, truncation.valid_us]
            for truncation in self._truncations
        ]

    def _merge(self, levels: set[int], oldest_us: int, due: Sequence[Truncation]) -> int:
        """Merges these levels into the added versions; returns the level of the result. Truncated
        versions and deletions are removed only if all levels are merged: a deletion may have to
        hide an older version in another level.
        """
        parts = [self._added.rows, *(self._parts.pop(level).rows for level in sorted(levels))]
        rows = _ordered(pa.concat_tables(parts))
        if due and len(rows):
            dead = np.zeros(len(rows), np.bool_)
            indexes = [_numbers(rows, name) for name in (ORIGIN, OFFSET, VALID)]
            for truncation in due:
                dead |= truncation.removes(*indexes)
            rows = rows.filter(pa.array(~dead))
        rows = _without_superseded(rows, self._key, oldest_us, is_all=not self._parts)
        self._added = _Part(rows, self._key)
        return _level(len(rows))

    def _find_in(
        self,
        part: "_Part",
        keys: Sequence[pa.ChunkedArray],
        hashes: Hashes,
        at_us: Times,
        has_key: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.int64]:
        found = np.full(len(hashes), -1, np.int64)
        _search(part.hashes, part.valid, hashes, at_us, found)
        found[~has_key] = -1
        # Nearly always the first one is right: another key of the same hash is one in 2^64.
        asked = np.flatnonzero(found >= 0)
        while len(asked):
            indexes = found[asked]
            wrong = ~part.has_keys(indexes, keys, asked) | self._is_truncated(
                part, indexes, at_us[asked]
            )
            asked, indexes = asked[wrong], indexes[wrong] - 1
            is_next = (indexes >= 0) & (part.hashes[indexes] == hashes[asked])
            found[asked] = np.where(is_next, indexes, -1)
            asked = asked[is_next]
        return found

    def _is_truncated(
        self, part: "_Part", indexes: npt.NDArray[np.int64], at_us: Times
    ) -> npt.NDArray[np.bool_]:
        is_dead = np.zeros(len(indexes), np.bool_)
        if self._truncations:
            which = part.origins[indexes], part.offsets[indexes], part.valid[indexes]
            for truncation in self._truncations:
                is_dead |= truncation.removes(*which) & (truncation.valid_us <= at_us)
        return is_dead


class Found:
    """The version found for each row of a lookup: in which part, and at which index."""

    def __init__(self, schema: pa.Schema, which: npt.NDArray[np.int64]) -> None:
        self._schema = schema
        self._parts: list[_Part] = []
        self._which = which  # -1: nothing was found
        self._indexes = np.zeros(len(which), np.int64)

    @property
    def is_found(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self._which >= 0
        return found

    def take(self, part: "_Part", indexes: npt.NDArray[np.int64]) -> None:
        """Where these are later than what was found before."""
        is_later = indexes >= 0
        for number, other in enumerate(self._parts):
            both = np.flatnonzero(is_later & (self._which == number))
            is_later[both] = _is_later(part, indexes[both], other, self._indexes[both])
        self._which[is_later] = len(self._parts)
        self._indexes[is_later] = indexes[is_later]
        self._parts.append(part)

    def drop_deleted(self) -> None:
        for number, part in enumerate(self._parts):
            of_part = np.flatnonzero(self._which == number)
            self._which[of_part[part.is_deleted(self._indexes[of_part])]] = -1

    def columns(self, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Nulls where nothing was found."""
        used = [number for number in range(len(self._parts)) if (self._which == number).any()]
        if not used:
            kinds = [self._schema.field(name).type for name in names]
            return [pa.chunked_array([pa.nulls(len(self._which), kind)]) for kind in kinds]
        if len(used) == 1:
            indexes = np.where(self._which >= 0, self._indexes, -1)
            return _taken(self._parts[used[0]].rows, names, indexes)
        # First all rows of one part, then those of the next one; then reordered.
        order = np.full(len(self._which), -1, np.int64)
        taken, count = [], 0
        for number in used:
            of_part = np.flatnonzero(self._which == number)
            order[of_part] = count + np.arange(len(of_part))
            count += len(of_part)
            taken.append(_taken(self._parts[number].rows, names, self._indexes[of_part]))
        where = pa.array(order, mask=order < 0)
        return [
            pa.chunked_array([chunk for one in columns for chunk in one.chunks])
            .combine_chunks()
            .take(where)
            for columns in zip(*taken, strict=True)
        ]


class _Part:
    """One level: sorted versions, and their columns as numbers."""

    def __init__(self, rows: pa.Table, key: Sequence[str]) -> None:
        self.rows = rows
        self._key = key
        self.hashes = _numbers(rows, HASH)
        self.valid = _numbers(rows, VALID)
        self.origins = _numbers(rows, ORIGIN)
        self.offsets = _numbers(rows, OFFSET)

    def has_keys(
        self,
        indexes: npt.NDArray[np.int64],
        keys: Sequence[pa.ChunkedArray],
        asked: npt.NDArray[np.intp],
    ) -> npt.NDArray[np.bool_]:
        same = np.ones(len(indexes), np.bool_)
        here, there = pa.array(indexes), pa.array(asked)
        for name, column in zip(self._key, keys, strict=True):
            is_all = len(asked) == len(column)
            wanted = column if is_all else column.take(there)
            equal = pc.equal(_array(self.rows[name]).take(here), wanted.combine_chunks())
            same &= equal.fill_null(False).to_numpy(zero_copy_only=False)
        return same

    def is_deleted(self, indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        deleted = _array(self.rows[DELETED])
        if not len(deleted) or not deleted.true_count:
            return np.zeros(len(indexes), np.bool_)
        is_deleted: npt.NDArray[np.bool_] = deleted.to_numpy(zero_copy_only=False)[indexes]
        return is_deleted & (indexes >= 0)


def _level(rows: int) -> int:
    """Tables of the same level are about as large as each other."""
    return (rows // _LEAST_ROWS).bit_length()


def _hashes(keys: Sequence[pa.ChunkedArray]) -> Hashes:
    """One word is enough to find a key, because keys are compared."""
    hashes: Hashes = np.ascontiguousarray(hashes_of(keys)[:, 0]).view(np.int64)
    return hashes


def _is_later(
    one: _Part,
    indexes: npt.NDArray[np.int64],
    other: _Part,
    its_indexes: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    later = np.zeros(len(indexes), np.bool_)
    is_even = np.ones(len(indexes), np.bool_)
    for here, there in ((one.valid, other.valid), (one.offsets, other.offsets),
                        (one.origins, other.origins)):  # fmt: skip
        later |= is_even & (here[indexes] > there[its_indexes])
        is_even &= here[indexes] == there[its_indexes]
    return later


def _ordered(versions: pa.Table) -> pa.Table:
    versions = versions.combine_chunks()
    order = np.lexsort([_numbers(versions, name) for name in (ORIGIN, OFFSET, VALID, HASH)])
    return versions.take(pa.array(order))


def _without_superseded(
    versions: pa.Table, key: Sequence[str], oldest_us: int, *, is_all: bool
) -> pa.Table:
    """A version is not needed if the next one of its key is valid at the oldest time, too. If these
    are all versions, a deletion that is the last one left is not needed, either.
    """
    if len(versions) < 1:
        return versions
    is_same = np.ones(len(versions) - 1, np.bool_)
    for name in key:
        column = _array(versions[name])
        equal = pc.equal(column[:-1], column[1:])
        is_same &= equal.fill_null(False).to_numpy(zero_copy_only=False)
    is_old = _numbers(versions, VALID) <= oldest_us
    is_needed = np.ones(len(versions), np.bool_)
    is_needed[:-1] = ~(is_same & is_old[1:])
    if not is_all:
        return versions.filter(pa.array(is_needed))
    deleted = _array(versions[DELETED]).to_numpy(zero_copy_only=False)
    hashes = _numbers(versions, HASH)
    is_after_stranger = np.zeros(len(versions), np.bool_)  # of the same hash
    is_after_stranger[1:] = ~is_same & (hashes[1:] == hashes[:-1])
    is_needed &= ~(deleted & is_old & ~is_after_stranger)
    return versions.filter(pa.array(is_needed))


def _taken(
    rows: pa.Table, names: Sequence[str], indexes: npt.NDArray[np.int64]
) -> list[pa.ChunkedArray]:
    where = pa.array(indexes, mask=indexes < 0)
    return [pa.chunked_array([_array(rows[name]).take(where)]) for name in names]


def _numbers(rows: pa.Table, name: str) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = _array(rows[name]).to_numpy()
    return numbers


def _array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks()


@kernel
def _search(hashes: Any, valid: Any, wanted: Any, at_us: Any, found: Any) -> None:
    """The last index with this hash that is valid at that time."""
    for row in range(len(wanted)):
        hash_, time = wanted[row], at_us[row]
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high) >> 1
            if hashes[middle] < hash_ or (hashes[middle] == hash_ and valid[middle] <= time):
                low = middle + 1
            else:
                high = middle
        found[row] = low - 1 if low > 0 and hashes[low - 1] == hash_ else -1
