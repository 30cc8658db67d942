"""Connections to the server: where it is, and what its refusals mean.

PyMySQL logs in; commands of replication and large results are then read from its socket directly,
because its packets cost more than the rows in them.
"""

import ssl
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql

from headwater.errors import (
    CaptureError,
    ConfigError,
    HeadwaterError,
    PositionLost,
    SourceRefused,
    SourceUnreachable,
)

CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60
MAX_PACKET_BYTES: Final = 1 << 30  # max_allowed_packet cannot be larger, in both servers
_WHOLE_PACKET_BYTES: Final = 0xFFFFFF  # a packet of this size goes on in the next
_RECEIVE_BYTES: Final = 256 * 1024

_THIS_MACHINE: Final = (None, "localhost", "127.0.0.1", "::1")  # TLS only if it is asked for
_TLS_FILES: Final = ("ssl_ca", "ssl_cert", "ssl_key")
_ACCESS_DENIED: Final = (1044, 1045, 1698, 1130, 1129, 1862)
_MISSING_RIGHT: Final = (1142, 1143, 1227, 1370)
_LOG_REFUSED: Final = 1236  # ER_MASTER_FATAL_ERROR_READING_BINLOG: the text says what
_SAME_ID: Final = 4052  # MariaDB: another reader came with our server id
_AWAY: Final = (1040, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1226, 1927, 3169)


@dataclass(frozen=True, slots=True)
class Address:
    """mysql://user:password@host:port/database?ssl_ca=…&unix_socket=…"""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    unix_socket: str | None
    tls: dict[str, Any]

    @classmethod
    def parse(cls, url: str) -> "Address":
        try:
            parts = urlsplit(url)
            port = parts.port or 3306
        except ValueError:  # its text may hold a part of the password
            raise ConfigError(
                "the source is no address of MySQL or MariaDB",
                hint="mysql://user@host:3306/database, and the password in `password_file` (within"
                " the address its special characters are %-encoded)",
            ) from None
        options = dict(parse_qsl(parts.query))
        unix_socket = options.pop("unix_socket", None)
        tls: dict[str, Any] = {name: options.pop(name) for name in _TLS_FILES if name in options}
        if (verify := options.pop("ssl_verify_identity", None)) is not None:
            tls["ssl_verify_identity"] = verify.lower() in ("1", "true", "yes", "on")
        if options:
            raise ConfigError(
                "the source's address has an unknown option",
                detail=", ".join(sorted(options)),
                hint=f"known: unix_socket, {', '.join(_TLS_FILES)}, ssl_verify_identity",
            )
        return cls(
            host=parts.hostname or "127.0.0.1",
            port=port,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=unquote(parts.path.lstrip("/")),
            unix_socket=unix_socket,
            tls=tls or {"ssl_disabled": bool(unix_socket) or parts.hostname in _THIS_MACHINE},
        )

    def __str__(self) -> str:
        return self.unix_socket or f"{self.host}:{self.port}"


def connect(address: Address, **more: Any) -> Any:
    """A connection in UTC, with texts in utf8mb4, every statement its own transaction."""
    with translated(address), _readable(address):
        return pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password.encode(),
            unix_socket=address.unix_socket,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=more.pop("read_timeout", READ_TIMEOUT_S),
            write_timeout=READ_TIMEOUT_S,
            program_name="headwater",
            # A strict sql_mode would refuse to read zero dates; NO_ZERO_DATE is about writing only.
            init_command="SET time_zone = '+00:00', sql_mode = ''",
            **address.tls,
            **more,
        )


def query(connection: Any, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())


def variables(connection: Any, *names: str) -> dict[str, str]:
    """The server's global variables; those that it does not know are left out."""
    rows = query(
        connection,
        f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({', '.join(['%s'] * len(names))})",
        names,
    )
    return {str(name).lower(): str(value) for name, value in rows}


@contextmanager
def _readable(address: Address) -> Iterator[None]:
    """PyMySQL stumbles over an answer that is none (of another protocol) in all kinds of ways."""
    try:
        yield
    except (struct.error, LookupError, ValueError, TypeError, AttributeError) as error:
        raise unreachable(address, f"its answer cannot be read: {error!r}") from error
    except AssertionError as error:
        raise unreachable(address, "its answer cannot be read") from error


@contextmanager
def translated(address: Address, *, is_in: bool = False) -> Iterator[None]:
    """Whatever the driver raises inside is raised as an error of ours."""
    try:
        yield
    except HeadwaterError:
        raise
    except pymysql.err.MySQLError as error:
        raise _in_our_words(error, address, is_in) from error
    except (OSError, EOFError) as error:
        raise unreachable(address, str(error)) from error


def unreachable(address: Address, detail: str) -> SourceUnreachable:
    return SourceUnreachable(
        f"no answer from the database at {address}",
        detail=detail,
        hint="is the server running, and can it be reached from here?",
    )


