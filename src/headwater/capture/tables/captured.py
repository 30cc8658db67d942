"""Captured tables: which are followed, how their schemas change, which have failed.

Called by the runner's thread only. Their copies are TableCopies', their stored states TableStates'.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from headwater.capture.contract import (
    Change,
    LogPosition,
    SchemaChange,
    Source,
    StorageChange,
    Table,
)
from headwater.capture.metrics import CaptureState
from headwater.capture.positions import INCREMENTAL, INITIAL, SnapshotState, TableState
from headwater.capture.publishing.publisher import Publisher
from headwater.capture.publishing.topics import Topics
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.capture.tables.copies import TableCopies
from headwater.capture.tables.snapshots import EVERYTHING
from headwater.capture.tables.states import CapturedTable, TableStates, waits_for_copy
from headwater.errors import HeadwaterError, RequestRefused, TableRefused

log = logging.getLogger(__name__)


class CapturedTables:
    """All tables that the capture follows."""

    def __init__(
        self,
        settings: CaptureSettings,
        source: Source,
        shaper: Shaper,
        topics: Topics,
        publisher: Publisher,
        stored: Mapping[str, TableState],
        metrics: CaptureState,
    ) -> None:
        self._settings = settings
        self._source = source
        self._shaper = shaper
        self._topics = topics
        self._publisher = publisher
        self._states = TableStates(settings, source, publisher, stored, metrics)
        self._copies = TableCopies(settings, source, shaper, publisher, self._states, metrics)
        self.recent = self._copies.recent  # transactions
        self.by_identity = self._states.by_identity
        self._rewritten: dict[str, StorageChange] = {}  # tables to copy again
        self._bounded = {  # copies of whole tables that the run before has published
            table_id: source.bounded(state.table, state.snapshot.passing)
            for table_id, state in stored.items()
            if state.snapshot is not None and state.snapshot.passing is not None
        }
        self._checked: set[str] = set()  # tables whose topics exist, as was seen in this run

    def close(self) -> None:
        self._copies.close()

    def publish_copies(self, position: LogPosition) -> None:
        self._copies.publish(position)

    def look(self) -> None:
        """Finds tables that are new, and copies that are not done."""
        if self._source.snapshots_itself:
            return
        tables = self._source.tables()
        for table in tables:
            state = self._states.get(table.id)
            if state is not None and state.storage is None and table.id in self._source.storages:
                state = replace(state, storage=self._source.storages[table.id])
                self._states.put(state)
            if state is None:
                self.follow(table, is_ahead=self._states.is_ahead(table))
            elif self._has_lost_its_topic(table, state):
                self._copy_again(table)
            elif _is_to_copy(state) and not self._copies.is_copying(table.id):
                assert state.snapshot is not None
                if state.table.key == table.key:
                    self._resume_copy(table, state, state.snapshot)
                else:
                    self.follow(table, is_ahead=self._states.is_ahead(table))
        self._copy_rewritten(tables)
        self._publisher.settle()

    def _has_lost_its_topic(self, table: Table, state: TableState) -> bool:
        """A topic was deleted: what it had comes with a new copy. Checked once in a run, before the
        stream creates a topic that would have nothing but new changes.
        """
        if table.id in self._checked or state.failed is not None:
            return False
        self._checked.add(table.id)
        try:
            topic = self._shaper.topic_of(table)
            if not self._topics.ensure(topic):
                return False
        except (TableRefused, RequestRefused) as error:
            self.fail(table.id, error)
            return False
        log.warning(
            "%s: the topic %s was deleted, and is created again", self._settings.name, topic
        )
        return self._settings.snapshot == "initial"

    def _resume_copy(self, table: Table, state: TableState, snapshot: SnapshotState) -> None:
        if table.id not in self._states.captured:
            self.follow(state.table, is_ahead=state.is_ahead)
        self._copies.start(table, snapshot)

    def follow(
        self, table: Table, ddl: str | None = None, *, is_ahead: bool = False
    ) -> CapturedTable:
        """The stream, or the database's catalog, shows a table for the first time or changed. What
        the catalog shows may be ahead of the stream.
        """
        captured, is_first = self._states.show(table)
        if is_first and table.id in self._bounded:
            self._copies.await_passing(captured, self._bounded.pop(table.id))
        state = self._states.get(table.id)
        if state is not None and state.is_ahead and not is_ahead and state.table == table:
            state = replace(state, is_ahead=False)
            self._states.put(state)
        if state is not None and (state.failed is not None or state.table == table):
            captured.is_dropped = state.failed is not None or waits_for_copy(table, state.snapshot)
            return captured
        try:
            before = state.table if state is not None else None
            self._shaper.check_table(table, before)
            self._shaper.register(table)
            is_new_topic = self._topics.ensure(self._shaper.topic_of(table))
            records = self._shaper.schema_change(SchemaChange(table.id, table, ddl), before)
        except (TableRefused, RequestRefused) as error:
            self.fail(table.id, error, table)
            return captured
        self._publisher.append(records)
        if state is not None:
            self._alter(table, state, is_ahead=is_ahead)
        else:
            self._begin(table, is_ahead=is_ahead, is_new_topic=is_new_topic)
        return captured

    def _alter(self, table: Table, state: TableState, *, is_ahead: bool) -> None:
        """A table that was captured before has other columns, or another key."""
        self._states.put(replace(state, table=table, is_ahead=is_ahead))
        if _is_to_copy(state) and state.table.key != table.key:
            # What was copied has other keys, among which the copy's position means nothing.
            self._copies.truncate_topic(table)
            snapshot = SnapshotState(INCREMENTAL)
            self._states.put(replace(state, table=table, snapshot=snapshot, is_ahead=is_ahead))
            self._copies.stop(table.id)
            self._copies.start(table, snapshot)

    def _begin(self, table: Table, *, is_ahead: bool, is_new_topic: bool) -> None:
        log.info("%s: follows %s", self._settings.name, table.id)
        is_wanted = self._settings.snapshot == "initial" and not self._source.snapshots_itself
        snapshot = SnapshotState(INITIAL) if is_wanted else None
        # The storage was read before the copy begins: a later change of it is detected.
        storage = self._source.storages.get(table.id)
        self._states.put(TableState(table, snapshot, is_ahead=is_ahead, storage=storage))
        if snapshot is not None:
            if not is_new_topic:
                # The topic has rows of an earlier capture of this name, or of a dropped table that
                # had the name; those that were deleted between would stay indefinitely.
                self._copies.truncate_topic(table)
            self._copies.start(table, snapshot)

    def schema_changed(self, event: SchemaChange) -> None:
        state = self._states.get(event.table_id)
        if event.table is not None and (state is None or state.table != event.table):
            self.follow(event.table, event.ddl)
            return
        if event.table is not None and state is not None and state.is_ahead:
            self._states.put(replace(state, is_ahead=False))
        try:
            before = state.table if state is not None else None
            self._publisher.append(self._shaper.schema_change(event, before))
        except TableRefused as error:
            self.fail(event.table_id, error)
        if event.table is None and state is not None:
            self._copies.forget(event.table_id)
            self._rewritten.pop(event.table_id, None)
            self._states.forget(event.table_id)

    def storage_changed(self, event: StorageChange) -> None:
        """A table whose rows changed without being logged is copied again. Not an outbox: its rows
        are events that were sent.
        """
        state = self._states.get(event.table_id)
        if state is None:
            return
        before = self._rewritten.pop(event.table_id, None)
        if before is not None:
            is_reduced = event.is_reduced or before.is_reduced
            event = replace(event, is_rewritten=True, is_reduced=is_reduced)
        is_copied = self._settings.snapshot == "initial" and event.table_id != self._settings.outbox
        if not event.is_rewritten or not is_copied or state.failed is not None:
            self._states.put(replace(state, storage=event.storage))
            return
        if before is None:
            log.warning(
                "%s: rows of %s changed without being logged (it was rewritten, or partitions of it"
                " were attached or detached)",
                self._settings.name,
                event.table_id,
            )
        # With the next look, which is one for all: a migration may rewrite thousands of tables. It
        # is not stored before, so that another run would detect it again.
        self._rewritten[event.table_id] = event

    def _copy_rewritten(self, tables: Iterable[Table]) -> None:
        for table in tables:
            event, state = self._rewritten.pop(table.id, None), self._states.get(table.id)
            if event is not None and state is not None:
                self._states.put(replace(state, storage=event.storage))
                if state.failed is None:
                    self._copy_again(table, is_reduced=event.is_reduced)

    def copy_again(self, table_ids: Iterable[str]) -> None:
        """A new snapshot of these tables, also of those that have failed."""
        tables = {table.id: table for table in self._source.tables()}
        for table_id in table_ids:
            if table_id in tables:
                self._copy_again(tables[table_id])
            else:
                log.warning("%s: there is no table %s to copy", self._settings.name, table_id)
        self._publisher.settle()

    def _copy_again(self, table: Table, *, is_reduced: bool = False) -> None:
        """`is_reduced`: the topic may have rows that the table no longer has."""
        log.info("%s: copies %s again", self._settings.name, table.id)
        state = self._states.get(table.id)
        has_failed = state is not None and state.failed is not None
        if state is not None and has_failed:
            self._states.replace_unstored(replace(state, failed=None))
        self._copies.stop(table.id)
        captured = self.follow(table, is_ahead=self._states.is_ahead(table))
        if self._states.has_failed(table.id):
            return
        try:
            if (has_failed or is_reduced) and table.key:
                self._copies.truncate_topic(table)  # what was deleted meanwhile is in no copy
        except TableRefused as error:
            self.fail(table.id, error)
            return
        captured.is_dropped = False
        passing = captured.passing.bounds() if captured.passing is not None else None
        snapshot = SnapshotState(INCREMENTAL, passing=passing)
        begun = state.snapshot if state is not None else None
        if begun is not None and not has_failed and waits_for_copy(table, begun):
            snapshot = replace(snapshot, rows=begun.rows)
        self._states.put(replace(self._states[table.id], snapshot=snapshot))
        self._copies.start(table, replace(snapshot, passing=None))

    def fail(self, table_id: str, error: HeadwaterError, table: Table | None = None) -> None:
        """Stops one table; the others continue. It stays failed until a new snapshot of it is
        requested.
        """
        self._copies.fail(table_id, error, table)

    def failed_by(self, topic: str, error: HeadwaterError) -> TableState | None:
        """A topic rejects records: its table as it is to be stored, None if it has none."""
        return self._states.failed_by(topic, error)

    def is_wanted(self, captured: CapturedTable, event: Change) -> bool:
        """Whether a change of a table that is not plain is published now; records its keys for the
        copies in progress.
        """
        transaction = self._publisher.transaction
        assert transaction is not None
        if captured.passing is not None and captured.passing.contains(transaction):
            return False
        if captured.copy is not None:
            self._copies.buffer(captured.copy, event, transaction)
            return False
        if captured.is_dropped:
            return False
        if captured.trackers:
            try:
                keys = {EVERYTHING} if event.op == "t" else set(self._keys(event))
            except TableRefused as error:
                self.fail(event.table.id, error)
                return False
            for tracker in tuple(captured.trackers):
                tracker.touch(keys)
        return True

    def _keys(self, event: Change) -> Iterator[bytes]:
        table = event.table
        for row in (event.before, event.after):
            if row is not None and all(name in row for name in table.key):
                key = self._shaper.key_of(table, row)
                if key is not None:
                    yield key


def _is_to_copy(state: TableState) -> bool:
    return state.failed is None and state.snapshot is not None and not state.snapshot.is_done
