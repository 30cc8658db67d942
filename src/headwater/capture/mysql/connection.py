"""Queries and packets of a capture's connection, and what the server's refusals mean to it.

PyMySQL logs in; commands of replication and large results are then read from its socket directly,
because its packets cost more than the rows in them.
"""

import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pymysql

from headwater.databases import mysql
from headwater.databases.mysql import Address, code_and_text, unreachable
from headwater.errors import CaptureError, HeadwaterError, PositionLost, SourceRefused

MAX_PACKET_BYTES: Final = 1 << 30  # max_allowed_packet cannot be larger, in both servers
_WHOLE_PACKET_BYTES: Final = 0xFFFFFF  # a packet of this size goes on in the next
_RECEIVE_BYTES: Final = 256 * 1024

_LOG_REFUSED: Final = 1236  # ER_MASTER_FATAL_ERROR_READING_BINLOG: the text says what
_SAME_ID: Final = 4052  # MariaDB: another reader came with our server id


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
def translated(address: Address, *, is_in: bool = False) -> Iterator[None]:
    """Whatever the driver raises inside is raised as an error of ours."""
    try:
        yield
    except HeadwaterError:
        raise
    except pymysql.err.MySQLError as error:
        code, text = code_and_text(error)
        raise refusal(code, text, address, is_in=is_in) from error
    except (OSError, EOFError) as error:
        raise unreachable(address, str(error)) from error


def refusal(code: int, text: str, address: Address, *, is_in: bool = False) -> CaptureError:
    """What an error packet of the server means for a capture (see databases/mysql.py)."""
    if code in (_LOG_REFUSED, _SAME_ID):
        return _log_refused(text)
    return mysql.refusal(code, text, address, is_in=is_in)


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
        """Receives more; whether there was any. What was consumed is freed."""
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
