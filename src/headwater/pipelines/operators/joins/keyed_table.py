"""A table in an operator's state, as it is and as it was: the versions of its rows.

    rows0, rows1, …    versions in the order of (hash of the key, valid from, offset): in each twice
                       as many as in the one before, or less; most are not there

A batch writes its versions as one more of these. One of the same size is merged with it, and the
result with the next one, as digits are carried when counting: so a version is written again only
when as many others have come, and what a change costs grows with the logarithm of the table. With
that go the versions that nobody can ask for any more: those before `oldest_us`, but for the newest
of each key.

A row is looked up by a search for the hash and the time in all of them, all rows of a batch at
once; then the keys themselves are compared. The latest version counts, whichever table it is in.
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
from headwater.pipelines.operators.state.row_hashes import hashes_of

HASH: Final = "__hash"
VALID: Final = "__valid"  # int64: from when on, in microseconds
GONE: Final = "__gone"  # bool: from then on there is no row
_ORDERED_BY: Final = (
    (HASH, pa.int64()),
    (VALID, pa.int64()),
    (GONE, pa.bool_()),
    (ORIGIN, pa.int32()),
    (OFFSET, pa.int64()),
)
_LEAST_ROWS: Final = 64  # fewer are not worth a table of their own
_LEVELS: Final = 48

Times = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Truncation:
    """From `valid_us` on, no row is there that came before: in its own partition by offset, in
    others, which it does not stand in, by time.
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
    """Of one bucket, in one batch."""

    def __init__(self, state: State, key: Sequence[str], columns: Sequence[pa.Field]) -> None:
        """`columns` with those of the key."""
        self._state = state
        self._key = tuple(key)
        self._schema = pa.schema([*columns, *(pa.field(*each) for each in _ORDERED_BY)])
        self._parts: dict[int, _Part] = {}  # by level
        for level in range(_LEVELS):
            kept = state.table(f"rows{level}")
            if kept is not None:
                rows = with_columns_of(self._schema, kept, self._key)
                self._parts[level] = _Part(rows, self._key)
        self._added = _Part(self._schema.empty_table(), self._key)
        self._truncations = [
            Truncation(*each) for each in state.document.get("table_truncated", ())
        ]

    def __len__(self) -> int:
        """Versions."""
        return sum(len(each.rows) for each in (*self._parts.values(), self._added))

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
        found.forget_gone()
        return found

    def save(self, oldest_us: int, read_us: int) -> None:
        """Nobody will ask for a time before `oldest_us`; versions that are valid before `read_us`
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
            for each in before - set(self._parts):
                self._state.put(f"rows{each}", None)
            self._state.put(f"rows{level}", self._parts[level].rows)
        self._truncations = [each for each in self._truncations if each not in due]
        self._state.document["table_truncated"] = [
            [each.origin, each.offset, each.valid_us] for each in self._truncations
        ]

    def _merge(self, levels: set[int], oldest_us: int, due: Sequence[Truncation]) -> int:
        """Those of these levels become part of what was added; its level now. What has been
        truncated goes where everything is in one; so does what only says that there is no row, as
        it may have to hide an older version in another table.
        """
        parts = [self._added.rows, *(self._parts.pop(each).rows for each in sorted(levels))]
        rows = _ordered(pa.concat_tables(parts))
        if due and len(rows):
            dead = np.zeros(len(rows), np.bool_)
            places = [_numbers(rows, name) for name in (ORIGIN, OFFSET, VALID)]
            for each in due:
                dead |= each.removes(*places)
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
            places = found[asked]
            wrong = ~part.has_keys(places, keys, asked) | self._is_truncated(
                part, places, at_us[asked]
            )
            asked, places = asked[wrong], places[wrong] - 1
            is_next = (places >= 0) & (part.hashes[places] == hashes[asked])
            found[asked] = np.where(is_next, places, -1)
            asked = asked[is_next]
        return found

    def _is_truncated(
        self, part: "_Part", places: npt.NDArray[np.int64], at_us: Times
    ) -> npt.NDArray[np.bool_]:
        is_dead = np.zeros(len(places), np.bool_)
        if self._truncations:
            which = part.origins[places], part.offsets[places], part.valid[places]
            for each in self._truncations:
                is_dead |= each.removes(*which) & (each.valid_us <= at_us)
        return is_dead


class Found:
    """Of each row that was asked for, the version that counts: in which part, and where there."""

    def __init__(self, schema: pa.Schema, which: npt.NDArray[np.int64]) -> None:
        self._schema = schema
        self._parts: list[_Part] = []
        self._which = which  # -1: nothing was found
        self._places = np.zeros(len(which), np.int64)

    @property
    def is_found(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self._which >= 0
        return found

    def take(self, part: "_Part", places: npt.NDArray[np.int64]) -> None:
        """Where these are later than what was found before."""
        is_later = places >= 0
        for number, other in enumerate(self._parts):
            both = np.flatnonzero(is_later & (self._which == number))
            is_later[both] = _is_later(part, places[both], other, self._places[both])
        self._which[is_later] = len(self._parts)
        self._places[is_later] = places[is_later]
        self._parts.append(part)

    def forget_gone(self) -> None:
        for number, part in enumerate(self._parts):
            of_part = np.flatnonzero(self._which == number)
            self._which[of_part[part.is_gone(self._places[of_part])]] = -1

    def columns(self, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Nulls where nothing was found."""
        used = [each for each in range(len(self._parts)) if (self._which == each).any()]
        if not used:
            kinds = [self._schema.field(name).type for name in names]
            return [pa.chunked_array([pa.nulls(len(self._which), kind)]) for kind in kinds]
        if len(used) == 1:
            places = np.where(self._which >= 0, self._places, -1)
            return _taken(self._parts[used[0]].rows, names, places)
        # First all that one part has, then the next one's; then each in its place.
        order = np.full(len(self._which), -1, np.int64)
        taken, count = [], 0
        for each in used:
            of_part = np.flatnonzero(self._which == each)
            order[of_part] = count + np.arange(len(of_part))
            count += len(of_part)
            taken.append(_taken(self._parts[each].rows, names, self._places[of_part]))
        where = pa.array(order, mask=order < 0)
        return [
            pa.chunked_array([chunk for one in columns for chunk in one.chunks])
            .combine_chunks()
            .take(where)
            for columns in zip(*taken, strict=True)
        ]


