"""The search operator: documents past stored queries, each as the query was at the document's time.

The first input is the documents, which every bucket gets; the second is the changes of the queries,
by buckets of their ids. As in an as-of join, a document is pending until the queries' partitions
have passed its time, or were read to their end. So its matches are a fact of the two logs.

The state has the queries. Their index is derived from it when a process first needs it, and then
follows the changes, in memory (`State.cache`); a digest of the changes in the state's document says
whether the index in memory is that of the state.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.joins.as_of_join import AS_OF
from headwater.pipelines.operators.joins.pending_events import PENDING_UNTIL, PendingEvents
from headwater.pipelines.operators.joins.tables.keyed_table import DELETED, VALID, KeyedTable
from headwater.pipelines.operators.joins.tables.table_progress import (
    END_US,
    TableProgress,
    add_versions,
)
from headwater.pipelines.operators.joins.tables.table_versions import TableVersions
from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, Input, State
from headwater.pipelines.operators.runtime.lineage import Flags, flags_at, tag_of, tagged
from headwater.pipelines.operators.state.compatibility import (
    check_settings_compatible,
    check_shared,
)
from headwater.pipelines.operators.state.fingerprints import NO_SETTING
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.watermarks import NEVER_US
from headwater.pipelines.position import POSITION
from headwater.pipelines.search import frequencies, highlights
from headwater.pipelines.search.documents import Document, path_of
from headwater.pipelines.search.frequencies import Frequencies
from headwater.pipelines.search.notice_limits import LIMIT, TIME, NoticeLimits, without_limit
from headwater.pipelines.search.query_index import QueryIndex, Version
from headwater.sinks.contract import DELETE, OP, TRUNCATE

QUERY_ID: Final = "query_id"
OWNER: Final = "owner"
TARGET: Final = "target"
HIGHLIGHTS: Final = "highlights"
SCORE: Final = "score"
_TABLE: Final = "table"  # in the document, as an as-of join has it
_DIGEST: Final = "queries"
_OLDEST: Final = "oldest_us"
_DOCUMENTS: Final = "documents"
_SAMPLED: Final = "sampled"  # the number of documents at the last sample
_FREQUENCIES: Final = "frequencies"  # a table
_SAMPLE: Final = 2_000  # documents
_INDEX: Final = "index"  # in the cache
_CREATE: Final = "c"
_PENDING: Final = "waiting"
_DONE: Final = Document({}, ())
_GAUGES: Final = (
    "queries",
    "unindexed_queries",
    "refused_queries",
    "versions",
    "limited_waiting",
    _PENDING,
)


@dataclass(frozen=True)
class SearchOperator:
    """Operator (contract.py)."""

    output: pa.Schema
    documents: tuple[str, ...] = field(metadata=NO_SETTING)  # columns of the result
    texts: tuple[str, ...]
    key: str  # the queries' id
    queries: tuple[pa.Field, ...]  # their columns that are used, the id first
    language: str
    marks: tuple[str, str]
    fragments: int
    has_score: bool
    time: EventTime
    is_stream: bool = field(metadata=NO_SETTING)

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        documents, changes = inputs
        self._check_compatible(state)
        table = KeyedTable(state, (self.key,), self.queries)
        table_progress = TableProgress(state.document.setdefault(_TABLE, []))
        truncations = len(table.truncations)
        valid_us = table_progress.of_rows(changes)
        added = add_versions(table, changes, table_progress, (self.key,), self.queries, valid_us)
        is_changed = bool(len(added)) or len(table.truncations) > truncations
        watermarks = self.time.watermarks(state.document.get("events"))
        asking = self._asking(documents, watermarks.of_rows(documents) + self.time.delay_us)
        watermarks.advance(documents.progress, documents.now_us)
        state.document["events"] = watermarks.to_json()
        pending = PendingEvents(state, ())
        before_us = table_progress.before_us() if self.is_stream else END_US
        ready = pending.release(asking, before_us, AS_OF)
        matches = self._no_matches
        if is_changed or len(ready):
            index = self._index(state, table, added, is_changed=is_changed)
            matches = self._matches(state, index, ready) if len(ready) else matches
            state.counters |= index.counts()
        limits = NoticeLimits(state, QUERY_ID)
        oldest_us = pending.oldest_us()
        admitted = limits.admitted(
            matches,
            watermarks,
            documents.now_us,
            pending_us=oldest_us,
            is_last=not self.is_stream,
        )
        needed_us = watermarks.now_us if oldest_us is None else min(watermarks.now_us, oldest_us)
        table.save(needed_us, before_us)
        state.document[_OLDEST] = needed_us
        state.counters[_PENDING] = len(pending)
        state.counters["versions"] = len(table)
        found = pa.concat_tables([without_limit(matches), admitted])
        return found.select(self.output.names)

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        check_shared(before, _TABLE)
        tables = [KeyedTable(state, (self.key,), self.queries) for state in before]
        for name in _GAUGES:
            after.counters[name] = 0  # until the next document
        after.counters["versions"] = KeyedTable(after, (self.key,), self.queries).rescale(
            tables, share
        )
        after.counters[_PENDING] = PendingEvents(after, ()).copy(before[0])
        NoticeLimits(after, QUERY_ID).rescale(before, share)
        after.put(_FREQUENCIES, before[0].table(_FREQUENCIES))
        digests = [str(state.document.get(_DIGEST, "")) for state in before]
        after.document[_DIGEST] = _digest(*digests, str(share.bucket), str(share.buckets))

    roles = ("document", "query")
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The document, and the version of the query that it has matched. Of the rows, those whose
        query is in this bucket.
        """
        documents, changes = inputs
        seen_us = self.time.watermarks(None).of_rows(documents) + self.time.delay_us
        numbers = {
            (*documents.origins[origin], offset): number
            for number, (origin, offset) in enumerate(
                zip(
                    documents.rows[ORIGIN].to_pylist(),
                    documents.rows[OFFSET].to_pylist(),
                    strict=True,
                )
            )
        }
        in_bucket = pc.is_in(rows[QUERY_ID], changes.rows[self.key].combine_chunks())
        rows = rows.filter(in_bucket)
        places = [
            (position["topic"], position["partition"], position["offset"])
            for position in rows[POSITION].to_pylist()
        ]
        used = np.array([numbers[place] for place in places], np.int64)
        columns = (*self.queries, tag_of(1))
        table, progress = TableVersions((self.key,), columns), TableProgress([])
        traced = tagged(changes, 1)
        add_versions(table, traced, progress, (self.key,), columns, progress.of_rows(traced))
        versions = table.used(changes, [rows[QUERY_ID]], seen_us[used])
        return flags_at(len(documents.rows), used), flags_at(len(changes.rows), versions)

    def _check_compatible(self, state: State) -> None:
        check_settings_compatible(state, "a search", f"queries by {self.key}")

    @property
    def _no_matches(self) -> pa.Table:
        return pa.schema([*self.output, (LIMIT, pa.int64()), (TIME, pa.int64())]).empty_table()

    def _asking(self, documents: Input, seen_us: npt.NDArray[np.int64]) -> pa.Table:
        """Documents with their time in the log, without deletes."""
        rows = documents.rows
        asking = rows.select(list(self.documents))
        asking = asking.append_column(AS_OF, pa.array(seen_us))
        asking = asking.append_column(PENDING_UNTIL, pa.array(seen_us))
        is_gone = pc.is_in(rows[OP].combine_chunks(), pa.array([DELETE, TRUNCATE]))
        return asking.filter(pc.invert(is_gone))

    def _index(
        self, state: State, table: KeyedTable, added: pa.Table, *, is_changed: bool
    ) -> QueryIndex:
        """With the changes of this batch: that of the batch before, if this process has it."""
        before = after = state.document.get(_DIGEST, "")
        if is_changed:
            after = state.document[_DIGEST] = _changed(before, added, table)
        settings = self.texts, self.documents, self.language
        cached = state.cache.get(_INDEX)
        if not isinstance(cached, _CachedIndex) or cached.settings != settings:
            cached = None
        if cached is None or cached.digest not in (before, after):
            index = QueryIndex(self.texts, self.documents, self.language)
            cached = _CachedIndex(index, settings, before)
            for version in _versions(table.versions_of(Share(0, 1)), self.key):
                index.add(version)
        if cached.digest != after:
            for version in _versions(added, self.key):
                cached.index.add(version)
        for truncation in table.truncations:
            cached.index.truncate(truncation)
        # By the times before this batch: it may run again, in this process.
        cached.index.remove_superseded(state.document.get(_OLDEST, NEVER_US))
        cached.digest = after
        state.cache[_INDEX] = cached
        return cached.index

    def _matches(self, state: State, index: QueryIndex, ready: pa.Table) -> pa.Table:
        names = dict.fromkeys([*(path_of(name)[0] for name in self.texts), *index.columns])
        paths = [path_of(name) for name in self.texts]
        columns = ready.select(list(names)).to_pylist()
        documents = [Document(of_document, paths) for of_document in columns]
        self._sample(state, index, documents)
        found: list[tuple[int, Version]] = []
        fragments, scores = [], []
        candidates = cut = 0
        at = ready[AS_OF].to_pylist()
        for row, document in enumerate(documents):
            matches, tested = index.matches(document, at[row])
            candidates += tested
            for version in matches:
                assert version.condition is not None
                found.append((row, version))
                if self.fragments:
                    fragments.append(
                        highlights.fragments(
                            document, version.condition, self.marks, self.fragments
                        )
                    )
                if self.has_score:
                    scores.append(highlights.score(document, version.condition))
            cut += document.is_cut
            documents[row] = _DONE  # what was computed of it is not needed any more
        for name, count in (("candidates", candidates), ("matches", len(found)), ("cut", cut)):
            state.counters[name] = state.counters.get(name, 0) + count
        return self._result(ready, found, fragments, scores)

    def _sample(self, state: State, index: QueryIndex, documents: Sequence[Document]) -> None:
        before = state.document.get(_DOCUMENTS, 0)
        state.document[_DOCUMENTS] = after = before + len(documents)
        stored = state.document.get(_SAMPLED, 0)
        if frequencies.is_due(before, after):
            known = Frequencies(state.table(_FREQUENCIES))
            known.sample(documents[:_SAMPLE], index.languages, index.paths)
            state.put(_FREQUENCIES, known.to_table())
            stored = state.document[_SAMPLED] = after
        if stored and index.sampled != stored:
            index.set_frequencies(Frequencies(state.table(_FREQUENCIES)), stored)

    def _result(
        self,
        ready: pa.Table,
        found: Sequence[tuple[int, Version]],
        fragments: Sequence[Sequence[str]],
        scores: Sequence[float],
    ) -> pa.Table:
        if not found:
            return self._no_matches
        schema = self._no_matches.schema
        rows = ready.take(pa.array([row for row, _ in found], pa.int64()))
        versions = [version for _, version in found]
        columns: dict[str, Any] = {
            QUERY_ID: [version.id for version in versions],
            OWNER: [version.row.get(OWNER) for version in versions],
            TARGET: [version.row.get(TARGET) for version in versions],
            HIGHLIGHTS: fragments,
            SCORE: scores,
            LIMIT: [version.row.get("limit") for version in versions],
            OP: [_CREATE] * len(found),
        }
        arrays = []
        for column in schema:
            if column.name in columns:
                arrays.append(pa.array(columns[column.name], column.type))
            else:
                arrays.append(rows[AS_OF if column.name == TIME else column.name])
        return pa.Table.from_arrays(arrays, schema=schema)


@dataclass
class _CachedIndex:
    index: QueryIndex
    settings: tuple[Any, ...]
    digest: str  # of the changes that it has


def _versions(rows: pa.Table, key: str) -> Iterator[Version]:
    for row in rows.to_pylist():
        yield Version(row[key], row, row[VALID], row[OFFSET], row[ORIGIN], row[DELETED])


def _changed(before: str, added: pa.Table, table: KeyedTable) -> str:
    """The digest after these changes. A record is identified by its position."""
    positions = [added[name].to_numpy().tobytes() for name in (ORIGIN, OFFSET)]
    return _digest(before, repr(table.truncations), *(part.hex() for part in positions))


def _digest(*parts: str) -> str:
    return hashlib.sha256("|".join(parts).encode()).hexdigest()
