"""The stream of the binlog: from its events to transactions.

    GTID, [BEGIN], TABLE_MAP, rows, TABLE_MAP, rows, …, XID or COMMIT     a transaction with rows
    GTID, statement                                                      DDL: one by itself

The log has committed transactions only, one behind the other, so that nothing has to be held back:
each event's rows are handed on when it has been read. A transaction in which nothing of the capture
changed is not sent; a PositionAdvanced comes behind it now and then.

Changes are counted for all tables, captured or not, so that their ordinals stay the same when the
settings change.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

from headwater.capture.contract import (
    IDLE_S,
    Begin,
    Change,
    Commit,
    Event,
    SchemaChange,
    SourcePosition,
    TableFailed,
)
from headwater.capture.mysql import ddl
from headwater.capture.mysql.binlog import events as binlog
from headwater.capture.mysql.binlog import gtid_events, positions
from headwater.capture.mysql.binlog.dump import Dump
from headwater.capture.mysql.binlog.gtids import MariaDbGtids, MySqlGtids
from headwater.capture.mysql.stream import failures
from headwater.capture.mysql.stream.mapped_tables import MappedTables
from headwater.capture.mysql.stream.position import StreamPosition
from headwater.capture.mysql.stream.schema_history import SchemaHistory
from headwater.capture.mysql.stream.transactions import Transaction
from headwater.capture.settings import CaptureSettings
from headwater.errors import HeadwaterError, PositionLost

_AWAITED_S: Final = 0.005
_BAD_BYTES: Final = (LookupError, ValueError, struct.error, ArithmeticError, HeadwaterError)


class BinlogStream:
    """Everything behind one position."""

    def __init__(
        self,
        settings: CaptureSettings,
        dump: Dump,
        schemas: SchemaHistory,
        gtids: MySqlGtids | MariaDbGtids | None,
        after: SourcePosition,
        *,
        server_id: int,
        is_by_gtid: bool,
        with_statements: bool,
        copied: dict[str, tuple[int, int]],
    ) -> None:
        self._settings = settings
        self._dump = dump
        self._schemas = schemas
        self._gtids = gtids
        self._with_statements = with_statements
        self._transaction: Transaction | None = None
        self._maps = MappedTables(settings, schemas)
        self._failed: set[str] = set()
        self._copied = copied
        self._position = StreamPosition(dump, gtids, schemas, after, server_id)
        # The first transaction is the one of `after`, unless all of it was asked to be left out.
        self._first: SourcePosition | None = None
        if "begins" in after.at and not (is_by_gtid and after.changes is None):
            self._first = after
        self._is_by_gtid = is_by_gtid
        self._server_id = server_id

    def events(self, source: Any) -> Iterator[Event]:
        """Ends by an error only."""
        while True:
            event = self._dump.event(0.0)
            is_between = self._transaction is None
            if event is None and is_between and self._position.is_unreported:
                yield self._position.progress()
            if event is None:
                event = self._dump.event(_AWAITED_S if source.is_awaited else IDLE_S)
            if event is None:
                yield None
                self._dump.waited()
                continue
            try:
                if event.type in binlog.ROWS:
                    yield from self._rows(event)
                else:
                    yield from self._handle(event)
            except (LookupError, ValueError, struct.error) as error:
                detail = f"{type(error).__name__}: {error} (event type {event.type})"
                raise self._dump.framing.malformed(event.end, detail) from error
            if self._transaction is None and self._position.is_due:
                yield self._position.progress()

    def _handle(self, event: binlog.Event) -> Iterator[Event]:
        kind = event.type
        if kind in binlog.ROWS:
            yield from self._rows(event)
        elif kind == binlog.TABLE_MAP:
            yield from self._table_map(event)
        elif kind in (binlog.GTID, binlog.ANONYMOUS_GTID):
            self._begin(event, gtid_events.read_mysql_gtid(event))
        elif kind == binlog.GTID_TAGGED:
            self._begin(event, gtid_events.read_tagged_gtid(event))
        elif kind == binlog.MARIADB_GTID:
            self._begin(event, gtid_events.read_mariadb_gtid(event))
        elif kind == binlog.XID:
            yield from self._commit(event)
        elif kind in (binlog.QUERY, binlog.QUERY_COMPRESSED):
            yield from self._query(event)
        elif kind in (binlog.ROWS_QUERY, binlog.ANNOTATE_ROWS):
            if self._with_statements and self._transaction:
                self._transaction.query = binlog.read_rows_query(event)
        elif kind == binlog.TRANSACTION_PAYLOAD:
            yield from self._payload(event)
        elif kind in (binlog.ROTATE, binlog.FORMAT_DESCRIPTION):
            self._between(event)
        elif kind in (binlog.HEARTBEAT, binlog.HEARTBEAT_V2):
            if self._transaction is None:
                self._position.pass_heartbeat(event)
        elif kind == binlog.XA_PREPARE:
            yield from self._commit(event)
        elif kind == binlog.PARTIAL_UPDATE_ROWS:
            yield from self._partial_update(event)
        elif kind == binlog.EXECUTE_LOAD_QUERY:
            yield from self._load(event)
        elif kind == binlog.INCIDENT:
            raise PositionLost(
                "the server reports that its binlog lacks changes",
                detail=f"an incident at {self._dump.framing.file}:{event.end}",
            )
        elif binlog.is_without_news(event):
            self._between(event)
        else:
            raise ValueError("an unknown kind of event")

    def _between(self, event: binlog.Event) -> None:
        if self._transaction is None:
            self._position.pass_event(event)

    # --- transactions ---

    def _begin(self, event: binlog.Event, gtid: gtid_events.Gtid) -> None:
        if self._transaction is not None:
            raise ValueError("a transaction begins inside another")
        file = self._dump.framing.file
        ts_ms = gtid.committed_us // 1000 if gtid.committed_us else event.timestamp_s * 1000
        source: dict[str, Any] = {"server_id": event.server_id, "gtid": gtid.text, "file": file}
        transaction_id = gtid.text or f"file={file},pos={event.begin}"
        position = self._position.of_transaction(event.begin, gtid.text)
        begin = Begin(position, transaction_id, ts_ms, source)
        self._transaction = Transaction(begin, gtid.text, gtid.is_standalone, gtid.is_xa)
        self._maps.begin()
        if self._first is not None:
            self._resume(self._first, self._transaction)
            self._first = None

    def _resume(self, first: SourcePosition, transaction: Transaction) -> None:
        """The log is the same as when the position was stored: so is this transaction."""
        expected, found = first.at, transaction.begin.at
        is_same = expected.get("gtid") == found.get("gtid")
        if expected.get("server") == self._server_id:
            is_same = is_same and positions.order(expected) == positions.order(found)
        if not is_same:
            raise PositionLost(
                "the server's binlog is another one than the capture has read",
                detail=f"expected {_name(expected)}, found {_name(found)}",
            )
        transaction.skip = first.changes or 0
        transaction.is_whole = first.changes is None

    def _started(self, transaction: Transaction) -> Iterator[Event]:
        if not transaction.is_sent and not transaction.is_whole:
            transaction.is_sent = True
            yield transaction.begin

    def _commit(self, event: binlog.Event) -> Iterator[Event]:
        transaction = self._transaction
        if transaction is None:
            raise ValueError("a transaction ends that did not begin")
        if transaction.skip and not transaction.is_sent:  # its rest held nothing, but it began
            yield from self._started(transaction)
        if transaction.is_sent:
            yield Commit(transaction.ordinal)
        self._transaction = None
        self._position.committed(transaction.gtid, is_sent=transaction.is_sent)

    def _payload(self, event: binlog.Event) -> Iterator[Event]:
        """MySQL's compressed transaction: everything behind the GTID, in one event."""
        outer = self._dump.framing
        inner = binlog.Framing(False, outer.file, outer.rows_header_bytes)
        for packet in binlog.payload_events(event, outer.file):
            part = inner.event(packet)
            # Inside there are no positions: all of it stands where the payload does.
            yield from self._handle(part._replace(size=event.size, end=event.end))

    # --- rows ---

    def _table_map(self, event: binlog.Event) -> Iterator[Event]:
        header_bytes = self._dump.framing.rows_header_bytes
        table_id = binlog.read_table_id(event, header_bytes)
        body = event.body[header_bytes:]
        position = self._transaction.begin.at if self._transaction else self._position.current()
        mapped = self._maps.add(table_id, body, position)
        if mapped.failure is not None:
            yield from self._table_failed(mapped.id, mapped.failure)
        elif mapped.table is not None:
            self._failed.discard(mapped.id)

    def _rows(self, event: binlog.Event) -> list[Event]:
        """What an event with rows becomes; a list, as generators in generators cost too much."""
        transaction = self._transaction
        if transaction is None:
            raise ValueError("rows outside of a transaction")
        rows = binlog.read_rows(event, self._dump.framing.rows_header_bytes)
        mapped = self._maps.get(rows.table_id)
        if mapped is None:
            if rows.at >= len(rows.data):  # MySQL ends a statement without rows like this
                return []
            raise ValueError(f"rows of a table ({rows.table_id}) without a map")
        if mapped.table is None or transaction.is_whole:
            transaction.ordinal += self._maps.count(mapped, rows)
            return []
        if transaction.is_xa:
            transaction.ordinal += self._maps.count(mapped, rows)
            return list(self._table_failed(mapped.id, failures.xa(mapped.id, self._settings)))
        try:
            decoded = self._maps.decode(mapped, rows)
        except _BAD_BYTES as error:
            transaction.ordinal += self._maps.count(mapped, rows)
            location = f"{self._dump.framing.file}:{event.begin}"
            failure = failures.undecodable(mapped.id, location, error, self._settings)
            return list(self._table_failed(mapped.id, failure))
        transaction.touched.add(mapped.id)
        changes = transaction.changes(mapped.table, rows.op, decoded, event.begin)
        return [*self._started(transaction), *changes]

    def _partial_update(self, event: binlog.Event) -> Iterator[Event]:
        """An UPDATE that has JSON columns as differences only."""
        transaction = self._transaction
        if transaction is None:
            raise ValueError("rows outside of a transaction")
        table_id = binlog.read_table_id(event, self._dump.framing.rows_header_bytes)
        transaction.ordinal += 1
        mapped = self._maps.get(table_id)
        if mapped is not None and self._schemas.is_chosen(mapped.id):
            location = f"{self._dump.framing.file}:{event.begin}"
            error = failures.partial_update(mapped.id, location, self._settings)
            yield from self._table_failed(mapped.id, error)

    # --- statements ---

    def _query(self, event: binlog.Event) -> Iterator[Event]:
        query = binlog.read_query(event)
        text = query.text.strip()
        verb = text[:12].upper()
        transaction = self._transaction
        if transaction is None:
            if not verb.startswith("BEGIN"):  # of servers without even anonymous GTIDs
                self._begin(event, gtid_events.Gtid(None, True, is_xa=False, committed_us=None))
                yield from self._statement(event, query)
                yield from self._commit(event)
                return
            self._begin(event, gtid_events.Gtid(None, False, is_xa=False, committed_us=None))
            transaction = self._transaction
            assert transaction is not None
        if transaction.begin.source.get("thread") is None:
            transaction.begin.source["thread"] = query.thread_id
        if verb == "BEGIN":
            transaction.is_begun = True
        elif verb == "COMMIT":
            yield from self._commit(event)
        elif verb.startswith("ROLLBACK"):
            yield from self._rolled_back(transaction, event)
            if verb == "ROLLBACK":
                yield from self._commit(event)
        elif verb.startswith("XA "):
            yield from self._xa(transaction, event, text)
        elif verb.startswith(("SAVEPOINT", "RELEASE SAVE")):
            pass
        else:
            yield from self._statement(event, query)
            if self._is_alone(transaction):
                yield from self._commit(event)

    def _is_alone(self, transaction: Transaction) -> bool:
        """Whether a statement is all of its transaction. MariaDB marks it; in MySQL there was no
        BEGIN in front.
        """
        if isinstance(self._gtids, MariaDbGtids):
            return transaction.is_standalone
        return not transaction.is_begun

    def _statement(self, event: binlog.Event, query: binlog.Query) -> Iterator[Event]:
        statement = self._schemas.parse(query)
        transaction = self._transaction
        if statement is None or transaction is None:
            return
        if statement.kind == "data":
            yield from self._without_rows(statement)
            return
        if statement.kind == "truncate":
            yield from self._truncate(transaction, statement, event)
            return
        changed = self._schemas.changed(statement, self._dump.log_position())
        for schema, name in statement.tables:
            self._forget(f"{schema}.{name}")
        self._mark_uncertain(transaction)
        for table_id, table in changed:
            self._forget(table_id)
            if not transaction.is_whole:
                yield from self._started(transaction)
                yield SchemaChange(table_id, table, query.text)

    def _mark_uncertain(self, transaction: Transaction) -> None:
        """Who resumes behind this transaction has its position, and needs what is so behind it."""
        position = dict(transaction.begin.at)
        position.pop("uncertain", None)
        if self._schemas.uncertain:
            position["uncertain"] = sorted(self._schemas.uncertain)
        transaction.begin.at = position

    def _truncate(
        self, transaction: Transaction, statement: ddl.Ddl, event: binlog.Event
    ) -> Iterator[Event]:
        schema, name = statement.tables[0]
        if not self._schemas.is_chosen(f"{schema}.{name}"):
            return
        ordinal = transaction.ordinal
        transaction.ordinal += 1
        if transaction.is_whole or ordinal < transaction.skip:
            return
        table = self._schemas.last_certain(f"{schema}.{name}")
        if table is None:  # nothing of it was ever sent
            return
        yield from self._started(transaction)
        source = {"pos": event.begin, "row": 0}
        yield Change(table, "t", None, None, ordinal, source)

    def _without_rows(self, statement: ddl.Ddl) -> Iterator[Event]:
        """A statement that changed rows, in the log as text (binlog_format is not ROW)."""
        for schema, name in statement.tables:
            table_id = f"{schema}.{name}"
            if self._schemas.is_chosen(table_id) and self._schemas.last_certain(table_id):
                location = f"{self._dump.framing.file}:{self._dump.position}"
                error = failures.statements(table_id, location, self._settings)
                yield from self._table_failed(table_id, error)

    def _load(self, event: binlog.Event) -> Iterator[Event]:
        """LOAD DATA as a statement: like QUERY, with 13 bytes more in front."""
        body = event.body[:13] + event.body[26:]
        query = binlog.read_query(event._replace(type=binlog.QUERY, body=body))
        statement = self._schemas.parse(query)
        if statement is not None:
            yield from self._without_rows(statement)

    def _rolled_back(self, transaction: Transaction, event: binlog.Event) -> Iterator[Event]:
        """A part that was taken back stands in the log when tables without transactions took part.
        Its rows have been sent by now.
        """
        for table_id in sorted(transaction.touched):
            location = f"{self._dump.framing.file}:{event.end}"
            error = failures.taken_back(table_id, location, self._settings)
            yield from self._table_failed(table_id, error)

    def _xa(self, transaction: Transaction, event: binlog.Event, text: str) -> Iterator[Event]:
        action = text[3:].strip().upper()
        if action.startswith(("START", "BEGIN")):
            transaction.is_xa = True
            transaction.is_begun = True
        elif action.startswith(("COMMIT", "ROLLBACK")):
            yield from self._commit(event)

    # --- tables that fail ---

    def _table_failed(self, table_id: str, error: HeadwaterError) -> Iterator[Event]:
        """Once, and again if it was copied since: the copy has not what comes behind it."""
        copied = self._copied.get(table_id)
        here = (positions.file_number(self._dump.framing.file), self._dump.position)
        if table_id not in self._failed or (copied is not None and copied < here):
            self._copied.pop(table_id, None)
            self._failed.add(table_id)
            yield TableFailed(table_id, error)

    def _forget(self, table_id: str) -> None:
        """The next table map of this table is resolved again."""
        self._failed.discard(table_id)
        self._maps.forget(table_id)


def _name(position: Any) -> str:
    return f"{position.get('gtid', '')} at {position.get('file')}:{position.get('begins')}".strip()
