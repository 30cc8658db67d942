"""A table in an operator's state, as it is and as it was: the versions of its rows.

    base     all versions but the latest ones, in the order of (hash of the key, valid from, offset)
    delta    the versions since, in the same order

A batch writes the delta anew and leaves the base alone, until the delta is a quarter of the base:
then both become a new base. So what a change costs grows with the logarithm of the table, not with
the table. With that go the versions that nobody can ask for any more: those before `oldest_us`, but
for the newest of each key.

A row is looked up by a search for the hash and the time in both, all rows of a batch at once; then
the keys themselves are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.compiled import kernel
from headwater.pipelines.operators.contract import OFFSET, ORIGIN, State
from headwater.pipelines.operators.kept_columns import with_columns_of
from headwater.pipelines.operators.row_hashes import hashes_of

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
_LEAST_ROWS: Final = 4096  # of a delta, before it is worth a new base

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
        self._base = _Part(self._kept("base"), self._key)
        self._delta = _Part(self._kept("delta"), self._key)
        self._truncations = [
            Truncation(*each) for each in state.document.get("table_truncated", ())
        ]
        self._has_changed = False

    def __len__(self) -> int:
        """Versions."""
        return len(self._base.rows) + len(self._delta.rows)

    def add(self, versions: pa.Table) -> None:
        """Rows with `columns`, VALID, GONE, ORIGIN and OFFSET; keys without nulls."""
        if not len(versions):
            return
        hashes = _hashes([versions[name] for name in self._key])
        versions = versions.append_column(HASH, pa.array(hashes)).select(self._schema.names)
        both = pa.concat_tables([self._delta.rows, versions.cast(self._schema)])
        self._delta = _Part(_ordered(both), self._key)
        self._has_changed = True

    def truncate(self, origin: int, offset: int, valid_us: int) -> None:
        self._truncations.append(Truncation(origin, offset, valid_us))

    def find(self, keys: Sequence[pa.ChunkedArray], at_us: Times) -> "Found":
        """The row of each key as it was at that time. A null finds nothing."""
        hashes = _hashes(keys)
        has_key = np.ones(len(hashes), np.bool_)
        for column in keys:
            if column.null_count:
                has_key &= column.is_valid().to_numpy()
        in_base, in_delta = (
            self._find_in(part, keys, hashes, at_us, has_key) for part in (self._base, self._delta)
        )
        if len(self._base.rows) and len(self._delta.rows):
            is_both = (in_base >= 0) & (in_delta >= 0)
            delta_is_later = _is_later(self._delta, in_delta, self._base, in_base)
            in_base[is_both & delta_is_later] = -1
            in_delta[is_both & ~delta_is_later] = -1
        for part, found in ((self._base, in_base), (self._delta, in_delta)):
            found[part.is_gone(found)] = -1
        return Found(self._base.rows, in_base, self._delta.rows, in_delta)

    def save(self, oldest_us: int, read_us: int) -> None:
        """Nobody will ask for a time before `oldest_us`; versions that are valid before `read_us`
        have all been added.
        """
        state = self._state
        due = [e for e in self._truncations if e.valid_us <= oldest_us and e.valid_us < read_us]
        if due or len(self._delta.rows) > max(_LEAST_ROWS, len(self._base.rows) // 4):
            both = _ordered(pa.concat_tables([self._base.rows, self._delta.rows]))
            self._merged(both, oldest_us, due)
            state.put("base", self._base.rows)
            state.put("delta", None)
        elif self._has_changed:
            state.put("delta", self._delta.rows)
        state.document["table_truncated"] = [
            [each.origin, each.offset, each.valid_us] for each in self._truncations
        ]

    def _merged(self, both: pa.Table, oldest_us: int, due: Sequence[Truncation]) -> None:
        """What is left of both is the base; truncations that everybody knows of are done with."""
        if due and len(both):
            dead = np.zeros(len(both), np.bool_)
            places = [_numbers(both, name) for name in (ORIGIN, OFFSET, VALID)]
            for each in due:
                dead |= each.removes(*places)
            both = both.filter(pa.array(~dead))
        self._truncations = [each for each in self._truncations if each not in due]
        self._base = _Part(_without_superseded(both, self._key, oldest_us), self._key)
        self._delta = _Part(self._schema.empty_table(), self._key)

    def _kept(self, name: str) -> pa.Table:
        kept = self._state.table(name)
        if kept is None:
            return self._schema.empty_table()
        return with_columns_of(self._schema, kept, self._key)

    def _find_in(
        self,
        part: "_Part",
        keys: Sequence[pa.ChunkedArray],
        hashes: Hashes,
        at_us: Times,
        has_key: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.int64]:
        found = np.full(len(hashes), -1, np.int64)
        if not len(part.rows):
            return found
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


@dataclass(frozen=True)
class Found:
    base: pa.Table
    in_base: npt.NDArray[np.int64]  # -1: not there
    delta: pa.Table
    in_delta: npt.NDArray[np.int64]

    @property
    def is_found(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (self.in_base >= 0) | (self.in_delta >= 0)
        return found

    def columns(self, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Nulls where nothing was found."""
        both = (self.base, self.in_base), (self.delta, self.in_delta)
        used = [(rows, places) for rows, places in both if (places >= 0).any()]
        if not used:
            kinds = [self.base.schema.field(name).type for name in names]
            return [pa.chunked_array([pa.nulls(len(self.in_base), kind)]) for kind in kinds]
        if len(used) == 1:
            rows, places = used[0]
            return _taken(rows, names, places)
        # First all that the base has, with nulls; then the delta's; then each in its place.
        of_base, of_delta = (
            _taken(rows, names, places)
            for rows, places in ((self.base, self.in_base), (self.delta, self._chosen()))
        )
        place = np.arange(len(self.in_base))
        is_delta = self.in_delta >= 0
        place[is_delta] = len(place) + np.arange(int(is_delta.sum()))
        order = pa.array(place)
        return [
            pa.chunked_array([*one.chunks, *other.chunks]).combine_chunks().take(order)
            for one, other in zip(of_base, of_delta, strict=True)
        ]

    def _chosen(self) -> npt.NDArray[np.int64]:
        chosen: npt.NDArray[np.int64] = self.in_delta[self.in_delta >= 0]
        return chosen


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
    valid, its_valid = one.valid[places], other.valid[its_places]
    is_behind = one.offsets[places] > other.offsets[its_places]
    is_later: npt.NDArray[np.bool_] = (valid > its_valid) | ((valid == its_valid) & is_behind)
    return is_later


def _ordered(versions: pa.Table) -> pa.Table:
    versions = versions.combine_chunks()
    order = np.lexsort(
        (_numbers(versions, OFFSET), _numbers(versions, VALID), _numbers(versions, HASH))
    )
    return versions.take(pa.array(order))


def _without_superseded(versions: pa.Table, key: Sequence[str], oldest_us: int) -> pa.Table:
    """A version is not needed if the next one of its key is valid at the oldest time, too; nor is
    the last one that is left then, if it only says that there is no row.
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