class _Part:
    """Versions in order, and their columns as numbers."""

    def __init__(self, rows: pa.Table, key: Sequence[str]) -> None:
        self.rows = rows
        self._key = key
        self.hashes = _numbers(rows, HASH)
        self.valid = _numbers(rows, VALID)
        self.origins = _numbers(rows, ORIGIN)
        self.offsets = _numbers(rows, OFFSET)

    def has_keys(
        self,
        places: npt.NDArray[np.int64],
        keys: Sequence[pa.ChunkedArray],
        asked: npt.NDArray[np.intp],
    ) -> npt.NDArray[np.bool_]:
        same = np.ones(len(places), np.bool_)
        here, there = pa.array(places), pa.array(asked)
        for name, column in zip(self._key, keys, strict=True):
            is_all = len(asked) == len(column)
            wanted = column if is_all else column.take(there)
            equal = pc.equal(_array(self.rows[name]).take(here), wanted.combine_chunks())
            same &= equal.fill_null(False).to_numpy(zero_copy_only=False)
        return same

    def is_gone(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        gone = _array(self.rows[GONE])
        if not len(gone) or not gone.true_count:
            return np.zeros(len(places), np.bool_)
        is_gone: npt.NDArray[np.bool_] = gone.to_numpy(zero_copy_only=False)[places]
        return is_gone & (places >= 0)


def _level(rows: int) -> int:
    """Tables of the same level are about as large as each other."""
    return (rows // _LEAST_ROWS).bit_length()


def _hashes(keys: Sequence[pa.ChunkedArray]) -> Hashes:
    """One word is enough to find a key, because keys are compared."""
    hashes: Hashes = np.ascontiguousarray(hashes_of(keys)[:, 0]).view(np.int64)
    return hashes


def _is_later(
    one: _Part,
    places: npt.NDArray[np.int64],
    other: _Part,
    its_places: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    later = np.zeros(len(places), np.bool_)
    is_even = np.ones(len(places), np.bool_)
    for here, there in ((one.valid, other.valid), (one.offsets, other.offsets),
                        (one.origins, other.origins)):  # fmt: skip
        later |= is_even & (here[places] > there[its_places])
        is_even &= here[places] == there[its_places]
    return later


def _ordered(versions: pa.Table) -> pa.Table:
    versions = versions.combine_chunks()
    order = np.lexsort([_numbers(versions, name) for name in (ORIGIN, OFFSET, VALID, HASH)])
    return versions.take(pa.array(order))


def _without_superseded(
    versions: pa.Table, key: Sequence[str], oldest_us: int, *, is_all: bool
) -> pa.Table:
    """A version is not needed if the next one of its key is valid at the oldest time, too; nor, if
    these are all there are, is the last one that is left then, if it only says that there is no
    row.
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
    gone = _array(versions[GONE]).to_numpy(zero_copy_only=False)
    hashes = _numbers(versions, HASH)
    is_after_stranger = np.zeros(len(versions), np.bool_)  # of the same hash
    is_after_stranger[1:] = ~is_same & (hashes[1:] == hashes[:-1])
    is_needed &= ~(gone & is_old & ~is_after_stranger)
    return versions.filter(pa.array(is_needed))


def _taken(
    rows: pa.Table, names: Sequence[str], places: npt.NDArray[np.int64]
) -> list[pa.ChunkedArray]:
    where = pa.array(places, mask=places < 0)
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
    """The last place with this hash that is valid at that time."""
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
