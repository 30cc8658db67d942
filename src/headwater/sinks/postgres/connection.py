"""Sessions of PostgreSQL, and the mapping of server errors."""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

import psycopg2
import psycopg2.extensions

from headwater.errors import ConfigError, SinkError, StoreRefused, StoreUnreachable
from headwater.settings import Secret

# Values are read and written as text, whose format these settings decide.
_SESSION: Final = (
    "SET timezone = 'UTC'; SET datestyle = 'ISO, YMD'; SET bytea_output = 'hex';"
    " SET extra_float_digits = 1; SET standard_conforming_strings = on;"
    " SET client_min_messages = error; SET statement_timeout = 0; SET row_security = off;"
    " SET default_transaction_isolation = 'read committed'; SET temp_buffers = '64MB';"
    # Spark never repeats a committed batch: a crash must not lose it.
    " SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)
_CONNECT_TIMEOUT_S: Final = 10

# Transient: connections, shutdown, crash recovery, resources, locks.
_PASSING: Final = ("08", "25", "40", "53", "57", "58", "XX")
_PASSING_STATES: Final = ("55006", "55P03")
# About a row: values, constraints, limits (of an index's row), errors of triggers.
_OF_VALUES: Final = ("22", "23", "44", "54", "P0")
_HINTS: Final = {
    "42501": "grant the role of the sink the right that is named, or let the table's owner do it",
    "2BP01": "drop what depends on it first",
}


class TableLocked(StoreUnreachable):
    """Another session holds the lock for longer than the timeout."""


class ValuesRefused(StoreRefused):
    """The error is about the values of a statement, not about the statement."""

    def __init__(self, error: psycopg2.Error, detail: str) -> None:
        super().__init__("PostgreSQL refuses", detail=detail)
        self.error = error


class Session:
    """One connection in autocommit: BEGIN and COMMIT are statements. Errors are SinkError."""

    def __init__(self, url: Secret, application: str) -> None:
        parts = _parts(url)
        self._password = parts.get("password", "")
        self._user = parts.get("user", "")
        self._database = parts.get("dbname") or self._user
        parts.setdefault("connect_timeout", str(_CONNECT_TIMEOUT_S))
        # A server that vanished without closing is detected after about half a minute.
        parts.setdefault("keepalives_idle", "10")
        parts.setdefault("keepalives_interval", "5")
        parts.setdefault("keepalives_count", "4")
        parts.setdefault("tcp_user_timeout", "30000")
        parts.setdefault("application_name", application)
        parts["client_encoding"] = "UTF8"
        with self.errors():
            self.connection = psycopg2.connect(**parts)
        try:
            with self.errors():
                self.connection.autocommit = True
                self._cursor = self.connection.cursor()
                self._cursor.execute(_SESSION)
        except BaseException:
            self.connection.close()
            raise

    def run(self, statement: str, values: Mapping[str, Any] | None = None) -> list[Any]:
        """The rows of the last statement. Without values, % is a plain character."""
        with self.errors():
            self._cursor.execute(statement, values)
            return self._cursor.fetchall() if self._cursor.description else []

    def copy_in(self, statement: str, pieces: Iterator[bytes]) -> None:
        source = _Source(pieces)
        with self.errors():
            try:
                self._cursor.copy_expert(statement, source, 1 << 18)
            except psycopg2.Error:
                if source.failed is not None:
                    raise source.failed from None
                raise

    def copy_out(self, statement: str, sink: Any) -> None:
        with self.errors():
            self._cursor.copy_expert(statement, sink)

    @contextmanager
    def transaction(self, how: str = "") -> Iterator[None]:
        """Committed at the end, rolled back on an error."""
        self.run(f"BEGIN {how}")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            self.roll_back()
            raise

    def roll_back(self) -> None:
        """Never raises: without a connection there is nothing to roll back."""
        with suppress(psycopg2.Error):
            if not self.connection.closed:
                self._cursor.execute("ROLLBACK")

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg2.Error as error:
            raise self.explained(error) from None

    def explained(self, error: psycopg2.Error) -> SinkError:
        """As SinkError, without the password."""
        text = self.shown(error)
        state: str = error.pgcode or ""
        if not state or state.startswith(("28", "3D")):
            return self._explained_connect(text)
        if state == "55P03":
            return TableLocked("another session holds a lock on the table", detail=text)
        if state == "25006":
            return StoreUnreachable(
                "PostgreSQL is read-only",
                detail=text,
                hint="a standby? `url` must name the primary",
            )
        if state.startswith(_PASSING) or state in _PASSING_STATES:
            return StoreUnreachable("PostgreSQL interrupted the request", detail=text)
        if state.startswith(_OF_VALUES):
            return ValuesRefused(error, text)
        hint = _HINTS.get(state) or getattr(error.diag, "message_hint", None) or ""
        return StoreRefused("PostgreSQL refuses", detail=text, hint=hint)

    def shown(self, error: psycopg2.Error) -> str:
        """One line, without the password, and without values of a row."""
        text = str(getattr(error.diag, "message_primary", None) or error).strip()
        if self._password:
            text = text.replace(self._password, "***")
        text = re.sub(r"^(ERROR|FATAL|error):\s*", "", text)
        return re.sub(r"\s*\n\s*", " ", text) or "the connection was closed"

    def _explained_connect(self, text: str) -> SinkError:
        """Errors of connecting have no SQLSTATE in psycopg2: only their text."""
        if re.search("password authentication failed|no password supplied|authentication", text):
            return StoreRefused(
                "PostgreSQL refuses the password",
                detail=f"role {self._user}",
                hint="check the password in `url` or in `password_file`",
            )
        if "no pg_hba.conf entry" in text:
            return StoreRefused(
                "PostgreSQL's pg_hba.conf does not let us in",
                detail=text,
                hint="add a line for the role, then SELECT pg_reload_conf();",
            )
        if re.search(r'(database|role) ".*" does not exist', text):
            return StoreRefused(
                "there is no such database or role", detail=text, hint="check the sink's `url`"
            )
        if re.search("sslmode|does not support SSL|certificate", text):
            return StoreRefused(
                "PostgreSQL and `url` do not agree about TLS",
                detail=text,
                hint="?sslmode=verify-full&sslrootcert=FILE names the authority that signed the"
                " server's certificate; ?sslmode=prefer takes what the server has",
            )
        return StoreUnreachable("PostgreSQL does not answer", detail=text)

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Source:
    """The file that psycopg2 reads from, which would hide an error of `read`."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = io.BytesIO()
        self.failed: Exception | None = None

    def read(self, size_bytes: int) -> bytes:
        try:
            while not (some := self._piece.read(size_bytes)):
                following = next(self._pieces, None)
                if following is None:
                    return b""
                self._piece = io.BytesIO(following)
        except Exception as error:
            self.failed = error
            raise
        return some


def _parts(url: Secret) -> dict[str, str]:
    try:
        parts = dict(psycopg2.extensions.parse_dsn(url.reveal()))
        [int(port) for port in parts.get("port", "").split(",") if port]
    except (psycopg2.ProgrammingError, ValueError):  # its text has the address, password and all
        raise ConfigError(
            "the sink's `url` is no address of PostgreSQL",
            hint="postgresql://user@host:5432/database, and the password in `password_file`"
            " (within the address its special characters are %-encoded)",
        ) from None
    return parts
