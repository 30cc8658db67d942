"""As-of join of events with a versioned table: each event gets the row valid at its time.

A version of a row is valid from a time on, and the table's partitions are read in that order; an
event is pending until all of them are past its time, or have been read to their end. So its row is
a fact of the two logs, and does not depend on which was read first. Events of a partition leave in
their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.joins.pending_events import PENDING_UNTIL, PendingEvents
from headwater.pipelines.operators.joins.tables.keyed_table import KeyedTable
from headwater.pipelines.operators.joins.tables.table_progress import (
    END_US,
    TableProgress,
    add_versions,
)
from headwater.pipelines.operators.joins.tables.table_versions import TableVersions
from headwater.pipelines.operators.runtime.contract import (
    FAULT,
    TIME,
    Input,
    State,
)
from headwater.pipelines.operators.runtime.lineage import Flags, flags_at, is_among, tag_of, tagged
from headwater.pipelines.operators.runtime.watermark_rows import watermark_before
from headwater.pipelines.operators.state.compatibility import (
    check_settings_compatible,
    check_shared,
)
from headwater.pipelines.operators.state.fingerprints import NO_SETTING
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.stamping import epoch_us
from headwater.pipelines.operators.time.watermarks import NEVER_US
from headwater.sinks.contract import DELETE, OP, TRUNCATE

AS_OF: Final = "__as_of"  # int64: the time of the wanted version; NEVER_US: nothing is valid then
_TABLE: Final = "table"  # in the document
_PENDING, _VERSIONS = "waiting", "versions"  # counters
_AT: Final = "_at"
_UPDATE: Final = "u"
_PASSED_ON: Final = "passed_on_us"  # in the document


@dataclass(frozen=True)
class AsOfJoin:
    """Operator (contract.py). The first input is the events, the second the table's changes."""

    output: pa.Schema
    events: tuple[str, ...] = field(metadata=NO_SETTING)  # columns of the result
    event_key: tuple[str, ...]
    table_key: tuple[str, ...]
    table: tuple[pa.Field, ...]  # the key's columns, and those of the result
    # The table's that the result has, behind the events'.
    columns: tuple[str, ...] = field(metadata=NO_SETTING)
    is_inner: bool
    time: EventTime  # of events
    is_log_time: bool  # as of the time at which events came into the log, else of their own
    valid_from: str | None  # the column with the start of validity; None: `_at`
    keep_us: int  # how far behind its partition's time an event's own may be
    is_stream: bool = field(metadata=NO_SETTING)  # `why` calls it as the running pipeline does
    chosen: tuple[str, ...] = ()  # columns of the table, if the user chose some
    # Of the events' times that the operator before has promised.
    floors: tuple[tuple[str, int], ...] = field(default=(), metadata=NO_SETTING)

    @property
    def floors_us(self) -> Mapping[str, int]:
        return dict(self.floors)

    def output_watermark_us(self, document: Mapping[str, Any]) -> int:
        """That of the operator before, up to which all events have left."""
        watermark_us: int = document.get(_PASSED_ON, NEVER_US)
        return watermark_us

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        events, changes = inputs
        self._check_compatible(state)
        table = KeyedTable(state, self.table_key, self.table)
        table_progress = TableProgress(state.document.setdefault(_TABLE, []))
        self._add_versions(table, changes, table_progress)
        watermarks = self.time.watermarks(state.document.get("events"))
        asking = self._asking(state, events, watermarks.of_rows(events) + self.time.delay_us)
        watermarks.advance(events.progress, events.now_us)
        state.document["events"] = watermarks.to_json()
        pending = PendingEvents(state, self.event_key)
        before_us = table_progress.before_us() if self.is_stream else END_US
        ready = pending.release(asking, before_us, AS_OF)
        result = self._joined(state, table, ready)
        needed_us = watermarks.now_us - self.keep_us
        oldest_us = pending.oldest_us()
        table.save(needed_us if oldest_us is None else min(needed_us, oldest_us), before_us)
        before = watermark_before(events.progress)
        if before is not None and not len(pending):
            state.document[_PASSED_ON] = before
        state.counters[_PENDING] = len(pending)
        state.counters[_VERSIONS] = len(table)
        return result

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        check_shared(before, _TABLE)
        tables = [KeyedTable(state, self.table_key, self.table) for state in before]
        after.counters[_VERSIONS] = KeyedTable(after, self.table_key, self.table).rescale(
            tables, share
        )
        pending = PendingEvents(after, self.event_key)
        after.counters[_PENDING] = pending.rescale(before, share, AS_OF)
        after.document.pop(_PASSED_ON, None)
        passed_on = [self.output_watermark_us(state.document) for state in before]
        if NEVER_US not in passed_on:  # else a bucket has promised nothing yet
            after.document[_PASSED_ON] = min(passed_on)

    def _check_compatible(self, state: State) -> None:
        settings = f"{self.event_key} to {self.table_key}, {self.chosen or 'all'} columns, "
        settings += "by log" if self.is_log_time else f"as of, by {self.valid_from or _AT}"
        check_settings_compatible(state, "an enrichment", f"{settings}, kept {self.keep_us} us")

    def _add_versions(
        self, table: KeyedTable, changes: Input, table_progress: TableProgress
    ) -> None:
        valid_us = self._valid_us(changes, table_progress)
        add_versions(table, changes, table_progress, self.table_key, self.table, valid_us)

    def _valid_us(self, changes: Input, table_progress: TableProgress) -> npt.NDArray[np.int64]:
        """Changes of a partition are valid in their order: from the time in the column
        `valid_from`, if there is one; deletes, which have no row, from their time in the log.
        """
        if self.valid_from is None:
            return table_progress.of_rows(changes)
        rows = changes.rows
        at, from_column = (epoch_us(rows[name].combine_chunks()) for name in (_AT, self.valid_from))
        op = rows[OP].combine_chunks().fill_null("")
        is_by_log = pc.is_in(op, pa.array([DELETE, TRUNCATE]))
        valid = pc.if_else(is_by_log, at, from_column)
        found: npt.NDArray[np.int64] = valid.fill_null(NEVER_US).to_numpy()
        return found

    def _asking(self, state: State, events: Input, seen_us: npt.NDArray[np.int64]) -> pa.Table:
        """`seen_us`: the latest time of the event's partition up to and with it. The event is
        pending until the table is past it, so that no event overtakes another.
        """
        rows = events.rows
        if self.is_log_time:
            as_of = seen_us
        else:
            as_of = rows[TIME].fill_null(NEVER_US).to_numpy()
            has_time = rows[FAULT].to_numpy() == 0
            is_too_old = has_time & (as_of < seen_us - self.time.delay_us - self.keep_us)
            _count(state, "without_time", int((~has_time).sum()))
            _count(state, "too_old", int(is_too_old.sum()))
            as_of = np.where(has_time & ~is_too_old, as_of, NEVER_US)
        asking = rows.select(list(dict.fromkeys((*self.events, *self.event_key))))
        asking = asking.append_column(AS_OF, pa.array(as_of))
        return asking.append_column(PENDING_UNTIL, pa.array(seen_us))

    def _joined(self, state: State, table: KeyedTable, ready: pa.Table) -> pa.Table:
        if not len(ready):
            return self.output.empty_table()
        keys = [ready[name] for name in self.event_key]
        found = table.find(keys, ready[AS_OF].to_numpy())
        columns = [*(ready[name] for name in self.events), *found.columns(self.columns)]
        result = pa.Table.from_arrays(columns, schema=self.output)
        is_found = found.is_found
        _count(state, "unmatched", int((~is_found).sum()))
        return self._inner(result, is_found) if self.is_inner else result

    def _inner(self, result: pa.Table, is_found: npt.NDArray[np.bool_]) -> pa.Table:
        """Events without a row are left out. But a store that has the event from before must remove
        it: an update becomes a delete, and deletes go through.
        """
        if OP not in result.column_names or is_found.all():
            return result.filter(pa.array(is_found))
        op = result[OP].combine_chunks().fill_null("")
        is_lost = pc.and_(pc.equal(op, _UPDATE), pa.array(~is_found))
        op = pc.if_else(is_lost, DELETE, op)
        result = result.set_column(result.column_names.index(OP), OP, op)
        is_delete = pc.is_in(op, pa.array([DELETE, TRUNCATE]))
        return result.filter(pc.or_(pa.array(is_found), is_delete))

    roles = ("event", "table row")
    is_exact = True

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The event, and the version of the table's row that it found: where there is no row, the
        change that removed it, if there is one. A deleted event does not depend on the table.
        """
        events, changes = inputs
        names = [name for name in self.events if name != OP]  # an inner join may have changed it
        is_wanted = is_among(events.rows.select(names).columns, rows.select(names).columns)
        seen_us = self.time.watermarks(None).of_rows(events) + self.time.delay_us
        is_asking = pa.array(is_wanted)
        if OP in self.events:
            is_deleted = pc.is_in(events.rows[OP].combine_chunks(), pa.array([DELETE, TRUNCATE]))
            is_asking = pc.and_(is_asking, pc.invert(is_deleted))
        asking = self._asking(MemoryState(), events, seen_us).filter(is_asking)
        keys = [asking[name] for name in self.event_key]
        traced = replace(self, table=(*self.table, tag_of(1)))
        table = TableVersions(self.table_key, traced.table)
        traced._add_versions(table, tagged(changes, 1), TableProgress([]))  # noqa: SLF001 (its own)
        used = table.used(changes, keys, asking[AS_OF].to_numpy())
        return is_wanted, flags_at(len(changes.rows), used)


def _count(state: State, name: str, count: int) -> None:
    state.counters[name] = state.counters.get(name, 0) + count
