"""Connections to PostgreSQL, and what its errors mean.

Every connection, that of the stream too, has the same session settings: PostgreSQL's text output
depends on them, and a row shall look the same in snapshot and stream.
"""

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock, Timer
from typing import Any, Final

import psycopg2
import psycopg2.extensions
import psycopg2.extras

from headwater.errors import CaptureError, ConfigError, SourceRefused, SourceUnreachable
from headwater.settings import Secret

SESSION: Final = {
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    "search_path": "pg_catalog",  # names of types and classes in values are then always qualified
    "row_security": "off",  # rows that a policy hides are an error, not missing
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "client_min_messages": "error",
}
CONNECT_TIMEOUT_S: Final = 10
ANSWER_S: Final = 90.0  # for a statement of the catalog's connection
_IDLE_CONNECTIONS: Final = 8

# SQLSTATE to the fix, where it is more specific than PostgreSQL's own hint.
_HINTS: Final = {
    "42501": "grant the role of the capture the right that is named, or use another role",
    "53300": "raise max_connections (or max_wal_senders) or close other connections",
    "53400": "ALTER SYSTEM SET max_replication_slots = 20; and restart PostgreSQL",
    "55000": "ALTER SYSTEM SET wal_level = 'logical'; and restart PostgreSQL",
}
# Nothing is wrong with settings or rights: connections, shutdown, crash, recovery, locks, deadlock.
_PASSING: Final = ("08", "40", "57", "58", "53", "XX")
_PASSING_STATES: Final = ("55006", "55P03", "25P03")


class Address:
    """Where the database is. Holds the password; nothing it raises or prints shows it."""

    def __init__(self, source: Secret, application: str) -> None:
        try:
            self._parts: dict[str, str] = psycopg2.extensions.parse_dsn(source.reveal())
        except psycopg2.ProgrammingError:  # its text holds the address, password and all
            raise ConfigError(
                "the source is no address of PostgreSQL",
                hint="postgresql://user@host:5432/database, and the password in `password_file`"
                " (within the address its special characters are %-encoded)",
            ) from None
        options = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
        self._parts["options"] = f"{self._parts.get('options', '')} {options}".strip()
        self._parts.setdefault("connect_timeout", str(CONNECT_TIMEOUT_S))
        # A peer that has disappeared is detected after about half a minute.
        self._parts.setdefault("keepalives_idle", "10")
        self._parts.setdefault("keepalives_interval", "5")
        self._parts.setdefault("keepalives_count", "4")
        self._parts.setdefault(
            "tcp_user_timeout", "30000"
        )  # the same while something is unanswered
        self._parts["client_encoding"] = "UTF8"
        self._parts.setdefault("application_name", application)
        self.user = self._parts.get("user", "")
        self.database = self._parts.get("dbname") or self._parts.get("user") or ""

    def connect(self, factory: Any = None, cursor: Any = None) -> Any:
        """A connection in autocommit (or with psycopg2's replication factory)."""
        try:
            connection = psycopg2.connect(
                connection_factory=factory, cursor_factory=cursor, **self._parts
            )
        except psycopg2.Error as error:
            raise self.explained(error) from None
        if factory is None:
            connection.autocommit = True
        return connection

    def explained(self, error: psycopg2.Error) -> CaptureError:
        """The error as one of ours, without the password."""
        text = self.scrubbed(str(error)).strip()
        text = re.sub(r"\s*\n\s*", " ", re.sub(r"^(ERROR|FATAL|error):\s*", "", text))
        if "no message from the libpq" in text or "no COPY in progress" in text:
            text = "the connection was closed"
        state: str = error.pgcode or ""
        if not state:
            return _explained_connect(text, self._parts)
        if state != "53400" and (state.startswith(_PASSING) or state in _PASSING_STATES):
            return SourceUnreachable("PostgreSQL broke off", detail=text)
        if state[:2] in ("28", "3D"):
            return _explained_connect(text, self._parts)
        hint = _HINTS.get(state) or self.scrubbed(getattr(error.diag, "message_hint", None) or "")
        return SourceRefused("PostgreSQL refuses", detail=text, hint=hint)

    def scrubbed(self, text: str) -> str:
        password = self._parts.get("password")
        return text.replace(password, "***") if password else text

    @contextmanager
    def errors(self) -> Iterator[None]:
        """What psycopg2 raises inside is raised as our errors."""
        try:
            yield
        except psycopg2.Error as error:
            raise self.explained(error) from None


