"""The searches of the keys that have rows or deadlines in a batch, from their state and back."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from headwater.pipelines.operators.patterns.conditions import KeyRows
from headwater.pipelines.operators.patterns.match_settings import STATE, MatchSettings
from headwater.pipelines.operators.patterns.measures import MatchRows
from headwater.pipelines.operators.patterns.pattern_rules import (
    ALL_ROWS,
    functions_of,
    machine_of,
)
from headwater.pipelines.operators.patterns.search import MATCHED, Search
from headwater.pipelines.operators.runtime.contract import TIME, State
from headwater.pipelines.operators.state.row_hashes import WORDS, Hashes
from headwater.pipelines.operators.state.sorted_rows import SortedRows
from headwater.pipelines.position import result_positions

GROUP: Final = "__group"  # of a row of the batch: the number of its key
INPUT: Final = "__input"  # and its number among all rows of the input
KEYS: Final = "keys"
ROWS: Final = "rows"
WORDS_OF_ROW: Final = 2 * WORDS  # the key's hash, and the row's number
_COUNTERS: Final = ("matches", "timed_out", "skips_without_target")
_TIMESTAMP: Final = pa.timestamp("us", "UTC")

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MatchResults:
    table: pa.Table
    ranges: list[tuple[int, int]]  # of each row: the first row of its match, and how many
    inputs: Int64s  # of each row of the batch, its number in the input

    def members(self, row: int) -> Int64s:
        first, count = self.ranges[row]
        found = self.inputs[first : first + count]
        return found[found >= 0]


class BatchSearches:
    """The searches of the keys that have rows or deadlines in a batch."""

    def __init__(
        self,
        operator: MatchSettings,
        state: State,
        keys: SortedRows,
        groups: Hashes,
        ready: pa.Table,
    ) -> None:
        self._operator = operator
        self._state = state
        self._keys = keys
        self._groups = groups
        self._ready = ready
        self._rows = SortedRows(
            state, ROWS, operator.stored_schema, operator.key, words=WORDS_OF_ROW
        )
        self._before = keys.find(groups)
        self._load_rows()

    def _load_rows(self) -> None:
        """Of all keys: those of the state first, then those of the batch."""
        ready, groups = self._ready, self._groups
        which, numbers = self._rows.groups(groups)
        row_numbers = self._rows.hashes(numbers)[:, WORDS].astype(np.int64)
        order = np.lexsort((row_numbers, which))
        old = self._rows.take(numbers).combine_chunks().take(pa.array(order))
        self._old = numbers[order]
        self._old_ends = np.searchsorted(which[order], np.arange(len(groups)), "right").tolist()
        group = ready[GROUP].to_numpy()
        self._new_ends = np.searchsorted(group, np.arange(len(groups)), "right").tolist()
        self._all = pa.concat_tables([old, ready.select(old.column_names)])

    def run(self, now_us: int) -> MatchResults:
        operator, rules = self._operator, self._operator.rules
        is_all_rows = rules.rows == ALL_ROWS
        output = MatchRows(rules.measures, is_all_rows, rules.shows_empty)
        counts = dict.fromkeys(_COUNTERS, 0)
        retained: list[int] = []
        retained_numbers: list[int] = []
        retained_keys: list[int] = []
        texts: list[bytes | None] = []
        timers: list[int] = []
        for group, (key, search) in enumerate(self._searches(now_us, output, counts)):
            dropped = search.forget()
            rows = key.rows[dropped:]
            retained += rows
            retained_numbers += range(search.first, search.first + len(rows))
            retained_keys += [group] * len(rows)
            stored = search.to_json()
            texts.append(None if stored is None else orjson.dumps(stored))
            timers.append(search.timer_us)
            counts["timed_out"] += search.timeouts
            counts["skips_without_target"] += search.misses
        for name, count in counts.items():
            self._state.counters[name] = self._state.counters.get(name, 0) + count
        key_columns = self._key_columns()
        self._store_keys(key_columns, texts, timers)
        self._store_rows(
            np.array(retained, np.int64),
            np.array(retained_numbers, np.uint64),
            np.array(retained_keys, np.int64),
        )
        table, order = self._table(key_columns, output)
        inputs = np.full(len(self._all), -1, np.int64)
        inputs[len(self._old) :] = self._ready[INPUT].combine_chunks().fill_null(-1).to_numpy()
        members = [output.members[row] for row in order.tolist()]
        return MatchResults(table.cast(operator.output), members, inputs)

    def _searches(
        self, now_us: int, output: MatchRows, counts: dict[str, int]
    ) -> Iterator[tuple[KeyRows, Search]]:
        rules = self._operator.rules
        search_rules, machine = rules.search, machine_of(rules)
        functions = functions_of(rules)
        columns = self._python_columns()
        times = self._all[TIME].to_pylist()
        flags = self._operator.starts_in(self._all)
        starts = None if flags is None else flags.tolist()
        stored = self._stored_searches()
        old = new = 0
        gives_matches = rules.gives_matches

        def holds(variable: int, number: int, labels: str) -> bool:
            condition = functions[variable]
            if condition is None:
                return True
            if isinstance(condition, int):
                return columns[condition][key.rows[number - key.first]] is True
            return condition(key, number, labels)

        def is_start(number: int) -> bool:
            assert starts is not None
            return bool(starts[key.rows[number - key.first]])

        can_start = None if starts is None else is_start
        for group in range(len(self._groups)):
            first_new = len(self._old) + new
            new = self._new_ends[group]
            was, old = old, self._old_ends[group]
            added = range(first_new, len(self._old) + new)
            key = KeyRows(columns, rules.variables, [*range(was, old), *added])
            text = stored.pop(group, None)
            before = None if text is None else orjson.loads(text)
            search = Search(search_rules, machine, times[was:old], before)
            key.first = search.first
            for row in added:
                for found in search.add(times[row], holds, can_start):
                    counts["matches"] += found.kind == MATCHED
                    if gives_matches or found.kind != MATCHED:
                        output.add(group, key, found)
            for found in search.pass_time(now_us, holds, can_start):
                counts["matches"] += found.kind == MATCHED
                if gives_matches or found.kind != MATCHED:
                    output.add(group, key, found)
            yield key, search

    def _python_columns(self) -> list[list[Any]]:
        wanted = self._operator.rules.columns_in_python
        return [
            self._all[name].to_pylist() if number in wanted else []
            for number, name in enumerate(self._operator.computed.names)
        ]

    def _stored_searches(self) -> dict[int, str]:
        existing = np.flatnonzero(self._before >= 0)
        existing = existing[np.argsort(self._before[existing])]
        texts = self._keys.take(self._before[existing], [STATE])[STATE].to_pylist()
        return dict(zip(existing.tolist(), texts, strict=True))

    def _key_columns(self) -> pa.Table:
        """The key's columns of each group: as they are stored, or of its first row."""
        names = self._operator.key
        existing = np.flatnonzero(self._before >= 0)
        existing = existing[np.argsort(self._before[existing])]
        stored = self._keys.take(self._before[existing], list(names))
        ready = self._ready.select(names)
        at = np.empty(len(self._groups), np.int64)
        group = self._ready[GROUP].to_numpy()
        at[group[::-1]] = np.arange(len(ready))[::-1]
        at[existing] = len(ready) + np.arange(len(existing))
        return pa.concat_tables([ready, stored]).take(pa.array(at)).combine_chunks()

    def _store_keys(self, columns: pa.Table, texts: list[bytes | None], timers: list[int]) -> None:
        is_stored = np.array([text is not None for text in texts], np.bool_)
        new = pa.Table.from_arrays(
            [
                *columns.columns,
                pa.array([None if text is None else text.decode() for text in texts], pa.string()),
                pa.array(timers, pa.int64()),
            ],
            schema=self._operator.keys_schema,
        )
        removed = np.sort(self._before[self._before >= 0])
        chosen = np.flatnonzero(is_stored)
        self._state.counters[KEYS] = self._keys.change(
            removed, new.take(pa.array(chosen)), self._groups[chosen]
        )

    def _store_rows(
        self, retained: Int64s, numbers: npt.NDArray[np.uint64], groups: Int64s
    ) -> None:
        old = len(self._old)
        is_dropped = np.ones(old, np.bool_)
        is_dropped[retained[retained < old]] = False
        is_new = retained >= old
        added = retained[is_new]
        hashes = np.zeros((len(added), WORDS_OF_ROW), np.uint64)
        hashes[:, :WORDS] = self._groups[groups[is_new]]
        hashes[:, WORDS] = numbers[is_new]
        self._state.counters[ROWS] = self._rows.change(
            np.sort(self._old[is_dropped]), self._all.take(pa.array(added)).combine_chunks(), hashes
        )

    def _table(self, keys: pa.Table, output: MatchRows) -> tuple[pa.Table, Int64s]:
        """In the order of time; and the numbers that its rows had."""
        times_us = np.array(output.times_us, np.int64)
        order = np.argsort(times_us, kind="stable")
        columns = self._result_columns(keys, output)
        columns.append(result_positions(self._operator.topic, pa.array(times_us)))
        columns.append(pa.repeat("c", len(times_us)))
        table = pa.Table.from_arrays(columns, schema=self._operator.output)
        return table.take(pa.array(order)), order

    def _result_columns(self, keys: pa.Table, output: MatchRows) -> list[Any]:
        """Those before the position."""
        operator, rules = self._operator, self._operator.rules
        if rules.rows == ALL_ROWS:
            rows = self._all.select(operator.rows.names).take(pa.array(output.rows, pa.int64()))
        else:
            rows = keys.take(pa.array(output.keys, pa.int64()))
        computed = [self._all[name] for name in operator.computed.names]
        columns = [*rows.columns, pa.array(output.times_us, pa.int64()).cast(_TIMESTAMP)]
        for number, column in enumerate(operator.results):
            columns.append(output.column(number, column.type, computed))
        if rules.timed_out is not None:
            columns.append(pa.array(output.is_timed_out, pa.bool_()))
        return columns
