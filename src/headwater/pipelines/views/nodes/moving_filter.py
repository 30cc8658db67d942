"""Rows by a bound that moves with the clock: `WHERE ordered_at > now() - interval 1 hour`.

A row is in the result from some time on, or until some time, or both. Time is that of the batch,
so a batch that runs again gives the same rows; while no record arrives, a batch is made when a row
comes or goes. Only rows that are still to come or to go are stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.runtime.lineage import is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.position import POSITION, POSITION_TYPE, result_positions
from headwater.pipelines.views.nodes.counted_node import CountedNode
from headwater.pipelines.views.nodes.deltas import (
    WEIGHT,
    Delta,
    Flags,
    Multiset,
    consolidated,
    delta_of,
    key_hashes,
    rescale_multiset,
)

_NOW: Final = "now_us"  # in the document: up to when rows have come and gone
_NEXT: Final = "next_us"  # when the next stored row comes or goes
_NEVER_US: Final = 2**63 - 1

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bound:
    """The row is there until the column's time plus the offset, or from then on."""

    column: str
    offset_us: int
    is_until: bool


@dataclass(frozen=True)
class MovingFilter(CountedNode):
    """The operator (contract.py). A row with a null in a bound is never there."""

    columns: pa.Schema
    bounds: tuple[Bound, ...]
    topic: str = ""  # in positions of rows that time alone has changed

    follows_clock = True

    def with_topic(self, topic: str) -> "MovingFilter":
        return replace(self, topic=topic)

    @property
    def output(self) -> pa.Schema:
        return pa.schema([*self.columns, (WEIGHT, pa.int64()), (POSITION, POSITION_TYPE)])

    def result(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        self._check_compatible(state)
        delta = delta_of(inputs[0], self.columns, self.columns.names)
        before_us = state.document.get(_NOW, 0)
        now_us = max(inputs[0].now_us, before_us)  # clocks can be set back
        stored = Multiset(state, "rows", self.columns)
        is_due = now_us >= state.document.get(_NEXT, _NEVER_US)
        if not len(delta) and not is_due:
            return self.output.empty_table()
        state.document[_NOW] = now_us
        from_us, until_us = self._times(delta.rows)
        is_there = _is_there(from_us, until_us, now_us)
        found = [self._emitted(delta.take(np.flatnonzero(is_there)))]
        changes = [delta.take(np.flatnonzero(_is_pending(from_us, until_us, now_us)))]
        if is_due:
            came_or_went, finished = self._due(stored.every(), before_us, now_us)
            found.append(self._emitted(came_or_went))
            changes.append(finished)
        change = _together(changes, self.columns)
        state.counters["rows"] = stored.change(change)
        if is_due:
            waiting = Multiset(state, "rows", self.columns).every().rows
            state.document[_NEXT] = self._next_us(waiting, now_us)
        else:
            next_us = self._next_us(change.rows, now_us)
            state.document[_NEXT] = min(next_us, state.document.get(_NEXT, _NEVER_US))
        return pa.concat_tables(found)

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        after.counters["rows"] = rescale_multiset(before, after, share, "rows", self.columns)
        after.document[_NOW] = max(state.document.get(_NOW, 0) for state in before)
        after.document[_NEXT] = 0  # it is found out by the next step

    roles = ("row",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        given, names = inputs[0].rows, self.columns.names
        return (is_among(given.select(names).columns, rows.select(names).columns),)

    def _check_compatible(self, state: State) -> None:
        settings = f"{self.bounds} {self.columns.names}"
        check_settings_compatible(state, "a condition on now() of a view", settings)

    def _times(self, rows: pa.Table) -> tuple[Times, Times]:
        """From when on each row is there, and until when."""
        from_us = np.zeros(len(rows), np.int64)
        until_us = np.full(len(rows), _NEVER_US)
        for bound in self.bounds:
            column = rows[bound.column].combine_chunks().cast(pa.int64())
            at_us = np.asarray(column.fill_null(0)) + bound.offset_us
            if bound.is_until:
                until_us = np.minimum(until_us, at_us)
            else:
                from_us = np.maximum(from_us, at_us)
            until_us[np.asarray(column.is_null())] = 0
        return from_us, until_us

    def _due(self, stored: Delta, before_us: int, now_us: int) -> tuple[Delta, Delta]:
        """Stored rows that came or went, with weights as they change the result; and those that
        stay as they are from now on, with weights as they leave the state.
        """
        from_us, until_us = self._times(stored.rows)
        was_there, is_there = (_is_there(from_us, until_us, at_us) for at_us in (before_us, now_us))
        changed = np.flatnonzero(was_there != is_there)
        at_us = pa.array(np.full(len(changed), now_us))
        came_or_went = replace(
            stored.take(changed),
            weights=np.where(is_there, stored.weights, -stored.weights)[changed],
            positions=result_positions(self.topic, at_us),
        )
        done = np.flatnonzero(~_is_pending(from_us, until_us, now_us))
        finished = replace(stored.take(done), weights=-stored.weights[done])
        return came_or_went, finished

    def _next_us(self, rows: pa.Table, now_us: int) -> int:
        times = np.concatenate(self._times(rows))
        return int(times[times > now_us].min(initial=_NEVER_US))

    def _emitted(self, delta: Delta) -> pa.Table:
        columns = [*delta.rows.columns, pa.array(delta.weights), delta.positions]
        return pa.table(columns, schema=self.output)


def _is_there(from_us: Times, until_us: Times, at_us: int) -> Flags:
    return (from_us <= at_us) & (at_us < until_us)


def _is_pending(from_us: Times, until_us: Times, at_us: int) -> Flags:
    """Whether the row is still to come or to go."""
    return (until_us > at_us) & ((until_us < _NEVER_US) | (from_us > at_us))


def _together(deltas: Sequence[Delta], columns: pa.Schema) -> Delta:
    if len(deltas) == 1:
        return deltas[0]
    rows = pa.concat_tables([one.rows for one in deltas]).combine_chunks()
    weights = np.concatenate([one.weights for one in deltas])
    positions = pa.concat_arrays([one.positions for one in deltas])
    return consolidated(rows, key_hashes(rows, columns.names), weights, positions)