def _in_our_words(error: Any, address: Address, is_in: bool) -> CaptureError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    return refusal(code, text, address, is_in=is_in)


def refusal(code: int, text: str, address: Address, *, is_in: bool = False) -> CaptureError:
    """What an error packet of the server means for a capture. `is_in`: we are logged in, so that
    "access denied" is about a right and not about the password.
    """
    who = address.user or "(no user)"
    if code in (_LOG_REFUSED, _SAME_ID):
        return _log_refused(text)
    if code in _ACCESS_DENIED and not is_in:
        return SourceRefused(
            f"the database at {address} does not let {who} in",
            detail=text,
            hint="check user and password in `source`; "
            f"to set a new one: ALTER USER '{who}'@'%' IDENTIFIED BY '…';",
        )
    if code in _MISSING_RIGHT or code in _ACCESS_DENIED:
        return SourceRefused(
            f"{who} lacks a right in the database at {address}",
            detail=text,
            hint=f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{who}'@'%';",
        )
    if 2000 <= code < 3000 or code in _AWAY or code == 0:
        return unreachable(address, text)
    return CaptureError("the database refuses a request", detail=f"{text} ({code})")


def _log_refused(text: str) -> CaptureError:
    low = text.lower()
    if "same server" in low:  # "A slave with the same server_uuid/server_id as this slave has …"
        return SourceRefused(
            "another reader of the binlog has taken this one's server id",
            detail=text,
            hint="is the capture running twice? Otherwise set options.server_id to a free number",
        )
    if "max_allowed_packet" in low and "impossible position" not in low:
        return SourceRefused(
            "an event of the binlog is larger than the server sends",
            detail=text,
            hint="SET GLOBAL max_allowed_packet = 1073741824;",
        )
    return PositionLost(
        "the server's binlog no longer goes back to where the capture stands",
        detail=text,
        hint="",  # the source knows the capture's name, and adds the command
    )


class PacketReader:
    """Packets from a connection's socket, as large reads; knows when there is nothing yet.

    Between commands PyMySQL has nothing buffered, so that nothing is passed by.
    """

    def __init__(self, connection: Any, address: Address) -> None:
        self._socket: Any = connection._sock  # noqa: SLF001 (it has no public name)
        self._address = address
        self._buffer = bytearray()
        self._start = 0
        self._last_heard_at = time.monotonic()
        self._timeout_s: float | None = None

    def packet(self, wait_s: float, silence_s: float) -> bytes | None:
        """The next packet; None if none came within `wait_s`. SourceUnreachable if nothing at all
        was heard for `silence_s`, or the connection ended.
        """
        whole: bytes | None = None
        while True:
            part = self._part()
            if part is not None:
                if whole is None and len(part) < _WHOLE_PACKET_BYTES:
                    return part
                whole = part if whole is None else whole + part
                if len(whole) > MAX_PACKET_BYTES:
                    raise CaptureError("a packet of the server exceeds 1 GiB")
                if len(part) < _WHOLE_PACKET_BYTES:
                    return whole
                continue
            if not self.fill(wait_s, silence_s) and whole is None:
                return None

    def _part(self) -> bytes | None:
        buffer, start = self._buffer, self._start
        if len(buffer) - start < 4:
            return None
        end = start + 4 + (buffer[start] | buffer[start + 1] << 8 | buffer[start + 2] << 16)
        if end > len(buffer):
            return None
        self._start = end
        return bytes(buffer[start + 4 : end])

    def fill(self, wait_s: float, silence_s: float) -> bool:
        """Receives more; whether there was any. What was consumed is let go."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        try:
            if wait_s != self._timeout_s:
                self._socket.settimeout(wait_s)
                self._timeout_s = wait_s
            data = self._socket.recv(_RECEIVE_BYTES)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            if time.monotonic() - self._last_heard_at > silence_s:
                detail = f"nothing was heard for {silence_s:g} s"
                raise unreachable(self._address, detail) from None
            return False
        except OSError as error:
            raise unreachable(self._address, str(error)) from error
        if not data:
            raise unreachable(self._address, "it closed the connection")
        self._last_heard_at = time.monotonic()
        self._buffer += data
        return True

    def take(self) -> bytes:
        """All that was received and not yet read."""
        data = bytes(self._buffer[self._start :])
        self._buffer, self._start = bytearray(), 0
        return data

    def put_back(self, data: bytes) -> None:
        self._buffer, self._start = bytearray(data) + self._buffer[self._start :], 0

    def waited(self) -> None:
        """The reader itself paused: silence counts from now."""
        self._last_heard_at = time.monotonic()


def error_of(packet: bytes, address: Address) -> CaptureError:
    """Of a packet that begins with 0xFF."""
    code = int.from_bytes(packet[1:3], "little")
    text = packet[3:].decode("utf-8", "replace")
    if text.startswith("#"):  # a six-character SQL state
        text = text[6:]
    return refusal(code, text, address, is_in=True)
