"""A consistent read of a version by COPY: all rows at one position, streamed."""

import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg2
import pyarrow as pa

from headwater.errors import SinkError, StoreRefused
from headwater.sinks import sql_positions
from headwater.sinks.contract import Contents
from headwater.sinks.postgres.connection import Session
from headwater.sinks.postgres.tables import Tables
from headwater.sinks.postgres.values import DIALECT, from_csv, selected
from headwater.sinks.selection import Selection, clause
from headwater.sinks.sql_positions import StoredVersion, quoted

_PIECE_BYTES: Final = 4 << 20
_PIECES: Final = 2  # buffered for the reader


@contextmanager
def reading(
    session_of: Callable[[], Session],
    tables: Tables,
    version: int,
    selection: Selection | None = None,
) -> Iterator[Contents]:
    with session_of() as session:
        stored = _found(session, tables, version)
        some = ""
        if selection is not None:
            some, _ = clause(selection, stored.fields, tables.target.key, DIALECT)
        copy = _Copy(session, tables, stored, some)
        try:
            yield Contents(stored.position, copy.batches())
        finally:
            copy.close()


def _found(session: Session, tables: Tables, version: int) -> StoredVersion:
    """Begins a transaction with one snapshot, and a lock that prevents a rename of the table.
    PostgreSQL resolves names outside of snapshots, so the lock comes before the snapshot, and the
    name before the lock; it is then checked again.
    """
    if not tables.has_positions(session):
        raise sql_positions.unknown_version(tables.target, version)
    while True:
        stored = tables.stored_versions(session).get(version)
        if stored is None:
            raise sql_positions.unknown_version(tables.target, version)
        session.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            session.run(f"LOCK TABLE {tables.table(stored)} IN ACCESS SHARE MODE")
        except StoreRefused:
            session.roll_back()
            now = tables.stored_versions(session).get(version)
            if now is None or now.is_live == stored.is_live:
                tables.check_table(session, stored)
                raise
            continue
        now = tables.stored_versions(session).get(version)
        if now is not None and now.is_live == stored.is_live:
            return now
        session.roll_back()


class _Copy:
    """COPY pushes and the reader pulls: a thread between them, and a bounded queue."""

    def __init__(
        self, session: Session, tables: Tables, stored: StoredVersion, some: str = ""
    ) -> None:
        self._session = session
        columns = ", ".join(selected(field, quoted(field.name)) for field in stored.fields)
        self._statement = (
            f"COPY (SELECT {columns} FROM {tables.table(stored)}{some}) TO STDOUT (FORMAT csv)"
        )
        self._fields = stored.fields
        self._pieces: queue.Queue[bytes | SinkError | None] = queue.Queue(_PIECES)
        self._rows: list[bytes] = []
        self._size_bytes = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while (piece := self._pieces.get()) is not None:
            if isinstance(piece, SinkError):
                raise piece
            yield from_csv(piece, self._fields)

    def _run(self) -> None:
        with suppress(_Closed):
            try:
                self._session.copy_out(self._statement, self)
                self._hand_over()
                self._put(None)
            except SinkError as error:
                self._put(error)
            except psycopg2.Error as error:
                self._put(self._session.explained(error))

    def write(self, row: bytes) -> int:
        """Called by psycopg2 for each row."""
        self._rows.append(row)
        self._size_bytes += len(row)
        if self._size_bytes >= _PIECE_BYTES:
            self._hand_over()
        return len(row)

    def _hand_over(self) -> None:
        if self._rows:
            self._put(b"".join(self._rows))
            self._rows, self._size_bytes = [], 0

    def _put(self, piece: bytes | SinkError | None) -> None:
        while not self._is_closed:
            with suppress(queue.Full):
                self._pieces.put(piece, timeout=0.1)
                return
        raise _Closed

    def close(self) -> None:
        """Raises _Closed if the reader has stopped."""
        self._is_closed = True
        if self._thread is not None and self._thread.is_alive():
            with (
                suppress(OSError, psycopg2.Error),
                socket.socket(fileno=os.dup(self._session.connection.fileno())) as connection,
            ):
                # The close of the session then resets the connection. An orderly close after a
                # shutdown leaves a server that had filled the receive window in TCP's persist
                # timer: it would hold its lock on the table for minutes.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RDWR)
            while self._thread.is_alive():
                with suppress(queue.Empty):
                    self._pieces.get(timeout=0.05)
            self._thread.join()


class _Closed(Exception):
    """The reader has stopped."""
