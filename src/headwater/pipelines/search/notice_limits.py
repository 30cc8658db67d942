"""Limits of notices: of a query's matches in an hour only the first ones are emitted.

Which ones are the first must not depend on how fast partitions are read. So matches of queries with
a limit wait in the state until every other partition of the documents has passed their time, and no
document before them waits for queries; then they are counted in the order of time, topic, partition
and offset. Hours are those of the
documents' time in the log, in UTC. (A partition that is idle is not waited for, as for windows.)
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import State
from headwater.pipelines.operators.state.column_evolution import with_columns_of
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.time.watermarks import Watermarks
from headwater.pipelines.position import POSITION

LIMIT: Final = "__limit"  # int64; null: none
TIME: Final = "__matched_us"  # int64: the document's time in the log
_WAITING: Final = "limited"  # tables of the state
_COUNTS: Final = "notices"
_HOUR_US: Final = 3_600_000_000
_HOURS: Final = 2  # that counts are retained for, behind the slowest partition


def without_limit(matches: pa.Table) -> pa.Table:
    """Those that need not wait."""
    return matches.filter(matches[LIMIT].is_null())


class NoticeLimits:
    """Of one bucket, in one batch."""

    def __init__(self, state: State, query_id: str) -> None:
        self._state = state
        self._query_id = query_id

    def admitted(
        self,
        matches: pa.Table,
        watermarks: Watermarks,
        now_us: int,
        *,
        pending_us: int | None,
        is_last: bool,
    ) -> pa.Table:
        """Matches with limits whose turn is decided now, those of earlier batches among them,
        without those above the limits. `pending_us`: the least time of a document that waits for
        queries. `is_last`: no other documents will come.
        """
        new = matches.filter(matches[LIMIT].is_valid())
        stored = self._state.table(_WAITING)
        if stored is None and not len(new):
            return new
        if stored is not None:
            stored = with_columns_of(new.schema, stored, (self._query_id,))
            new = pa.concat_tables([stored, new])
        is_ready = np.ones(len(new), np.bool_)
        if not is_last:
            is_ready = _is_ready(new, watermarks, now_us)
            if pending_us is not None:
                is_ready &= new[TIME].to_numpy() < pending_us
        left = new.filter(pa.array(~is_ready))
        if len(left) or stored is not None:
            self._state.put(_WAITING, left if len(left) else None)
        self._state.counters["limited_waiting"] = len(left)
        ready = new.filter(pa.array(is_ready))
        return self._counted(ready, watermarks.now_us) if len(ready) else ready

    def rescale(self, before: Sequence[State], share: Share) -> None:
        for name in (_WAITING, _COUNTS):
            tables = [table for state in before if (table := state.table(name)) is not None]
            if tables:
                rows = pa.concat_tables(tables, promote_options="default")
                rows = rows.filter(pa.array(share.of_rows(rows, [self._query_id])))
                self._state.put(name, rows if len(rows) else None)
                if name == _WAITING:
                    self._state.counters["limited_waiting"] = len(rows)

    def _counted(self, ready: pa.Table, watermark_us: int) -> pa.Table:
        counts: dict[tuple[Any, int], int] = {}
        stored = self._state.table(_COUNTS)
        if stored is not None:
            ids, hours, numbers = (column.to_pylist() for column in stored.columns)
            counts = dict(zip(zip(ids, hours, strict=True), numbers, strict=True))
        ready = ready.take(pa.array(_order(ready)))
        is_kept = []
        for key, limit, at_us in zip(
            ready[self._query_id].to_pylist(),
            ready[LIMIT].to_pylist(),
            ready[TIME].to_pylist(),
            strict=True,
        ):
            slot = key, at_us // _HOUR_US
            count = counts.get(slot, 0)
            is_kept.append(count < limit)
            if count < limit:
                counts[slot] = count + 1
        oldest = watermark_us // _HOUR_US - _HOURS
        entries = [(*slot, count) for slot, count in counts.items() if slot[1] >= oldest]
        self._state.put(_COUNTS, self._to_table(entries, ready.schema))
        _count(self._state, "above_limit", len(is_kept) - sum(is_kept))
        return ready.filter(pa.array(is_kept, pa.bool_()))

    def _to_table(self, entries: Sequence[tuple[Any, int, int]], schema: pa.Schema) -> pa.Table:
        kinds = [schema.field(self._query_id).type, pa.int64(), pa.int64()]
        columns = list(zip(*entries, strict=True)) or [(), (), ()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        return pa.table(arrays, names=[self._query_id, "hour", "notices"])


def _is_ready(matches: pa.Table, watermarks: Watermarks, now_us: int) -> "np.ndarray[Any, Any]":
    """All documents that come before theirs in the order have been read."""
    reached: dict[tuple[str, int], int | None] = {}
    ready = []
    for position, at_us in zip(
        matches[POSITION].to_pylist(), matches[TIME].to_pylist(), strict=True
    ):
        origin = position["topic"], position["partition"]
        if origin not in reached:
            reached[origin] = watermarks.complete_before(origin, now_us)
        before_us = reached[origin]
        ready.append(before_us is None or at_us < before_us)
    return np.array(ready, np.bool_)


def _order(matches: pa.Table) -> list[int]:
    places = [
        (at_us, position["topic"], position["partition"], position["offset"])
        for at_us, position in zip(
            matches[TIME].to_pylist(), matches[POSITION].to_pylist(), strict=True
        )
    ]
    return sorted(range(len(places)), key=places.__getitem__)


def _count(state: State, name: str, count: int) -> None:
    state.counters[name] = state.counters.get(name, 0) + count
