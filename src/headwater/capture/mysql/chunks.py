"""Chunks of tables for snapshots: consistent reads, and which transactions they contain.

No lock outlives a read. Which transactions it contains MariaDB reports: START TRANSACTION WITH
CONSISTENT SNAPSHOT and binlog_snapshot_file/_position belong together exactly. MySQL does not.
There, two bounds are taken around the snapshot:

    with GTIDs       A transaction is added to gtid_executed after it is committed in InnoDB, and
                     written to the log before that. So what was in gtid_executed in front of the
                     snapshot is certainly in it, and what is not yet in the log behind it is
                     certainly not.
    without GTIDs    LOCK TABLES … READ by a second connection, for the moment in which the snapshot
                     begins: writers of this table have then ended, and their transactions stand in
                     the log. It is given up after a second, and tried again.

For what lies between two bounds `contains` is False. That is safe: those transactions are sent by
the stream before the chunk is published (`is_passed` waits for the upper bound), so their rows in
the chunk are left out, and the topic has the same from the stream. Not so of a table without a key:
it is locked as without GTIDs, and what was in gtid_executed then is all that its rows show.
"""

import logging
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

import pymysql

from headwater.capture.contract import Begin, Chunk, LogPosition, Row, Table, no_temporary_space
from headwater.capture.mysql.binlog import positions
from headwater.capture.mysql.binlog.gtids import MySqlGtids
from headwater.capture.mysql.catalog import TRANSACTIONAL_ENGINES, engine
from headwater.capture.mysql.connection import query, translated
from headwater.capture.mysql.server import Server, log_end
from headwater.capture.mysql.text_rows import Result, RowCode, quoted_name
from headwater.capture.settings import CaptureSettings
from headwater.databases.mysql import Address
from headwater.errors import CaptureError, TableRefused

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 32 * 1024 * 1024  # rows beyond it are left to the next chunk
_SPOOL_BYTES: Final = 8 << 20  # of a table without key: in memory; more goes to a temporary file
_LOCK_WAIT_S: Final = 1
_LOCK_TRIES: Final = 30
_LOCK_TIMEOUTS: Final = (1205, 1213)
_NO_RIGHT: Final = (1044, 1142)


@dataclass(slots=True)
class MySqlChunk(Chunk):
    """`below`: the log's order up to which everything is contained; with `gtids`, these instead."""

    table: Table
    rows: Any
    after: Any
    below: tuple[int, int]  # contained, if it begins in front of this
    passed: tuple[int, int]  # nothing behind this is contained
    gtids: MySqlGtids | None = None

    def contains(self, transaction: Begin) -> bool:
        gtid = transaction.at.get("gtid")
        if self.gtids is not None and gtid is not None:
            return gtid in self.gtids
        return positions.order(transaction.at) < self.below

    def is_passed(self, position: LogPosition) -> bool:
        return positions.order(position) >= self.passed

    def bounds(self) -> dict[str, Any]:
        gtids = None if self.gtids is None else str(self.gtids)
        return {"below": self.below, "passed": self.passed, "gtids": gtids}


@dataclass(slots=True)
class Bounds:
    below: tuple[int, int]
    passed: tuple[int, int]
    gtids: MySqlGtids | None = None


