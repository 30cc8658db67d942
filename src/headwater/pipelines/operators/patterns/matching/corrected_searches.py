"""The searches of keys in a batch whose late rows correct matches that were emitted.

All rows that the watermark has passed are stored, until no late row can be before them. Of a key
with late rows, what was emitted and is not found again is retracted, and what is found and was not
emitted is a result (retained_search.py). A result that stays as it was is not emitted twice.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.patterns.match_settings import PARTITION, TOPIC, MatchSettings
from headwater.pipelines.operators.patterns.matching.conditions import KeyRows
from headwater.pipelines.operators.patterns.matching.key_searches import (
    GROUP,
    INPUT,
    ROWS,
    WORDS_OF_ROW,
    BatchSearches,
    Int64s,
    MatchResults,
)
from headwater.pipelines.operators.patterns.matching.measures import MatchRows
from headwater.pipelines.operators.patterns.matching.retained_search import (
    RetainedSearch,
    Timeline,
    Watermarks,
)
from headwater.pipelines.operators.patterns.matching.search import MATCHED, Found
from headwater.pipelines.operators.patterns.pattern_rules import (
    ALL_ROWS,
    functions_of,
    machine_of,
)
from headwater.pipelines.operators.runtime.contract import OFFSET, TIME, State
from headwater.pipelines.operators.state.row_hashes import WORDS, Hashes
from headwater.pipelines.operators.state.sorted_rows import SortedRows, sorted_order
from headwater.pipelines.operators.windows.results import CORRECTION, FINAL, NEW, RETRACTED
from headwater.pipelines.position import result_positions

LOG_ORDER: Final = (TIME, TOPIC, PARTITION, OFFSET)
_RETRACTED: Final = "retracted"  # a counter: rows

_Line = tuple[KeyRows, Timeline]


class CorrectedSearches(BatchSearches):
    """Rows of a key are in the order of time, those of the state and of the batch together."""

    def __init__(
        self,
        operator: MatchSettings,
        state: State,
        keys: SortedRows,
        groups: Hashes,
        ready: pa.Table,
        *,
        before_us: int,
    ) -> None:
        self._before_us = before_us  # the watermark of the batch before
        super().__init__(operator, state, keys, groups, ready)

    def _load_rows(self) -> None:
        which, numbers = self._rows.groups(self._groups)
        old = self._rows.take(numbers).append_column(GROUP, pa.array(which))
        old = old.append_column(INPUT, pa.nulls(len(old), pa.int64()))
        rows = pa.concat_tables([old, self._ready.select(old.column_names)]).combine_chunks()
        sort_keys = [(name, "ascending") for name in (GROUP, *LOG_ORDER)]
        order = pc.sort_indices(rows, sort_keys=sort_keys)
        self._all = rows.take(order)
        self._values = self._operator.values(self._all, self._ready.slice(0, 0))
        # Of each row: its number in the state, or -1.
        self._stored = np.concatenate([numbers, np.full(len(self._ready), -1)])[order.to_numpy()]
        group = self._all[GROUP].to_numpy()
        self._ends = np.searchsorted(group, np.arange(len(self._groups)), "right").tolist()

    def run(self, now_us: int) -> MatchResults:
        results = _Results(self._new_output())
        counts: Counter[str] = Counter()
        is_retained = np.zeros(len(self._all), np.bool_)
        texts: list[bytes | None] = []
        timers: list[int] = []
        for rows, search in self._searched(now_us, results, counts):
            dropped = search.first_after - search.first
            is_retained[rows.start + dropped : rows.stop] = True
            stored = search.to_json()
            texts.append(None if stored is None else orjson.dumps(stored))
            timers.append(search.timer_us)
            counts["timed_out"] += search.timeouts
            counts["skips_without_target"] += search.misses
        for name in ("matches", "timed_out", "skips_without_target", _RETRACTED):
            self._state.counters[name] = self._state.counters.get(name, 0) + counts[name]
        keys = self._key_columns()
        self._store_keys(keys, texts, timers)
        self._store_retained(is_retained)
        table, order = self._corrected_table(keys, results)
        members = [results.rows.members[row] for row in order.tolist()]
        inputs = self._all[INPUT].combine_chunks().fill_null(-1).to_numpy()
        return MatchResults(table.cast(self._operator.output), members, inputs)

    def _new_output(self) -> MatchRows:
        rules = self._operator.rules
        return MatchRows(rules.measures, rules.rows == ALL_ROWS, rules.shows_empty)

    def _searched(
        self, now_us: int, results: "_Results", counts: Counter[str]
    ) -> Iterator[tuple[range, RetainedSearch]]:
        rules = self._operator.rules
        settled_us = now_us - self._operator.lateness.allowed_us
        watermarks = Watermarks(settled_us, self._before_us, now_us)
        search_rules, machine = rules.search, machine_of(rules)
        line_of = self._lines()
        times = self._all[TIME].to_numpy()
        is_old = self._stored >= 0
        is_late = ~is_old & (times < self._before_us)
        stored = self._stored_searches()
        begin = 0
        for group, end in enumerate(self._ends):
            rows, begin = range(begin, end), end
            text = stored.get(group)
            before = None if text is None else orjson.loads(text)
            search = RetainedSearch(search_rules, machine, before, watermarks)
            after = line_of([*rows], search.first)
            old_rows = rows.start + np.flatnonzero(is_old[rows.start : end])
            if not is_late[rows.start : end].any():
                found = search.read_on(after[1], len(old_rows))
                counts["matches"] += _matches(found)
                if found:
                    results.add(self._rows_of(group, after[0], found))
            else:
                was_line = line_of(old_rows.tolist(), search.first)
                was, found = search.read_again(was_line[1], after[1])
                counts["matches"] += _matches(found) - _matches(was)
                counts[_RETRACTED] += results.correct(
                    self._rows_of(group, was_line[0], was),
                    self._rows_of(group, after[0], found),
                    self._before_us,
                )
            yield rows, search

    def _lines(self) -> Callable[[list[int], int], _Line]:
        """Makes the rows of a key as conditions see them; rows are their numbers in `_all`, and
        the first one has the number `first` in its key.
        """
        variables, functions = self._operator.rules.variables, functions_of(self._operator.rules)
        columns = self._values
        flags = self._operator.starts_among(self._all, columns)
        times: list[int] = self._all[TIME].to_pylist()

        def line_of(rows: list[int], first: int) -> _Line:
            key = KeyRows(columns, variables, rows)
            key.first = first

            def holds(variable: int, number: int, labels: str) -> bool:
                condition = functions[variable]
                if condition is None:
                    return True
                if isinstance(condition, int):
                    return columns[condition][rows[number - first]] is True
                return condition(key, number, labels)

            def can_start(number: int) -> bool:
                assert flags is not None
                return flags[rows[number - first]]

            of_rows = [times[row] for row in rows]
            return key, Timeline(of_rows, holds, None if flags is None else can_start)

        return line_of

    def _rows_of(self, group: int, key: KeyRows, found: list[Found]) -> MatchRows:
        output = self._new_output()
        gives_matches = self._operator.rules.gives_matches
        for one in found:
            if gives_matches or one.kind != MATCHED:
                output.add(group, key, one)
        return output

    def _store_retained(self, is_retained: "np.ndarray[Any, np.dtype[np.bool_]]") -> None:
        is_old = self._stored >= 0
        added = np.flatnonzero(is_retained & ~is_old)
        rows = self._all.take(pa.array(added))
        hashes = np.zeros((len(added), WORDS_OF_ROW), np.uint64)
        hashes[:, :WORDS] = self._groups[rows[GROUP].to_numpy()]
        hashes[:, WORDS] = rows[TIME].to_numpy().view(np.uint64)
        hashes[:, WORDS + 1] = rows[OFFSET].to_numpy().view(np.uint64)
        order = sorted_order(hashes)
        rows = rows.select(self._operator.stored_schema.names).take(pa.array(order))
        self._state.counters[ROWS] = self._rows.change(
            np.sort(self._stored[is_old & ~is_retained]), rows.combine_chunks(), hashes[order]
        )

    def _corrected_table(self, keys: pa.Table, results: "_Results") -> tuple[pa.Table, Int64s]:
        positions_us = np.array(results.positions_us, np.int64)
        order = np.argsort(positions_us, kind="stable")
        first = pa.array([first for first, _ in results.rows.members], pa.int64())
        position = [self._all[name].take(first).cast(pa.string()) for name in LOG_ORDER[1:]]
        columns = [
            *self._operator.result_columns(keys, self._all, results.rows),
            pc.binary_join_element_wise(*position, "/"),
            result_positions(self._operator.topic, pa.array(positions_us)),
            pa.array(results.marks, pa.string()),
            pa.array(results.ops, pa.string()),
        ]
        table = pa.Table.from_arrays(columns, schema=self._operator.output)
        return table.take(pa.array(order)), order


def _matches(found: list[Found]) -> int:
    return sum(one.kind == MATCHED for one in found)


@dataclass(slots=True)
class _Results:
    """Rows of the output, and what becomes of them."""

    rows: MatchRows
    positions_us: list[int] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)

    def add(self, found: MatchRows) -> None:
        for row in range(len(found.keys)):
            self._add(found, row, found.times_us[row], FINAL, NEW)

    def correct(self, was: MatchRows, found: MatchRows, before_us: int) -> int:
        """Only what has changed. Returns how many rows are retracted.

        Retractions have the position of the first change of their key: stores apply rows in the
        order of positions, and a retraction has to come before what replaces it, whichever columns
        identify a row there.
        """
        before, after = _contents(was), _contents(found)
        gone = [row for content, row in before.items() if content not in after]
        new = [row for content, row in after.items() if content not in before]
        changed_us = [was.times_us[row] for row in gone] + [found.times_us[row] for row in new]
        for row in gone:
            self._add(was, row, min(changed_us), CORRECTION, RETRACTED)
        for row in new:
            is_late = found.times_us[row] < before_us
            self._add(found, row, found.times_us[row], CORRECTION if is_late else FINAL, NEW)
        return len(gone)

    def _add(self, found: MatchRows, row: int, position_us: int, mark: str, op: str) -> None:
        self.rows.copy(found, row)
        self.positions_us.append(position_us)
        self.marks.append(mark)
        self.ops.append(op)


def _contents(rows: MatchRows) -> dict[tuple[Any, ...], int]:
    """Of a key: by all that a result is made of, its number."""
    firsts = [first for first, _ in rows.members]
    return {
        content: number
        for number, content in enumerate(
            zip(firsts, rows.times_us, rows.is_timed_out, rows.rows, *rows.values, strict=True)
        )
    }
