"""One POST over HTTP/1.1, to an address that was checked; connections are used again.

Bounded on all sides: a time limit for the whole request, 64 KiB of headers, and of an answer's body
only the beginning is read.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import h11

from headwater.gateway.webhooks.targets import ForbiddenTarget, Network, Target, resolve

_SHOWN_BYTES: Final = 300
_READ_BYTES: Final = 16 << 10


class NoAnswer(Exception):
    """Why there is none: the connection failed, or it took too long."""


class Answer(NamedTuple):
    status: int
    retry_after: str | None
    text: str  # the beginning of its body


class Poster:
    """For one target. For the event loop; several requests may be under way."""

    def __init__(self, target: Target, allowed: Sequence[Network], timeout_s: float) -> None:
        self._target = target
        self._allowed = allowed
        self._timeout_s = timeout_s
        self._context = ssl.create_default_context() if target.is_tls else None
        self._idle: list[_Connection] = []

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Raises NoAnswer, ForbiddenTarget."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._idle:  # the receiver may have closed it meanwhile
                    connection = self._idle.pop()
                    if connection.is_closed:
                        connection.close()
                        continue
                    with suppress(_Stale):
                        return await self._ask(connection, body, headers, is_used=True)
                return await self._ask(await self._connect(), body, headers, is_used=False)
        except TimeoutError:
            raise NoAnswer(f"no answer for {self._timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise NoAnswer(f"its certificate is not trusted: {error.verify_message}") from error
        except ForbiddenTarget:
            raise
        except (OSError, h11.ProtocolError, _Stale) as error:
            raise NoAnswer(_reason(error)) from error

    async def _connect(self) -> "_Connection":
        target = self._target
        addresses = await resolve(target, self._allowed)
        failure: OSError | None = None
        for address in addresses:
            try:
                reader, writer = await asyncio.open_connection(
                    address,
                    target.port,
                    ssl=self._context,
                    server_hostname=target.host if target.is_tls else None,
                )
            except ssl.SSLCertVerificationError:
                raise
            except OSError as error:
                failure = error
                continue
            return _Connection(reader, writer)
        raise failure or OSError("the name has no address")

    async def _ask(
        self, connection: "_Connection", body: bytes, headers: Mapping[str, str], *, is_used: bool
    ) -> Answer:
        try:
            answer = await connection.ask(self._target, body, headers)
        except BaseException as error:
            connection.close()
            if is_used and isinstance(error, OSError | h11.RemoteProtocolError):
                raise _Stale from error
            raise
        if connection.can_be_used_again:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number).lower()  # asyncio's own text repeats the address
    return (str(error) or type(error).__name__).lower()


class _Stale(Exception):
    """A connection that was used before, and closed by the receiver."""


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 << 10)
        self.can_be_used_again = False

    @property
    def is_closed(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def ask(self, target: Target, body: bytes, headers: Mapping[str, str]) -> Answer:
        if self._http.our_state is not h11.IDLE:
            self._http.start_next_cycle()
        self.can_be_used_again = False
        request = h11.Request(
            method="POST",
            target=target.path,
            headers=[
                ("Host", target.authority),
                ("Content-Length", str(len(body))),
                *headers.items(),
            ],
        )
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()
        return await self._answer()

    async def _answer(self) -> Answer:
        status, retry_after, text = 0, None, b""
        while True:
            event = self._http.next_event()
            match event:
                case h11.NEED_DATA:
                    data = await self._reader.read(_READ_BYTES)
                    self._http.receive_data(data)
                case h11.Response():
                    status = event.status_code
                    found = [value for name, value in event.headers if name == b"retry-after"]
                    retry_after = found[0].decode("latin-1") if found else None
                case h11.Data():
                    text += bytes(event.data)
                    if len(text) >= _SHOWN_BYTES:
                        break  # the rest is not waited for
                case h11.EndOfMessage():
                    self.can_be_used_again = (
                        self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
                    )
                    break
                case h11.ConnectionClosed():
                    raise h11.RemoteProtocolError("the connection was closed without an answer")
                case _:
                    continue  # 1xx
        shown = " ".join(text[:_SHOWN_BYTES].decode(errors="replace").split())
        return Answer(status, retry_after, "".join(c for c in shown if c.isprintable()))
