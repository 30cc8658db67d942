"""The incremental join of two tables, for one bucket of join keys.

Its inputs are the changes of both tables (table_changes.py). Each stored row is deleted ("d"),
updated ("u") or unchanged, and new ones are created ("c"). The changes of the result follow from
it (delta rules of incremental view maintenance), each once:

    d   deleted left with all stored right rows; deleted right with left rows that are not deleted
    u   updated left with right rows that stay, and so on: both existed before, and exist now
    c   created left with all right rows that exist now, and created right with left ones

So no row is deleted and created again unchanged. A row of an outer side is alone as long as its
join key has no rows on the other side, or is null.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import StateLost
from headwater.pipelines.operators.joins.tables.table_changes import (
    CREATE,
    UPDATE,
    Numbers,
    positions_of,
)
from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.runtime.lineage import is_among, tag_of, tagged, tagged_rows
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS, Hashes, hashes_of
from headwater.pipelines.operators.state.row_kernels import bounds, expanded
from headwater.pipelines.operators.state.sorted_rows import (
    SortedRows,
    rescale_sorted_rows,
    sorted_order,
)
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import DELETE, OP

_DELETED, _UPDATED, _CREATED = 0, 1, 2
_OPS: Final = pa.array([DELETE, UPDATE, CREATE])

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class JoinedTable:
    name: str  # "left" or "right"
    columns: pa.Schema
    key: tuple[str, ...]
    on: tuple[str, ...]
    is_outer: bool

    @property
    def keys(self) -> list[str]:
        """The columns of deleted rows."""
        return [name for name in self.columns.names if name in (*self.key, *self.on)]


@dataclass(frozen=True)
class TableJoin:
    """State: all rows of both tables that have a join key."""

    left: JoinedTable
    right: JoinedTable
    output: pa.Schema
    is_last: bool  # all changes of a row of the result come from one bucket

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        self._check_compatible(state)
        left, right = (
            _Side(state, table, given)
            for table, given in zip((self.left, self.right), inputs, strict=True)
        )
        found = [self._result(part) for part in _matched(left, right)]
        for one, other in ((left, right), (right, left)):
            if one.table.is_outer:
                found += [self._result(part) for part in _alone(one, other)]
        for side in (left, right):
            state.counters[f"{side.table.name}_rows"] = side.change()
        rows = pa.concat_tables(found)
        return one_change_each(rows, result_key(self.left, self.right)) if self.is_last else rows

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        for table in (self.left, self.right):
            after.counters[f"{table.name}_rows"] = rescale_sorted_rows(
                before, after, share, table.name, table.columns, table.keys, words=2 * WORDS
            )

    def _check_compatible(self, state: State) -> None:
        settings = "; ".join(
            f"{table.name} key {table.key}, on {table.on}" for table in (self.left, self.right)
        )
        check_settings_compatible(state, "a table join", settings)

    roles = ("left", "right")
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """Both rows that were joined, or the one that has no partner."""
        left, right = (
            replace(table, columns=table.columns.append(tag_of(side)))
            for side, table in enumerate((self.left, self.right))
        )
        output = pa.schema([*self.output, tag_of(0), tag_of(1)])
        join = replace(self, left=left, right=right, output=output)
        carried = tuple(tagged(given, side) for side, given in enumerate(inputs))
        result = join.step(MemoryState(), carried)
        is_wanted = is_among(result.select(self.output.names).columns, rows.columns)
        return tagged_rows(inputs, result, is_wanted)

    def _result(self, part: "_Part") -> pa.Table:
        by_name: dict[str, pa.ChunkedArray | pa.Array] = {}
        for rows in (part.right, part.left):  # a column of both is the left's
            if rows is not None:
                by_name |= dict(zip(rows.column_names, rows.columns, strict=True))
        by_name[OP], by_name[POSITION] = _OPS.take(pa.array(part.op)), part.position
        columns = [
            by_name[field.name] if field.name in by_name else pa.nulls(len(part.op), field.type)
            for field in self.output
        ]
        return pa.table(columns, schema=self.output)


def result_key(left: JoinedTable, right: JoinedTable) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*left.key, *right.key)))


@dataclass(frozen=True)
class OneChangePerRow:
    """Consolidates a join whose rows can move from one bucket to another: changes of both buckets
    become one. It has no state: all changes of a row of the result are in the same batch.
    """

    key: tuple[str, ...]
    output: pa.Schema

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        rows = inputs[0].rows.append_column(POSITION, positions_of(inputs[0]))
        return one_change_each(rows.select(self.output.names), self.key)

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        pass

    roles = ("row",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """In a bounded run nothing is deleted: each row is one change already."""
        given = inputs[0].rows.append_column(POSITION, positions_of(inputs[0]))
        return (is_among(given.select(self.output.names).columns, rows.columns),)


def one_change_each(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """A row that is deleted in one bucket and created in another is updated."""
    op = rows[OP].combine_chunks()
    deleted = np.flatnonzero(pc.equal(op, DELETE).to_numpy(zero_copy_only=False))
    created = np.flatnonzero(pc.equal(op, CREATE).to_numpy(zero_copy_only=False))
    if not len(deleted) or not len(created):
        return rows
    keys = rows.select(key)
    deleted_hashes, new_hashes = (
        hashes_of(keys.take(pa.array(numbers)).columns) for numbers in (deleted, created)
    )
    order = sorted_order(deleted_hashes)
    begins, ends = bounds(deleted_hashes[order], new_hashes, WORDS)
    is_both = begins < ends
    if not is_both.any():
        return rows
    is_updated = np.zeros(len(rows), np.bool_)
    is_updated[created[is_both]] = True
    stays = np.ones(len(rows), np.bool_)
    stays[deleted[order[begins[is_both]]]] = False
    index = rows.schema.get_field_index(OP)
    op = pc.if_else(pa.array(is_updated), UPDATE, op)
    return rows.set_column(index, rows.schema.field(index), op).filter(pa.array(stays))


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of the result; None: null in all columns of that table."""

    op: npt.NDArray[np.int8]
    left: pa.Table | None
    right: pa.Table | None
    position: pa.Array


