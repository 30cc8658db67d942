"""Stored patterns in a state: versions of their definitions, and from when until when each holds.

A version holds for rows by their event time: from when it was stored (its time in the log), or from
what its definition says, until the next version of its id holds, or the pattern is dropped. A
version that says an earlier time, or "start", is refused if rows may have been processed before it
was read: they are not stored any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.joins.tables.keyed_table import DELETED, VALID, Truncation
from headwater.pipelines.operators.patterns.stored.definitions import (
    CompiledPattern,
    compiled_row,
)
from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, State
from headwater.pipelines.operators.state.column_evolution import with_columns_of

_TABLE: Final = "patterns"
_TRUNCATED: Final = "patterns_truncated"  # in the document
_IS_EARLY: Final = "__early"  # it was read before any row was processed
_ADDED: Final = (
    (VALID, pa.int64()),
    (DELETED, pa.bool_()),
    (ORIGIN, pa.int32()),
    (OFFSET, pa.int64()),
    (_IS_EARLY, pa.bool_()),
)
END_US: Final = 2**62


@dataclass(frozen=True)
class PatternVersion:
    """A definition that holds for rows from `start_us` on, before `end_us`."""

    id: Any
    origin: int
    offset: int
    pattern: CompiledPattern | None  # None: it is dropped, or refused
    error: PipelineError | None
    start_us: int
    end_us: int

    @property
    def name(self) -> str:
        """Of its tables in the state: the position of its record."""
        return f"p{self.origin}-{self.offset}"


class PatternVersions:
    """Of one bucket, in one batch. All buckets have the same."""

    def __init__(
        self, state: State, key: str, fields: Sequence[pa.Field], columns: pa.Schema
    ) -> None:
        """`fields`: the topic's that are used, the id first; `columns`: those of the rows."""
        self._state = state
        self._key = key
        self._fields = [field.name for field in fields]
        self._columns = columns
        self._schema = pa.schema([*fields, *(pa.field(*column) for column in _ADDED)])
        stored = state.table(_TABLE)
        if stored is None:
            stored = self._schema.empty_table()
        self._rows: list[dict[str, Any]] = with_columns_of(self._schema, stored, (key,)).to_pylist()
        self._truncations = [Truncation(*entry) for entry in state.document.get(_TRUNCATED, ())]
        self._is_changed = False
        self._all: list[PatternVersion] | None = None
        self.is_early = False  # versions that are added now are read before any row is processed

    def add(self, versions: pa.Table) -> None:
        """As of `add_versions`."""
        for row in versions.to_pylist():
            self._rows.append({**row, _IS_EARLY: self.is_early})
            self._is_changed, self._all = True, None

    def truncate(self, origin: int, offset: int, valid_us: int) -> None:
        self._truncations.append(Truncation(origin, offset, valid_us))
        self._is_changed, self._all = True, None

    def all(self) -> list[PatternVersion]:
        """By id, in their order."""
        if self._all is None:
            self._all = self._spans()
        return self._all

    def _spans(self) -> list[PatternVersion]:
        by_id: dict[Any, list[dict[str, Any]]] = {}
        for row in self._rows:
            by_id.setdefault(row[self._key], []).append(row)
        found: list[PatternVersion] = []
        for id_ in sorted(by_id, key=str):
            end_us = END_US
            of_id = []
            for row in sorted(by_id[id_], key=_order, reverse=True):
                pattern, error, start_us = self._read(row)
                end_us_of_row = min([end_us, *self._truncated_us(row)])
                version = PatternVersion(
                    id_, row[ORIGIN], row[OFFSET], pattern, error, start_us, end_us_of_row
                )
                of_id.append(version)
                end_us = min(end_us, start_us)
            found += reversed(of_id)
        return found

    def save(self, before_us: int) -> list[PatternVersion]:
        """Removes those that no row from `before_us` on can need, and returns them."""
        removed = [version for version in self.all() if version.end_us <= before_us]
        last_dropped = self._dropped_before(before_us)
        if removed or last_dropped:
            gone = {(version.origin, version.offset) for version in removed} | last_dropped
            self._rows = [row for row in self._rows if (row[ORIGIN], row[OFFSET]) not in gone]
            self._is_changed, self._all = True, None
        if self._is_changed:
            table = pa.Table.from_pylist(self._rows, self._schema)
            self._state.put(_TABLE, table if len(table) else None)
            self._truncations = [one for one in self._truncations if one.valid_us > before_us]
            self._state.document[_TRUNCATED] = [
                [one.origin, one.offset, one.valid_us] for one in self._truncations
            ]
        return removed

    def counts(self) -> dict[str, int]:
        """Patterns that are stored, and of them those that are refused."""
        last = {version.id: version for version in self.all()}
        is_there = [one for one in last.values() if one.end_us == END_US and not _is_dropped(one)]
        refused = sum(one.error is not None for one in is_there)
        return {"patterns": len(is_there), "refused_patterns": refused}

    def _read(
        self, row: Mapping[str, Any]
    ) -> tuple[CompiledPattern | None, PipelineError | None, int]:
        valid_us: int = row[VALID]
        if row[DELETED]:
            return None, None, valid_us
        found = compiled_row(tuple((name, row[name]) for name in self._fields), self._columns)
        if isinstance(found, PipelineError):
            return None, found, valid_us
        start_us = valid_us if found.begins_us is None else found.begins_us
        if start_us < valid_us and not row[_IS_EARLY]:
            return None, too_late(found.definition.begins), valid_us
        return found, None, start_us

    def _truncated_us(self, row: Mapping[str, Any]) -> list[int]:
        return [
            one.valid_us
            for one in self._truncations
            if (
                row[OFFSET] < one.offset if row[ORIGIN] == one.origin else row[VALID] < one.valid_us
            )
        ]

    def _dropped_before(self, before_us: int) -> set[tuple[int, int]]:
        """Last versions of their ids by which patterns were dropped."""
        return {
            (version.origin, version.offset)
            for version in self.all()
            if _is_dropped(version) and version.start_us <= before_us
        }


def too_late(begins: str) -> PipelineError:
    return PipelineError(
        f"from={begins!r}: rows from before the pattern was stored were processed, and are not"
        " stored any more",
        hint="from=now; or rebuild the pipeline, which reads the topic from its start again",
    )


def _is_dropped(version: PatternVersion) -> bool:
    return version.pattern is None and version.error is None


def _order(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return row[VALID], row[OFFSET], row[ORIGIN]
