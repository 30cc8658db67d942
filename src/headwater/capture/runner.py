"""One run of a capture: from the stored position on, until it is stopped or something fails.

    fence the process before us ─▶ read the position ─▶ open the source ─▶ follow its changes

Capture is crash-only. Whatever goes wrong ends the run; the next one begins at the position that
was committed together with the last changes, so nothing is lost and nothing is written twice. The
source is told to forget only what is durable in the topics.

Threads: this one reads the source, shapes and appends; the writer's sends and commits; the
snapshot's read chunks; the watcher's measures the lag.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from headwater.capture import positions
from headwater.capture.contract import (
    Begin,
    Change,
    Chunk,
    Commit,
    Lag,
    Message,
    Position,
    Progress,
    Record,
    Row,
    SchemaChange,
    Source,
    Table,
    TableFailed,
)
from headwater.capture.envelope import Shaped
from headwater.capture.metrics import CaptureState
from headwater.capture.positions import (
    INCREMENTAL,
    INITIAL,
    CapturePosition,
    Failure,
    Snapshot,
    Stored,
    TableState,
)
from headwater.capture.settings import CaptureSettings
from headwater.capture.shaping import Shaper
from headwater.capture.signals import SignalReader
from headwater.capture.snapshot import (
    EVERYTHING,
    RECENT_TRANSACTIONS,
    Copy,
    FailedCopy,
    ReadChunk,
    Snapshots,
    Tracker,
)
from headwater.capture.sources import source_of
from headwater.capture.topics import Topics
from headwater.capture.writer import Committed, Writer
from headwater.client.compacted import read_committed_latest
from headwater.client.transactions import TransactionalProducer
from headwater.errors import CaptureError, HeadwaterError, SourceUnreachable, TableRefused
from headwater.settings import ClientSettings

log = logging.getLogger(__name__)

SPLIT_BYTES: Final = 1 << 30  # a source transaction larger than this becomes several of Kafka's
SPLIT_LOOK: Final = 1 << 10  # changes between two looks at that
TABLES_S: Final = 5.0  # how often new tables are looked for
LAG_S: Final = 2.0
END_S: Final = 10.0  # how long an orderly end waits for what is on its way


def run(
    settings: CaptureSettings,
    bootstrap: str,
    login: ClientSettings,
    state: CaptureState,
    stop: threading.Event,
) -> None:
    """Follows the database until `stop`, then returns with everything committed. Raises what made
    it fail; SourceUnreachable and BrokerUnreachable are worth another try.
    """
    source = source_of(settings)
    producer = TransactionalProducer(bootstrap, transactional_id(settings.name), login=login)
    topics = Topics(settings, bootstrap, login)
    try:
        topics.ensure_internal()
        producer.fence()
        stored = positions.decode(
            settings.name, read_committed_latest(bootstrap, login, positions.TOPIC)
        )
        for problem in source.check():
            if not isinstance(problem, TableRefused):
                raise problem
        offset = stored.capture.signals if stored.capture is not None else None
        with closing(SignalReader(settings.name, bootstrap, login, offset)) as signals:
            capture = Capture(settings, source, topics, stored, signals, state)
            capture.writer = Writer(producer, positions.key_of(settings.name), capture.committed)
            with closing(capture):
                capture.follow(stop)
    finally:
        source.close()
        topics.close()
        producer.close()


def transactional_id(capture: str) -> str:
    """Every run of a capture writes under this id, so a new one fences the old."""
    return f"headwater-capture-{capture}"


@dataclass(slots=True)
class _Followed:
    """One table, as the stream shows it now."""

    table: Table
    is_dropped: bool = False  # it has failed, or waits for the copy that comes first
    trackers: list[Tracker] = field(default_factory=list)
    passing: Chunk | None = None  # a copy of all of it that the stream has not passed yet


class Capture:
    """The state of one run."""

    writer: Writer

    def __init__(
        self,
        settings: CaptureSettings,
        source: Source,
        topics: Topics,
        stored: Stored,
        signals: SignalReader,
        state: CaptureState,
    ) -> None:
        self._settings = settings
        self._source = source
        self._topics = topics
        self._signals = signals
        self._state = state
        self._states: dict[str, TableState] = dict(stored.tables)
        known = {table_id: each.table for table_id, each in stored.tables.items()}
        after = stored.capture.position if stored.capture is not None else None
        place = source.open(after, known)
        self._shaper = Shaper(settings, source.connector, source.database)
        self._is_first = stored.capture is None
        self._stored = stored.capture or CapturePosition(
            Position(place), _now_ms(), signals=signals.offset
        )
        self._recent: deque[Begin] = deque(maxlen=RECENT_TRANSACTIONS)
        self._snapshots = Snapshots(source, self._recent, settings.chunk_rows)
        self._whole: list[Table] = []  # tables without a key that wait for their copy
        self._followed: dict[int, _Followed] = {}  # by the identity of the stream's table
        self._by_table: dict[str, _Followed] = {}
        self._transaction: Begin | None = None
        self._is_open = False  # something of the present transaction was appended
        self._acknowledged: CapturePosition | None = None
        self._lag = Lag()
        self._is_closed = threading.Event()
        self._tables_looked_s = 0.0
        self._written_s = time.monotonic()

    def committed(self, committed: Committed) -> None:
        """(writer)"""
        self._state.committed(
            committed.transactions,
            committed.records,
            committed.size_bytes,
            committed.latency_s,
            committed.position.ts_ms if committed.transactions else None,
        )

    def close(self) -> None:
        self._is_closed.set()
        self._snapshots.close()
        self.writer.close()

    # ── the stream ──────────────────────────────────────────────────────────────────────────────

    def follow(self, stop: threading.Event) -> None:
        if self._is_first:
            # The database keeps its log for us from here on; a crash must not forget where.
            self._commit(self._stored)
        threading.Thread(target=self._watch, name="lag", daemon=True).start()
        self._look_for_tables()
        append, partitions = self.writer.append, self._topics.partitions
        followed_by_id, shape = self._followed, self._shaper.change
        ts_ms = 0
        for event in self._source.changes(self._stored.position):
            if isinstance(event, Change):
                followed = followed_by_id.get(id(event.table))
                if followed is None:
                    followed = self._follow(event.table)
                is_plain = not (followed.is_dropped or followed.passing or followed.trackers)
                if not is_plain and not self._is_wanted(followed, event):
                    continue
                if not self._is_open:
                    self._open()
                try:
                    for topic, key, value, headers in shape(event):
                        append(topic, partitions[topic], key, value, headers, ts_ms)
                except CaptureError as error:
                    self._fail(event.table.id, error)
                if not event.ordinal % SPLIT_LOOK and self.writer.transaction_bytes > SPLIT_BYTES:
                    self._split(event.ordinal + 1)
            elif isinstance(event, Begin):
                self._begin(event)
                ts_ms = event.ts_ms
            elif isinstance(event, Commit):
                self._end(event)
                self._between()
            elif isinstance(event, Progress):
                self._stored = replace(self._stored, position=Position(event.at))
                self._between()
            elif event is None:
                if self._transaction is None:
                    self._between()
                else:
                    self.writer.check()
            else:
                self._rare(event, ts_ms)
            if stop.is_set():
                break
        self._end_in_order()

    def _begin(self, event: Begin) -> None:
        self._transaction = event
        self._recent.append(event)
        # A transaction that a split left half done goes on with what was counted before.
        goes_on = self._stored.position.changes is not None
        self._shaper.begin(event, self._stored.counts if goes_on else None)

    def _open(self) -> None:
        self.writer.begin()
        self._is_open = True

    def _end(self, event: Commit) -> None:
        assert self._transaction is not None
        ended = self._shaper.commit(event)
        if ended:
            self._append(ended)
        self._stored = replace(
            self._stored,
            position=Position(self._transaction.at),
            ts_ms=self._transaction.ts_ms,
            counts={},
        )
        self._transaction = None
        if self._is_open:
            self._is_open = False
            self._commit(self._stored, transactions=1)

    def _split(self, changes: int) -> None:
        assert self._transaction is not None
        position = Position(self._transaction.at, changes)
        self._stored = replace(
            self._stored,
            position=position,
            ts_ms=self._transaction.ts_ms,
            counts=self._shaper.counts,
        )
        self._commit(self._stored)
        self.writer.begin()

    def _commit(self, position: CapturePosition, transactions: int = 0) -> None:
        self.writer.commit(replace(position, lag=self._lag), transactions)
        self._written_s = time.monotonic()

    def _append(self, records: list[Shaped]) -> None:
        if not self._is_open:
            self._open()
        ts_ms = self._transaction.ts_ms if self._transaction is not None else _now_ms()
        for topic, key, value, headers in records:
            self.writer.append(topic, self._topics.partitions[topic], key, value, headers, ts_ms)

    def _rare(
        self, event: Message | Record | SchemaChange | TableFailed | object, ts_ms: int
    ) -> None:
        match event:
            case Record():
                self._append([(event.topic, event.key, event.value, tuple(event.headers))])
            case Message():
                self._append(self._shaper.message(event))
            case SchemaChange():
                self._schema_changed(event)
            case TableFailed():
                self._fail(event.table_id, event.error)
        if self._is_open and self._transaction is None:
            self._is_open = False
            self._commit(self._stored)

    def _end_in_order(self) -> None:
        if self._transaction is None and not self.writer.wait_until_durable(END_S):
            log.warning("%s: stopped before all of it was committed", self._settings.name)
        self.writer.check()
        self._acknowledge()

    # ── between transactions ────────────────────────────────────────────────────────────────────

    def _between(self) -> None:
        """What is due while no transaction is half appended."""
        self.writer.check()
        self._acknowledge()
        now_s = time.monotonic()
        if now_s - self._tables_looked_s > TABLES_S:
            self._look_for_tables()
        for signal in self._signals.received():
            self._stored = replace(self._stored, signals=signal.offset + 1)
            self._requested(signal.tables)
        if self._whole:
            self._copy_whole(self._whole.pop(0))
        place = self._stored.position.at
        for followed in list(self._by_table.values()) if self._passing_tables else ():
            if followed.passing is not None and followed.passing.is_passed(place):
                followed.passing = None
                self._passing_tables -= 1
        while (read := self._snapshots.passed(place)) is not None:
            if isinstance(read, FailedCopy):
                self._copy_failed(read)
            else:
                self._publish(read)
        self._source.is_awaited = self._snapshots.is_waiting()
        if now_s - self._written_s > self._settings.heartbeat_s:
            # Nothing of ours happened, but the database's log went on: it need not be kept.
            self._commit(self._stored)

    _passing_tables = 0

    def _acknowledge(self) -> None:
        durable = self.writer.durable
        if durable is not self._acknowledged and durable is not None:
            self._acknowledged = durable
            if durable.position.changes is None:
                self._source.acknowledge(durable.position.at)

    def _watch(self) -> None:
        """(watcher) How far the database is ahead."""
        while not self._is_closed.wait(LAG_S):
            durable = self.writer.durable
            if durable is None:
                continue
            try:
                self._lag = self._source.lag(durable.position.at)
                self._state.lag(self._lag)
            except HeadwaterError as error:
                log.debug("%s: the lag cannot be measured: %s", self._settings.name, error)
            except Exception:
                log.exception("%s: the lag cannot be measured", self._settings.name)

    # ── tables ──────────────────────────────────────────────────────────────────────────────────

    def _look_for_tables(self) -> None:
        self._tables_looked_s = time.monotonic()
        if self._source.snapshots_itself:
            return
        for table in self._source.tables():
            state = self._states.get(table.id)
            if state is None:
                self._follow(table)
            elif (
                state.failed is None
                and state.snapshot is not None
                and not state.snapshot.is_done
                and table.id not in self._snapshots.copies
                and all(table.id != waiting.id for waiting in self._whole)
            ):
                self._copy(table, state.snapshot)

    def _follow(self, table: Table, ddl: str | None = None) -> _Followed:
        """The stream (or a look at the database) shows a table for the first time, or changed."""
        followed = self._by_table.get(table.id)
        if followed is None:
            followed = self._by_table[table.id] = _Followed(table)
        self._followed.pop(id(followed.table), None)
        followed.table = table
        self._followed[id(table)] = followed
        state = self._states.get(table.id)
        if state is not None and state.failed is not None:
            followed.is_dropped = True
            return followed
        if state is not None and state.table == table:
            followed.is_dropped = self._waits_for_copy(state)
            return followed
        try:
            topic = self._shaper.topic_of(table)
            is_new = self._topics.ensure(topic)
            before = state.table if state is not None else None
            records = self._shaper.schema_change(SchemaChange(table.id, table, ddl), before)
        except CaptureError as error:
            self._fail(table.id, error, table)
            return followed
        if state is None:
            wanted = self._settings.snapshot == "initial" and not self._source.snapshots_itself
            state = TableState(table, Snapshot(INITIAL) if wanted else None)
            log.info("%s: follows %s into %s", self._settings.name, table.id, topic)
        else:
            is_new = True
        self._put_state(replace(state, table=table), records)
        if state.snapshot is not None and not state.snapshot.is_done:
            if not is_new:
                # The topic has rows of an earlier life of this capture; what was deleted between
                # would stay for ever.
                self._begin_anew(table)
            self._copy(table, state.snapshot)
        return followed

    def _waits_for_copy(self, state: TableState) -> bool:
        """A table without a key has no way to tell what a copy contains already, so its changes
        count from the copy on.
        """
        return not state.table.key and state.snapshot is not None and not state.snapshot.is_done

    def _put_state(self, state: TableState, records: list[Shaped] | None = None) -> None:
        """Makes a table's state durable with the transaction in the making, or by itself."""
        table_id = state.table.id
        self._states[table_id] = state
        self._append(records or [])  # which opens, also without records
        self.writer.state(
            positions.key_of(self._settings.name, table_id), positions.encode_table(state)
        )
        if self._transaction is None:
            self._is_open = False
            self._commit(self._stored)

    def _schema_changed(self, event: SchemaChange) -> None:
        state = self._states.get(event.table_id)
        if event.table is not None and (state is None or state.table != event.table):
            self._follow(event.table, event.ddl)
            return
        try:
            before = state.table if state is not None else None
            self._append(self._shaper.schema_change(event, before))
        except CaptureError as error:
            self._fail(event.table_id, error)
        if event.table is None and state is not None:
            self._forget(event.table_id)

    def _forget(self, table_id: str) -> None:
        """The table is gone. One that gets its name later is a new one."""
        self._snapshots.cancel(table_id)
        self._whole = [table for table in self._whole if table.id != table_id]
        del self._states[table_id]
        followed = self._by_table.pop(table_id, None)
        if followed is not None:
            self._followed.pop(id(followed.table), None)
        if not self._is_open:
            self._open()
        self.writer.state(positions.key_of(self._settings.name, table_id), None)

    def _fail(self, table_id: str, error: HeadwaterError, table: Table | None = None) -> None:
        """Stops one table; the others go on."""
        state = self._states.get(table_id)
        if state is not None and state.failed is not None:
            return
        log.error("%s: %s is no longer followed: %s", self._settings.name, table_id, error)
        self._state.table_failed(table_id, error)
        hint = f"`headwater capture snapshot {self._settings.name} --table {table_id}` begins anew"
        failure = Failure(error.what, error.detail, f"{error.hint}; {hint}" if error.hint else hint)
        self._snapshots.cancel(table_id)
        followed = self._by_table.get(table_id)
        if followed is not None:
            followed.is_dropped = True
            table = table or followed.table
        if table is None:
            schema, _, name = table_id.partition(".")
            table = state.table if state is not None else Table(schema, name, (), ())
        self._put_state(TableState(table, state.snapshot if state is not None else None, failure))

    def _is_wanted(self, followed: _Followed, event: Change) -> bool:
        """Whether a change of a table that is being copied, or has failed, is published."""
        if followed.is_dropped:
            return False
        assert self._transaction is not None
        if followed.passing is not None and followed.passing.contains(self._transaction):
            return False
        if followed.trackers:
            keys = {
                key
                for row in (event.before, event.after)
                if row is not None and (key := self._key_of(event.table, row)) is not None
            }
            if event.op == "t":
                keys = {EVERYTHING}
            for tracker in list(followed.trackers):
                tracker.touch(self._transaction, keys)
        return True

    def _key_of(self, table: Table, row: Mapping[str, object]) -> bytes | None:
        if any(name not in row for name in table.key):
            return None
        return self._shaper.key_of(table, dict(row))

    # ── copies ──────────────────────────────────────────────────────────────────────────────────

    def _copy(self, table: Table, snapshot: Snapshot) -> None:
        followed = self._by_table.get(table.id) or self._follow(table)
        if not table.key:
            followed.is_dropped = snapshot.kind == INITIAL
            self._whole.append(table)
            return
        self._snapshots.start(
            Copy(table, snapshot.kind, snapshot.after, snapshot.rows, followed.trackers)
        )

    def _publish(self, read: ReadChunk) -> None:
        """A chunk that the stream has passed, between two transactions."""
        table, copy = read.chunk.table, read.copy
        newer = read.tracker.newer_than(read.chunk)
        rows = read.rows
        if EVERYTHING in newer:
            rows = []
        elif newer:
            rows = [row for row in rows if self._shaper.key_of(table, row) not in newer]
        self._open()
        try:
            self._append_rows(table, rows, copy.kind)
        except CaptureError as error:
            self._fail(table.id, error)
            return
        self._snapshots.published(read)
        copy.rows += len(read.rows)
        done = read.chunk.after is None
        snapshot = Snapshot(copy.kind, read.chunk.after, copy.rows, copy.total, done)
        self._put_state(replace(self._states[table.id], snapshot=snapshot))
        self._state.snapshot(table.id, copy.rows, copy.total, done)
        if done:
            log.info("%s: %s: %d rows copied", self._settings.name, table.id, copy.rows)

    def _append_rows(self, table: Table, rows: Iterable[Row], kind: str) -> None:
        append, partitions, now_ms = self.writer.append, self._topics.partitions, _now_ms()
        for topic, key, value, headers in self._shaper.rows(table, rows, kind):
            append(topic, partitions[topic], key, value, headers, now_ms)

    def _copy_whole(self, table: Table) -> None:
        """A table without a key: all of it in one read, while the stream stands still. Changes
        that the read contains and that come later are dropped.
        """
        state = self._states[table.id]
        if state.snapshot is None or state.failed is not None:
            return
        followed = self._by_table[table.id]
        try:
            chunk = self._source.read_chunk(table, None, self._settings.chunk_rows)
            if not all(chunk.contains(transaction) for transaction in self._recent):
                self._whole.append(table)  # what the topic has must not be newer
                return
            total = self._source.estimate_rows(table)
            count = 0

            def counted() -> Iterator[Row]:
                nonlocal count
                for row in chunk.rows:
                    count += 1
                    if not count % 10_000:
                        self._state.snapshot(table.id, count, total, False)
                    yield row

            if state.snapshot.kind == INCREMENTAL:
                self._begin_anew(table)
            self._open()
            self._append_rows(chunk.table, counted(), state.snapshot.kind)
        except SourceUnreachable:
            raise
        except CaptureError as error:
            self._fail(table.id, error)
            return
        followed.is_dropped = False
        followed.passing = chunk
        self._passing_tables += 1
        self._put_state(
            replace(state, snapshot=Snapshot(state.snapshot.kind, None, count, total, True))
        )
        self._state.snapshot(table.id, count, total, True)

    def _copy_failed(self, failed: FailedCopy) -> None:
        if isinstance(failed.error, SourceUnreachable):
            raise failed.error
        if not failed.copy.is_cancelled:
            self._fail(failed.copy.table.id, failed.error)

    def _begin_anew(self, table: Table) -> None:
        """Tells consumers that what they have of the table no longer counts."""
        truncated = Change(table, "t", None, None, 0, {})
        if self._transaction is not None:
            self._append(self._shaper.change(truncated))
            return
        self._shaper.begin(Begin(self._stored.position.at, "", _now_ms(), {}))
        self._append(self._shaper.change(truncated))
        self._append(self._shaper.commit(Commit(1)))
        self._is_open = False
        self._commit(self._stored)

    def _requested(self, table_ids: list[str]) -> None:
        """Somebody wants these tables copied again."""
        tables = {table.id: table for table in self._source.tables()}
        for table_id in table_ids:
            table = tables.get(table_id)
            if table is None:
                log.warning("%s: no table %s to copy", self._settings.name, table_id)
                continue
            log.info("%s: copies %s again", self._settings.name, table_id)
            state = self._states.get(table_id)
            snapshot = Snapshot(INCREMENTAL)
            self._put_state(TableState(table, snapshot))
            followed = self._by_table.get(table_id) or self._follow(table)
            followed.is_dropped = False
            if state is not None and state.failed is not None and table.key:
                self._begin_anew(table)
            self._copy(table, snapshot)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