class _Side:
    """One table: its changes, sorted by their hashes, and its rows before the batch."""

    def __init__(self, state: State, table: JoinedTable, given: Input) -> None:
        self.table = table
        on = hashes_of([given.rows[name] for name in table.on])
        hashes = np.hstack([on, hashes_of([given.rows[name] for name in table.key])])
        order = sorted_order(hashes)
        self.rows = given.rows.select([*table.columns.names, OP]).take(pa.array(order))
        self.position = positions_of(given).take(pa.array(order))
        self.hashes = hashes[order]
        op = pc.index_in(self.rows[OP], _OPS).combine_chunks()
        self.op: npt.NDArray[np.int8] = op.to_numpy().astype(np.int8)
        has_key = np.ones(len(order), np.bool_)
        for name in table.on:
            has_key &= self.rows[name].is_valid().to_numpy()
        self.has_key = has_key
        self.deleted = np.flatnonzero((self.op == _DELETED) & has_key)
        self.created = np.flatnonzero((self.op == _CREATED) & has_key)
        self.present = np.flatnonzero((self.op != _DELETED) & has_key)
        self.stored = SortedRows(state, table.name, table.columns, table.keys, words=2 * WORDS)
        self.is_deleted = self._flagged(self.deleted)
        self.is_changed = self._flagged(np.flatnonzero((self.op != _CREATED) & has_key))

    def _flagged(self, numbers: Numbers) -> Flags:
        """Flags of the stored rows that these changes are of."""
        found = self.stored.find(self.hashes[numbers])
        if (found < 0).any():
            raise StateLost(
                f"a row of the {self.table.name} table is missing from the state of its join",
                detail="the states of operators that follow each other are not of the same batch",
                hint="rebuild the pipeline",
            )
        flags = np.zeros(self.stored.size, np.bool_)
        flags[found] = True
        return flags

    def net(self, hashes: Hashes) -> Numbers:
        """How many more rows than before have the join key of each of these."""
        created = bounds(self.hashes[self.created], hashes, WORDS)
        deleted = bounds(self.hashes[self.deleted], hashes, WORDS)
        net: Numbers = (created[1] - created[0]) - (deleted[1] - deleted[0])
        return net

    def change(self) -> int:
        added = self.rows.select(self.table.columns.names).take(pa.array(self.present))
        return self.stored.change(np.flatnonzero(self.is_changed), added, self.hashes[self.present])


