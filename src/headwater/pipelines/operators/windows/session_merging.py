"""Merging of rows into sessions, and of sessions into larger ones.

Sessions are a table: the columns of the key (k0, k1, …), FIRST and LAST (times of their first and
last row), SHOWN (how they were emitted last), SLOT (their row number in the stored table) and
accumulators.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.jit import kernel
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.runtime.grouping import keys_of, may_be_among, number
from headwater.pipelines.operators.time.time_order import by_key_and_time

FIRST: Final = "first"
LAST: Final = "last"
SHOWN: Final = "shown"
SLOT: Final = "slot"
NO_SLOT: Final = -1  # new or changed, so not stored as it is
NOT_SHOWN, EARLY, FINAL = 0, 1, 2
_MANY: Final = 4  # times as many sessions: those of other keys are filtered out first

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Changes:
    untouched: pa.Table  # sessions that no row came near to
    replaced: pa.Table  # those that became part of another, or only got rows
    into: Ints  # which one of `merged`, for each of `replaced`
    merged: pa.Table  # all that got rows


@dataclass(frozen=True)
class Merging:
    by: tuple[str, ...]
    gap_us: int
    aggregates: NamedAggregates

    @cached_property
    def keys(self) -> list[str]:
        """Names that no other column of sessions has."""
        return [f"k{at}" for at in range(len(self.by))]

    @cached_property
    def schema(self) -> pa.Schema:
        rows = self.aggregates.schema
        return pa.schema(
            [
                *(rows.field(name).with_name(f"k{at}") for at, name in enumerate(self.by)),
                pa.field(FIRST, pa.int64()),
                pa.field(LAST, pa.int64()),
                pa.field(SHOWN, pa.int8()),
                pa.field(SLOT, pa.int64()),
                *self.aggregates.accumulators_schema,
            ]
        )

    def sessions_of(self, rows: pa.Table, time_us: Ints) -> pa.Table:
        """Sessions of these rows alone, which are in log order."""
        if not len(rows):
            return self.schema.empty_table()
        keys = pa.Table.from_arrays(keys_of(rows, self.by), self.keys)
        key, _ = number(keys.columns, len(rows))
        order = by_key_and_time(key, time_us)
        in_order = time_us[order]
        session = _numbered(key[order], in_order, in_order, self.gap_us)
        starts = np.flatnonzero(np.diff(session, prepend=-1))
        ends = np.append(starts[1:], len(rows)) - 1
        group = np.empty(len(rows), np.intp)
        group[order] = session
        return self._table(
            keys.take(pa.array(order[starts])),
            in_order[starts],
            in_order[ends],
            self.aggregates.accumulate(rows, group, len(starts)),
        )

    def merge(self, stored: pa.Table, fresh: pa.Table) -> Changes:
        """Sessions of one table do not touch each other; those of `fresh` may touch stored ones."""
        if not len(fresh) or not len(stored):
            return Changes(stored, stored.slice(0, 0), np.empty(0, np.int64), fresh)
        if len(stored) < _MANY * len(fresh):
            return self._merged(stored, fresh)
        keys = [fresh[name] for name in self.keys]
        is_near = may_be_among([stored[name] for name in self.keys], keys, len(stored))
        changes = self._merged(stored.filter(pa.array(is_near)), fresh)
        far = stored.filter(pa.array(~is_near))
        return replace(changes, untouched=pa.concat_tables([far, changes.untouched]))

    def _merged(self, stored: pa.Table, fresh: pa.Table) -> Changes:
        both = pa.concat_tables([stored, fresh])
        key, _ = number([both[name] for name in self.keys], len(both))
        first, last = ints(both, FIRST), ints(both, LAST)
        order = by_key_and_time(key, first)
        session = _numbered(key[order], first[order], last[order], self.gap_us)
        starts = np.flatnonzero(np.diff(session, prepend=-1))
        is_fresh = order >= len(stored)
        has_fresh = np.logical_or.reduceat(is_fresh, starts)

        of_each = np.empty(len(both), np.int64)  # its merged session; -1: got no rows
        of_each[order] = np.where(has_fresh, np.cumsum(has_fresh) - 1, -1)[session]
        is_replaced = of_each[: len(stored)] >= 0
        replaced = stored.filter(pa.array(is_replaced))
        into = of_each[: len(stored)][is_replaced]
        parts = pa.concat_tables([replaced, fresh])  # earlier ones first
        group = np.concatenate([into, of_each[len(stored) :]]).astype(np.intp)
        accumulators = self.aggregates.merge(parts, group, int(has_fresh.sum()))
        merged = self._table(
            both.select(self.keys).take(pa.array(order[starts[has_fresh]])),
            first[order[starts[has_fresh]]],
            np.maximum.reduceat(last[order], starts)[has_fresh],
            accumulators,
        )
        return Changes(stored.filter(pa.array(~is_replaced)), replaced, into, merged)

    def _table(self, keys: pa.Table, first: Ints, last: Ints, stored: list[pa.Array]) -> pa.Table:
        shown = np.full(len(first), NOT_SHOWN, np.int8)
        slot = np.full(len(first), NO_SLOT, np.int64)
        made = [pa.array(numbers) for numbers in (first, last, shown, slot)]
        return pa.Table.from_arrays([*keys.columns, *made, *stored], schema=self.schema)


def ints(sessions: pa.Table, name: str) -> Ints:
    column: Ints = sessions[name].to_numpy()
    return column


@kernel
def _numbered(key: Ints, first_us: Ints, last_us: Ints, gap_us: int) -> Ints:
    """The session of each interval, sorted by key and first: a sweep in which a session goes on as
    long as the next interval begins at most `gap_us` after the latest end.
    """
    numbers = np.empty(len(key), np.int64)
    current = -1
    end_us = 0
    for at in range(len(key)):
        if at == 0 or key[at] != key[at - 1] or first_us[at] - end_us > gap_us:
            current += 1
            end_us = last_us[at]
        elif last_us[at] > end_us:
            end_us = last_us[at]
        numbers[at] = current
    return numbers
