"""MySQL and MariaDB as a source of changes."""

import threading
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headwater.capture.contract import Chunk, Event, Lag, LogPosition, Source, SourcePosition, Table
from headwater.capture.mysql import catalog, checks
from headwater.capture.mysql.binlog import positions
from headwater.capture.mysql.binlog.dump import Dump
from headwater.capture.mysql.binlog.gtids import MariaDbGtids, MySqlGtids
from headwater.capture.mysql.catalog import Choice
from headwater.capture.mysql.charsets import Charsets
from headwater.capture.mysql.chunks import MySqlChunk, TableReader
from headwater.capture.mysql.connection import translated
from headwater.capture.mysql.server import Server, inspect, log_end, log_files
from headwater.capture.mysql.stream.binlog_stream import BinlogStream
from headwater.capture.mysql.stream.schema_history import SchemaHistory
from headwater.capture.settings import CaptureSettings
from headwater.databases.mysql import Address, connect
from headwater.errors import CaptureError, ConfigError, HeadwaterError, PositionLost

_OWN_IDS: Final = 1 << 30  # derived server ids begin here, far from those that people choose
_IDLE_CONNECTIONS: Final = 4
_FIRST_EVENTS: Final = 3  # rotation, format, and the first of the log or its list of GTIDs
_FIRST_EVENTS_S: Final = 1.0


