"""The incremental GROUP BY, for one bucket of groups.

    groups      of each group: its key, the number of its rows, accumulators, the results
    values<i>   the values of call i by group, as a multiset, where a call cannot subtract

count, sum and avg add and subtract (inverses.py); sums of doubles are exact, so that they do not
drift. All other functions have their values stored, and are computed again for the groups that
have changed (value_functions.py). A minimum or maximum needs its values only when the extreme
itself is removed. The results that were emitted are stored, so that exactly those are retracted.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import PipelineError, StateLost
from headwater.pipelines.operators.joins.tables.table_changes import positions_of
from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.runtime.lineage import is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import (
    WORDS,
    Hashes,
    as_one,
    distinct,
    hashes_of,
)
from headwater.pipelines.operators.state.sorted_rows import (
    RowNumbers,
    SortedRows,
    rescale_sorted_rows,
)
from headwater.pipelines.position import POSITION, POSITION_TYPE
from headwater.pipelines.views.nodes.counted_node import CountedNode
from headwater.pipelines.views.nodes.deltas import (
    WEIGHT,
    Delta,
    Flags,
    Multiset,
    Weights,
    consolidated,
    key_hashes,
    rescale_multiset,
)
from headwater.pipelines.views.nodes.inverses import INVERSES, Inverse
from headwater.pipelines.views.nodes.value_functions import EXTREMES, computed

_ROWS: Final = "__rows"  # int64: how many rows the group has


@dataclass(frozen=True)
class Call:
    """An aggregate function of one column, whose nulls are left out."""

    function: str
    column: str | None  # None: count(*)
    result: pa.DataType
    is_distinct: bool = False
    parameters: tuple[float | str, ...] = ()
    sql: str = field(default="", compare=False, repr=False)  # for errors

    @property
    def is_inverse(self) -> bool:
        return self.function in INVERSES and not self.is_distinct


@dataclass(frozen=True)
class Aggregate(CountedNode):
    """The operator (contract.py). Results are columns r0, r1, …"""

    key: pa.Schema  # columns of the group
    arguments: pa.Schema
    calls: tuple[Call, ...]

    @cached_property
    def output(self) -> pa.Schema:
        return pa.schema(
            [*self.key, *self._results, (WEIGHT, pa.int64()), (POSITION, POSITION_TYPE)]
        )

    @cached_property
    def _results(self) -> list[pa.Field]:
        return [pa.field(f"r{at}", call.result) for at, call in enumerate(self.calls)]

    @cached_property
    def _inverses(self) -> dict[int, Inverse]:
        return {
            at: INVERSES[call.function](
                call.column, self.arguments.field(call.column).type if call.column else pa.int64()
            )
            for at, call in enumerate(self.calls)
            if call.is_inverse
        }

    @cached_property
    def _stored_schema(self) -> pa.Schema:
        accumulators = [
            pa.field(f"a{at}_{number}", kind)
            for at, inverse in self._inverses.items()
            for number, kind in enumerate(inverse.accumulators)
        ]
        return pa.schema([*self.key, (_ROWS, pa.int64()), *accumulators, *self._results])

    def result(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        self._check_compatible(state)
        (given,) = inputs
        rows = given.rows
        if not len(rows):
            return self.output.empty_table()
        weights: Weights = rows[WEIGHT].combine_chunks().to_numpy()
        hashes, group = distinct(key_hashes(rows, self.key.names))
        first = np.empty(len(hashes), np.int64)
        first[group[::-1]] = np.arange(len(group))[::-1]
        stored = SortedRows(
            state, "groups", self._stored_schema, self._stored_schema.names, words=WORDS
        )
        numbers = stored.find(hashes)
        before = _stored_or_null(stored, numbers)
        counts = _sums(weights, group, len(hashes)) + np.asarray(before[_ROWS].fill_null(0))
        if (counts < 0).any():
            raise StateLost(
                "a row is removed from a group that does not have it",
                hint="rebuild the view: its state is derived from the log again",
            )
        columns: dict[str, pa.Array] = {_ROWS: pa.array(counts)}
        for at, call in enumerate(self.calls):
            with _named(call):
                if at in self._inverses:
                    columns |= self._subtracted(at, before, rows, weights, group)
                else:
                    columns[f"r{at}"] = self._recomputed(
                        state, at, call, before, rows, weights, group, hashes, positions_of(given)
                    )
        for name in self.key.names:
            columns[name] = rows[name].take(pa.array(first))
        after = pa.table(
            [columns[name] for name in self._stored_schema.names], schema=self._stored_schema
        )
        result = self._emitted(
            numbers >= 0, before, after, positions_of(given).take(pa.array(first))
        )
        stays = np.flatnonzero(counts > 0) if self.key.names else np.arange(len(counts))
        state.counters["groups"] = stored.change(
            numbers[numbers >= 0], after.take(pa.array(stays)), hashes[stays]
        )
        return result

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        stored = self._stored_schema
        after.counters["groups"] = rescale_sorted_rows(
            before, after, share, "groups", stored, stored.names, words=WORDS
        )
        for at, call in enumerate(self.calls):
            if not call.is_inverse and call.column is not None:
                name = f"values{at}"
                values = pa.schema([("value", self.arguments.field(call.column).type)])
                after.counters[name] = rescale_multiset(before, after, share, name, values)

    roles = ("row",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The rows of the group, without those that count as none."""
        given, names = inputs[0].rows, self.key.names
        if not names:
            return ((np.asarray(given[WEIGHT]) != 0) & (len(rows) > 0),)
        return (is_among(given.select(names).columns, rows.select(names).columns),)

    def _check_compatible(self, state: State) -> None:
        settings = f"{self.key} {self.calls} {self.arguments}"
        check_settings_compatible(state, "a GROUP BY of a view", settings)

    def _subtracted(
        self,
        at: int,
        before: pa.Table,
        rows: pa.Table,
        weights: Weights,
        group: npt.NDArray[np.int64],
    ) -> dict[str, pa.Array]:
        inverse = self._inverses[at]
        names = [f"a{at}_{number}" for number in range(len(inverse.accumulators))]
        accumulators = inverse.after(
            [before[name].combine_chunks() for name in names], rows, weights, group, len(before)
        )
        found = dict(zip(names, accumulators, strict=True))
        found[f"r{at}"] = inverse.result(accumulators).cast(self.calls[at].result)
        return found

    def _recomputed(
        self,
        state: State,
        at: int,
        call: Call,
        before: pa.Table,
        rows: pa.Table,
        weights: Weights,
        group: npt.NDArray[np.int64],
        hashes: Hashes,
        positions: pa.Array,
    ) -> pa.Array:
        """The results of all groups of the batch, from the values that they have now."""
        assert call.column is not None
        column = rows[call.column].combine_chunks()
        present = np.flatnonzero(np.asarray(column.is_valid()))
        values = pa.table({"value": column.take(pa.array(present))})
        delta = consolidated(
            values, hashes[group[present]], weights[present], positions.take(pa.array(present))
        )
        name = f"values{at}"
        state.counters[name] = Multiset(state, name, values.schema).change(delta)
        is_due = np.ones(len(hashes), np.bool_)
        given: list[tuple[npt.NDArray[np.int64], pa.Array, Weights]] = []
        if call.function in EXTREMES:
            of_group = np.searchsorted(as_one(hashes), as_one(delta.hashes[:, :WORDS]))
            results = before[f"r{at}"].combine_chunks()
            is_due = _has_lost(results, delta, of_group)
            old = np.flatnonzero(~is_due & np.asarray(results.is_valid()))
            new = np.flatnonzero((delta.weights > 0) & ~is_due[of_group])
            given.append((old, results.take(pa.array(old)), np.ones(len(old), np.int64)))
            added = delta.rows["value"].take(pa.array(new)).combine_chunks()
            given.append((of_group[new], added, delta.weights[new]))
        due = np.flatnonzero(is_due)
        which, stored, counts = Multiset(state, name, values.schema).of_keys(hashes[due])
        given.append((due[which], stored["value"].combine_chunks(), counts))
        times = np.concatenate([part[2] for part in given])
        return computed(
            call.function,
            np.concatenate([part[0] for part in given]),
            pa.concat_arrays([part[1].cast(column.type) for part in given]),
            np.ones_like(times) if call.is_distinct else times,
            len(hashes),
            call.result,
            call.parameters,
        )

    def _emitted(
        self, existed: Flags, before: pa.Table, after: pa.Table, positions: pa.Array
    ) -> pa.Table:
        """The results that differ: the former ones removed, those of now added."""
        names = [field.name for field in self._results]
        exists = np.asarray(after[_ROWS]) > 0 if self.key.names else np.ones(len(after), np.bool_)
        is_same = existed & exists
        if names:
            was, now = (hashes_of(table.select(names).columns) for table in (before, after))
            is_same &= (was == now).all(axis=1)
        parts = []
        for table, chosen, weight in ((before, existed, -1), (after, exists, 1)):
            where = pa.array(np.flatnonzero(chosen & ~is_same))
            rows = table.select([*self.key.names, *names]).take(where)
            weights = pa.array(np.full(len(where), weight, np.int64))
            columns = [*rows.columns, weights, positions.take(where)]
            parts.append(pa.table(columns, schema=self.output))
        return pa.concat_tables(parts)


