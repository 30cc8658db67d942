"""Decoder of the replication stream's transactions: pgoutput messages in, change events out.

With protocol version 1 PostgreSQL sends a transaction whole after its commit, one after the other.
A transaction of which nothing is captured yields no events: its Begin waits for the first change.
"""

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from headwater.capture.contract import (
    UNAVAILABLE,
    Begin,
    Change,
    Commit,
    Event,
    LogPosition,
    Message,
    Row,
    SourcePosition,
    Table,
    TableFailed,
    without_values,
)
from headwater.capture.postgres.replication import pgoutput
from headwater.capture.postgres.replication.pgoutput import (
    INSERT,
    NEW_TUPLE,
    NEXT_ROW,
    RELATION_OID,
    ROW_AT,
    TUPLE_KIND_AT,
    UPDATE,
)
from headwater.capture.postgres.replication.relations import Relation, Relations
from headwater.capture.postgres.replication.row_completion import IncompleteChange
from headwater.capture.postgres.replication.toast_cache import LARGE_ROW_BYTES, ToastCache
from headwater.errors import CaptureError

OWN_PREFIX: Final = "headwater."  # of logical messages that are ours and not published
_UNREADABLE: Final = (ValueError, ArithmeticError, LookupError, struct.error)


class TransactionDecoder:
    """Everything behind `after`, one message at a time."""

    def __init__(
        self,
        after: SourcePosition,
        relations: Relations,
        toast: ToastCache,
        position_of: Callable[[int], LogPosition],
    ) -> None:
        self._relations = relations
        self._toast = toast
        self.position_of = position_of  # of an LSN
        lsn, is_partial = int(after.at["lsn"]), after.changes is not None
        self._partial = lsn if is_partial else -1  # commit of a transaction that is half published
        self._partial_changes = after.changes or 0
        self._published = lsn - is_partial  # all commits at or before it are in the topics
        self.seen = lsn  # all commits at or before it have been sent
        # Of the transaction in progress:
        self.is_inside = False  # one that is not in the topics yet
        self.ordinal = 0  # of the next change
        self.pending_begin: Begin | None = None  # not yielded: no change was captured so far
        self._is_sent = False  # its Begin was yielded
        self._skip_below = 0  # ordinals that are in the topics
        self._xid = 0
        self._lsn = -1
        self._source: dict[str, Any] = {}  # of changes at that LSN
        self._last_commit = "null"
        self._handlers: dict[int, Callable[[bytes, int], Iterator[Event]]] = {
            pgoutput.BEGIN: self._begin,
            pgoutput.COMMIT: self._commit,
            pgoutput.RELATION: self._relation,
            pgoutput.TRUNCATE: self._truncate,
            pgoutput.LOGICAL_MESSAGE: self._message,
        }

    def row_change(self, kind: int, data: bytes, lsn: int) -> Change | TableFailed | None:
        """INSERT, UPDATE or DELETE; None for a row that is not captured or already published. The
        caller yields `take_begin` first if there is one pending. Not a generator: it is called for
        every row.
        """
        relation = self._relations[data[RELATION_OID]]
        table = relation.table
        ordinal = self.ordinal
        self.ordinal = ordinal + 1
        if table is None or ordinal < self._skip_below or not self.is_inside:
            return None
        if lsn != self._lsn:
            self._lsn = lsn
            self._source = self._source_at(lsn)
        incomplete: tuple[str, ...] | None = None
        try:
            if kind == INSERT:
                op, before = "c", None
                row, end = relation.decode(data, ROW_AT)
            elif kind == UPDATE:
                op = "u"
                before, row, end = _update(relation, data)
                if UNAVAILABLE in row.values():
                    incomplete = self._complete(relation, table, before, row, data)
            else:
                op, row = "d", None
                before, end = relation.decode(data, ROW_AT)
                if not relation.full:
                    before = _identity(relation, before)
            if end != len(data):
                raise ValueError("a row of another length than its columns")
            if relation.cached and (relation.large or len(data) > LARGE_ROW_BYTES):
                relation.large = True
                self._cache(relation, table, before, row)
        except _UNREADABLE as error:
            return _unreadable(table, error)
        if incomplete is not None:
            return IncompleteChange(
                table, op, before, row, ordinal, self._source, None, relation.oid, incomplete,
                relation.types, self._xid,
            )  # fmt: skip
        return Change(table, op, before, row, ordinal, self._source)

    def take_begin(self) -> Begin | None:
        """The Begin that comes in front of the transaction's first event."""
        begin, self.pending_begin = self.pending_begin, None
        self._is_sent = self._is_sent or begin is not None
        return begin

    def other(self, kind: int, data: bytes, lsn: int) -> Iterator[Event]:
        """Any other message."""
        handle = self._handlers.get(kind)
        return handle(data, lsn) if handle is not None else iter(())

    def _begin(self, data: bytes, _: int) -> Iterator[Event]:
        commit_lsn, commit_us, xid = pgoutput.read_begin(data)
        is_partial = commit_lsn == self._partial
        self._xid = xid
        self._lsn = -1
        self._is_sent = False
        self.ordinal = 0
        self.is_inside = commit_lsn > self._published
        self._skip_below = self._partial_changes if is_partial else 0
        self.pending_begin = Begin(
            self.position_of(commit_lsn),
            f"{xid}:{commit_lsn}",
            (commit_us + pgoutput.EPOCH_2000_US) // 1000,
            {"txId": xid, "xmin": None},
        )
        if is_partial:  # its end is news, even if all its changes are published
            yield self.take_begin()

    def _commit(self, data: bytes, _: int) -> Iterator[Event]:
        _, commit_lsn, _, _ = pgoutput.read_commit(data)
        self._last_commit = f'"{commit_lsn}"'
        self.is_inside = False
        self.pending_begin = None
        self.seen = max(self.seen, commit_lsn)
        if self._is_sent:
            yield Commit(self.ordinal)

    def _relation(self, data: bytes, _: int) -> Iterator[Event]:
        self._relations.add(pgoutput.parse_relation(data))
        yield from ()

    def _truncate(self, data: bytes, lsn: int) -> Iterator[Event]:
        for oid in pgoutput.parse_truncate(data):
            table = self._relations[oid].table
            ordinal = self.ordinal
            self.ordinal += 1
            if table is None or ordinal < self._skip_below or not self.is_inside:
                continue
            self._toast.forget_table(oid)
            if self.pending_begin is not None:
                yield self.take_begin()
            yield Change(table, "t", None, None, ordinal, self._source_at(lsn))

    def _message(self, data: bytes, _: int) -> Iterator[Event]:
        transactional, lsn, prefix, content = pgoutput.parse_message(data)
        is_own = prefix.startswith(OWN_PREFIX)
        if transactional:
            ordinal = self.ordinal
            self.ordinal += 1
            if ordinal < self._skip_below or not self.is_inside or is_own:
                return
            if self.pending_begin is not None:
                yield self.take_begin()
            yield Message(prefix, content, ordinal, self._source_at(lsn))
        elif lsn - 1 > self._published:
            # Outside of transactions. The LSN is where its record ends, and there a commit may
            # begin; the byte before is in no other record.
            self.seen = max(self.seen, lsn - 1)
            if not is_own:
                message = Message(prefix, content, 0, self._source_at(lsn))
                yield from _transaction_of(message, self.position_of(lsn - 1))

    def _source_at(self, lsn: int) -> dict[str, Any]:
        return {"lsn": lsn, "sequence": f'[{self._last_commit},"{lsn}"]'}

    def _complete(
        self, relation: Relation, table: Table, before: Row | None, row: Row, data: bytes
    ) -> tuple[str, ...] | None:
        """Fills in unchanged large values. Returns the row's key if some have to be read."""
        if relation.full and before is not None:
            for name, value in row.items():
                if value == UNAVAILABLE:
                    row[name] = before[name]
        elif relation.cached:
            self._toast.fill(relation.oid, table.key, before, row)
            if UNAVAILABLE in row.values():
                return pgoutput.key_texts(data, relation.key_columns)
        return None

    def _cache(self, relation: Relation, table: Table, before: Row | None, row: Row | None) -> None:
        if before is not None:
            self._toast.forget(relation.oid, table.key, before)
        if row is not None:
            self._toast.remember(relation.oid, table.key, row)


def _update(relation: Relation, data: bytes) -> tuple[Row | None, Row, int]:
    """The old row (or key) if there is one, the new row, and where that ended."""
    if data[TUPLE_KIND_AT] == NEW_TUPLE:  # no old tuple, so the key did not change
        return None, *relation.decode(data, ROW_AT)
    before, end = relation.decode(data, ROW_AT)
    row, end = relation.decode(data, end + NEXT_ROW)
    return before if relation.full else _identity(relation, before), row, end


def _identity(relation: Relation, old: Row) -> Row:
    return {name: old[name] for name in relation.identity}


def _transaction_of(message: Message, at: LogPosition) -> Iterator[Event]:
    now_ms = int(time.time() * 1000)  # such a message carries no time
    yield Begin(at, f"0:{at['lsn']}", now_ms, {"txId": None, "xmin": None})
    yield message
    yield Commit(1)


def _unreadable(table: Table, error: Exception) -> TableFailed:
    return TableFailed(
        table.id,
        CaptureError(
            "the table has a value that cannot be read",
            detail=f"{table.id}: {without_values(error)}",
        ),
    )
