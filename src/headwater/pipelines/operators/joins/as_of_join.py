"""As-of join of events with a versioned table: each event gets the row valid at its time.

A version of a row is valid from a time on, and the table's partitions are read in that order; an
event is pending until all of them are past its time, or have been read to their end. So its row is
a fact of the two logs, and does not depend on which was read first. Events of a partition leave in
their order.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.joins.keyed_table import DELETED, VALID, KeyedTable
from headwater.pipelines.operators.joins.pending_events import PENDING_UNTIL, PendingEvents
from headwater.pipelines.operators.joins.table_versions import TableVersions
from headwater.pipelines.operators.runtime.contract import (
    FAULT,
    OFFSET,
    ORIGIN,
    SEEN,
    TIME,
    Input,
    PartitionProgress,
    State,
)
from headwater.pipelines.operators.runtime.lineage import Flags, flags_at, is_among, tag_of, tagged
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.fingerprints import NO_SETTING
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.stamping import epoch_us
from headwater.pipelines.operators.time.watermarks import NEVER_US
from headwater.pipelines.source.progress import READ_TO_END, READ_TO_HERE
from headwater.sinks.contract import DELETE, OP, TRUNCATE

AS_OF: Final = "__as_of"  # int64: the time of the wanted version; NEVER_US: nothing is valid then
END_US: Final = 2**62
_AT: Final = "_at"
_UPDATE: Final = "u"


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

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        events, changes = inputs
        settings = f"{self.event_key} to {self.table_key}, {self.chosen or 'all'} columns, "
        settings += "by log" if self.is_log_time else f"as of, by {self.valid_from or _AT}"
        check_settings_compatible(state, "an enrichment", f"{settings}, kept {self.keep_us} us")
        table = KeyedTable(state, self.table_key, self.table)
        table_progress = _TableProgress(state.document.setdefault("table", []))
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
        state.counters["waiting"] = len(pending)
        state.counters["versions"] = len(table)
        return result

    def _add_versions(
        self, table: KeyedTable, changes: Input, table_progress: "_TableProgress"
    ) -> None:
        rows = changes.rows
        origins = table_progress.codes(changes.origins)
        valid_us = self._valid_us(changes, table_progress)
        table_progress.advance(changes)
        if not len(rows):
            return
        op = rows[OP].combine_chunks().fill_null("").to_numpy(zero_copy_only=False)
        origin = origins[rows[ORIGIN].to_numpy()]
        for row in np.flatnonzero(op == TRUNCATE).tolist():
            table.truncate(int(origin[row]), rows[OFFSET][row].as_py(), int(valid_us[row]))
        is_version = ~np.isin(op, (TRUNCATE, READ_TO_END, READ_TO_HERE))
        for name in self.table_key:
            is_version &= rows[name].is_valid().to_numpy()
        versions = rows.select([column.name for column in self.table])
        added: dict[str, Any] = {
            VALID: valid_us,
            DELETED: op == DELETE,
            ORIGIN: origin.astype(np.int32),
            OFFSET: rows[OFFSET],
        }
        for name, column in added.items():
            versions = versions.append_column(
                name, column if isinstance(column, pa.ChunkedArray) else pa.array(column)
            )
        table.add(versions.filter(pa.array(is_version)))

    def _valid_us(self, changes: Input, table_progress: "_TableProgress") -> npt.NDArray[np.int64]:
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
        traced._add_versions(table, tagged(changes, 1), _TableProgress([]))  # noqa: SLF001 (its own)
        used = table.used(changes, keys, asking[AS_OF].to_numpy())
        return is_wanted, flags_at(len(changes.rows), used)


class _TableProgress:
    """How far the table's partitions have been read. In the state: [topic, partition, the latest
    time, whether that was the end of the log]; the index in the list is the partition's code.
    """

    def __init__(self, partitions: list[list[Any]]) -> None:
        self._partitions = partitions
        self._codes = {
            (partition[0], partition[1]): code for code, partition in enumerate(partitions)
        }

    def codes(self, origins: Iterable[tuple[str, int]]) -> npt.NDArray[np.int64]:
        return np.array([self._code(*origin) for origin in origins], np.int64)

    def of_rows(self, changes: Input) -> npt.NDArray[np.int64]:
        """The latest time of the row's partition up to and with it."""
        if not len(changes.rows):
            return np.empty(0, np.int64)
        before = np.array(
            [self._partitions[code][2] for code in self.codes(changes.origins)], np.int64
        )
        seen = changes.rows[SEEN].fill_null(NEVER_US).to_numpy()
        found: npt.NDArray[np.int64] = np.maximum(seen, before[changes.rows[ORIGIN].to_numpy()])
        return found

    def advance(self, changes: Input) -> None:
        for progress in changes.progress:
            self._saw(progress)
        if not len(changes.rows):
            return
        op = changes.rows[OP]
        for value, is_end in ((READ_TO_HERE, False), (READ_TO_END, True)):
            origins = changes.rows[ORIGIN].filter(pc.equal(op, value))
            for origin in pc.unique(origins).to_pylist():
                self._partitions[self._code(*changes.origins[origin])][3] = is_end

    def before_us(self) -> int:
        """All changes before this time have been read."""
        return min(
            (END_US if is_end else seen for _, _, seen, is_end in self._partitions),
            default=NEVER_US,
        )

    def _saw(self, progress: PartitionProgress) -> None:
        partition = self._partitions[self._code(progress.topic, progress.partition)]
        if progress.seen_us is not None:
            partition[2] = max(partition[2], progress.seen_us)

    def _code(self, topic: str, partition: int) -> int:
        origin = topic, partition
        if origin not in self._codes:
            self._codes[origin] = len(self._partitions)
            self._partitions.append([topic, partition, NEVER_US, False])
        return self._codes[origin]


def _count(state: State, name: str, count: int) -> None:
    state.counters[name] = state.counters.get(name, 0) + count
