"""Chunks of tables for snapshots: consistent reads, and which transactions they saw.

A chunk is one REPEATABLE READ transaction: lock the table against DDL only, take the snapshot and
the position of the log, COPY the rows out. `pg_current_snapshot()` shows exactly which transactions
the rows show, so the stream and the chunk can be brought together without a guess.
"""

import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final, NamedTuple

import psycopg2
import psycopg2.errors

from headwater.capture.contract import Begin, Chunk, LogPosition, Row, Table, without_values
from headwater.capture.postgres.catalog import RawColumn, TableInterner, describe, make_table
from headwater.capture.postgres.connection import Pool, literal, lsn_number, quoted
from headwater.capture.postgres.copy_text import (
    NULL,
    Full,
    Lines,
    MakeRows,
    cells_of,
    find_operators,
    rows_maker,
    unescaped,
)
from headwater.capture.postgres.type_catalog import TypeCatalog
from headwater.errors import SourceUnreachable, TableRefused

CHUNK_BYTES: Final = 8 << 20  # of COPY's text; a chunk ends early rather than grow beyond
_SPOOL_BYTES: Final = 8 << 20  # of a table without key: in memory; more goes to a temporary file
_WRITERS_POLL_S: Final = 0.2
# A write lock on the table, or on a partition of it, held by a transaction in progress.
_WRITERS: Final = """
SELECT DISTINCT l.virtualtransaction FROM pg_locks l
WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (l.relation = %(oid)s
       OR l.relation IN (SELECT relid::oid FROM pg_partition_tree(%(oid)s::oid::regclass)))
  AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                 'AccessExclusiveLock')
"""


class Snapshot:
    """Which transactions a read saw: xmin:xmax:xip,… of 64-bit transaction ids."""

    __slots__ = ("_running", "_xmax", "_xmin", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        xmin, xmax, running = text.split(":")
        self._xmin, self._xmax = int(xmin), int(xmax)
        self._running = frozenset(map(int, running.split(","))) if running else frozenset()

    def sees(self, xid: int) -> bool:
        """Whether a committed transaction is visible. The stream has the lower 32 bits of its id;
        it is within 2^31 of the snapshot, or PostgreSQL would have wrapped around.
        """
        full = self._xmax + ((xid - self._xmax + 2**31) % 2**32) - 2**31
        return full < self._xmin or (full < self._xmax and full not in self._running)


class PostgresChunk(Chunk):
    def __init__(
        self, table: Table, rows: Iterable[Row], after: Any, snapshot: Snapshot, lsn: int
    ) -> None:
        self.table = table
        self.rows = rows
        self.after = after
        self._snapshot = snapshot
        self._lsn = lsn  # all that the snapshot sees was committed in front of it

    def contains(self, transaction: Begin) -> bool:
        xid = transaction.source["txId"]
        return xid is None or self._snapshot.sees(xid)  # None: a message alone, which has no rows

    def is_passed(self, position: LogPosition) -> bool:
        return int(position["lsn"]) + 1 >= self._lsn

    def bounds(self) -> dict[str, Any]:
        return {"snapshot": self._snapshot.text, "lsn": self._lsn}


class _Reader(NamedTuple):
    """What is cached of a table, as long as its columns stay the same."""

    columns: tuple[RawColumn, ...]
    key: tuple[str, ...]
    table: Table
    make_rows: MakeRows


class ChunkReader:
    """Used by several threads."""

    def __init__(
        self, pool: Pool, interner: TableInterner, publication: str, decimals: str, times: str
    ) -> None:
        self._publication = publication
        self._pool = pool
        self._interner = interner
        self._types = TypeCatalog(decimals, times)
        self._readers: dict[int, _Reader] = {}
        self._row_bytes: dict[int, float] = {}  # by table, what rows took so far
        self._settled: set[int] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def settle(self, oids: Iterable[int]) -> None:
        """These were published before the slot began: all their changes are in the stream."""
        self._settled.update(oids)

    def stop(self) -> None:
        self._stopped.set()

    def read(
        self, table: Table, after: Any, limit_rows: int, *, is_followed: bool
    ) -> PostgresChunk:
        """`is_followed`: the chunk is for a stream of ours. A reader without one does not wait."""
        with self._pool.connection() as connection, connection.cursor() as cursor:
            try:
                if after is None and is_followed:
                    self._wait_for_writers(cursor, table)
                return self._read(connection, cursor, table, after, limit_rows)
            except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName):
                raise TableRefused("the table was dropped", detail=table.id) from None
            except (ValueError, ArithmeticError, LookupError) as error:
                raise TableRefused(
                    "the table has a value that cannot be read",
                    detail=f"{table.id}: {without_values(error)}",
                ) from None

    def _read(
        self, connection: Any, cursor: Any, table: Table, after: Any, limit_rows: int
    ) -> PostgresChunk:
        name = quoted(table.schema, table.name)
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE")
        cursor.execute(
            """SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, oid::int8,
                   relkind, current_setting('wal_block_size')::int
               FROM pg_class WHERE oid = %s::regclass""",
            (name,),
        )
        snapshot_text, lsn_now, oid, kind, wal_block_bytes = cursor.fetchone()
        snapshot = Snapshot(snapshot_text)
        lsn = _log_place(lsn_number(lsn_now), wal_block_bytes)
        reader = self._reader(cursor, table, oid)
        rows_from = name if kind == "p" else f"ONLY {name}"
        if not (reader.key and table.key):
            every_row = self._read_all(cursor, reader, rows_from)
            cursor.execute("COMMIT")
            _flush(cursor, lsn)
            return PostgresChunk(reader.table, every_row, None, snapshot, lsn)
        limit = min(limit_rows, int(CHUNK_BYTES / 2 / self._row_bytes.get(oid, 1)) or 1)
        find_operators(cursor, [c.oid for c in reader.columns if c.name in reader.key])
        lines = Lines(CHUNK_BYTES)
        full = False
        try:
            cursor.copy_expert(_select(reader, rows_from, after, limit), lines)
            cursor.execute("COMMIT")
            _flush(cursor, lsn)
        except Full:
            full = True
            connection.close()  # in the middle of a COPY: of no further use
        if lines:
            self._row_bytes[oid] = lines.size_bytes / len(lines)
        last = None
        if full or len(lines) >= limit:
            at = [c.name for c in reader.columns]
            cells = unescaped(lines[-1].decode().removesuffix("\n"))
            last = [cells[at.index(column)] for column in reader.key]
        rows = reader.make_rows(*cells_of(b"".join(lines)))
        return PostgresChunk(reader.table, rows, last, snapshot, lsn)

    def _read_all(self, cursor: Any, reader: _Reader, rows_from: str) -> Iterator[Row]:
        """Everything into a file first, so that neither transaction nor lock outlive the call."""
        spool: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115
        try:
            cursor.copy_expert(_select(reader, rows_from, None, None), spool)
        except BaseException:
            spool.close()
            raise
        spool.seek(0)
        return _rows_of(spool, reader.make_rows)

    def _reader(self, cursor: Any, table: Table, oid: int) -> _Reader:
        described = describe(cursor, [oid], self._publication)[oid]
        with self._lock:
            reader = self._readers.get(oid)
            if (
                reader is not None
                and (reader.columns, reader.key) == (described.columns, described.key)
                and reader.table.id == table.id
            ):
                return reader
            self._types.load(cursor, {c.oid for c in described.columns})
            made = make_table(
                table.schema, table.name, described.columns, described.key, self._types
            )
            codecs = [self._types.codec(c.oid, c.typmod) for c in described.columns]
            make_rows = rows_maker([c.name for c in described.columns], codecs)
            reader = _Reader(
                described.columns, described.key, self._interner.intern(made), make_rows
            )
            self._readers[oid] = reader
            return reader

    def _wait_for_writers(self, cursor: Any, table: Table) -> None:
        """What a transaction wrote before its table was published is not in the stream, even if
        it commits later. So the first chunk waits for those that were writing, not for new ones.
        """
        cursor.execute("SELECT to_regclass(%s)::oid::int8", (quoted(table.schema, table.name),))
        oid = cursor.fetchone()[0]
        if oid is None or oid in self._settled:
            return
        cursor.execute(_WRITERS, {"oid": oid})
        writers = set(cursor.fetchall())
        while writers and not self._stopped.wait(_WRITERS_POLL_S):
            cursor.execute(_WRITERS, {"oid": oid})
            writers &= set(cursor.fetchall())
        if writers:
            raise SourceUnreachable(
                "a transaction that began to write before its table was published has not ended",
                detail=table.id,
                hint="SELECT pid, xact_start, query FROM pg_stat_activity "
                "WHERE backend_xid IS NOT NULL ORDER BY xact_start;",
            )
        self._settled.add(oid)


