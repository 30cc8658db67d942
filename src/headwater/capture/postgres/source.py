"""PostgreSQL as a source of changes."""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import psycopg2.extras

from headwater.capture.contract import (
    Chunk,
    Event,
    Lag,
    LogPosition,
    SchemaChange,
    Source,
    SourcePosition,
    StorageChange,
    Table,
    TableFailed,
)
from headwater.capture.postgres.catalog import (
    Candidate,
    Selection,
    TableInterner,
    describe,
    make_table,
)
from headwater.capture.postgres.chunks import ChunkReader, PostgresChunk, Snapshot
from headwater.capture.postgres.connection import (
    Address,
    ImpatientCursor,
    Pool,
    lsn_number,
    lsn_text,
    quoted,
)
from headwater.capture.postgres.replication import timeline
from headwater.capture.postgres.replication.publication import Publication, Synced
from headwater.capture.postgres.replication.relations import Relations
from headwater.capture.postgres.replication.row_completion import Completer
from headwater.capture.postgres.replication.slot import Slot
from headwater.capture.postgres.replication.stream import ChangeStream
from headwater.capture.postgres.replication.toast_cache import ToastCache
from headwater.capture.postgres.replication.transactions import OWN_PREFIX
from headwater.capture.postgres.storage import REDUCED, SAME, Storage, compare, read_storages
from headwater.capture.postgres.type_catalog import TypeCatalog
from headwater.capture.settings import CaptureSettings
from headwater.errors import CaptureError, HeadwaterError

# How often new and changed tables are looked for. The stream stands still meanwhile, and thousands
# of tables take a while: it is then done more rarely.
SYNC_S: Final = 5.0
_LONGEST_SYNC_S: Final = 30.0
_SYNC_SHARE: Final = 0.01  # of the time
_MAX_NAME: Final = 63


