"""The first step of a table join: changes of a table as changes at its join keys.

An update can move a row to another join key, which is another bucket, and neither it nor a delete
contains the old one. So this step, by buckets of the table's own key, stores it:

    d   the row is no longer at this join key (its other columns are null)
    c   it came to this join key
    u   it stays there, with other values

At most one of them for each row and join key; none for a change that changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, Input, State
from headwater.pipelines.operators.runtime.lineage import Flags, is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS, Hashes, hashes_of
from headwater.pipelines.operators.state.sorted_rows import (
    SortedRows,
    as_binary,
    rescale_sorted_rows,
    sorted_order,
)
from headwater.pipelines.position import POSITION, POSITION_TYPE, positions
from headwater.sinks.contract import DELETE, OP, TRUNCATE

CREATE: Final = "c"
UPDATE: Final = "u"
_ROWS: Final = "rows"
_CONTENT: Final = "__content"  # a hash of all columns, in 128 bits

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TableChanges:
    """Of one table. State: of each row its key, its join key, and a hash of all its columns."""

    table: str  # for errors and counters: "left" or "right"
    columns: pa.Schema
    key: tuple[str, ...]
    on: tuple[str, ...]

    @property
    def output(self) -> pa.Schema:
        return pa.schema([*self.columns, (OP, pa.string()), (POSITION, POSITION_TYPE)])

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        self._check_compatible(state)
        rows, truncate = since_truncate(self.table, state, in_order(inputs[0]))
        stored = SortedRows(state, _ROWS, self._stored_schema, (*self.key, *self.on), words=WORDS)
        hashes = hashes_of([rows[name] for name in self.key])
        last = last_by_hash(hashes)
        rows, hashes = rows.take(pa.array(last)), hashes[last]
        before = stored.find(hashes)
        content = hashes_of([rows[name] for name in self.columns.names])
        is_there = ~has_op(rows, DELETE)
        is_same = self._is_same(stored, before, content) & is_there
        found: list[pa.Table] = []
        removed = np.empty(0, np.int64)
        if truncate is not None:
            removed = np.setdiff1d(stored.numbers(), before)
            found.append(self._removed(stored, removed, pa.repeat(truncate, len(removed))))
        stays = np.zeros(len(rows), np.bool_)
        changed = np.flatnonzero((before >= 0) & ~is_same)
        changed = changed[np.argsort(before[changed])]
        moved = self._moved(stored, before[changed], rows, changed) | ~is_there[changed]
        stays[changed[~moved]] = True
        by = rows[POSITION].take(pa.array(changed[moved]))
        found.append(self._removed(stored, before[changed[moved]], by))
        added = np.flatnonzero(is_there & ~is_same)
        op = pa.array(np.where(stays[added], UPDATE, CREATE), pa.string())
        new = rows.take(pa.array(added))
        found.append(new.select(self.columns.names).append_column(OP, op))
        found[-1] = found[-1].append_column(POSITION, new[POSITION])
        state.counters[f"{self.table}_rows"] = stored.change(
            np.concatenate([removed, before[changed]]),
            new.select(self._stored_schema.names[:-1]).append_column(
                _CONTENT, as_binary(content[added])
            ),
            hashes[added],
        )
        return pa.concat_tables(part.cast(self.output) for part in found)

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        after.counters[f"{self.table}_rows"] = rescale_sorted_rows(
            before,
            after,
            share,
            _ROWS,
            self._stored_schema,
            (*self.key, *self.on),
            words=WORDS,
        )

    def _check_compatible(self, state: State) -> None:
        check_settings_compatible(state, "a table join", f"key {self.key}, on {self.on}")

    roles = ("row",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The last change of each row's key."""
        given = inputs[0].rows.append_column(POSITION, positions_of(inputs[0]))
        names = [*self.columns.names, POSITION]
        return (is_among(given.select(names).columns, rows.select(names).columns),)

    @property
    def _stored_schema(self) -> pa.Schema:
        names = [name for name in self.columns.names if name in (*self.key, *self.on)]
        fields = [self.columns.field(name) for name in names]
        return pa.schema([*fields, (_CONTENT, pa.binary(8 * WORDS))])

    def _is_same(
        self, stored: SortedRows, before: Numbers, content: Hashes
    ) -> npt.NDArray[np.bool_]:
        """Which rows are unchanged."""
        existing = np.flatnonzero(before >= 0)
        existing = existing[np.argsort(before[existing])]
        was = stored.take(before[existing], [_CONTENT])[_CONTENT].combine_chunks()
        is_same = np.zeros(len(before), np.bool_)
        is_same[existing] = pc.equal(was, as_binary(content[existing])).to_numpy(
            zero_copy_only=False
        )
        return is_same

    def _moved(
        self, stored: SortedRows, before: Numbers, rows: pa.Table, now: Numbers
    ) -> npt.NDArray[np.bool_]:
        """Which rows have another join key."""
        was = stored.take(before, list(self.on))
        is_now = rows.select(self.on).take(pa.array(now))
        different = hashes_of([was[name] for name in self.on]) != hashes_of(
            [is_now[name] for name in self.on]
        )
        moved: npt.NDArray[np.bool_] = different.any(axis=1)
        return moved

    def _removed(
        self, stored: SortedRows, before: Numbers, by: pa.Array | pa.ChunkedArray
    ) -> pa.Table:
        """`by` are the positions of the changes that removed them."""
        were = stored.take(before, self._stored_schema.names[:-1])
        columns = {
            field.name: were[field.name]
            if field.name in were.column_names
            else pa.nulls(len(before), field.type)
            for field in self.columns
        }
        columns[OP] = pa.repeat(DELETE, len(before))
        columns[POSITION] = by
        return pa.table(columns)


