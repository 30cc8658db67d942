"""`metrics_listen` of a capture: Prometheus' text at /metrics, liveness at /live, readiness at
/ready, as the broker has them.

A client may be anyone: a request has a deadline as a whole, connections are bounded, and beyond the
bound the oldest gives way. So clients that send nothing, or do not read, keep no probe out.
"""

import asyncio
import socket
import threading

from headwater.capture.metrics import CaptureState, exposition
from headwater.errors import ConfigError
from headwater.prometheus_text import CONTENT_TYPE
from headwater.settings import is_loopback, join_address, split_address

REQUEST_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 64
_MAX_HEAD_BYTES = 16 << 10


class HttpEndpoint:
    """Answers one request per connection, in a thread of its own, until it is closed."""

    def __init__(
        self, listen: str, state: CaptureState, *, allow_insecure_network: bool = False
    ) -> None:
        """Raises ConfigError if the address cannot be bound, or others reach it unasked."""
        where = f"capture.{state.name}"
        if not (is_loopback(listen) or allow_insecure_network):
            raise ConfigError(
                f"{where}.metrics_listen {listen} can be reached from the network, and nobody is"
                " asked who they are",
                hint="bind it to 127.0.0.1 and let a proxy ask, or set"
                f" {where}.allow_insecure_network = true",
            )
        self._state = state
        self._requests: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}  # the oldest first
        host, port = split_address(listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"{where}.metrics_listen cannot be bound",
                detail=f"{listen}: {(error.strerror or str(error)).lower()}",
            ) from error
        self.address = join_address(*self._socket.getsockname()[:2])
        self._stopping = asyncio.Event()
        self._is_started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._is_started.wait()
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(
            self._connected, sock=self._socket, limit=_MAX_HEAD_BYTES
        )
        self._is_started.set()
        try:
            await self._stopping.wait()
        finally:
            server.close()
            for writer in self._requests:
                writer.transport.abort()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopping.is_set():  # accepted before the listener was closed
            writer.transport.abort()
            return
        self._requests[writer] = asyncio.create_task(self._serve(reader, writer))
        if len(self._requests) > MAX_CONNECTIONS:
            oldest = next(iter(self._requests))
            del self._requests[oldest]
            oldest.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, content_type, body = _answer(head.split(b"\r\n", 1)[0], self._state)
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the peer is gone, does not read, or is no HTTP client
        finally:
            self._requests.pop(writer, None)
            writer.transport.abort()  # close() would wait for a peer that does not read


def _answer(request_line: bytes, state: CaptureState) -> tuple[str, str, bytes]:
    match request_line.split(b" "):
        case [b"GET", b"/metrics", _]:
            return "200 OK", CONTENT_TYPE, exposition(state).encode()
        case [b"GET", b"/live", _]:
            return "200 OK", "text/plain", b"alive\n"
        case [b"GET", b"/ready", _]:
            reason = state.not_ready_because()
            if reason is None:
                return "200 OK", "text/plain", b"ready\n"
            text = f"not ready: {reason}\n"
            return "503 Service Unavailable", "text/plain; charset=utf-8", text.encode()
    return "404 Not Found", "text/plain", b"try /metrics, /live or /ready\n"