@contextmanager
def _named(call: Call) -> Iterator[None]:
    """An error about a value names the function as the query has it."""
    try:
        yield
    except (PipelineError, pa.ArrowInvalid) as error:
        raise PipelineError(
            f"{call.sql or call.function} of a view has no result of its type",
            detail=f"{call.result}: {str(error).splitlines()[0]}",
            hint="cast what it is of to a wider type: CAST(… AS decimal(38,0))",
        ) from error


def _has_lost(results: pa.Array, delta: Delta, of_group: npt.NDArray[np.int64]) -> Flags:
    """Which groups lose (some of) the value that is their result."""
    removed = np.flatnonzero(delta.weights < 0)
    values = hashes_of([delta.rows["value"].take(pa.array(removed))])
    current = hashes_of([results.take(pa.array(of_group[removed]))])
    lost: Flags = np.zeros(len(results), np.bool_)
    lost[of_group[removed[(values == current).all(axis=1)]]] = True
    return lost


def _stored_or_null(stored: SortedRows, numbers: RowNumbers) -> pa.Table:
    """The rows of these numbers, nulls for -1."""
    existing = np.flatnonzero(numbers >= 0)
    existing = existing[np.argsort(numbers[existing])]
    rows = stored.take(numbers[existing]).combine_chunks()
    where = np.full(len(numbers), -1, np.int64)
    where[existing] = np.arange(len(existing))
    return rows.take(pa.array(where, mask=where < 0))


def _sums(weights: Weights, group: npt.NDArray[np.int64], groups: int) -> Weights:
    sums = np.zeros(groups, np.int64)
    np.add.at(sums, group, weights)
    return sums
