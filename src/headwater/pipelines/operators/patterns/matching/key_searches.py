"""The searches of the keys that have rows or deadlines in a batch, from their state and back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.patterns.match_settings import (
    PARTITION,
    STATE,
    TIMER,
    TOPIC,
    MatchSettings,
)
from headwater.pipelines.operators.patterns.matching.conditions import KeyRows, Undecided
from headwater.pipelines.operators.patterns.matching.measures import MatchRows
from headwater.pipelines.operators.patterns.matching.search import MATCHED, Search
from headwater.pipelines.operators.patterns.pattern_rules import (
    ALL_ROWS,
    functions_of,
    machine_of,
)
from headwater.pipelines.operators.runtime.contract import OFFSET, TIME, State
from headwater.pipelines.operators.state.row_hashes import WORDS, Hashes, distinct, hashes_of
from headwater.pipelines.operators.state.sorted_rows import SortedRows

GROUP: Final = "__group"  # of a row of the batch: the number of its key
INPUT: Final = "__input"  # and its number among all rows of the input
KEYS: Final = "keys"
ROWS: Final = "rows"
WORDS_OF_ROW: Final = 2 * WORDS  # the key's hash, and the row's number
_COUNTERS: Final = ("matches", "timed_out", "skips_without_target")
_OF_STORED: Final = ("given_up", "undecided")  # counters that are there if they are not 0

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


def find_matches(
    settings: MatchSettings,
    state: State,
    ready: pa.Table,
    now_us: int,
    searches_of: "SearchesOf | None" = None,
) -> MatchResults:
    """What these rows complete, which the watermark has passed, and all deadlines before `now_us`.
    The state is that after them.
    """
    stored = SortedRows(state, KEYS, settings.keys_schema, settings.key, words=WORDS)
    numbers = stored.numbers()
    timers = stored.take(numbers, [TIMER])[TIMER].to_numpy()
    due = numbers[timers < now_us]
    ready, row_hashes = _relevant(settings, ready, stored)
    groups, group = distinct(np.concatenate([row_hashes, stored.hashes(due)]))
    if not len(groups):
        return MatchResults(settings.output.empty_table(), [], np.empty(0, np.int64))
    ready = ready.append_column(GROUP, pa.array(group[: len(ready)]))
    order = (GROUP, TIME, TOPIC, PARTITION, OFFSET)
    ready = ready.take(pc.sort_indices(ready, sort_keys=[(name, "ascending") for name in order]))
    searches = (searches_of or BatchSearches)(
        settings, state, stored, groups, ready.combine_chunks()
    )
    return searches.run(now_us)


def _relevant(
    settings: MatchSettings, ready: pa.Table, stored: SortedRows
) -> tuple[pa.Table, Hashes]:
    """Without the rows of keys that have no state, and no row that a match could begin with."""
    hashes = hashes_of([ready[name] for name in settings.key])
    starts = None if settings.needs_every_key else settings.starts_in(ready)
    if starts is None or not len(ready):
        return ready, hashes
    keys, key = distinct(hashes)
    is_relevant = stored.find(keys) >= 0
    is_relevant[key[starts]] = True
    chosen = is_relevant[key]
    return ready.filter(pa.array(chosen)), hashes[chosen]


SearchesOf = Callable[[MatchSettings, State, SortedRows, Hashes, pa.Table], "BatchSearches"]


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
        self._values = self._operator.values(old, ready)

    def run(self, now_us: int) -> MatchResults:
        operator, rules = self._operator, self._operator.rules
        is_all_rows = rules.rows == ALL_ROWS
        output = MatchRows(rules.measures, is_all_rows, rules.shows_empty, rules.is_stored)
        counts = dict.fromkeys((*_COUNTERS, *_OF_STORED), 0)
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
            counts["given_up"] += search.given_up
        for name, count in counts.items():
            if name in _COUNTERS or count:
                self._state.counters[name] = self._state.counters.get(name, 0) + count
        key_columns = self._key_columns()
        self._store_keys(key_columns, texts, timers)
        self._store_rows(
            np.array(retained, np.int64),
            np.array(retained_numbers, np.uint64),
            np.array(retained_keys, np.int64),
        )
        order = np.argsort(np.array(output.times_us, np.int64), kind="stable")
        table = operator.result(key_columns, self._all, self._values, output)
        table = table.take(pa.array(order))
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
        columns = self._values
        times = self._all[TIME].to_pylist()
        starts = self._operator.starts_among(self._all, columns)
        stored = self._stored_searches()
        old = new = 0
        gives_matches = rules.gives_matches

        def holds(variable: int, number: int, labels: str) -> bool:
            condition = functions[variable]
            if condition is None:
                return True
            if isinstance(condition, int):
                return columns[condition][key.rows[number - key.first]] is True
            try:
                return condition(key, number, labels)
            except Undecided:
                if not rules.is_stored:
                    raise
                counts["undecided"] += 1
                return False

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
