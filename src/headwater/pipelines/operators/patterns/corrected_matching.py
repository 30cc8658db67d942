"""The operator of hw.match with late="correct".

A row that comes behind the watermark by at most `allowed_lateness` is read at its place in the
order of time, as if it had been in time: matches that are no longer found are retracted, and new
ones are emitted (corrected_searches.py). So the results that are left are those of all admitted
rows, however these were cut into batches.

A match is identified by its first row: no two matches of a key begin at the same one. MATCH_ID is
the position of that row in the log.

State: in addition to that of hw.match, all rows of the last `allowed_lateness` (of a key, until all
of its rows are that old: less than twice as long), and a second search of each key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import pyarrow as pa

from headwater.errors import StateLost
from headwater.pipelines.operators.patterns.match_operator import Matching
from headwater.pipelines.operators.patterns.match_settings import EVENT_TIME
from headwater.pipelines.operators.patterns.matching.corrected_searches import CorrectedSearches
from headwater.pipelines.operators.patterns.matching.key_searches import MatchResults, find_matches
from headwater.pipelines.operators.runtime.contract import State
from headwater.pipelines.operators.time.lateness import Admission
from headwater.pipelines.operators.windows.results import MARK
from headwater.pipelines.position import (
    CHANGING,
    POSITION,
    POSITION_TYPE,
    RESULTS,
    with_metadata,
)
from headwater.sinks.contract import OP

MATCH_ID: Final = "match_id"
_RETENTION: Final = "kept_us"  # in the document, as of windows (state/compatibility.py)


@dataclass(frozen=True)
class CorrectedMatching(Matching):
    """The operator (contract.py). A result can be retracted, so it promises nothing."""

    @cached_property
    def output(self) -> pa.Schema:
        columns = [field for field in super().output if field.name not in (POSITION, OP)]
        at = [field.name for field in columns].index(EVENT_TIME)
        columns[at] = columns[at].remove_metadata()
        return pa.schema(
            [
                *columns,
                pa.field(MATCH_ID, pa.string()),
                with_metadata(pa.field(POSITION, POSITION_TYPE), {RESULTS: CHANGING}),
                pa.field(MARK, pa.string()),
                pa.field(OP, pa.string()),
            ]
        )

    @property
    def floors_us(self) -> Mapping[str, int]:
        return {}

    @property
    def stored_schema(self) -> pa.Schema:
        return self.pending_schema

    def _check_compatible(self, state: State) -> None:
        super()._check_compatible(state)
        allowed_us = self.lateness.allowed_us
        if state.document.setdefault(_RETENTION, allowed_us) < allowed_us:
            raise StateLost(
                "the state of hw.match has the rows of a shorter time",
                detail="allowed_lateness was made longer",
                hint="rebuild the pipeline: the state is derived from the log again",
            )
        state.document[_RETENTION] = allowed_us

    @property
    def _settings(self) -> str:
        return f"{super()._settings} corrected"

    @property
    def needs_every_key(self) -> bool:
        """A late row may be what makes a match of its rows."""
        return True

    def _matched(self, state: State, ready: pa.Table, admission: Admission) -> MatchResults:
        searches_of = partial(CorrectedSearches, before_us=admission.before_us)
        return find_matches(self, state, ready, admission.watermark_us, searches_of)
