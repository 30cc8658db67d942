"""Copies of tables in progress: chunks and whole tables, published between transactions.

Tables with a key are copied in chunks (snapshots.py), those without in one read (whole_copy.py).
Called by the runner's thread only.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from headwater.capture.contract import (
    Begin,
    Change,
    Chunk,
    Commit,
    LogPosition,
    Row,
    Source,
    Table,
    no_temporary_space,
)
from headwater.capture.metrics import CaptureState
from headwater.capture.positions import INCREMENTAL, INITIAL, SnapshotState
from headwater.capture.publishing.publisher import Publisher, now_ms
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.capture.tables.snapshots import (
    EVERYTHING,
    RECENT_TRANSACTIONS,
    Copy,
    FailedCopy,
    ReadChunk,
    Snapshots,
    Tracker,
)
from headwater.capture.tables.states import CapturedTable, TableStates, waits_for_copy
from headwater.capture.tables.whole_copy import WholeCopy
from headwater.errors import CaptureError, Fenced, HeadwaterError, SourceUnreachable, TableRefused

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # before a table without a key is read again
PIECE_ROWS = 1_000  # of such a table: published between two transactions of the source
PIECE_BYTES = 1 << 20
SPLIT_BYTES = 64 << 20  # of buffered changes: more become several Kafka transactions


class TableCopies:
    """All copies that are pending or in progress."""

    def __init__(
        self,
        settings: CaptureSettings,
        source: Source,
        shaper: Shaper,
        publisher: Publisher,
        states: TableStates,
        metrics: CaptureState,
    ) -> None:
        self._settings = settings
        self._source = source
        self._shaper = shaper
        self._publisher = publisher
        self._states = states
        self._metrics = metrics
        last = publisher.position.last
        self.recent = deque([] if last is None else [last], RECENT_TRANSACTIONS)
        self._snapshots = Snapshots(source, self.recent, settings.chunk_rows)
        self._whole: list[Table] = []  # tables without a key whose copy is pending
        self._whole_copy: WholeCopy | None = None  # of one of them
        self._again_s = 0.0  # when the next of them may be read, or the next piece published
        self._passing: dict[str, CapturedTable] = {}

    def close(self) -> None:
        self._snapshots.close()
        self._end_whole_copy()

    def start(self, table: Table, snapshot: SnapshotState) -> None:
        """Begins or resumes the copy of a captured table."""
        captured = self._states.captured[table.id]
        if table.key:
            copy = Copy(table, snapshot.kind, snapshot.after, snapshot.rows, captured.trackers)
            self._snapshots.start(copy)
            if table.id == self._settings.outbox and snapshot.kind == INITIAL:
                copy.sent = Tracker()
                captured.trackers.append(copy.sent)
        else:
            captured.is_dropped = waits_for_copy(table, snapshot)
            self._whole.append(table)

    def stop(self, table_id: str) -> None:
        self._snapshots.cancel(table_id)
        self._whole = [table for table in self._whole if table.id != table_id]
        if self._whole_copy is not None and self._whole_copy.table.id == table_id:
            self._end_whole_copy()

    def forget(self, table_id: str) -> None:
        """The table was dropped."""
        self.stop(table_id)
        self._passing.pop(table_id, None)

    def is_copying(self, table_id: str) -> bool:
        return (
            table_id in self._snapshots.copies
            or any(table.id == table_id for table in self._whole)
            or (self._whole_copy is not None and self._whole_copy.table.id == table_id)
        )

    def await_passing(self, captured: CapturedTable, chunk: Chunk) -> None:
        """Until the stream has passed `chunk`, changes that it contains are dropped."""
        captured.passing = chunk
        self._passing[captured.table.id] = captured

    def publish(self, position: LogPosition) -> None:
        """Between two transactions: everything that can be published, now that the stream is at
        `position`.
        """
        self._copy_whole()
        for table_id, captured in tuple(self._passing.items()):
            if captured.passing is not None and captured.passing.is_passed(position):
                captured.passing = None
                del self._passing[table_id]
                state = self._states.get(table_id)
                if state is not None and state.snapshot is not None:
                    self._states.put(replace(state, snapshot=replace(state.snapshot, passing=None)))
        self._publisher.settle()
        while (read := self._snapshots.passed(position)) is not None:
            if isinstance(read, FailedCopy):
                self._copy_failed(read)
            else:
                self._publish_chunk(read)
            self._publisher.settle()
        self._source.is_awaited = bool(
            self._snapshots.copies or self._passing or self._whole_copy or self._whole
        )

    def truncate_topic(self, table: Table) -> None:
        """Publishes a truncation: what consumers have of the table no longer counts."""
        truncated = Change(table, "t", None, None, 0, {})
        if self._publisher.transaction is not None:
            self._publisher.append(self._shaper.change(truncated))
            return
        self._shaper.begin(Begin(self._publisher.position.position.at, "", now_ms(), {}))
        self._publisher.append(self._shaper.change(truncated))
        self._publisher.append(self._shaper.commit(Commit(1)))

    def buffer(self, copy: WholeCopy, event: Change, transaction: Begin) -> None:
        """A change of a table whose whole copy is in progress: published after the copy."""
        if copy.chunk is not None and copy.chunk.contains(transaction):
            return
        try:
            copy.buffer.add(transaction, self._shaper.change(event))
        except TableRefused as error:
            self.fail(event.table.id, error)
        except OSError as error:
            self.fail(event.table.id, no_temporary_space(copy.table, error))

    def fail(self, table_id: str, error: HeadwaterError, table: Table | None = None) -> None:
        """Stops a table and its copy; the other tables continue."""
        if not self._states.has_failed(table_id):
            self.stop(table_id)
            self._states.fail(table_id, error, table)

    # ── tables with a key ───────────────────────────────────────────────────────────────────────

    def _publish_chunk(self, read: ReadChunk) -> None:
        """A chunk that the stream has passed."""
        table, copy = read.chunk.table, read.copy
        touched, rows = read.tracker.touched, read.rows
        if copy.sent is not None:
            touched |= copy.sent.touched
        try:
            # The table may have changed since the stream showed it.
            self._shaper.check_table(table, self._states[table.id].table)
            if EVERYTHING in touched:
                rows = []
            elif touched:
                rows = [row for row in rows if self._shaper.key_of(table, row) not in touched]
            self._append_rows(table, rows, copy.kind)
        except TableRefused as error:
            self.fail(table.id, error, table)
            return
        self._snapshots.published(read)
        copy.rows += len(read.rows)
        is_done = read.chunk.after is None
        snapshot = SnapshotState(copy.kind, read.chunk.after, copy.rows, copy.total, is_done)
        self._states.put(replace(self._states[table.id], snapshot=snapshot))
        self._metrics.snapshot(table.id, copy.rows, copy.total, is_done)
        if is_done:
            log.info("%s: %s: %d rows copied", self._settings.name, table.id, copy.rows)

    def _copy_failed(self, failed: FailedCopy) -> None:
        if isinstance(failed.error, SourceUnreachable):
            raise failed.error
        if not failed.copy.is_cancelled:
            self.fail(failed.copy.table.id, failed.error)

    def _append_rows(self, table: Table, rows: Iterable[Row], kind: str) -> None:
        self._publisher.open()
        append, partitions = self._publisher.writer.append, self._publisher.partitions
        at_ms = now_ms()
        for topic, key, value, headers in self._shaper.rows(table, rows, kind):
            append(topic, partitions[topic], key, value, headers, at_ms)

    # ── tables without a key ────────────────────────────────────────────────────────────────────

    def _copy_whole(self) -> None:
        """The next step of the copies of tables without a key, one table after the other: see
        whole_copy.py. Half of the time is the stream's.
        """
        began_s = time.monotonic()
        if began_s < self._again_s:
            return
        copy = self._whole_copy
        if copy is None:
            if self._whole:
                self._begin_whole_copy(self._whole.pop(0))
            return
        try:
            if copy.chunk is None and not self._has_read(copy):
                return
            self._publish_piece(copy)
        except (SourceUnreachable, Fenced):
            raise
        except CaptureError as error:
            self.fail(copy.table.id, error)
        self._publisher.settle()
        self._again_s = max(self._again_s, 2 * time.monotonic() - began_s)

    def _begin_whole_copy(self, table: Table) -> None:
        snapshot = self._states[table.id].snapshot
        assert snapshot is not None
        # First the buffer, then the transactions before it, then the read.
        copy = WholeCopy(self._source, table, snapshot.kind, tuple(self.recent))
        self._whole_copy = self._states.captured[table.id].copy = copy
        copy.start(self._settings.chunk_rows)

    def _end_whole_copy(self) -> None:
        copy, self._whole_copy = self._whole_copy, None
        if copy is not None:
            copy.buffer.close()
            captured = self._states.captured.get(copy.table.id)
            if captured is not None and captured.copy is copy:
                captured.copy = None

    def _has_read(self, copy: WholeCopy) -> bool:
        """Whether the rows can be published: changes that they contain are dropped from now on."""
        chunk = copy.read()
        if chunk is None:
            return False
        if not all(chunk.contains(transaction) for transaction in copy.recent):
            self._end_whole_copy()
            self._whole.append(copy.table)  # the topic has something that the read has not (limbo)
            self._again_s = time.monotonic() + AGAIN_S
            return False
        self._shaper.check_table(chunk.table, self._states[copy.table.id].table)
        if copy.kind == INCREMENTAL:
            self.truncate_topic(copy.table)
        copy.chunk, copy.rows = chunk, iter(chunk.rows)
        return True

    def _publish_piece(self, copy: WholeCopy) -> None:
        """Some rows, and after the last of them the buffered changes. If the run ends before that,
        the next run restarts the copy.
        """
        chunk, state = copy.chunk, self._states[copy.table.id]
        assert chunk is not None
        assert state.snapshot is not None
        before = copy.published_rows
        self._append_rows(chunk.table, self._piece(copy), copy.kind)
        is_done = copy.published_rows - before == 0
        self._metrics.snapshot(copy.table.id, copy.published_rows, copy.total, is_done)
        snapshot = SnapshotState(
            INCREMENTAL, None, copy.published_rows, copy.total, passing=state.snapshot.passing
        )
        if not is_done:
            self._states.put(replace(state, snapshot=snapshot))
            return
        append, partitions = self._publisher.writer.append, self._publisher.partitions
        for at_ms, (topic, key, value, headers) in copy.buffer.records(unless_in=chunk):
            append(topic, partitions[topic], key, value, headers, at_ms)
            if self._publisher.writer.transaction_bytes > SPLIT_BYTES:
                self._states.put(replace(state, snapshot=snapshot))
                self._publisher.store()
                self._publisher.open()
        self._end_whole_copy()
        captured = self._states.captured[copy.table.id]
        captured.is_dropped = False
        self.await_passing(captured, chunk)
        done = replace(snapshot, kind=copy.kind, is_done=True, passing=chunk.bounds())
        self._states.put(replace(state, snapshot=done))
        log.info("%s: %s: %d rows copied", self._settings.name, copy.table.id, done.rows)

    def _piece(self, copy: WholeCopy) -> Iterator[Row]:
        until = copy.published_rows + PIECE_ROWS
        for row in copy.rows:
            copy.published_rows += 1
            yield row
            if (
                copy.published_rows >= until
                or self._publisher.writer.transaction_bytes > PIECE_BYTES
            ):
                return
