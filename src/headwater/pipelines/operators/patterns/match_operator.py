"""Row pattern matching: the operator of hw.match (match.py).

Rows of a key are given to its search (search.py) in the order of event time, once the watermark has
passed them, and its deadlines among them. So matches follow from the rows that are in time alone,
however they were cut into batches.

State: rows that the watermark has not passed; of each key its search as JSON, with the threads of
the attempt that waits, and its deadline; and the rows that the attempt may need. A key without a
row that a match could begin with takes no space, unless PREV reaches before a match.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.patterns.key_searches import (
    GROUP,
    INPUT,
    KEYS,
    ROWS,
    WORDS_OF_ROW,
    BatchSearches,
    MatchResults,
)
from headwater.pipelines.operators.patterns.match_settings import (
    EVENT_TIME,
    PARTITION,
    TIMER,
    TOPIC,
    MatchSettings,
)
from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, TIME, Input, State
from headwater.pipelines.operators.runtime.lineage import Flags, flags_at, is_among
from headwater.pipelines.operators.state.column_evolution import with_columns_of
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.fingerprints import settings_of
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS, Hashes, distinct, hashes_of
from headwater.pipelines.operators.state.sorted_rows import SortedRows, rescale_sorted_rows
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.operators.time.lateness import Admission, admit_and_advance, times_of
from headwater.pipelines.operators.time.watermarks import watermark_of

_PENDING: Final = "pending"


@dataclass(frozen=True)
class Matching(MatchSettings):
    """The operator (contract.py)."""

    @property
    def floors_us(self) -> Mapping[str, int]:
        return {EVENT_TIME: 0}

    def output_watermark_us(self, document: Mapping[str, Any]) -> int:
        """All rows and deadlines before it have been processed."""
        return watermark_of(document)

    def with_topic(self, topic: str) -> "Matching":
        return replace(self, topic=topic)

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        (given,) = inputs
        return self._run(state, given).table

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        tables = [table for state in before if (table := state.table(_PENDING)) is not None]
        if tables:
            rows = pa.concat_tables(tables)
            rows = rows.filter(pa.array(share.of_rows(rows, self.key)))
            after.put(_PENDING, rows if len(rows) else None)
        after.counters[KEYS] = rescale_sorted_rows(
            before, after, share, KEYS, self.keys_schema, self.key, words=WORDS
        )
        after.counters[ROWS] = rescale_sorted_rows(
            before, after, share, ROWS, self.stored_schema, self.key, words=WORDS_OF_ROW
        )

    roles = ("event",)
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The events of the match."""
        (given,) = inputs
        found = self._run(MemoryState(), given)
        wanted = np.flatnonzero(is_among(found.table.columns, rows.columns))
        numbers = [found.members(int(row)) for row in wanted]
        chosen = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
        return (flags_at(len(given.rows), chosen),)

    def _check_compatible(self, state: State) -> None:
        check_settings_compatible(state, "hw.match", self._settings)

    @property
    def _settings(self) -> str:
        return f"key {self.key} {settings_of(self.rules)} {self.computed.names}"

    # ── rows in the order of event time ───────────────────────────────────────────────────────

    def _run(self, state: State, given: Input) -> MatchResults:
        self._check_compatible(state)
        admission = admit_and_advance(state, given, self.time, self.lateness, times_of(given) + 1)
        fresh = self._fresh(given, admission.rows)
        ready = self._ready(state, fresh, admission.watermark_us)
        return self._matched(state, ready, admission)

    def _fresh(self, given: Input, is_admitted: npt.NDArray[np.bool_]) -> pa.Table:
        """Admitted rows; INPUT is their number among all of the input."""
        rows = given.rows.filter(pa.array(is_admitted))
        origin = rows[ORIGIN].combine_chunks()
        topics = pa.array([topic for topic, _ in given.origins], pa.string())
        partitions = pa.array([partition for _, partition in given.origins], pa.int32())
        columns = {name: rows[name] for name in self.row_schema.names}
        columns |= {TOPIC: topics.take(origin), PARTITION: partitions.take(origin)}
        columns[OFFSET] = rows[OFFSET]
        table = pa.Table.from_arrays(list(columns.values()), schema=self.pending_schema)
        return table.append_column(INPUT, pa.array(np.flatnonzero(is_admitted), pa.int64()))

    def _ready(self, state: State, fresh: pa.Table, now_us: int) -> pa.Table:
        """Rows that the watermark has passed; the others are stored."""
        stored = state.table(_PENDING)
        rows = fresh
        if stored is not None:
            stored = with_columns_of(self.pending_schema, stored, self.key)
            numbers = pa.nulls(len(stored), pa.int64())
            rows = pa.concat_tables([stored.append_column(INPUT, numbers), fresh])
        is_ready = pa.array(rows[TIME].to_numpy() < now_us)
        ready = rows.filter(is_ready)
        if len(fresh) or len(ready):
            pending = rows.filter(pc.invert(is_ready)).drop_columns([INPUT]).combine_chunks()
            state.put(_PENDING, pending if len(pending) else None)
        return ready

    # ── the search of each key ────────────────────────────────────────────────────────────────

    def _matched(self, state: State, ready: pa.Table, admission: Admission) -> MatchResults:
        stored = SortedRows(state, KEYS, self.keys_schema, self.key, words=WORDS)
        numbers = stored.numbers()
        timers = stored.take(numbers, [TIMER])[TIMER].to_numpy()
        due = numbers[timers < admission.watermark_us]
        ready, row_hashes = self._relevant(ready, stored)
        groups, group = distinct(np.concatenate([row_hashes, stored.hashes(due)]))
        if not len(groups):
            return MatchResults(self.output.empty_table(), [], np.empty(0, np.int64))
        ready = ready.append_column(GROUP, pa.array(group[: len(ready)]))
        order = (GROUP, TIME, TOPIC, PARTITION, OFFSET)
        ready = ready.take(
            pc.sort_indices(ready, sort_keys=[(name, "ascending") for name in order])
        )
        return self._run_searches(state, stored, groups, ready.combine_chunks(), admission)

    def _run_searches(
        self,
        state: State,
        stored: SortedRows,
        groups: Hashes,
        ready: pa.Table,
        admission: Admission,
    ) -> MatchResults:
        return BatchSearches(self, state, stored, groups, ready).run(admission.watermark_us)

    def _relevant(self, ready: pa.Table, stored: SortedRows) -> tuple[pa.Table, Hashes]:
        """Without the rows of keys that have no state, and no row that a match could begin with."""
        hashes = hashes_of([ready[name] for name in self.key])
        starts = self.starts_in(ready)
        if starts is None or self.rules.needs_every_key or not len(ready):
            return ready, hashes
        keys, key = distinct(hashes)
        is_relevant = stored.find(keys) >= 0
        is_relevant[key[starts]] = True
        chosen = is_relevant[key]
        return ready.filter(pa.array(chosen)), hashes[chosen]
