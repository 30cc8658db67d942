"""The stream of changes: START_REPLICATION with pgoutput, turned into events.

With protocol 1 PostgreSQL sends a transaction whole after its commit, one after the other; what
does not fit its memory it keeps on its own disk. So at any moment we hold one message.

Places are LSNs of a timeline (timeline.py): all transactions whose commit record stands at or
before it. A commit record's own LSN is unique; that of a change, or the end of a commit, is not.
"""

import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg2
import psycopg2.extras

from headwater.capture.contract import (
    IDLE_S,
    UNAVAILABLE,
    Begin,
    Change,
    Commit,
    Event,
    Message,
    Place,
    Position,
    Progress,
    Row,
    Table,
    TableFailed,
    without_values,
)
from headwater.capture.postgres import pgoutput
from headwater.capture.postgres.catalog import RawColumn, Selection, Shelf, describe, make_table
from headwater.capture.postgres.completing import IncompleteChange
from headwater.capture.postgres.connection import Address, literal, lsn_text, quoted
from headwater.capture.postgres.feedback import send_status
from headwater.capture.postgres.timeline import Timeline, branched_off_of, current_timeline
from headwater.capture.postgres.toast import LARGE_ROW_BYTES, ToastCache
from headwater.capture.postgres.typecatalog import TypeCatalog
from headwater.errors import CaptureError, PositionLost, SourceUnreachable

OWN_PREFIX: Final = "headwater."  # of logical messages that are ours and not published
_FEEDBACK_S: Final = 0.2  # at most this often while transactions keep coming
_SKIPPED_PER_SIGN: Final = 1000  # changes that are not ours, or known
_AWAITED_S: Final = 0.003
_KEEPALIVE_S: Final = 10.0  # at least this often (wal_sender_timeout is a minute, unless told)
_SILENCE_S: Final = 40.0  # without an answer PostgreSQL is taken for gone
_TIMEOUT: Final = "SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'"
_FORMATS: Final = """SELECT format_type(t, m) FROM unnest(%s::oid[], %s::int4[])
    WITH ORDINALITY u(t, m, i) ORDER BY i"""


@dataclass(slots=True)
class Relation:
    """A table as the stream describes it at this point."""

    oid: bytes
    table: Table | None  # None: not ours
    decode: pgoutput.Decode
    identity: tuple[str, ...]  # columns that an old key has
    full: bool  # old rows are whole
    cached: bool  # large values are remembered by key
    key_columns: tuple[int, ...]  # where the key's columns stand
    types: dict[str, tuple[int, int]]  # by column, with typmods
    large: bool = False  # it has had some