def _log_place(lsn: int, wal_block_bytes: int) -> int:
    """The insert position may stand behind a page's header (24 or 40 bytes), which the stream
    reaches only with the next record. No record is shorter: no commit is between.
    """
    return lsn - lsn % wal_block_bytes if lsn % wal_block_bytes <= 40 else lsn


def _flush(cursor: Any, lsn: int) -> None:
    """Reading writes log too (it prunes pages), which stays unflushed for seconds on a quiet
    server; and the stream, which must pass this position, ends where it is flushed. A commit does
    it.
    """
    cursor.execute("SELECT pg_current_wal_flush_lsn()::text")
    if lsn_number(cursor.fetchone()[0]) < lsn:
        cursor.execute("SELECT pg_logical_emit_message(true, 'headwater.chunk', '')")


def _select(reader: _Reader, rows_from: str, after: Any, limit: int | None) -> str:
    columns = ", ".join(quoted(c.name) for c in reader.columns)
    where = order = ""
    if limit is not None:
        key = ", ".join(map(quoted, reader.key))
        if after is not None:
            where = f" WHERE ({key}) > ({', '.join(map(literal, after))})"
        order = f" ORDER BY {key} LIMIT {limit}"
    return f"COPY (SELECT {columns} FROM {rows_from}{where}{order}) TO STDOUT (NULL '{NULL}')"  # noqa: S608


def _rows_of(spool: IO[bytes], make_rows: MakeRows) -> Iterator[Row]:
    """The file is closed with the iterator, also if no row is ever read."""

    def rows() -> Iterator[Row]:
        with spool:
            yield {}
            while lines := spool.readlines(1 << 20):
                yield from make_rows(*cells_of(b"".join(lines)))

    started = rows()
    next(started)
    return started
