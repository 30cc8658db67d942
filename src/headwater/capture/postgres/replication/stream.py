"""The replication connection: START_REPLICATION with pgoutput, its messages turned into events.

With protocol version 1 PostgreSQL sends a transaction whole after its commit, one after the other;
what does not fit its memory it spills to its own disk. So at any moment we hold one message.

Positions are LSNs of a timeline (timeline.py): all transactions whose commit record is at or before
it. The LSN of a commit record is unique; that of a change, or of the end of a commit, is not.
"""

import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg2
import psycopg2.extras

from headwater.capture.contract import IDLE_S, Event, PositionAdvanced, SourcePosition
from headwater.capture.postgres.connection import Address, literal, lsn_text, quoted
from headwater.capture.postgres.replication.feedback import send_status
from headwater.capture.postgres.replication.pgoutput import COMMIT, ROW_CHANGES
from headwater.capture.postgres.replication.relations import Relations
from headwater.capture.postgres.replication.timeline import branched_off_of, current_timeline
from headwater.capture.postgres.replication.toast_cache import ToastCache
from headwater.capture.postgres.replication.transactions import TransactionDecoder
from headwater.errors import CaptureError, PositionLost, SourceUnreachable

_FEEDBACK_S: Final = 0.2  # at most this often while transactions keep coming
_SKIPPED_PER_SIGN: Final = 1000  # changes that are not captured, or already published
_AWAITED_S: Final = 0.003
_KEEPALIVE_S: Final = 10.0  # at least this often (wal_sender_timeout is a minute by default)
_SILENCE_S: Final = 40.0  # without a reply for so long the connection is considered broken
_TIMEOUT: Final = "SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'"


class ChangeStream:
    """One replication connection, for one thread; only `acknowledge` may be called by others."""

    def __init__(
        self,
        capture: str,
        address: Address,
        catalog: Any,
        relations: Relations,
        is_awaited: Callable[[], bool],
        is_held_back: Callable[[], bool],
        toast: ToastCache,
    ) -> None:
        self._capture = capture
        self._is_held_back = is_held_back  # events wait for a None: nothing comes for now
        self._is_awaited = is_awaited  # a caller waits for PositionAdvanced
        self._address = address
        self._catalog = catalog  # a connection for catalog queries
        self._relations = relations
        self._toast = toast
        self._decoder: TransactionDecoder
        self._connection: Any = None
        self._thread = 0  # that reads
        self._cursor: Any = None
        self._acknowledged = 0  # LSN that may be reported as flushed
        self._reported = 0
        self._reported_at = 0.0
        self._keepalive_s = _KEEPALIVE_S
        self._requested_at: float | None = None  # since when a reply of PostgreSQL is pending
        self._received_at: Any = None  # when the last message came before that

    @property
    def seen(self) -> int:
        """All commits at or before this LSN have been sent."""
        return self._decoder.seen

    def start(self, slot: str, publication: str, after: SourcePosition) -> None:
        self._connection = self._address.connect(psycopg2.extras.LogicalReplicationConnection)
        self._cursor = self._connection.cursor()
        self._relations.publication = publication
        start = int(after.at["lsn"]) + (after.changes is None)
        names = literal(quoted(publication)).strip().removeprefix("E")
        try:
            # Again, on the very connection that is read from: the server that was asked before may
            # have failed over since.
            branched_off = branched_off_of(self._connection, after.at)
            if branched_off is not None:
                raise self._lost("PostgreSQL has another history than ours", branched_off)
            position_of = current_timeline(self._connection).position
            self._decoder = TransactionDecoder(after, self._relations, self._toast, position_of)
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
        """Reported to PostgreSQL by the thread that reads. Commits in front of the LSN that we
        report are not sent again, so it is one more than the last commit's.
        """
        self._acknowledged = max(self._acknowledged, lsn + 1)

    @property
    def acknowledged(self) -> int:
        """The last LSN that was acknowledged."""
        return self._acknowledged - 1

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def events(self, between: Callable[[], list[Event]]) -> Iterator[Event]:
        """All behind the position of `start`. `between` is called between transactions, also while
        idle; its events are sent there.
        """
        self._thread = threading.get_ident()
        read, decoder = self._cursor.read_message, self._decoder
        row_change = decoder.row_change
        sign_of_life = time.monotonic()
        while True:
            try:
                message = read()
            except psycopg2.Error as error:
                raise self._broken(error) from None
            if message is None:
                self._report(idle=True)
                if self._is_held_back():
                    yield None
                if not decoder.is_inside:
                    for event in between():
                        yield event
                    at = self._cursor.wal_end - 1
                    if at > decoder.seen:
                        decoder.seen = at
                        sign_of_life = time.monotonic()
                        yield PositionAdvanced(decoder.position_of(at))
                        continue
                if not self._wait() or time.monotonic() - sign_of_life > IDLE_S:
                    sign_of_life = time.monotonic()
                    yield None
                continue

            data, lsn = message.payload, message.data_start
            kind = data[0]
            if kind in ROW_CHANGES:
                change = row_change(kind, data, lsn)
                message, data = None, b""  # a large row need not be in memory twice
                if change is not None:
                    if decoder.pending_begin is not None:
                        yield decoder.take_begin()
                    yield change
                elif (
                    decoder.ordinal % _SKIPPED_PER_SIGN == 1  # also the first of each transaction
                    and time.monotonic() - sign_of_life > IDLE_S
                ):
                    sign_of_life = time.monotonic()
                    yield None
                continue

            for event in decoder.other(kind, data, lsn):
                sign_of_life = time.monotonic()
                yield event
            if kind == COMMIT:
                self._report(idle=False)
                for event in between():
                    yield event

    def stay_connected(self) -> None:
        """Sends a status update while the thread that reads the stream is busy elsewhere."""
        if threading.get_ident() == self._thread:
            self._report(idle=False)

    def _report(self, *, idle: bool) -> None:
        now = time.monotonic()
        if idle and self._requested_at is not None:
            self._check_reply(now)
        due = self._acknowledged > self._reported and (
            idle or now - self._reported_at > _FEEDBACK_S
        )
        # Asked to reply, PostgreSQL reports the end of its log at once.
        is_late = now - self._reported_at > self._keepalive_s
        asks = idle and (is_late or (now - self._reported_at > _AWAITED_S and self._is_awaited()))
        if due or asks or is_late:
            if asks and self._requested_at is None:
                self._requested_at, self._received_at = now, self._cursor.io_timestamp
            self._reported, self._reported_at = self._acknowledged, now
            send_status(self._connection, self._reported, asks=asks)

    def _check_reply(self, now: float) -> None:
        """Raises if the peer is silent: a dead connection looks like an idle database."""
        # psycopg2 also records there when it sent something by itself.
        if self._cursor.io_timestamp not in (self._received_at, self._cursor.feedback_timestamp):
            self._requested_at = None
        elif self._requested_at is not None and now - self._requested_at > _SILENCE_S:
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
        if error.pgcode in ("42704", "55000"):  # the slot or the publication is dropped or invalid
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
