"""Connections to MySQL and MariaDB for writing, and the mapping of their errors."""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final

import pymysql
from pymysql.converters import conversions

from headwater.databases.mysql import Address, connect
from headwater.errors import (
    CaptureError,
    ConfigError,
    HeadwaterError,
    SinkError,
    SourceUnreachable,
    StoreRefused,
    StoreUnreachable,
)
from headwater.sinks.settings import SinkSettings

LOCK_TIMEOUT_S: Final = 10
CHANGE_TIMEOUT_S: Final = 30
_PAUSE_S: Final = 0.05
ANSWER_TIMEOUT_S: Final = 300  # a change of a large table takes its time
# Strict: a value that does not fit is an error and never cut. Our literals need backslashes.
_SQL_MODE: Final = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)
# Results stay text; only parameters are converted.
_CONVERSIONS: Final = {kind: how for kind, how in conversions.items() if not isinstance(kind, int)}

_NO_SUCH_TABLE: Final = 1146
LOCKED: Final = 1205
_DEADLOCK: Final = 1213
# Errors that are about a value: null, twice, range, cut, wrong, too long, foreign keys, a trigger's
# SIGNAL, a row too large, JSON, CHECK (MySQL, MariaDB).
OF_A_ROW: Final = frozenset(
    {1048, 1062, 1118, 1264, 1265, 1292, 1366, 1406, 1451, 1452, 1644, 1690, 3140, 3819, 4025}
)
_NO_RIGHT: Final = (1044, 1045, 1095, 1142, 1143, 1227, 1370, 1698)
# Too many connections, shutting down, disk or table full, locks, killed, read only, …
_PASSING: Final = (
    1021, 1040, 1053, 1077, 1079, 1114, 1152, 1158, 1159, 1160, 1161, 1203, LOCKED, 1226,
    1290, 1317, 1792, 1836, 1927, 3024, 3169,
)  # fmt: skip


class NoSuchTable(StoreRefused):
    """It may have been renamed."""


class TransactionConflict(StoreUnreachable):
    """A deadlock, or a table that was renamed meanwhile: the transaction is to be retried."""