class ImpatientCursor(psycopg2.extensions.cursor):  # type: ignore[misc]
    """For statements that are short, or have a timeout of their own: without an answer in ANSWER_S
    the connection is ended. TCP alone does not notice if something between (a balancer, a tunnel)
    keeps a connection whose peer has disappeared.
    """

    def execute(self, query: Any, values: Any = None) -> None:
        timer = Timer(ANSWER_S, end, (self.connection,))
        timer.daemon = True
        timer.start()
        try:
            super().execute(query, values)
        finally:
            timer.cancel()


def end(connection: Any) -> None:
    """By another thread than the one that waits for an answer, which then has an error."""
    with suppress(OSError, psycopg2.Error), socket.socket(fileno=os.dup(connection.fileno())) as it:
        it.shutdown(socket.SHUT_RDWR)


class Pool:
    """Connections that readers take and give back. At most a few stay open unused."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._free: list[Any] = []
        self._used: set[Any] = set()
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """One for this thread. A connection that saw an error is not used again."""
        with self._lock:
            connection = self._free.pop() if self._free else None
        if connection is None or connection.closed:
            connection = self._address.connect()
        with self._lock:
            self._used.add(connection)
            is_late = self._closed
        try:
            with self._address.errors():
                if is_late:
                    raise SourceUnreachable("the capture has ended")
                yield connection
        except BaseException:
            with self._lock:
                self._used.discard(connection)
            connection.close()
            raise
        with self._lock:
            self._used.discard(connection)
            if not self._closed and len(self._free) < _IDLE_CONNECTIONS:
                self._free.append(connection)
                return
        connection.close()

    def rows(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        with self.connection() as connection, connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def close(self) -> None:
        """A thread that still reads gets an error."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
            for connection in self._used:
                end(connection)
        for connection in free:
            connection.close()


def quoted(*names: str) -> str:
    """An identifier: "schema"."table"."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """A string constant, whatever standard_conforming_strings says."""
    return " E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def _explained_connect(text: str, parts: dict[str, str]) -> CaptureError:
    """Errors of connecting have no SQLSTATE in psycopg2: their text is all there is."""
    user = parts.get("user", "the role")
    database = parts.get("dbname", "")
    if "password authentication failed" in text or "no password supplied" in text:
        return SourceRefused(
            "PostgreSQL refuses the password",
            detail=f"role {user}",
            hint=f"check the password in `source`, or set a new one: "
            f"ALTER ROLE {quoted(user)} PASSWORD '…';",
        )
    if "no pg_hba.conf entry" in text:
        return SourceRefused(
            "PostgreSQL's pg_hba.conf does not let us in",
            detail=text,
            hint=f"add lines for {user} to pg_hba.conf (for the database and for `replication`), "
            "then SELECT pg_reload_conf();",
        )
    if re.search(r'database ".*" does not exist', text):
        return SourceRefused(
            "there is no such database",
            detail=database,
            hint=f"check `source`, or CREATE DATABASE {quoted(database)};",
        )
    if re.search(r'role ".*" does not exist', text):
        return SourceRefused(
            "there is no such role",
            detail=user,
            hint=f"CREATE ROLE {quoted(user)} LOGIN REPLICATION PASSWORD '…';",
        )
    if "must be superuser or replication role" in text or "permission denied to start WAL" in text:
        return SourceRefused(
            "the role may not replicate",
            detail=user,
            hint=f"ALTER ROLE {quoted(user)} REPLICATION;",
        )
    if re.search(r'max_wal_senders"? \(currently 0\)', text):
        return SourceRefused(
            "PostgreSQL sends its log to nobody",
            detail="max_wal_senders is 0",
            hint="ALTER SYSTEM SET max_wal_senders = 10; and restart PostgreSQL",
        )
    if re.search("sslmode|does not support SSL|certificate", text):
        return SourceRefused(
            "PostgreSQL and `source` do not agree about TLS",
            detail=text,
            hint="?sslmode=verify-full&sslrootcert=FILE in `source` names the authority that"
            " signed the server's certificate; ?sslmode=prefer takes what the server has",
        )
    return SourceUnreachable("PostgreSQL does not answer", detail=text)
