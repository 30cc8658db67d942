"""Connections to MySQL and MariaDB, for captures and sinks alike: addresses, login, refusals."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql

from headwater.errors import (
    CaptureError,
    ConfigError,
    SourceRefused,
    SourceUnreachable,
)

_CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60
_THIS_MACHINE: Final = (None, "localhost", "127.0.0.1", "::1")  # TLS only if it is asked for
_TLS_FILES: Final = ("ssl_ca", "ssl_cert", "ssl_key")
_ACCESS_DENIED: Final = (1044, 1045, 1698, 1130, 1129, 1862)
_MISSING_RIGHT: Final = (1142, 1143, 1227, 1370)
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
    with _translated(address), _readable(address):
        return pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password.encode(),
            unix_socket=address.unix_socket,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=more.pop("read_timeout", READ_TIMEOUT_S),
            write_timeout=READ_TIMEOUT_S,
            program_name="headwater",
            # A strict sql_mode would refuse to read zero dates; NO_ZERO_DATE is about writing only.
            init_command="SET time_zone = '+00:00', sql_mode = ''",
            **address.tls,
            **more,
        )


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
def _translated(address: Address) -> Iterator[None]:
    try:
        yield
    except pymysql.err.MySQLError as error:
        code, text = code_and_text(error)
        raise refusal(code, text, address) from error
    except (OSError, EOFError) as error:
        raise unreachable(address, str(error)) from error


def unreachable(address: Address, detail: str) -> SourceUnreachable:
    return SourceUnreachable(
        f"no answer from the database at {address}",
        detail=detail,
        hint="is the server running, and can it be reached from here?",
    )


def code_and_text(error: pymysql.err.MySQLError) -> tuple[int, str]:
    """What the server answered; the code is 0 if the error is the driver's own."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return code, str(error.args[1]) if len(error.args) > 1 else str(error)


def refusal(code: int, text: str, address: Address, *, is_in: bool = False) -> CaptureError:
    """What an error packet of the server means. `is_in`: we are logged in, so that "access denied"
    is about a right and not about the password.
    """
    who = address.user or "(no user)"
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
