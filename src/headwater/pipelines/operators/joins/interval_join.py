"""Interval join of two streams: the operator of hw.join (stream_join.py).

A left row at l and a right row at r of the same key are a pair if l - before <= r <= l + after.

A row is late if it is before the watermark of its own partition at its own offset, which is a fact
of that log alone. So every row of an input that is admitted from now on is at or after the least
watermark of that input. A left row is buffered until the right input's watermark has passed l +
after, a right row until the left input's has passed r + before: no admitted row can match it then.
Hence every pair of admitted rows is found, once, whichever came first and in whichever batch, and a
row that is emitted alone has no partner among them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.flow import AT
from headwater.pipelines.operators.joins.interval_matching import matching
from headwater.pipelines.operators.joins.join_buffer import (
    JoinBuffer,
    Run,
    rescale_join_buffer,
    sorted_run,
)
from headwater.pipelines.operators.runtime.contract import (
    OFFSET,
    ORIGIN,
    TIME,
    WATERMARK,
    Input,
    State,
)
from headwater.pipelines.operators.runtime.lineage import (
    Flags,
    is_among,
    tag_of,
    tagged,
    tagged_rows,
)
from headwater.pipelines.operators.state.compatibility import (
    check_settings_compatible,
    check_shared,
)
from headwater.pipelines.operators.state.fingerprints import NO_SETTING
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.operators.time.event_time import (
    NEVER_US,
    EventTime,
    Watermarks,
    time_floors,
)
from headwater.pipelines.operators.time.lateness import LATE, OF_SIDE, Lateness, admit
from headwater.pipelines.operators.time.watermarks import watermark_of
from headwater.pipelines.position import POSITION, positions
from headwater.sinks.contract import OP

_PARTITION: Final = "__place"  # index into document["places"]
_PARTITIONS: Final = "places"

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JoinSide:
    name: str  # "left" or "right"
    time: EventTime
    key: tuple[str, ...]
    hash_column: str  # equal where keys are; the key itself where that is one integer
    # Of the rows, and what they are called in the result.
    columns: tuple[tuple[str, str], ...] = field(metadata=NO_SETTING)
    is_outer: bool  # whether its rows come out without a partner, too
    back_us: int  # how far before its own time its partners may be
    ahead_us: int  # and behind

    @property
    def is_hash_exact(self) -> bool:
        return self.key == (self.hash_column,)

    @property
    def buffered(self) -> str:
        """Which of its rows are buffered, and how long: stored, to detect changed settings."""
        which = "outer" if self.is_outer else "inner"
        return f"{which} {self.name} {self.key} within {self.back_us} and {self.ahead_us} us"


@dataclass(frozen=True)
class IntervalJoin:
    left: JoinSide
    right: JoinSide
    lateness: Lateness
    output: pa.Schema

    @property
    def floors_us(self) -> Mapping[str, int]:
        """A row that comes later is not before its input's watermark, and its partner was buffered,
        or comes later, too.
        """
        found: dict[str, int] = {}
        for side in (self.left, self.right):
            names = dict(side.columns)
            for column, floor_us in time_floors(side.time, -side.ahead_us).items():
                name = names.get(column, column)
                found[name] = min(floor_us, found.get(name, floor_us))
        return {name: floor_us for name, floor_us in found.items() if name in self.output.names}

    def output_watermark_us(self, document: Mapping[str, Any]) -> int:
        return watermark_of(document)

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        self._check_compatible(state)
        left = _Arrived(state, self.left, inputs[0], self.lateness)
        right = _Arrived(state, self.right, inputs[1], self.lateness)
        _to_side_output(state, left)
        _to_side_output(state, right)
        found = [*self._pairs(left.new, right.new)]
        for run in right.partners(left.new):
            found += self._pairs(left.new, run)
        for run in left.partners(right.new):
            found += self._pairs(run, right.new)
        left.watermarks.advance(inputs[0].progress, inputs[0].now_us)
        right.watermarks.advance(inputs[1].progress, inputs[1].now_us)
        left_us, right_us = left.close(right.watermarks), right.close(left.watermarks)
        found += [self._alone(self.left, rows) for rows in left.expire(right_us)]
        found += [self._alone(self.right, rows) for rows in right.expire(left_us)]
        state.document[WATERMARK] = min(left_us, right_us)
        return self._finished(found, state.document[_PARTITIONS])

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        check_shared(before, _PARTITIONS)
        for side in (self.left, self.right):
            rescale_join_buffer(before, after, side.name, partial(share.of_rows, key=side.key))

    def _check_compatible(self, state: State) -> None:
        check_settings_compatible(state, "a join", f"{self.left.buffered}; {self.right.buffered}")

    roles = ("left", "right")
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """Both rows of a pair, or the one that found no partner."""
        sides = [
            replace(side, columns=(*side.columns, (tag_of(number).name, tag_of(number).name)))
            for number, side in enumerate((self.left, self.right))
        ]
        output = pa.schema([*self.output, tag_of(0), tag_of(1)])
        join = replace(self, left=sides[0], right=sides[1], output=output)
        carried = tuple(tagged(given, side) for side, given in enumerate(inputs))
        result = join.step(MemoryState(), carried)
        is_wanted = is_among(result.select(self.output.names).columns, rows.columns)
        return tagged_rows(inputs, result, is_wanted)

    def _pairs(self, left: Run, right: Run) -> Iterator[pa.Table]:
        at_left, at_right = matching(
            left.hashes,
            left.times,
            right.hashes,
            right.times,
            self.left.back_us,
            self.left.ahead_us,
        )
        if not self.left.is_hash_exact:
            at_left, at_right = self._of_equal_keys(left, right, at_left, at_right)
        if not len(at_left):
            return
        left.mark(at_left)
        right.mark(at_right)
        of_left = _payload(self.left, left.rows).take(pa.array(at_left))
        of_right = _payload(self.right, right.rows).take(pa.array(at_right))
        columns = dict(zip(of_right.column_names, of_right.columns, strict=True))
        columns |= dict(zip(of_left.column_names, of_left.columns, strict=True))
        is_right = pa.array(left.times[at_left] <= right.times[at_right])
        for name in (_PARTITION, OFFSET):
            columns[name] = pc.if_else(is_right, of_right[name], of_left[name])
        if AT in columns:
            left_at, right_at = of_left[AT], of_right[AT]
            later = pc.if_else(pc.greater(left_at, right_at), left_at, right_at)
            columns[AT] = pc.coalesce(later, left_at, right_at)  # one may be null
        yield pa.table(columns)

    def _of_equal_keys(
        self, left: Run, right: Run, at_left: Int64s, at_right: Int64s
    ) -> tuple[Int64s, Int64s]:
        """Of pairs that have the same hash."""
        is_equal = np.ones(len(at_left), np.bool_)
        for one, other in zip(self.left.key, self.right.key, strict=True):
            ours, theirs = left.rows[one].take(at_left), right.rows[other].take(at_right)
            is_equal &= pc.equal(ours, theirs).to_numpy()
        return at_left[is_equal], at_right[is_equal]

    def _alone(self, side: JoinSide, rows: pa.Table) -> pa.Table:
        found = _payload(side, rows)
        for column in self.output:
            if column.name not in (*found.column_names, OP, POSITION):
                found = found.append_column(column, pa.nulls(len(found), column.type))
        return found

    def _finished(self, found: list[pa.Table], partitions: list[list[Any]]) -> pa.Table:
        if not found:
            return self.output.empty_table()
        names = found[0].column_names
        rows = pa.concat_tables([part.select(names) for part in found]).combine_chunks()
        partition = rows[_PARTITION].combine_chunks()
        position = positions(partitions, partition, rows[OFFSET].combine_chunks())
        rows = rows.append_column(POSITION, position)
        rows = rows.append_column(OP, pa.repeat(pa.scalar("c"), len(rows)))
        return rows.select(self.output.names)


def result_schema(sides: tuple[JoinSide, JoinSide], rows: Sequence[pa.Schema]) -> pa.Schema:
    """`rows` are the schemas of the sides, with `_position`, and `_at` if the result has it."""
    fields: dict[str, pa.DataType] = {}
    for side, schema in zip(sides, rows, strict=True):
        for source, name in side.columns:
            fields.setdefault(name, schema.field(source).type)
    fields[OP] = pa.string()
    fields |= {name: rows[0].field(name).type for name in (AT, POSITION) if name in rows[0].names}
    return pa.schema(list(fields.items()))


class _Arrived:
    """One input of a batch, and its buffer."""

    def __init__(self, state: State, side: JoinSide, given: Input, lateness: Lateness) -> None:
        self.side = side
        self._given = given
        self._document = state.document
        stored = self._document.get(side.name, {})
        self.watermarks = side.time.watermarks(stored.get("watermarks"))
        self._closed_us: int = stored.get("closed", NEVER_US)
        times = given.rows[TIME].combine_chunks().fill_null(0).to_numpy()
        rejected = _SideOutput(state)
        is_admitted = admit(
            rejected,
            given,
            lateness,
            own_us=self.watermarks.of_rows(given),
            due_us=times + 1,  # it is in time as long as the watermark has not passed it
            closed_us=self._closed_us,
        )
        self.rejected = rejected.rows
        rows = self._with_partition(given.rows.filter(pa.array(is_admitted)))
        self.buffer = JoinBuffer(
            state,
            side.name,
            rows.schema,
            side.key,
            side.hash_column,
            side.back_us + side.ahead_us,
            is_outer=side.is_outer,
        )
        has_key = np.ones(len(rows), np.bool_)
        for name in side.key:
            has_key &= rows[name].is_valid().to_numpy()
        self._without_key = rows.filter(pa.array(~has_key))
        rows = rows.filter(pa.array(has_key))
        matched = np.zeros(len(rows), np.bool_) if side.is_outer else None
        self.new = sorted_run(rows, side.hash_column, matched)

    def partners(self, asking: Run) -> Iterator[Run]:
        """Buffered runs that may have partners for these rows of the other side."""
        if len(asking.times):
            yield from self.buffer.within(
                int(asking.times.min()) - self.side.ahead_us,
                int(asking.times.max()) + self.side.back_us,
            )

    def close(self, other: Watermarks) -> int:
        """The watermark of this input; if all of it is idle, that of the other one. Rows before it
        are late from now on.
        """
        come = [self._closed_us, self.watermarks.now_us]
        come += [other.now_us] if self.watermarks.is_idle else []
        closed_us = max(come)
        self._document[self.side.name] = {
            "watermarks": self.watermarks.to_json(),
            "closed": closed_us,
        }
        return closed_us

    def expire(self, other_us: int) -> Iterator[pa.Table]:
        """Drops rows that no row of the other input can match; gives those emitted alone."""
        limit_us = other_us - self.side.ahead_us
        is_needed = self.new.times >= limit_us
        if self.side.is_outer:
            assert self.new.matched is not None
            yield self._without_key
            yield self.new.rows.filter(pa.array(~is_needed & ~self.new.matched))
        yield from self.buffer.expire(limit_us)
        self.buffer.add(self.new.only(is_needed), limit_us)
        self.buffer.save()

    def _with_partition(self, rows: pa.Table) -> pa.Table:
        """With a partition code that is the same in every batch."""
        partitions = self._document.setdefault(_PARTITIONS, [])
        for partition in map(list, self._given.origins):
            if partition not in partitions:
                partitions.append(partition)
        codes = pa.array(
            [partitions.index(list(origin)) for origin in self._given.origins], pa.int32()
        )
        partition = codes.take(rows[ORIGIN].combine_chunks())
        names = [source for source, _ in self.side.columns]
        names += [name for name in (self.side.hash_column, AT) if name in rows.column_names]
        names = list(dict.fromkeys([*names, TIME, OFFSET]))
        return rows.select(names).append_column(_PARTITION, partition)


class _SideOutput:
    """The state that `admit` gets: it captures the side output of one of the two inputs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.document = state.document
        self.counters = state.counters
        self.cache = state.cache
        self.rows: pa.Table | None = None

    def table(self, name: str) -> pa.Table | None:
        return self._state.table(name)

    def put(self, name: str, table: pa.Table | None) -> None:
        self._state.put(name, table)

    def side(self, name: str, rows: pa.Table) -> None:
        self.rows = rows


def _to_side_output(state: State, arrived: _Arrived) -> None:
    """With columns by their names in the result, which differ between the two inputs."""
    if arrived.rejected is not None:
        renamed = dict(arrived.side.columns)
        names = [renamed.get(name, name) for name in arrived.rejected.column_names]
        which = pa.repeat(pa.scalar(arrived.side.name), len(arrived.rejected))
        state.side(LATE, arrived.rejected.rename_columns(names).append_column(OF_SIDE, which))


def _payload(side: JoinSide, rows: pa.Table) -> pa.Table:
    """The columns of a row that go into the result, by their names there."""
    names = dict(side.columns) | {_PARTITION: _PARTITION, OFFSET: OFFSET}
    if AT in rows.column_names:
        names[AT] = AT
    return rows.select(list(names)).rename_columns(list(names.values()))