class Session:
    """One connection, every statement its own transaction until one is begun."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection = _connect(address)
        try:
            self.run(
                f"SET SESSION sql_mode = '{_SQL_MODE}', lock_wait_timeout = {LOCK_TIMEOUT_S},"
                f" innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}, net_write_timeout = 600"
            )
            self.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        except BaseException:
            self.close()
            raise

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Numbers come as text."""
        with translated(self._address), self._connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def run(self, sql: str | bytes, values: Sequence[Any] = ()) -> None:
        with translated(self._address), self._connection.cursor() as cursor:
            cursor.execute(sql, values or None)

    def change(self, sql: str) -> None:
        """DDL, which needs an exclusive metadata lock. While it waits for it, all later sessions
        wait too; so it waits only for a second, and retries.
        """
        deadline_s = time.monotonic() + CHANGE_TIMEOUT_S
        self.run("SET SESSION lock_wait_timeout = 1")
        try:
            while True:
                try:
                    self.run(sql)
                    return
                except StoreUnreachable as error:
                    if code_of(error.__cause__) != LOCKED or time.monotonic() > deadline_s:
                        raise
                time.sleep(_PAUSE_S)
        finally:
            with contextlib.suppress(SinkError):
                self.run(f"SET SESSION lock_wait_timeout = {LOCK_TIMEOUT_S}")

    def send(self, sql: bytes) -> None:
        """A statement as bytes. Raises pymysql's own error if it is about a row."""
        try:
            with translated(self._address, but=OF_A_ROW):
                self._connection.query(sql)
        except ValueError as error:  # the driver's packets have a limit
            raise StoreRefused("a statement is too large", detail=str(error)) from error

    def stream(self, sql: str, rows: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        """The rows of a query, so many at a time, as the server sends them."""
        with translated(self._address):
            cursor = self._connection.cursor(pymysql.cursors.SSCursor)
            cursor.execute(sql)
        while True:
            with translated(self._address):
                found = cursor.fetchmany(rows)
            if not found:
                return
            yield found

    @contextmanager
    def transaction(self, kind: str = "START TRANSACTION") -> Iterator[None]:
        self.run(kind)
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            with contextlib.suppress(SinkError):
                self.run("ROLLBACK")
            raise

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """An exclusive advisory lock (GET_LOCK). Ends with the connection, if not before."""
        if not self.try_lock(name, LOCK_TIMEOUT_S):
            raise StoreUnreachable(
                f"another process is changing the tables of {name}",
                detail=f"waited for {LOCK_TIMEOUT_S} s",
            )
        try:
            yield
        finally:
            with contextlib.suppress(SinkError):
                self.ask("SELECT RELEASE_LOCK(%s)", [_lock_name(name)])

    def try_lock(self, name: str, timeout_s: int = 0) -> bool:
        return bool(self.ask("SELECT GET_LOCK(%s, %s)", [_lock_name(name), timeout_s]) == [("1",)])

    def end_holder(self, name: str) -> None:
        """Ends the connection that has locked the name, if there is one and we may."""
        [(holder,)] = self.ask("SELECT IS_USED_LOCK(%s)", [_lock_name(name)])
        if holder is not None:
            with contextlib.suppress(SinkError):  # closed meanwhile, or of another user
                self.run(f"KILL {int(holder)}")

    def close(self) -> None:
        result = self._connection._result  # noqa: SLF001 (it has no public name)
        if result is not None:  # one that is being streamed would be read to its end
            result.unbuffered_active = False
        with contextlib.suppress(pymysql.err.MySQLError, OSError):
            self._connection.close()


def _lock_name(name: str) -> str:
    return f"headwater {sha256(name.encode()).hexdigest()[:40]}"  # 64 characters are allowed


def code_of(error: BaseException | None) -> int:
    code = error.args[0] if error is not None and error.args else 0
    return code if isinstance(code, int) else 0


def address_of(settings: SinkSettings) -> Address:
    url, sink = settings.url.reveal() if settings.url else "", settings.name
    if not re.match(r"(mysql|mariadb)://", url):
        raise ConfigError(f"sink {sink}: url is no address of MySQL or MariaDB", hint=_URL_HINT)
    try:
        address = Address.parse(url)
    except ConfigError as error:
        raise ConfigError(
            f"sink {sink}: url is no address of MySQL or MariaDB",
            detail=error.detail,
            hint=_URL_HINT,
        ) from None
    if not address.database:
        raise ConfigError(f"sink {sink}: url names no database", hint=_URL_HINT)
    return address


_URL_HINT: Final = (
    'url = "mysql://user@host:3306/database", and the password in `password_file`; behind a ? may'
    " stand unix_socket, ssl_ca, ssl_cert, ssl_key, ssl_verify_identity"
)


def _connect(address: Address) -> Any:
    try:
        return connect(
            address,
            database=address.database,
            conv=_CONVERSIONS,
            read_timeout=ANSWER_TIMEOUT_S,
        )
    except SourceUnreachable as error:
        raise StoreUnreachable(error.what, detail=error.detail, hint=error.hint) from error
    except CaptureError as error:
        raise StoreRefused(
            error.what,
            detail=error.detail,
            hint="check user, password and database in `url`",
        ) from error


@contextmanager
def translated(address: Address, but: frozenset[int] = frozenset()) -> Iterator[None]:
    """The driver's errors as SinkError; those with a code in `but` unchanged."""
    try:
        yield
    except HeadwaterError:
        raise
    except pymysql.err.MySQLError as error:
        if code_of(error) in but:
            raise
        raise _sink_error(error, address) from error
    except (OSError, EOFError) as error:
        raise _unreachable(address, str(error)) from error


def _sink_error(error: Any, address: Address) -> SinkError:
    code = code_of(error)
    detail = f"{error.args[1] if len(error.args) > 1 else error} ({code})"
    if code == 0 or 2000 <= code < 3000:
        return _unreachable(address, detail)
    if code == _NO_SUCH_TABLE:
        return NoSuchTable(f"the database at {address} has no such table", detail=detail)
    if code == _DEADLOCK:
        return TransactionConflict(f"the database at {address} cannot do it now", detail=detail)
    if code in _PASSING:
        return StoreUnreachable(f"the database at {address} cannot do it now", detail=detail)
    if code in _NO_RIGHT:
        return StoreRefused(
            f"{address.user} lacks a right in the database at {address}",
            detail=detail,
            hint="GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX ON"
            f" {address.database}.* TO '{address.user}'@'%';",
        )
    return StoreRefused(f"the database at {address} refuses a statement", detail=detail)


def _unreachable(address: Address, detail: str) -> StoreUnreachable:
    return StoreUnreachable(
        f"no answer from the database at {address}",
        detail=detail,
        hint="is the server running, and can it be reached from here?",
    )