class ChangeStream:
    """One replication connection, for one thread; only `acknowledge` may be called by others."""

    def __init__(
        self,
        capture: str,
        address: Address,
        catalog: Any,
        types: TypeCatalog,
        select_tables: Selection,
        shelf: Shelf,
        is_awaited: Callable[[], bool],
        is_held_back: Callable[[], bool],
        toast: ToastCache,
    ) -> None:
        self._capture = capture
        self._is_held_back = is_held_back  # events wait for a None: nothing comes for now
        self._is_awaited = is_awaited  # somebody waits for Progress
        self._address = address
        self._catalog = catalog  # a connection for looking things up
        self._types = types
        self._select = select_tables
        self._shelf = shelf
        self._publication = ""
        self._connection: Any = None
        self._thread = 0  # that reads
        self._cursor: Any = None
        self._relations: dict[bytes, Relation] = {}
        self._toast = toast
        self._acknowledged = 0  # LSN that may be told as flushed
        self._told = 0
        self._told_at = 0.0
        self._keepalive_s = _KEEPALIVE_S
        self._asked_at: float | None = None  # since when PostgreSQL owes us an answer
        self._heard: Any = None  # when it was heard the last time before that
        self._place = Timeline("", 0).place  # of an LSN
        self.seen = 0  # all commits at or before it have been sent

    def start(self, slot: str, publication: str, after: Position) -> None:
        self._connection = self._address.connect(psycopg2.extras.LogicalReplicationConnection)
        self._cursor = self._connection.cursor()
        self._publication = publication
        self.seen = int(after.at["lsn"])
        start = self.seen + (after.changes is None)
        names = literal(quoted(publication)).strip().removeprefix("E")
        try:
            # Again, on the very connection that is read from: the one that was asked before may
            # have been of a server that is gone since.
            branched_off = branched_off_of(self._connection, after.at)
            if branched_off is not None:
                raise self._lost("PostgreSQL has another history than ours", branched_off)
            self._place = current_timeline(self._connection).place
            self._cursor.start_replication_expert(
                f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {lsn_text(start)} "
                f"(proto_version '1', publication_names {names}, messages 'true')",
                decode=False,
            )
        except psycopg2.Error as error:
            raise self._broken(error) from None
        with self._address.errors(), self._catalog.cursor() as cursor:
            cursor.execute(_TIMEOUT)
            timeout_s = cursor.fetchone()[0] / 1000
        if timeout_s:  # 0: never
            self._keepalive_s = min(_KEEPALIVE_S, timeout_s / 4)

    def acknowledge(self, lsn: int) -> None:
        """Told to PostgreSQL by the thread that reads. Commits in front of the LSN that we tell
        are not sent again, so it is one more than the last commit's.
        """
        self._acknowledged = max(self._acknowledged, lsn + 1)

    @property
    def acknowledged(self) -> int:
        """The last place that was acknowledged."""
        return self._acknowledged - 1

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def events(self, after: Position, between: Callable[[], list[Event]]) -> Iterator[Event]:
        """`between` is called between transactions and now and then; its events are sent there."""
        self._thread = threading.get_ident()
        read = self._cursor.read_message
        relations = self._relations
        toast = self._toast
        last_commit = "null"
        partial = int(after.at["lsn"]) if after.changes is not None else -1
        skipped = int(after.at["lsn"]) - (after.changes is not None)  # commits up to it are done
        begin: Begin | None = None  # not sent yet: an empty transaction is not worth two events
        sent = False  # the transaction's Begin
        inside = False
        skip_below = 0  # ordinals that are in the topics
        ordinal = 0
        xid = 0
        lsn = -1
        source: dict[str, Any] = {}
        sign_of_life = time.monotonic()

        while True:
            try:
                message = read()
            except psycopg2.Error as error:
                raise self._broken(error) from None
            if message is None:
                self._tell(idle=True)
                if self._is_held_back():
                    yield None
                if not inside:
                    for event in between():
                        yield event
                    at = self._cursor.wal_end - 1
                    if at > self.seen:
                        self.seen = at
                        sign_of_life = time.monotonic()
                        yield Progress(self._place(at))
                        continue
                if not self._wait() or time.monotonic() - sign_of_life > IDLE_S:
                    sign_of_life = time.monotonic()
                    yield None
                continue

            data = message.payload
            kind = data[0]
            if kind == 73 or kind == 85 or kind == 68:  # noqa: PLR1714 - I, U, D: faster than in
                relation = relations.get(data[1:5]) or _strange(data)
                table = relation.table
                number = ordinal
                ordinal += 1
                if table is None or number < skip_below or not inside:
                    if number % _SKIPPED_PER_SIGN == 0 and (
                        time.monotonic() - sign_of_life > IDLE_S
                    ):
                        sign_of_life = time.monotonic()
                        yield None
                    continue
                if message.data_start != lsn:
                    lsn = message.data_start
                    source = {"lsn": lsn, "sequence": f'[{last_commit},"{lsn}"]'}
                before: Row | None = None
                row: Row | None = None
                incomplete: tuple[str, ...] | None = None
                try:
                    if kind == 73:
                        row, end = relation.decode(data, 8)
                        op = "c"
                    elif kind == 85:
                        op = "u"
                        if data[5] == 78:  # N: no old tuple, so the key stayed
                            row, end = relation.decode(data, 8)
                        else:
                            before, end = relation.decode(data, 8)
                            row, end = relation.decode(data, end + 3)
                            if not relation.full:
                                old = before
                                before = {name: old[name] for name in relation.identity}
                        if UNAVAILABLE in row.values():
                            if relation.full and before is not None:
                                _fill(row, before)
                            elif relation.cached:
                                toast.fill(relation.oid, table.key, before, row)
                                if UNAVAILABLE in row.values():
                                    incomplete = pgoutput.key_texts(data, relation.key_columns)
                    else:
                        op = "d"
                        before, end = relation.decode(data, 8)
                        if not relation.full:
                            old = before
                            before = {name: old[name] for name in relation.identity}
                    if end != len(data):
                        raise ValueError("a row of another length than its columns")
                    if relation.cached and (relation.large or len(data) > LARGE_ROW_BYTES):
                        relation.large = True
                        message, data = None, b""  # not to be kept while it is published
                        self._remember(relation, table, before, row)
                except (ValueError, ArithmeticError, LookupError, struct.error) as error:
                    failed: Event = _unreadable(table, error)
                else:
                    failed = None
                if begin is not None and not sent:
                    sent = True
                    yield begin
                if failed is None and incomplete is not None:
                    failed = IncompleteChange(
                        table, op, before, row, number, source, None, relation.oid, incomplete,
                        relation.types, xid,
                    )  # fmt: skip
                yield failed or Change(table, op, before, row, number, source)

            elif kind == 66:  # B
                commit_lsn, commit_us, xid = pgoutput.BEGIN(data)
                ordinal = 0
                lsn = -1
                sent = False
                inside = commit_lsn > skipped
                skip_below = (after.changes or 0) if commit_lsn == partial else 0
                begin = Begin(
                    self._place(commit_lsn),
                    f"{xid}:{commit_lsn}",
                    (commit_us + pgoutput.EPOCH_2000_US) // 1000,
                    {"txId": xid, "xmin": None},
                )
                if commit_lsn == partial:  # its end is news, even if all its changes are known
                    sent = True
                    yield begin

            elif kind == 67:  # C
                _, commit_lsn, _, _ = pgoutput.COMMIT(data)
                last_commit = f'"{commit_lsn}"'
                inside = False
                self.seen = max(self.seen, commit_lsn)
                if sent:
                    sign_of_life = time.monotonic()
                    yield Commit(ordinal)
                begin = None
                self._tell(idle=False)
                for event in between():
                    yield event

            elif kind == 82:  # R
                self._relate(pgoutput.parse_relation(data))

            elif kind == 84:  # T
                for oid in pgoutput.parse_truncate(data):
                    table = (relations.get(oid) or _strange(data)).table
                    number = ordinal
                    ordinal += 1
                    if table is None or number < skip_below or not inside:
                        continue
                    toast.forget_table(oid)
                    if begin is not None and not sent:
                        sent = True
                        yield begin
                    lsn = message.data_start
                    source = {"lsn": lsn, "sequence": f'[{last_commit},"{lsn}"]'}
                    yield Change(table, "t", None, None, number, source)

            elif kind == 77:  # M
                transactional, lsn, prefix, content = pgoutput.parse_message(data)
                source = {"lsn": lsn, "sequence": f'[{last_commit},"{lsn}"]'}
                if transactional:
                    number = ordinal
                    ordinal += 1
                    if number < skip_below or not inside or prefix.startswith(OWN_PREFIX):
                        continue
                    if begin is not None and not sent:
                        sent = True
                        yield begin
                    yield Message(prefix, content, number, source)
                elif lsn - 1 > skipped:
                    # Outside of transactions. The LSN is where its record ends, and there a commit
                    # may begin; the byte before is in no other record.
                    self.seen = max(self.seen, lsn - 1)
                    if not prefix.startswith(OWN_PREFIX):
                        alone = Message(prefix, content, 0, source)
                        yield from _alone(alone, self._place(lsn - 1))

    def _remember(
        self, relation: Relation, table: Table, before: Row | None, row: Row | None
    ) -> None:
        if before is not None:
            self._toast.forget(relation.oid, table.key, before)
        if row is not None:
            self._toast.remember(relation.oid, table.key, row)

    def _relate(self, message: pgoutput.RelationMessage) -> None:
        """Names and types are those of then. The catalog, which is of now, adds what the message
        does not tell: the order of the key, and what may be null.
        """
        # PostgreSQL describes a table again whenever something about it changed. Its rows may have
        # been written anew (ALTER … TYPE … USING), which the log does not tell.
        if message.oid in self._relations:
            self._toast.forget_table(message.oid)
        names = [column.name for column in message.columns]
        identity = tuple(column.name for column in message.columns if column.identity)
        table = None
        codecs = []
        if self._select.has(f"{message.schema}.{message.name}"):
            oid = int.from_bytes(message.oid, "big")
            with self._address.errors(), self._catalog.cursor() as cursor:
                now = describe(cursor, [oid], self._publication)[oid]
                self._types.load(cursor, {column.oid for column in message.columns})
                oids = [column.oid for column in message.columns]
                typmods = [column.typmod for column in message.columns]
                cursor.execute(_FORMATS, (oids, typmods))
                formats = [text for (text,) in cursor.fetchall()]
            key = _key_of_then(message, now.key, identity)
            required = {column.name for column in now.columns if column.required} | set(key)
            columns = [
                RawColumn(c.name, c.oid, c.typmod, text, c.name in required)
                for c, text in zip(message.columns, formats, strict=True)
            ]
            table = self._shelf.same(
                make_table(message.schema, message.name, columns, key, self._types)
            )
            codecs = [self._types.codec(column.oid, column.typmod) for column in message.columns]
        full = message.replica_identity == "f"
        self._relations[message.oid] = Relation(
            message.oid,
            table,
            pgoutput.make_decode(names, codecs) if table is not None else _undecoded,
            identity,
            full,
            not full and table is not None and bool(table.key) and set(table.key) <= set(identity),
            () if table is None else tuple(names.index(name) for name in table.key),
            {column.name: (column.oid, column.typmod) for column in message.columns},
        )

    def stay_connected(self) -> None:
        """For the thread that reads the stream, while it is long about something else."""
        if threading.get_ident() == self._thread:
            self._tell(idle=False)

    def _tell(self, *, idle: bool) -> None:
        now = time.monotonic()
        if idle and self._asked_at is not None:
            self._hear(now)
        due = self._acknowledged > self._told and (idle or now - self._told_at > _FEEDBACK_S)
        # Asked to reply, PostgreSQL tells how far it is at once.
        is_late = now - self._told_at > self._keepalive_s
        asks = idle and (is_late or (now - self._told_at > _AWAITED_S and self._is_awaited()))
        if due or asks or is_late:
            if asks and self._asked_at is None:
                self._asked_at, self._heard = now, self._cursor.io_timestamp
            self._told, self._told_at = self._acknowledged, now
            send_status(self._connection, self._told, asks=asks)

    def _hear(self, now: float) -> None:
        """A connection whose other end is gone without a word looks like a quiet database."""
        # psycopg2 notes there too when it sent something by itself.
        if self._cursor.io_timestamp not in (self._heard, self._cursor.feedback_timestamp):
            self._asked_at = None
        elif self._asked_at is not None and now - self._asked_at > _SILENCE_S:
            raise SourceUnreachable(
                "PostgreSQL does not answer", detail=f"nothing came for {_SILENCE_S:g} s"
            )

    def _wait(self) -> bool:
        try:
            wait_s = _AWAITED_S if self._is_awaited() else IDLE_S
            waiting = select.poll()  # select() takes no file beyond the first 1,024 of a process
            waiting.register(self._cursor, select.POLLIN)
            return bool(waiting.poll(wait_s * 1000))
        except (OSError, ValueError, psycopg2.Error):
            raise SourceUnreachable("the connection to PostgreSQL is closed") from None

    def _broken(self, error: psycopg2.Error) -> CaptureError:
        explained = self._address.explained(error)
        if error.pgcode in ("42704", "55000"):  # slot or publication are gone or invalid
            return self._lost(
                "PostgreSQL can no longer send the changes behind our position", explained.detail
            )
        if not error.pgcode and not isinstance(explained, SourceUnreachable):
            return SourceUnreachable("PostgreSQL broke off", detail=str(explained))
        return explained

    def _lost(self, what: str, detail: str) -> PositionLost:
        return PositionLost(
            what,
            detail=detail,
            hint=f"headwater capture reset {self._capture} (then a new snapshot brings the "
            "topics up to date)",
        )