def _matched(left: _Side, right: _Side) -> Iterator[_Part]:
    yield _with_stored(left, left.deleted, right, None)
    yield _with_stored(right, right.deleted, left, left.is_deleted)
    yield _with_stored(left, left.present, right, right.is_changed)
    yield _with_stored(right, right.present, left, left.is_changed)
    which, other = expanded(*bounds(right.hashes[right.present], left.hashes[left.present], WORDS))
    which, other = left.present[which], right.present[other]
    op = np.where((left.op[which] == _UPDATED) & (right.op[other] == _UPDATED), _UPDATED, _CREATED)
    rows = _taken(left, which), _taken(right, other)
    yield _Part(op.astype(np.int8), *rows, left.position.take(pa.array(which)))


def _with_stored(side: _Side, changes: Numbers, other: _Side, without: Flags | None) -> _Part:
    """These changes (deletions, or others) joined with stored rows of the other table."""
    which, numbers = other.stored.groups(side.hashes[changes], without)
    which = changes[which]
    names = other.table.keys if changes is side.deleted else other.table.columns.names
    ours, theirs = _taken(side, which), other.stored.take(numbers, names)
    rows = (ours, theirs) if side.table.name == "left" else (theirs, ours)
    return _Part(side.op[which], *rows, side.position.take(pa.array(which)))


def _alone(side: _Side, other: _Side) -> Iterator[_Part]:
    """Changes of result rows without a partner, of an outer side."""
    before = other.stored.count(side.hashes)
    was_alone = (before == 0) | ~side.has_key
    is_alone = (before + other.net(side.hashes) == 0) | ~side.has_key
    was = was_alone & (side.op != _CREATED)
    is_now = is_alone & (side.op != _DELETED)
    changed = np.flatnonzero(was | is_now)
    op = _op(was[changed], is_now[changed])
    yield _one_sided(side, op, _taken(side, changed), side.position.take(pa.array(changed)))
    # Rows that stay, and get their first partner or lose their last one.
    by = np.sort(np.concatenate([other.deleted, other.created]))
    hashes = other.hashes[by]
    is_first = np.ones(len(by), np.bool_)
    is_first[1:] = (hashes[1:, :WORDS] != hashes[:-1, :WORDS]).any(axis=1)
    by, hashes = by[is_first], hashes[is_first]
    before = other.stored.count(hashes)
    was_alone, is_alone = before == 0, before + other.net(hashes) == 0
    turned = np.flatnonzero(was_alone != is_alone)
    which, numbers = side.stored.groups(hashes[turned], side.is_changed)
    which = turned[which]
    op = _op(was_alone[which], is_alone[which])
    rows = side.stored.take(numbers)
    yield _one_sided(side, op, rows, other.position.take(pa.array(by[which])))


def _op(was: Flags, is_now: Flags) -> npt.NDArray[np.int8]:
    return np.where(was, np.where(is_now, _UPDATED, _DELETED), _CREATED).astype(np.int8)


def _one_sided(side: _Side, op: npt.NDArray[np.int8], rows: pa.Table, position: pa.Array) -> _Part:
    is_left = side.table.name == "left"
    return _Part(op, rows if is_left else None, None if is_left else rows, position)


def _taken(side: _Side, numbers: Numbers) -> pa.Table:
    return side.rows.select(side.table.columns.names).take(pa.array(numbers))
