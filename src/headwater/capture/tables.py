"""The tables of one run: which are followed, how they changed, which have failed, which are copied.

Called by the runner's thread only. A table's state is durable with the records that it speaks of.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from headwater.capture.contract import (
    Begin,
    Change,
    Chunk,
    Commit,
    Place,
    Row,
    SchemaChange,
    Source,
    StorageChange,
    Table,
)
from headwater.capture.metrics import CaptureState
from headwater.capture.outbox import TOPICS as OUTBOX_TOPICS
from headwater.capture.outgoing import Outgoing, now_ms
from headwater.capture.plan import topic_name
from headwater.capture.positions import INCREMENTAL, INITIAL, Failure, Snapshot, TableState
from headwater.capture.settings import CaptureSettings
from headwater.capture.shaping import Shaper
from headwater.capture.snapshot import (
    EVERYTHING,
    RECENT_TRANSACTIONS,
    Copy,
    FailedCopy,
    ReadChunk,
    Snapshots,
    Tracker,
)
from headwater.capture.topics import Topics
from headwater.capture.whole_copy import WholeCopy, no_room
from headwater.errors import (
    CaptureError,
    Fenced,
    HeadwaterError,
    RequestRefused,
    SourceUnreachable,
    TableRefused,
)

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # before a table without a key is read again
PIECE_ROWS = 1_000  # of such a table: published between two transactions of the source
PIECE_BYTES = 1 << 20
SPLIT_BYTES = 64 << 20  # what was set aside meanwhile: more becomes several Kafka transactions


@dataclass(slots=True)
class Followed:
    """One table, as the stream shows it now."""

    table: Table
    is_dropped: bool = False  # it has failed, or waits for the copy that comes first
    trackers: list[Tracker] = field(default_factory=list)
    passing: Chunk | None = None  # a copy of all of it that the stream has not passed yet
    copy: WholeCopy | None = None  # of all of it, under way

    @property
    def is_plain(self) -> bool:
        return not (self.trackers or self.is_dropped or self.passing or self.copy)


class Tables:
    def __init__(
        self,
        settings: CaptureSettings,
        source: Source,
        shaper: Shaper,
        topics: Topics,
        outgoing: Outgoing,
        states: Mapping[str, TableState],
        told: CaptureState,
    ) -> None:
        self._settings = settings
        self._source = source
        self._shaper = shaper
        self._topics = topics
        self._outgoing = outgoing
        self._states = dict(states)
        self._told = told
        last = outgoing.position.last
        self.recent = deque([] if last is None else [last], RECENT_TRANSACTIONS)
        self._snapshots = Snapshots(source, self.recent, settings.chunk_rows)
        self._whole: list[Table] = []  # tables without a key that wait for their copy
        self._whole_copy: WholeCopy | None = None  # of one of them
        self._rewritten: dict[str, StorageChange] = {}  # tables to copy again
        self._again_s = 0.0  # when the next of them may be read, or the next piece published
        self._passing: dict[str, Followed] = {}
        self._bounded = {  # copies of whole tables that the run before has published
            table_id: source.bounded(state.table, state.snapshot.passing)
            for table_id, state in states.items()
            if state.snapshot is not None and state.snapshot.passing is not None
        }
        self.by_identity: dict[int, Followed] = {}  # by id() of the table that the stream shows
        self._by_id: dict[str, Followed] = {}
        self._looked: set[str] = set()  # tables whose topics are known to exist
        for table_id, state in states.items():
            if state.failed is not None:
                error = CaptureError(state.failed.what, detail=state.failed.detail)
                told.table_failed(table_id, error)

    def close(self) -> None:
        self._snapshots.close()
        self._end_whole_copy()

    # ── following ───────────────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        """Finds tables that are new, and copies that are not done."""
        if self._source.snapshots_itself:
            return
        tables = self._source.tables()
        for table in tables:
            state = self._states.get(table.id)
            if state is not None and state.storage is None and table.id in self._source.storages:
                state = replace(state, storage=self._source.storages[table.id])
                self._put(state)
            if state is None:
                self.follow(table, is_ahead=self._is_ahead(table))
            elif self._has_lost_its_topic(table, state):
                self._copy_again(table)
            elif self._is_to_copy(state) and not self._is_copying(table.id):
                assert state.snapshot is not None
                if state.table.key == table.key:
                    self._copy(table, state.snapshot)
                else:
                    self.follow(table, is_ahead=self._is_ahead(table))
        self._copy_rewritten(tables)
        self._outgoing.settle()

    def _has_lost_its_topic(self, table: Table, state: TableState) -> bool:
        """Somebody deleted it: what it had comes with a new copy. Looked at once in a run, before
        the stream makes a topic that would have nothing but news.
        """
        if table.id in self._looked or state.failed is not None:
            return False
        self._looked.add(table.id)
        try:
            topic = self._shaper.topic_of(table)
            if not self._topics.ensure(topic):
                return False
        except (TableRefused, RequestRefused) as error:
            self.fail(table.id, error)
            return False
        log.warning("%s: the topic %s was gone, and is made anew", self._settings.name, topic)
        return self._settings.snapshot == "initial"

    def _is_ahead(self, table: Table) -> bool:
        """Whether this may be how the table looks later than where the stream is."""
        return not self._source.is_streamed(table)

    def follow(self, table: Table, ddl: str | None = None, *, is_ahead: bool = False) -> Followed:
        """The stream, or a look at the database, shows a table for the first time or changed. What
        a look shows may be ahead of the stream.
        """
        followed = self._by_id.get(table.id)
        if followed is None:
            followed = self._by_id[table.id] = Followed(table)
            if table.id in self._bounded:
                followed.passing = self._bounded.pop(table.id)
                self._passing[table.id] = followed
        self.by_identity.pop(id(followed.table), None)
        followed.table = table
        self.by_identity[id(table)] = followed
        state = self._states.get(table.id)
        if state is not None and state.is_ahead and not is_ahead and state.table == table:
            state = replace(state, is_ahead=False)
            self._put(state)
        if state is not None and (state.failed is not None or state.table == table):
            followed.is_dropped = state.failed is not None or _waits_for_copy(table, state.snapshot)
            return followed
        try:
            before = state.table if state is not None else None
            self._shaper.check_table(table, before)
            is_new = self._topics.ensure(self._shaper.topic_of(table))
            records = self._shaper.schema_change(SchemaChange(table.id, table, ddl), before)
        except (TableRefused, RequestRefused) as error:
            self.fail(table.id, error, table)
            return followed
        self._outgoing.append(records)
        if state is not None:
            self._put(replace(state, table=table, is_ahead=is_ahead))
            if self._is_to_copy(state) and state.table.key != table.key:
                # What was copied has other keys, and where the copy was is no place among the new.
                self._begin_anew(table)
                self._put(
                    replace(state, table=table, snapshot=Snapshot(INCREMENTAL), is_ahead=is_ahead)
                )
                self._stop_copying(table.id)
                self._copy(table, Snapshot(INCREMENTAL))
            return followed
        log.info("%s: follows %s", self._settings.name, table.id)
        is_wanted = self._settings.snapshot == "initial" and not self._source.snapshots_itself
        # The storage was read before the copy begins: what becomes of it later is noticed.
        state = TableState(
            table,
            Snapshot(INITIAL) if is_wanted else None,
            is_ahead=is_ahead,
            storage=self._source.storages.get(table.id),
        )
        self._put(state)
        if state.snapshot is not None:
            if not is_new:
                # The topic has rows of an earlier life of this capture, or of a table that had the
                # name; those that were deleted between would stay for ever.
                self._begin_anew(table)
            self._copy(table, state.snapshot)
        return followed

    def schema_changed(self, event: SchemaChange) -> None:
        state = self._states.get(event.table_id)
        if event.table is not None and (state is None or state.table != event.table):
            self.follow(event.table, event.ddl)
            return
        if event.table is not None and state is not None and state.is_ahead:
            self._put(replace(state, is_ahead=False))
        try:
            before = state.table if state is not None else None
            self._outgoing.append(self._shaper.schema_change(event, before))
        except TableRefused as error:
            self.fail(event.table_id, error)
        if event.table is None and state is not None:
            self._forget(event.table_id)

    def storage_changed(self, event: StorageChange) -> None:
        """A table whose rows changed without the log telling is copied again. Not an outbox: its
        rows are events that were sent.
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
            self._put(replace(state, storage=event.storage))
            return
        if before is None:
            log.warning(
                "%s: rows of %s changed without the database's log telling (the table was rewritten"
                ", or partitions of it came or went)",
                self._settings.name,
                event.table_id,
            )
        # With the next look, which is one for all: a migration may rewrite thousands of tables. It
        # is not stored before, so that another run would notice it again.
        self._rewritten[event.table_id] = event

    def _copy_rewritten(self, tables: Iterable[Table]) -> None:
        for table in tables:
            event, state = self._rewritten.pop(table.id, None), self._states.get(table.id)
            if event is not None and state is not None:
                self._put(replace(state, storage=event.storage))
                if state.failed is None:
                    self._copy_again(table, is_reduced=event.is_reduced)

    def _forget(self, table_id: str) -> None:
        """The table is gone. One that gets its name later is a new one."""
        self._stop_copying(table_id)
        self._rewritten.pop(table_id, None)
        del self._states[table_id]
        followed = self._by_id.pop(table_id, None)
        self._passing.pop(table_id, None)
        if followed is not None:
            self.by_identity.pop(id(followed.table), None)
        self._outgoing.put_state(table_id, None)

    def fail(self, table_id: str, error: HeadwaterError, table: Table | None = None) -> None:
        """Stops one table; the others go on. It stays so until somebody asks for a new copy."""
        state = self._states.get(table_id)
        if state is not None and state.failed is not None:
            return
        self._told.table_failed(table_id, error)
        self._stop_copying(table_id)
        followed = self._by_id.get(table_id)
        if followed is not None:
            followed.is_dropped = True
            table = table or followed.table
        self._put(self._failed(table_id, error, table))

    def failed_by(self, topic: str, error: HeadwaterError) -> TableState | None:
        """A topic does not take records: its table as it is to be stored, None if it has none."""
        for table_id, state in self._states.items():
            is_outbox = table_id == self._settings.outbox and topic.startswith(OUTBOX_TOPICS)
            if is_outbox or (
                not state.failed and topic_name(self._settings.name, state.table) == topic
            ):
                self._told.table_failed(table_id, error)
                return self._failed(table_id, error, state.table)
        return None

    def _failed(self, table_id: str, error: HeadwaterError, table: Table | None) -> TableState:
        state = self._states.get(table_id)
        if table is None:
            schema, _, name = table_id.partition(".")
            table = state.table if state is not None else Table(schema, name, (), ())
        again = f"`headwater capture snapshot {self._settings.name} --table {table_id}` begins anew"
        hint = f"{error.hint.rstrip(';')}; then {again}" if error.hint else again
        log.error("%s: %s is not followed: %s; %s", self._settings.name, table_id, error, hint)
        failure = Failure(error.what, error.detail, hint)
        snapshot = state.snapshot if state is not None else None
        storage = state.storage if state is not None else self._source.storages.get(table_id)
        return TableState(table, snapshot, failure, self._is_ahead(table), storage)

    def is_wanted(self, followed: Followed, event: Change) -> bool:
        """Whether a change of a table that is not plain is published; notes what it touches."""
        transaction = self._outgoing.transaction
        assert transaction is not None
        if followed.passing is not None and followed.passing.contains(transaction):
            return False
        if followed.copy is not None:
            self._set_aside(followed.copy, event, transaction)
            return False
        if followed.is_dropped:
            return False
        if followed.trackers:
            try:
                keys = {EVERYTHING} if event.op == "t" else set(self._keys(event))
            except TableRefused as error:
                self.fail(event.table.id, error)
                return False
            for tracker in tuple(followed.trackers):
                tracker.touch(keys)
        return True

    def _set_aside(self, copy: WholeCopy, event: Change, transaction: Begin) -> None:
        if copy.chunk is not None and copy.chunk.contains(transaction):
            return
        try:
            copy.aside.add(transaction, self._shaper.change(event))
        except TableRefused as error:
            self.fail(event.table.id, error)
        except OSError as error:
            self.fail(event.table.id, no_room(copy.table, error))

    def _keys(self, event: Change) -> Iterator[bytes]:
        table = event.table
        for row in (event.before, event.after):
            if row is not None and all(name in row for name in table.key):
                key = self._shaper.key_of(table, row)
                if key is not None:
                    yield key

    def _put(self, state: TableState) -> None:
        self._states[state.table.id] = state
        self._outgoing.put_state(state.table.id, state)

    # ── copying ─────────────────────────────────────────────────────────────────────────────────

    def publish_copies(self, place: Place) -> None:
        """Between two transactions: everything that can be published, now that the stream is at
        `place`.
        """
        self._copy_whole()
        for table_id, followed in tuple(self._passing.items()):
            if followed.passing is not None and followed.passing.is_passed(place):
                followed.passing = None
                del self._passing[table_id]
                state = self._states.get(table_id)
                if state is not None and state.snapshot is not None:
                    self._put(replace(state, snapshot=replace(state.snapshot, passing=None)))
        self._outgoing.settle()
        while (read := self._snapshots.passed(place)) is not None:
            if isinstance(read, FailedCopy):
                self._copy_failed(read)
            else:
                self._publish(read)
            self._outgoing.settle()
        self._source.is_awaited = bool(
            self._snapshots.copies or self._passing or self._whole_copy or self._whole
        )

    def copy_again(self, table_ids: Iterable[str]) -> None:
        tables = {table.id: table for table in self._source.tables()}
        for table_id in table_ids:
            if table_id in tables:
                self._copy_again(tables[table_id])
            else:
                log.warning("%s: there is no table %s to copy", self._settings.name, table_id)
        self._outgoing.settle()

    def _copy_again(self, table: Table, *, is_reduced: bool = False) -> None:
        """`is_reduced`: rows may be gone that the topic has."""
        log.info("%s: copies %s again", self._settings.name, table.id)
        state = self._states.get(table.id)
        has_failed = state is not None and state.failed is not None
        if state is not None and has_failed:
            self._states[table.id] = replace(state, failed=None)
        self._stop_copying(table.id)
        followed = self.follow(table, is_ahead=self._is_ahead(table))
        if self._states[table.id].failed is not None:
            return
        try:
            if (has_failed or is_reduced) and table.key:
                self._begin_anew(table)  # what was deleted meanwhile is in no copy
        except TableRefused as error:
            self.fail(table.id, error)
            return
        followed.is_dropped = False
        passing = followed.passing.bounds() if followed.passing is not None else None
        snapshot = Snapshot(INCREMENTAL, passing=passing)
        begun = state.snapshot if state is not None else None
        if begun is not None and not has_failed and _waits_for_copy(table, begun):
            snapshot = replace(snapshot, rows=begun.rows)
        self._put(replace(self._states[table.id], snapshot=snapshot))
        self._copy(table, replace(snapshot, passing=None))

    def _is_to_copy(self, state: TableState) -> bool:
        return state.failed is None and state.snapshot is not None and not state.snapshot.is_done

    def _is_copying(self, table_id: str) -> bool:
        return (
            table_id in self._snapshots.copies
            or any(t.id == table_id for t in self._whole)
            or (self._whole_copy is not None and self._whole_copy.table.id == table_id)
        )

    def _copy(self, table: Table, snapshot: Snapshot) -> None:
        followed = self._by_id.get(table.id) or self._follow_as_stored(table.id)
        if table.key:
            copy = Copy(table, snapshot.kind, snapshot.after, snapshot.rows, followed.trackers)
            self._snapshots.start(copy)
            if table.id == self._settings.outbox and snapshot.kind == INITIAL:
                copy.sent = Tracker()
                followed.trackers.append(copy.sent)
        else:
            followed.is_dropped = _waits_for_copy(table, snapshot)
            self._whole.append(table)

    def _follow_as_stored(self, table_id: str) -> Followed:
        state = self._states[table_id]
        return self.follow(state.table, is_ahead=state.is_ahead)

    def _stop_copying(self, table_id: str) -> None:
        self._snapshots.cancel(table_id)
        self._whole = [table for table in self._whole if table.id != table_id]
        if self._whole_copy is not None and self._whole_copy.table.id == table_id:
            self._end_whole_copy()

    def _publish(self, read: ReadChunk) -> None:
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
        snapshot = Snapshot(copy.kind, read.chunk.after, copy.rows, copy.total, is_done)
        self._put(replace(self._states[table.id], snapshot=snapshot))
        self._told.snapshot(table.id, copy.rows, copy.total, is_done)
        if is_done:
            log.info("%s: %s: %d rows copied", self._settings.name, table.id, copy.rows)

    def _append_rows(self, table: Table, rows: Iterable[Row], kind: str) -> None:
        self._outgoing.open()
        append, partitions = self._outgoing.writer.append, self._outgoing.partitions
        at_ms = now_ms()
        for topic, key, value, headers in self._shaper.rows(table, rows, kind):
            append(topic, partitions[topic], key, value, headers, at_ms)

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
        self._outgoing.settle()
        self._again_s = max(self._again_s, 2 * time.monotonic() - began_s)

    def _begin_whole_copy(self, table: Table) -> None:
        snapshot = self._states[table.id].snapshot
        assert snapshot is not None
        # First what is set aside, then the transactions before it, then the read.
        copy = WholeCopy(self._source, table, snapshot.kind, tuple(self.recent))
        self._whole_copy = self._by_id[table.id].copy = copy
        copy.start(self._settings.chunk_rows)

    def _end_whole_copy(self) -> None:
        copy, self._whole_copy = self._whole_copy, None
        if copy is not None:
            copy.aside.close()
            followed = self._by_id.get(copy.table.id)
            if followed is not None and followed.copy is copy:
                followed.copy = None

    def _has_read(self, copy: WholeCopy) -> bool:
        """Whether the rows can be published: from now on changes are no longer."""
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
            self._begin_anew(copy.table)
        copy.chunk, copy.rows = chunk, iter(chunk.rows)
        return True

    def _publish_piece(self, copy: WholeCopy) -> None:
        """Some rows, and after the last of them what was set aside. Should the end never come, the
        next run begins anew.
        """
        chunk, state = copy.chunk, self._states[copy.table.id]
        assert chunk is not None
        assert state.snapshot is not None
        before = copy.published_rows
        self._append_rows(chunk.table, self._piece(copy), copy.kind)
        is_done = copy.published_rows - before == 0
        self._told.snapshot(copy.table.id, copy.published_rows, copy.total, is_done)
        snapshot = Snapshot(
            INCREMENTAL, None, copy.published_rows, copy.total, passing=state.snapshot.passing
        )
        if not is_done:
            self._put(replace(state, snapshot=snapshot))
            return
        append, partitions = self._outgoing.writer.append, self._outgoing.partitions
        for at_ms, (topic, key, value, headers) in copy.aside.records(unless_in=chunk):
            append(topic, partitions[topic], key, value, headers, at_ms)
            if self._outgoing.writer.transaction_bytes > SPLIT_BYTES:
                self._put(replace(state, snapshot=snapshot))
                self._outgoing.store()
                self._outgoing.open()
        self._end_whole_copy()
        followed = self._passing[copy.table.id] = self._by_id[copy.table.id]
        followed.is_dropped = False
        followed.passing = chunk
        done = replace(snapshot, kind=copy.kind, is_done=True, passing=chunk.bounds())
        self._put(replace(state, snapshot=done))
        log.info("%s: %s: %d rows copied", self._settings.name, copy.table.id, done.rows)

    def _piece(self, copy: WholeCopy) -> Iterator[Row]:
        until = copy.published_rows + PIECE_ROWS
        for row in copy.rows:
            copy.published_rows += 1
            yield row
            if (
                copy.published_rows >= until
                or self._outgoing.writer.transaction_bytes > PIECE_BYTES
            ):
                return

    def _copy_failed(self, failed: FailedCopy) -> None:
        if isinstance(failed.error, SourceUnreachable):
            raise failed.error
        if not failed.copy.is_cancelled:
            self.fail(failed.copy.table.id, failed.error)

    def _begin_anew(self, table: Table) -> None:
        """Tells consumers that what they have of the table no longer counts."""
        truncated = Change(table, "t", None, None, 0, {})
        if self._outgoing.transaction is not None:
            self._outgoing.append(self._shaper.change(truncated))
            return
        self._shaper.begin(Begin(self._outgoing.position.position.at, "", now_ms(), {}))
        self._outgoing.append(self._shaper.change(truncated))
        self._outgoing.append(self._shaper.commit(Commit(1)))


def _waits_for_copy(table: Table, snapshot: Snapshot | None) -> bool:
    """A table without a key has no way to tell what a copy contains already. So its changes count
    from the first copy on, and not while the topic has only a part of one.
    """
    if table.key or snapshot is None or snapshot.is_done:
        return False
    return snapshot.kind == INITIAL or snapshot.rows > 0