def since_truncate(table: str, state: State, given: Input) -> tuple[pa.Table, pa.Scalar | None]:
    """Rows that came after the last truncate, and its position."""
    partitions = {(topic, partition) for topic, partition in state.document.get("places", ())}
    partitions |= {(progress.topic, progress.partition) for progress in given.progress}
    state.document["places"] = sorted(partitions)
    truncates = np.flatnonzero(has_op(given.rows, TRUNCATE))
    if not len(truncates):
        return given.rows, None
    if len(partitions) > 1:
        topics = ", ".join(sorted({topic for topic, _ in partitions}))
        raise PipelineError(
            f"the {table} table was truncated or recreated, and has several partitions",
            detail=f"which rows came before is unknown, of {topics}",
            hint="a topic with one partition has the order; or"
            f" .where(\"{OP} != '{TRUNCATE}'\") lets the old rows stay",
        )
    last = int(truncates[-1])
    return given.rows.slice(last + 1), given.rows[POSITION][last]


def in_order(given: Input) -> Input:
    """By topic, partition and offset, with POSITION as a column: what `reading.as_table` and
    stores go by, where a key's changes are in several partitions.
    """
    rows = given.rows
    origin = rows[ORIGIN].combine_chunks().to_numpy()
    offset = rows[OFFSET].combine_chunks().to_numpy()
    rank = np.empty(len(given.origins), np.int64)
    rank[sorted(range(len(rank)), key=lambda code: given.origins[code])] = np.arange(len(rank))
    order = np.lexsort((offset, rank[origin])) if len(rank) else np.empty(0, np.int64)
    rows = rows.append_column(POSITION, positions_of(given))
    if not np.array_equal(order, np.arange(len(order))):
        rows = rows.take(pa.array(order))
    return Input(rows, given.origins, given.progress, given.now_us)


def positions_of(given: Input) -> pa.Array:
    rows = given.rows
    return positions(given.origins, rows[ORIGIN].combine_chunks(), rows[OFFSET].combine_chunks())


def has_op(rows: pa.Table, op: str) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (
        pc.equal(rows[OP], op).fill_null(False).combine_chunks().to_numpy(zero_copy_only=False)
    )
    return found


def last_by_hash(hashes: Hashes) -> Numbers:
    """The last row of each key, sorted by their hashes."""
    order = sorted_order(hashes)
    in_turn = hashes[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (in_turn[1:] != in_turn[:-1]).any(axis=1)
    return order[is_last]
