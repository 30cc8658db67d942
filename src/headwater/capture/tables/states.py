"""Captured tables of one run, and their states as the positions topic stores them.

Called by the runner's thread only. A table's state is durable with the records that it describes.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.capture.contract import Chunk, Source, Table
from headwater.capture.metrics import CaptureState
from headwater.capture.positions import INITIAL, Failure, SnapshotState, TableState
from headwater.capture.publishing.publisher import Publisher
from headwater.capture.records.outbox import TOPICS as OUTBOX_TOPICS
from headwater.capture.records.plan import topic_name
from headwater.capture.settings import CaptureSettings
from headwater.capture.tables.snapshots import Tracker
from headwater.capture.tables.whole_copy import WholeCopy
from headwater.errors import CaptureError, HeadwaterError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CapturedTable:
    """One table, as the stream shows it now."""

    table: Table
    is_dropped: bool = False  # it has failed, or its first copy comes before its changes
    trackers: list[Tracker] = field(default_factory=list)
    passing: Chunk | None = None  # a copy of all of it that the stream has not passed yet
    copy: WholeCopy | None = None  # of all of it, in progress

    @property
    def is_plain(self) -> bool:
        return not (self.trackers or self.is_dropped or self.passing or self.copy)


class TableStates:
    """The captured tables by id, with what is stored of each."""

    def __init__(
        self,
        settings: CaptureSettings,
        source: Source,
        publisher: Publisher,
        stored: Mapping[str, TableState],
        metrics: CaptureState,
    ) -> None:
        self._settings = settings
        self._source = source
        self._publisher = publisher
        self._metrics = metrics
        self._states = dict(stored)
        self.captured: dict[str, CapturedTable] = {}  # that the stream or the catalog has shown
        self.by_identity: dict[int, CapturedTable] = {}  # by id() of the table of the stream
        for table_id, state in stored.items():
            if state.failed is not None:
                error = CaptureError(state.failed.what, detail=state.failed.detail)
                metrics.table_failed(table_id, error)

    def __getitem__(self, table_id: str) -> TableState:
        return self._states[table_id]

    def get(self, table_id: str) -> TableState | None:
        return self._states.get(table_id)

    def put(self, state: TableState) -> None:
        """Stored with the current transaction."""
        self._states[state.table.id] = state
        self._publisher.put_state(state.table.id, state)

    def replace_unstored(self, state: TableState) -> None:
        """Only for this run: the caller stores a later state."""
        self._states[state.table.id] = state

    def show(self, table: Table) -> tuple[CapturedTable, bool]:
        """The table as the stream or the catalog shows it from now on, and whether it is new."""
        captured = self.captured.get(table.id)
        is_new = captured is None
        if captured is None:
            captured = self.captured[table.id] = CapturedTable(table)
        self.by_identity.pop(id(captured.table), None)
        captured.table = table
        self.by_identity[id(table)] = captured
        return captured, is_new

    def forget(self, table_id: str) -> None:
        """The table was dropped. One that gets its name later is a new one."""
        del self._states[table_id]
        captured = self.captured.pop(table_id, None)
        if captured is not None:
            self.by_identity.pop(id(captured.table), None)
        self._publisher.put_state(table_id, None)

    def is_ahead(self, table: Table) -> bool:
        """Whether this may be the table's schema at a later position than the stream's."""
        return not self._source.is_streamed(table)

    def has_failed(self, table_id: str) -> bool:
        state = self._states.get(table_id)
        return state is not None and state.failed is not None

    def fail(self, table_id: str, error: HeadwaterError, table: Table | None = None) -> None:
        """Stops one table; the others continue. It stays failed until a new snapshot of it is
        requested.
        """
        self._metrics.table_failed(table_id, error)
        captured = self.captured.get(table_id)
        if captured is not None:
            captured.is_dropped = True
            table = table or captured.table
        self.put(self._failed(table_id, error, table))

    def failed_by(self, topic: str, error: HeadwaterError) -> TableState | None:
        """A topic rejects records: its table as it is to be stored, None if it has none."""
        for table_id, state in self._states.items():
            is_outbox = table_id == self._settings.outbox and topic.startswith(OUTBOX_TOPICS)
            if is_outbox or (
                not state.failed and topic_name(self._settings.name, state.table) == topic
            ):
                self._metrics.table_failed(table_id, error)
                return self._failed(table_id, error, state.table)
        return None

    def _failed(self, table_id: str, error: HeadwaterError, table: Table | None) -> TableState:
        state = self._states.get(table_id)
        if table is None:
            schema, _, name = table_id.partition(".")
            table = state.table if state is not None else Table(schema, name, (), ())
        again = (
            f"`headwater capture snapshot {self._settings.name} --table {table_id}` copies it again"
        )
        hint = f"{error.hint.rstrip(';')}; then {again}" if error.hint else again
        log.error("%s: %s is not followed: %s; %s", self._settings.name, table_id, error, hint)
        failure = Failure(error.what, error.detail, hint)
        snapshot = state.snapshot if state is not None else None
        storage = state.storage if state is not None else self._source.storages.get(table_id)
        return TableState(table, snapshot, failure, self.is_ahead(table), storage)


def waits_for_copy(table: Table, snapshot: SnapshotState | None) -> bool:
    """Nothing shows which changes a copy of a table without a key already contains. So its changes
    count from the first copy on, and not while the topic has only a part of one.
    """
    if table.key or snapshot is None or snapshot.is_done:
        return False
    return snapshot.kind == INITIAL or snapshot.rows > 0
