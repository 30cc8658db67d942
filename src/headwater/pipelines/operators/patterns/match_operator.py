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
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.pipelines.operators.patterns.match_settings import EVENT_TIME, MatchSettings
from headwater.pipelines.operators.patterns.matching.key_searches import (
    KEYS,
    ROWS,
    WORDS_OF_ROW,
    MatchResults,
    find_matches,
)
from headwater.pipelines.operators.patterns.matching.pending_rows import (
    fresh_rows,
    ready_rows,
    rescale_pending,
)
from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.operators.runtime.lineage import Flags, flags_at, is_among
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.fingerprints import settings_of
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS
from headwater.pipelines.operators.state.sorted_rows import rescale_sorted_rows
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.operators.time.lateness import Admission, admit_and_advance, times_of
from headwater.pipelines.operators.time.watermarks import watermark_of


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
        rescale_pending(before, after, share, self.key)
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

    def _run(self, state: State, given: Input) -> MatchResults:
        self._check_compatible(state)
        admission = admit_and_advance(state, given, self.time, self.lateness, times_of(given) + 1)
        fresh = fresh_rows(given, admission.rows, self.pending_schema)
        ready = ready_rows(state, fresh, admission.watermark_us, self.key)
        return self._matched(state, ready, admission)

    def _matched(self, state: State, ready: pa.Table, admission: Admission) -> MatchResults:
        return find_matches(self, state, ready, admission.watermark_us)