class PostgresSource(Source):
    """PostgreSQL 14 and later, by logical replication (pgoutput) through a slot of its own.

    options: `slot` and `publication`, their names (both headwater_<capture> by default).
    """

    connector = "postgresql"

    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = settings
        self._address = Address(settings.source, f"headwater capture {settings.name}")
        self.database = self._address.database
        own = _own_name(settings.name)
        self._selection = Selection(settings)
        self._slot = Slot(settings.options.get("slot", own), settings.name)
        self._publication = Publication(
            settings.options.get("publication", own), self._address, self._selection
        )
        self._interner = TableInterner()
        self._types = TypeCatalog(settings.decimals, settings.times)
        self._pool = Pool(self._address)
        self._chunks = ChunkReader(
            self._pool, self._interner, self._publication.name, settings.decimals, settings.times
        )
        self._catalog: Any = None  # the main thread's connection
        self._stream: ChangeStream | None = None
        self._published: dict[str, int] = {}  # published tables, with their oids
        # Tables that are not published until their drop is stored; the position behind which
        # that is certain, None before the drop was reported.
        self._held: dict[str, int | None] = {}
        self._failed: dict[str, str] = {}  # tables that were reported, and as what
        self._seen_storages: dict[str, Storage] = {}  # as of the last look
        self._later: list[tuple[int, Event]] = []  # events for when the stream has come to an LSN
        self._opened = False
        self._sync_due = 0.0
        self._heartbeat_at = 0.0

    def check(self) -> list[HeadwaterError]:
        from headwater.capture.postgres.checks import check

        return check(self._address, self._settings, self._slot, self._publication, self._selection)

    def advice(self) -> list[CaptureError]:
        from headwater.capture.postgres.advice import advice

        return advice(self._address, self._slot, self._publication, self._selection)

    def open(self, after: SourcePosition | None, stored: Mapping[str, Table]) -> LogPosition:
        # Before anything is made: should a standby take over meanwhile, the position is the older
        # one.
        now = self._timeline()
        with self._address.errors(), self._connection().cursor() as cursor:
            self._slot.free(cursor)
            if after is not None:
                self._find(cursor, after)
            # In this order: pgoutput looks the publication up as it was at each change's time.
            # One without columns was never followed: its failure shall not be taken for its end.
            followed = [table_id for table_id, table in stored.items() if table.columns]
            synced = self._publication.sync(cursor, held=() if after is None else followed)
            lsn, created = self._slot.open(cursor, after)
            if created:
                self._chunks.settle(candidate.oid for candidate in synced.tables)
            self._published = {candidate.id: candidate.oid for candidate in synced.tables}
            self._seen_storages = dict(self.storages)
            storages = self._changed_storages(cursor, synced.tables)
            end = _end_of_log(cursor)
            self._later = [
                (lsn, SchemaChange(table_id, None))
                for table_id in stored
                if table_id not in self._published and not _exists(cursor, stored[table_id])
            ]
            self._later += [(end, change) for change in storages]
            for candidate in synced.held:
                self._hold(candidate.id, lsn)
            self._report_failed(synced, lsn)
        self._heartbeat_at = time.monotonic()
        self._sync_due = self._heartbeat_at + SYNC_S
        self._opened = True
        return now.position(lsn)

    def check_position(self, after: SourcePosition) -> bool:
        with self._address.errors(), self._connection().cursor() as cursor:
            self._find(cursor, after)
        return True

    def tables(self) -> list[Table]:
        """Once opened, only tables that are published: a copy of a table that is not would
        miss its changes until it is.
        """
        with self._address.errors(), self._connection().cursor() as cursor:
            if self._opened:
                return self._describe(cursor, self._sync(cursor).tables)
            candidates = self._selection.candidates(cursor, self._publication.name)
            return self._describe(cursor, [c for c in candidates if c.identified])

    def changes(self, after: SourcePosition) -> Iterator[Event]:
        self._connection()
        toast = ToastCache()
        completer = Completer(self._pool, self._types, toast, self.stay_connected)
        relations = Relations(
            self._address, self._catalog, self._types, self._selection, self._interner, toast
        )
        stream = ChangeStream(
            self._settings.name,
            self._address,
            self._catalog,
            relations,
            lambda: self.is_awaited,
            lambda: completer.is_holding,
            toast,
        )
        self._stream = stream
        self._beat()  # so that a message comes soon: see feedback.py
        stream.start(self._slot.name, self._publication.name, after)
        yield from completer.complete(stream.events(self._between))

    def acknowledge(self, position: LogPosition) -> None:
        if self._stream is not None:
            self._stream.acknowledge(int(position["lsn"]))

    def stay_connected(self) -> None:
        if self._stream is not None:
            self._stream.stay_connected()

    def read_chunk(self, table: Table, after: Any, limit_rows: int) -> Chunk:
        return self._chunks.read(table, after, limit_rows, is_followed=self._opened)

    def bounded(self, table: Table, bounds: Any) -> Chunk:
        return PostgresChunk(table, [], None, Snapshot(bounds["snapshot"]), bounds["lsn"])

    def estimate_rows(self, table: Table) -> int | None:
        rows = self._pool.rows(
            """SELECT sum(greatest(c.reltuples, 0))::int8 FROM pg_class c
               WHERE c.relkind = 'r' AND (c.oid = to_regclass(%(name)s)
                  OR c.oid IN (SELECT relid FROM pg_partition_tree(to_regclass(%(name)s))))""",
            {"name": quoted(table.schema, table.name)},
        )
        return int(rows[0][0]) if rows[0][0] else None  # 0: never analysed

    def lag(self, acknowledged: LogPosition) -> Lag:
        retained = self._slot.retained(self._pool.rows)
        behind = self._pool.rows(
            "SELECT pg_current_wal_lsn() - %s::pg_lsn", (lsn_text(int(acknowledged["lsn"]) + 1),)
        )
        return replace(retained, size_bytes=max(0, int(behind[0][0])))

    def close(self) -> None:
        self._chunks.stop()
        if self._stream is not None:
            self._stream.close()
        if self._catalog is not None:
            self._catalog.close()
        self._pool.close()

    def remove(self) -> None:
        if self._stream is not None:
            self._stream.close()
        with self._address.errors(), self._connection().cursor() as cursor:
            self._slot.drop(cursor)
            self._publication.drop(cursor)

    def _between(self) -> list[Event]:
        """What is due between two transactions: a look for new tables, a heartbeat, and events
        that waited for the stream to come this far.
        """
        assert self._stream is not None
        now = time.monotonic()
        if now > self._sync_due:
            with self._address.errors(), self._connection().cursor() as cursor:
                self._sync(cursor)
        if now - self._heartbeat_at > self._settings.heartbeat_s:
            self._heartbeat_at = now
            self._beat()
        if not self._later:
            return []
        due = [event for lsn, event in self._later if lsn <= self._stream.seen]
        self._later = [(lsn, event) for lsn, event in self._later if lsn > self._stream.seen]
        for event in due:
            if isinstance(event, SchemaChange) and event.table_id in self._held:
                self._held[event.table_id] = self._stream.seen
        return due

    def _find(self, cursor: Any, after: SourcePosition) -> None:
        """Raises PositionLost unless the stream can go on behind `after`. Makes nothing."""
        if not self._publication.exists(cursor):
            raise self._slot.lost("the publication is dropped")
        branched_off = timeline.branched_off(self._address, after.at)
        if branched_off is not None:
            raise self._slot.lost(branched_off)
        self._slot.open(cursor, after)

    def _timeline(self) -> timeline.Timeline:
        with self._address.errors():
            connection = self._address.connect(psycopg2.extras.LogicalReplicationConnection)
            try:
                return timeline.current_timeline(connection)
            finally:
                connection.close()

    def _sync(self, cursor: Any) -> Synced:
        """Compares the tables, and queues events for when the stream has come this far."""
        began = time.monotonic()
        self._release()
        synced = self._publication.sync(cursor, held=self._published.keys() | self._held.keys())
        storages = self._changed_storages(cursor, synced.tables)
        lsn = _end_of_log(cursor)
        now = {candidate.id: candidate.oid for candidate in synced.tables}
        held = {candidate.id for candidate in synced.held}
        news = [c for c in synced.tables if self._published.get(c.id) != c.oid]
        for table in self._describe(cursor, news):
            if table.id in self._published:  # created again under a publication FOR ALL TABLES
                self._later.append((lsn, SchemaChange(table.id, None)))
            self._later.append((lsn, SchemaChange(table.id, table)))
        new = {candidate.id for candidate in news}
        self._later += [(lsn, change) for change in storages if change.table_id not in new]
        for table_id in self._published.keys() - now.keys() - synced.failed.keys():
            if table_id in held:  # created again, or taken out of the publication
                self._hold(table_id, lsn)
            else:
                self._later.append((lsn, SchemaChange(table_id, None)))
        self._published = now
        self._report_failed(synced, lsn)
        ended = time.monotonic()
        pause_s = max(SYNC_S, min((ended - began) / _SYNC_SHARE, _LONGEST_SYNC_S))
        self._sync_due = ended + pause_s
        return synced

    def _changed_storages(self, cursor: Any, candidates: list[Candidate]) -> list[StorageChange]:
        """Tables whose rows are held otherwise than when they were looked at before."""
        changes = []
        found = read_storages(cursor, [candidate.oid for candidate in candidates])
        for candidate in candidates:
            now = found.get(candidate.oid)
            if now is None:  # dropped meanwhile
                continue
            before = self._seen_storages.get(candidate.id)
            self._seen_storages[candidate.id] = now
            if before is None or self._published.get(candidate.id) != candidate.oid:
                self.storages = {**self.storages, candidate.id: now}
            elif before != now:
                became = compare(cursor, before, now)
                changes.append(StorageChange(candidate.id, now, became != SAME, became == REDUCED))
        return changes

    def _hold(self, table_id: str, lsn: int) -> None:
        """A table that was followed and is no longer published (created again, or taken out)
        has changes that will not be sent. It is reported as dropped, and published as a new one,
        with a new copy, only when that is stored: a crash between must not make it look as if it
        was followed all the time.
        """
        self._held[table_id] = None
        self._later.append((lsn, SchemaChange(table_id, None)))

    def _release(self) -> None:
        """What is acknowledged behind the position of its report was stored after it."""
        if self._stream is not None and self._held:
            done = self._stream.acknowledged
            self._held = {t: lsn for t, lsn in self._held.items() if lsn is None or lsn >= done}
            if self._held:
                self._beat()  # so that there is a position behind it

    def _report_failed(self, synced: Synced, lsn: int) -> None:
        for table_id, error in synced.failed.items():
            if self._failed.get(table_id) != str(error):
                self._later.append((lsn, TableFailed(table_id, error)))
        self._failed = {table_id: str(error) for table_id, error in synced.failed.items()}

    def _beat(self) -> None:
        """A record in the log that belongs to this database: the slot moves on even if only
        other databases of the cluster write. Transactional, for only a commit is flushed at once.
        """
        with self._address.errors(), self._connection().cursor() as cursor:
            cursor.execute(
                "SELECT pg_logical_emit_message(true, %s, '')", (OWN_PREFIX + "heartbeat",)
            )

    def _describe(self, cursor: Any, candidates: list[Candidate]) -> list[Table]:
        oids = [candidate.oid for candidate in candidates]
        described = describe(cursor, oids, self._publication.name)
        self._types.load(cursor, {c.oid for found in described.values() for c in found.columns})
        return [
            self._interner.intern(make_table(c.schema, c.name, *described[c.oid], self._types))
            for c in candidates
        ]

    def _connection(self) -> Any:
        if self._catalog is None or self._catalog.closed:
            self._catalog = self._address.connect(cursor=ImpatientCursor)
        return self._catalog


def _own_name(capture: str) -> str:
    """Slots have lower-case letters, digits and underscores only."""
    return ("headwater_" + re.sub(r"[^a-z0-9_]", "_", capture.lower()))[:_MAX_NAME]


def _end_of_log(cursor: Any) -> int:
    """A stream that has come here has sent all that was committed before."""
    cursor.execute("SELECT pg_current_wal_lsn()::text")
    return lsn_number(cursor.fetchone()[0]) - 1


def _exists(cursor: Any, table: Table) -> bool:
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (quoted(table.schema, table.name),))
    return bool(cursor.fetchone()[0])