@dataclass(slots=True)
class TableReader:
    """Reads one table's rows by its own connection, in one consistent snapshot per chunk."""

    address: Address
    server: Server
    settings: CaptureSettings
    connection: Any
    connect_again: Callable[[], Any]
    lock_tables: bool = False  # as on MySQL without GTIDs
    _code: "tuple[Table, RowCode] | None" = None

    def chunk(self, table: Table, after: Any, limit_rows: int) -> tuple[MySqlChunk, bool]:
        """The chunk, and whether the connection can be used again."""
        with translated(self.address):
            self._check_engine(table)
            bounds = self._begin_snapshot(table)
            if not table.key:
                rows = self._all_rows(table)
                query(self.connection, "COMMIT")
                return MySqlChunk(
                    table, rows, None, bounds.below, bounds.passed, bounds.gtids
                ), True
            found, last_key, is_whole = self._keyed_rows(table, after, limit_rows)
            is_end = is_whole and len(found) < limit_rows
            next_after = None if is_end else last_key
            chunk = MySqlChunk(table, found, next_after, bounds.below, bounds.passed, bounds.gtids)
            if is_whole:
                query(self.connection, "COMMIT")
            return chunk, is_whole

    def _check_engine(self, table: Table) -> None:
        found = engine(self.connection, table.schema, table.name)
        if found is None:
            raise CaptureError(
                f"{table.id} was dropped", hint="its snapshot is not needed any more"
            )
        if found not in TRANSACTIONAL_ENGINES:
            raise TableRefused(
                f"{table.id} cannot be read consistently",
                detail=f"its engine is {found}, which has no transactions",
                hint=f"ALTER TABLE {quoted_name(table)} ENGINE=InnoDB;",
            )

    def _begin_snapshot(self, table: Table) -> Bounds:
        query(self.connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if self.lock_tables:
            return self._snapshot_behind_lock(table)
        gtids = None
        if not self.server.is_mariadb:
            if not self.server.has_gtids:
                return self._snapshot_behind_lock(table)
            if not table.key:
                try:
                    return self._snapshot_behind_lock(table)
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in (*_NO_RIGHT, *_LOCK_TIMEOUTS):
                        raise
                    log.warning(
                        "%s cannot be locked for a moment, so changes that are made while its copy "
                        "begins may come twice: %s",
                        table.id,
                        error.args[-1],
                    )
            gtids = self._executed_gtids()
        query(self.connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        if self.server.is_mariadb:
            status = dict(query(self.connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
            found = {name.lower(): value for name, value in status.items()}
            exact = positions.order(
                {"file": found["binlog_snapshot_file"], "pos": found["binlog_snapshot_position"]}
            )
            return Bounds(exact, exact)
        passed = positions.order(log_end(self.connection, self.server))
        return Bounds((0, 0), passed, gtids)

    def _snapshot_behind_lock(self, table: Table) -> Bounds:
        locker = self.connect_again()
        try:
            query(locker, f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
            for attempt in range(_LOCK_TRIES):
                try:
                    query(locker, f"LOCK TABLES {quoted_name(table)} READ")
                    break
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in _LOCK_TIMEOUTS or attempt + 1 == _LOCK_TRIES:
                        raise
            query(self.connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            exact = positions.order(log_end(self.connection, self.server))
            if self.server.has_gtids and not self.server.is_mariadb:
                return Bounds((0, 0), exact, self._executed_gtids())
            return Bounds(exact, exact)
        finally:
            locker.close()

    def _executed_gtids(self) -> MySqlGtids:
        ((executed,),) = query(self.connection, "SELECT @@global.gtid_executed")
        return MySqlGtids(str(executed))

    def _keyed_rows(
        self, table: Table, after: Any, limit_rows: int
    ) -> tuple[list[Row], list[str], bool]:
        """Rows, the key of the last one, and whether the result was read to its end."""
        code = self._row_code(table)
        result = Result(self.connection, self.address, code.sql(after, limit_rows), code.decode)
        rows: list[Row] = []
        for part in result.parts():
            rows += part
            if result.size_bytes > _CHUNK_BYTES and rows:
                break
        last_key = code.key_of(result.last_row) if rows else []
        return rows, last_key, result.is_ended

    def _all_rows(self, table: Table) -> Iterator[Row]:
        """Everything into a file first: neither the transaction, whose lock would block every ALTER
        of the table waiting, nor the server's patience lasts as long as the reader needs.
        """
        code = self._row_code(table)
        result = Result(self.connection, self.address, code.sql(None, None), code.decode)
        spool: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115
        try:
            for part in result.parts():
                _spool(table, part, spool)
            spool.seek(0)
        except BaseException:
            spool.close()
            raise
        return _unspooled(spool)

    def _row_code(self, table: Table) -> RowCode:
        if self._code is None or self._code[0] != table:
            self._code = (table, RowCode(table, self.settings))
        return self._code[1]


def _spool(table: Table, rows: list[Row], spool: IO[bytes]) -> None:
    try:
        pickle.dump(rows, spool)
    except OSError as error:  # not the database's
        raise no_temporary_space(table, error) from error


def _unspooled(spool: IO[bytes]) -> Iterator[Row]:
    with spool:
        while True:
            try:
                yield from pickle.load(spool)  # noqa: S301 - our own, of this process
            except EOFError:
                return
