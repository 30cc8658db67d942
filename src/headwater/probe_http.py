"""A small HTTP server for probes: /metrics for Prometheus, liveness at /live, readiness at /ready.

A few lines of HTTP/1.1 instead of a web server, because the broker's start and memory count. A
client may be anyone: a request has a deadline as a whole, connections are bounded, and one more
than that ends the oldest. So clients that send nothing, or do not read, block no probe.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping

from headwater.prometheus_text import CONTENT_TYPE

REQUEST_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 64
_MAX_HEAD_BYTES = 16 << 10


class ProbeServer:
    """Answers one request per connection, on the event loop that it listens on."""

    def __init__(
        self,
        metrics: Callable[[], bytes],
        not_ready_because: Callable[[], str | None],
        more_metrics: Mapping[bytes, Callable[[], bytes]] | None = None,
    ) -> None:
        """`more_metrics` are further paths with metrics."""
        self._metrics = {b"/metrics": metrics, **(more_metrics or {})}
        self._not_ready_because = not_ready_because
        self._server: asyncio.Server | None = None
        self._requests: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}  # the oldest first
        self._is_closed = False

    async def listen(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        bound: socket.socket | None = None,
    ) -> tuple[str, int]:
        """At an address, or with a socket that is bound to one. Raises OSError."""
        self._server = await asyncio.start_server(
            self._connected, host, port, sock=bound, limit=_MAX_HEAD_BYTES
        )
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    def close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for writer in self._requests:
            writer.transport.abort()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed:  # accepted before the listener was closed
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
                status, content_type, body = self._answer(head.split(b"\r\n", 1)[0])
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the peer has closed, does not read, or is no HTTP client
        finally:
            self._requests.pop(writer, None)
            writer.transport.abort()  # close() would wait for a peer that does not read

    def _answer(self, request_line: bytes) -> tuple[str, str, bytes]:
        match request_line.split(b" "):
            case [b"GET", path, _] if path in self._metrics:
                return "200 OK", CONTENT_TYPE, self._metrics[path]()
            case [b"GET", b"/live", _]:
                return "200 OK", "text/plain", b"alive\n"
            case [b"GET", b"/ready", _]:
                reason = self._not_ready_because()
                if reason is None:
                    return "200 OK", "text/plain", b"ready\n"
                text = f"not ready: {reason}\n"
                return "503 Service Unavailable", "text/plain; charset=utf-8", text.encode()
        return "404 Not Found", "text/plain", b"try /metrics, /live or /ready\n"
