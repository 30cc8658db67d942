"""The operator of hw.match_stored: rows of a stream past stored patterns.

The first input is the rows, by buckets of their key; the second is the changes of the patterns,
which every bucket gets. A pattern holds for rows by their event time (pattern_versions.py). Rows
are processed when the watermark has passed them and the patterns' partitions have been read past
their time, or to their end. So matches are a fact of the two logs, like those of an as-of join.

Before the first row is processed, the patterns' topic is read to its end once: patterns that were
stored before the state was begun can hold from any time on.

State: rows that wait; the versions of the patterns; and of each version what hw.match has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.joins.tables.table_progress import (
    END_US,
    TableProgress,
    add_versions,
)
from headwater.pipelines.operators.patterns.match_settings import EVENT_TIME, PARTITION, TOPIC
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
from headwater.pipelines.operators.patterns.stored.pattern_versions import (
    PatternVersion,
    PatternVersions,
)
from headwater.pipelines.operators.patterns.stored.versioned_match import (
    ROW,
    RowValues,
    VersionedMatch,
    VersionState,
)
from headwater.pipelines.operators.runtime.contract import (
    OFFSET,
    ORIGIN,
    SHARED_COUNTERS,
    TIME,
    Input,
    State,
)
from headwater.pipelines.operators.runtime.lineage import Flags, flags_at, is_among
from headwater.pipelines.operators.state.compatibility import (
    check_settings_compatible,
    check_shared,
)
from headwater.pipelines.operators.state.fingerprints import NO_SETTING
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS
from headwater.pipelines.operators.state.sorted_rows import rescale_sorted_rows
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness, admit_and_advance, times_of
from headwater.pipelines.operators.time.watermarks import NEVER_US

_TABLE: Final = "table"  # in the document, as an as-of join has it
_IS_BEGUN: Final = "begun"
_PROCESSED: Final = "processed_us"  # rows and deadlines before it
_SIZES: Final = "sizes"  # of each version: keys and rows
_COUNTERS: Final = ("matches", "timed_out", "skips_without_target", "given_up", "undecided")


@dataclass(frozen=True, slots=True)
class _Found:
    version: PatternVersion
    results: MatchResults


@dataclass(frozen=True)
class StoredMatching:
    """The operator (contract.py)."""

    output: pa.Schema
    key: tuple[str, ...]
    rows: pa.Schema  # columns of the input that patterns may read, with those of the key
    pattern_key: str  # the patterns' id
    patterns: tuple[pa.Field, ...]  # their columns that are used, the id first
    time: EventTime
    lateness: Lateness
    is_stream: bool = field(metadata=NO_SETTING)
    topic: str = field(default="", metadata=NO_SETTING)  # in the positions of results

    @property
    def floors_us(self) -> Mapping[str, int]:
        return {EVENT_TIME: 0}

    def output_watermark_us(self, document: Mapping[str, Any]) -> int:
        processed_us: int = document.get(_PROCESSED, NEVER_US)
        return processed_us

    def with_topic(self, topic: str) -> "StoredMatching":
        return replace(self, topic=topic)

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        tables = [one.results.table for one in self._run(state, inputs)]
        if not tables:
            return self.output.empty_table()
        found = pa.concat_tables(tables)
        times = found[EVENT_TIME].cast(pa.int64()).to_numpy()
        return found.take(pa.array(np.argsort(times, kind="stable")))

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        for name in (_TABLE, _IS_BEGUN, _PROCESSED):
            check_shared(before, name)
        rescale_pending(before, after, share, self.key)
        after.put("patterns", before[0].table("patterns"))
        sizes: dict[str, list[int]] = {}
        versions = self._versions(after).all()
        for version in versions:
            if version.pattern is not None:
                sizes[version.name] = self._rescale_version(before, after, share, version)
        after.document[_SIZES] = sizes
        self._count_sizes(after)

    roles = ("event", "pattern")
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The events of the match, and the record of the pattern."""
        events, changes = inputs
        state = MemoryState()
        used: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        records = np.zeros(len(changes.rows), np.bool_)
        for found in self._run(state, inputs):
            table = found.results.table
            wanted = np.flatnonzero(is_among(table.columns, rows.columns))
            used += [found.results.members(int(row)) for row in wanted]
            if len(wanted):
                topic, partition, *_ = state.document[_TABLE][found.version.origin]
                origin = changes.origins.index((topic, partition))
                is_record = changes.rows[ORIGIN].to_numpy() == origin
                records |= is_record & (changes.rows[OFFSET].to_numpy() == found.version.offset)
        return flags_at(len(events.rows), np.concatenate(used)), records

    # ── rows past patterns ────────────────────────────────────────────────────────────────────

    def _run(self, state: State, inputs: tuple[Input, ...]) -> list[_Found]:
        """In the order of the patterns' ids."""
        events, changes = inputs
        self._check_compatible(state)
        admission = admit_and_advance(state, events, self.time, self.lateness, times_of(events) + 1)
        fresh = fresh_rows(events, admission.rows, self._pending_schema)
        versions = self._versions(state)
        read_us = self._read_patterns(state, versions, changes)
        processed_us: int = state.document.get(_PROCESSED, NEVER_US)
        if state.document[_IS_BEGUN]:
            processed_us = max(processed_us, min(admission.watermark_us, read_us))
        ready = ready_rows(state, fresh, processed_us, self.key)
        found = self._matched(state, versions, ready, processed_us)
        state.document[_PROCESSED] = processed_us
        for removed in versions.save(processed_us):
            VersionState(state, removed.name).remove()
            state.document[_SIZES].pop(removed.name, None)
        self._count_sizes(state)
        state.document[SHARED_COUNTERS] = versions.counts()
        return found

    def _read_patterns(self, state: State, versions: PatternVersions, changes: Input) -> int:
        """All changes of patterns before the time that it returns have been read."""
        progress = TableProgress(state.document.setdefault(_TABLE, []))
        is_begun = state.document.setdefault(_IS_BEGUN, False)
        versions.is_early = not is_begun
        valid_us = progress.of_rows(changes)
        add_versions(versions, changes, progress, (self.pattern_key,), self.patterns, valid_us)
        read_us = progress.before_us() if self.is_stream else END_US
        state.document[_IS_BEGUN] = is_begun or read_us == END_US
        return read_us

    def _matched(
        self, state: State, versions: PatternVersions, ready: pa.Table, now_us: int
    ) -> list[_Found]:
        ready = ready.append_column(ROW, pa.array(np.arange(len(ready)), pa.int64()))
        values = RowValues(ready)
        times = ready[TIME].to_numpy()
        sizes = state.document.setdefault(_SIZES, {})
        found = []
        for version in versions.all():
            if version.pattern is None or version.start_us >= min(version.end_us, now_us):
                continue
            is_held = (times >= version.start_us) & (times < version.end_us)
            rows = ready if is_held.all() else ready.filter(pa.array(is_held))
            settings = self._settings(version, values)
            if not sizes.get(version.name, (0, 0))[0] and not settings.can_begin(rows):
                continue
            of_version = VersionState(state, version.name)
            results = find_matches(settings, of_version, rows, min(now_us, version.end_us))
            if len(results.table):
                found.append(_Found(version, results))
            counters = of_version.counters
            if KEYS in counters:
                sizes[version.name] = [counters[KEYS], counters[ROWS]]
            for name in _COUNTERS:
                _count(state, name, counters.get(name, 0))
        _count(state, "undecided", values.undecided)
        return found

    def _settings(self, version: PatternVersion, values: RowValues) -> VersionedMatch:
        assert version.pattern is not None
        key = pa.schema([self.rows.field(name) for name in self.key])
        columns = [name for name in version.pattern.columns if name not in self.key]
        return VersionedMatch(
            self.key,
            version.pattern.rules,
            self.time,
            self.lateness,
            key,
            pa.schema([self.rows.field(name) for name in columns]),
            pa.schema([]),
            self.topic,
            version.id,
            version.pattern,
            values,
            self.output,
        )

    # ── state ─────────────────────────────────────────────────────────────────────────────────

    @property
    def _pending_schema(self) -> pa.Schema:
        position = [(TOPIC, pa.string()), (PARTITION, pa.int32()), (OFFSET, pa.int64())]
        return pa.schema([*self.rows, (TIME, pa.int64()), *position])

    def _versions(self, state: State) -> PatternVersions:
        return PatternVersions(state, self.pattern_key, self.patterns, self.rows)

    def _check_compatible(self, state: State) -> None:
        settings = f"patterns by {self.pattern_key}, rows by {self.key}"
        check_settings_compatible(state, "hw.match_stored", settings)

    def _rescale_version(
        self, before: Sequence[State], after: State, share: Share, version: PatternVersion
    ) -> list[int]:
        """Its keys and rows."""
        settings = self._settings(version, RowValues(self._pending_schema.empty_table()))
        states = [VersionState(state, version.name) for state in before]
        its = VersionState(after, version.name)
        return [
            rescale_sorted_rows(states, its, share, name, schema, self.key, words=words)
            for name, schema, words in (
                (KEYS, settings.keys_schema, WORDS),
                (ROWS, settings.row_schema, WORDS_OF_ROW),
            )
        ]

    @staticmethod
    def _count_sizes(state: State) -> None:
        sizes = state.document[_SIZES].values()
        state.counters[KEYS] = sum(keys for keys, _ in sizes)
        state.counters[ROWS] = sum(rows for _, rows in sizes)


def _count(state: State, name: str, count: int) -> None:
    state.counters[name] = state.counters.get(name, 0) + count