def _key_of_then(
    message: pgoutput.RelationMessage, key_now: tuple[str, ...], identity: tuple[str, ...]
) -> tuple[str, ...]:
    if message.replica_identity == "d":  # the identity is the primary key, but in column order
        return key_now if set(key_now) == set(identity) else identity
    if key_now and {column.name for column in message.columns}.issuperset(key_now):
        return key_now
    return identity if message.replica_identity == "i" else ()


def _alone(message: Message, at: Place) -> Iterator[Event]:
    now_ms = int(time.time() * 1000)  # such a message carries no time
    yield Begin(at, f"0:{at['lsn']}", now_ms, {"txId": None, "xmin": None})
    yield message
    yield Commit(1)


def _fill(row: Row, before: Row) -> None:
    for name, value in row.items():
        if value == UNAVAILABLE:
            row[name] = before[name]


def _unreadable(table: Table, error: Exception) -> TableFailed:
    return TableFailed(
        table.id,
        CaptureError(
            "the table has a value that cannot be read",
            detail=f"{table.id}: {without_values(error)}",
        ),
    )


def _strange(data: bytes) -> Relation:
    raise CaptureError("PostgreSQL sent a row of a table that it did not describe")


def _undecoded(data: bytes, at: int) -> tuple[Row, int]:
    raise AssertionError("a table that is not ours is not decoded")