class MySqlSource(Source):
    """Reads the binlog as a replica would. Leaves nothing behind in the server: it retains
    its log as configured there, whether or not a capture still needs it.

    options: `server_id`, the id of a replica under which we register (derived from the capture's
    name by default); `include_query = "true"`, the statement in `source.query` of every change.
    """

    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = settings
        self._address = Address.parse(settings.source.reveal())
        self._choice = Choice.of(settings, self._address.database)
        self._server_id = _server_id(settings)
        self._ahead_id = _derived_id(f"{settings.name} looking ahead")
        self._with_statements = settings.options.get("include_query", "").lower() == "true"
        self.database = self._address.database
        is_mariadb = settings.source.reveal().startswith("mariadb")
        self.connector = "mariadb" if is_mariadb else "mysql"
        self._server: Server | None = None
        self._schemas: SchemaHistory | None = None
        self._catalog: Any = None
        self._dump: Dump | None = None
        self._lock = threading.Lock()
        self._readers: list[TableReader] = []  # idle ones
        self._watcher: Any = None  # for lag
        # Where the copy of a table begins: what cannot be followed behind it is reported again.
        self._copied: dict[str, tuple[int, int]] = {}

    def check(self) -> list[HeadwaterError]:
        try:
            connection = connect(self._address)
        except HeadwaterError as error:
            return [error]
        try:
            with translated(self._address):
                return checks.problems(connection, inspect(connection), self._address, self._choice)
        except HeadwaterError as error:
            return [error]
        finally:
            connection.close()

    def open(self, after: SourcePosition | None, stored: Mapping[str, Table]) -> LogPosition:
        self.close()
        self._catalog = connect(self._address)
        with translated(self._address):
            server = self._server = inspect(self._catalog)
            charsets = Charsets(self._catalog)
            self._schemas = SchemaHistory(
                self._settings, self._choice, self._catalog, server, charsets, self._look_ahead
            )
            if after is None:
                return self._schemas.begin_now()
            self._schemas.begin_with(stored, after.at)
            return after.at

    def check_position(self, after: SourcePosition) -> bool:
        """Asks for the log from there on, and waits for the first that comes of it."""
        connection = connect(self._address)
        try:
            with translated(self._address):
                server = inspect(connection)
        finally:
            connection.close()
        dump = None
        try:
            dump = self._dump_behind(after, server, self._gtids(after, server), self._ahead_id)
            for _ in range(_FIRST_EVENTS):
                if dump.event(_FIRST_EVENTS_S) is None:
                    break
        except PositionLost as error:
            raise self._lost(error) from error
        finally:
            if dump is not None:
                dump.close()
        return True

    def tables(self) -> list[Table]:
        connection = self._catalog or connect(self._address)
        try:
            with translated(self._address):
                found = catalog.read_tables(connection, self._choice)
            return [definition.table(self._settings) for definition in found.values()]
        finally:
            if connection is not self._catalog:
                connection.close()

    def is_streamed(self, table: Table) -> bool:
        return self._schemas is not None and self._schemas.is_certain(table)

    def changes(self, after: SourcePosition) -> Iterator[Event]:
        schemas, server = self._schemas, self._server
        if schemas is None or server is None:
            raise CaptureError("the source is not open")
        try:
            with translated(self._address):
                yield from self._stream(after, server, schemas).events(self)
        except PositionLost as error:
            raise self._lost(error) from error
        except CaptureError as error:
            error.hint = error.hint.replace("NAME", self._settings.name)
            raise
        finally:
            self._close_dump()

    def _lost(self, error: PositionLost) -> PositionLost:
        retain_longer = "to retain the log longer: SET GLOBAL binlog_expire_logs_seconds = 604800;"
        return PositionLost(
            error.what,
            detail=error.detail,
            hint=f"headwater capture reset {self._settings.name}, then the next run begins with a"
            " snapshot; " + (error.hint or retain_longer),
        )

    def _stream(
        self, after: SourcePosition, server: Server, schemas: SchemaHistory
    ) -> BinlogStream:
        gtids = self._gtids(after, server)
        self._close_dump()
        self._dump = self._dump_behind(after, server, gtids, self._server_id)
        return BinlogStream(
            self._settings,
            self._dump,
            schemas,
            gtids,
            after,
            server_id=server.id,
            is_by_gtid=self._dump.is_by_gtid,
            with_statements=self._with_statements,
            copied=self._copied,
        )

    def _gtids(self, after: SourcePosition, server: Server) -> MySqlGtids | MariaDbGtids | None:
        """The transactions that are behind us. That of `after` itself is, if it was whole and the
        server can be asked by GTID; otherwise it is read again.
        """
        if not server.has_gtids:
            return None
        in_front = str(after.at.get("gtids", ""))
        gtids = MariaDbGtids(in_front) if server.is_mariadb else MySqlGtids(in_front)
        if in_front and "gtid" in after.at and after.changes is None:
            gtids.add(after.at["gtid"])
        return gtids

    def _dump_behind(
        self,
        after: SourcePosition,
        server: Server,
        gtids: MySqlGtids | MariaDbGtids | None,
        server_id: int,
    ) -> Dump:
        position = after.at
        is_by_gtid = bool(gtids is not None and position.get("gtids"))
        if not is_by_gtid and position.get("server") not in (None, server.id):
            raise PositionLost(
                "the server is another one than the capture has read",
                detail=f"server_id {server.id} instead of {position.get('server')}, without GTIDs",
            )
        return Dump(
            self._address,
            server,
            server_id,
            file=position["file"],
            position=int(position.get("pos", position.get("begins", 4))),
            gtids=str(gtids) if is_by_gtid else None,
            with_statements=self._with_statements,
        )

    def _look_ahead(self, file: str, position: int) -> Dump:
        """A second reader. The server would end the first if both had the same id."""
        assert self._server is not None
        return Dump(self._address, self._server, self._ahead_id, file=file, position=position)

    def acknowledge(self, position: LogPosition) -> None:
        """The server does not ask its readers how far they are."""

    def read_chunk(self, table: Table, after: Any, limit_rows: int) -> Chunk:
        with self._lock:
            reader = self._readers.pop() if self._readers else None
        if reader is None:
            reader = self._new_reader()
        try:
            chunk, is_reusable = reader.chunk(table, after, limit_rows)
        except BaseException:
            reader.connection._force_close()  # noqa: SLF001 (maybe in the middle of a result)
            raise
        self._copied.setdefault(table.id, chunk.passed)
        with self._lock:
            is_kept = is_reusable and len(self._readers) < _IDLE_CONNECTIONS
            if is_kept:
                self._readers.append(reader)
        if not is_kept:
            reader.connection._force_close()  # noqa: SLF001
        return chunk

    def _new_reader(self) -> TableReader:
        connection = connect(self._address)
        with translated(self._address):
            server = self._server or inspect(connection)
        return TableReader(
            self._address, server, self._settings, connection, lambda: connect(self._address)
        )

    def bounded(self, table: Table, bounds: Any) -> Chunk:
        below, passed = tuple(bounds["below"]), tuple(bounds["passed"])
        gtids = None if bounds["gtids"] is None else MySqlGtids(bounds["gtids"])
        return MySqlChunk(table, [], None, below, passed, gtids)

    def estimate_rows(self, table: Table) -> int | None:
        with self._lock, translated(self._address):
            return catalog.estimated_rows(self._watching(), table.schema, table.name)

    def lag(self, acknowledged: LogPosition) -> Lag:
        with self._lock:
            try:
                with translated(self._address):
                    connection = self._watching()
                    server = self._server or inspect(connection)
                    end = log_end(connection, server)
                    files = log_files(connection)
            except HeadwaterError:
                self._stop_watching()
                raise
        here, there = positions.order(acknowledged), positions.order(end)
        sizes = {positions.file_number(name): size for name, size in files}
        between = sum(size for number, size in sizes.items() if here[0] <= number < there[0])
        return Lag(size_bytes=max(between + there[1] - here[1], 0))

    def _watching(self) -> Any:
        if self._watcher is None:
            self._watcher = connect(self._address)
        return self._watcher

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher._force_close()  # noqa: SLF001
            self._watcher = None

    def _close_dump(self) -> None:
        if self._dump is not None:
            self._dump.close()
            self._dump = None

    def close(self) -> None:
        self._close_dump()
        if self._catalog is not None:
            self._catalog._force_close()  # noqa: SLF001
            self._catalog = None
        with self._lock:
            for reader in self._readers:
                reader.connection._force_close()  # noqa: SLF001
            self._readers.clear()
            self._stop_watching()

    def remove(self) -> None:
        """There is nothing of ours in the server."""


def _server_id(settings: CaptureSettings) -> int:
    """The id under which we register, as a replica. Two readers must not have the same."""
    text = settings.options.get("server_id")
    if text is None:
        return _derived_id(settings.name)
    if not text.isdecimal() or not 0 < int(text) < 1 << 32:
        raise ConfigError(
            f"capture {settings.name}: options.server_id is no server id",
            detail=text,
            hint="a number from 1 to 4294967295 that no other replica of the server has",
        )
    return int(text)


def _derived_id(name: str) -> int:
    return _OWN_IDS + zlib.crc32(name.encode()) % _OWN_IDS
