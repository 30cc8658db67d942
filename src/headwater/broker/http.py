"""`--metrics-listen`: Prometheus' text at /metrics, liveness at /live, readiness at /ready.

A few lines of HTTP/1.1 instead of a web server, because the broker's start and memory count.
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from headwater.broker.exposition import exposition
from headwater.prometheus_text import CONTENT_TYPE

if TYPE_CHECKING:
    from headwater.broker.broker import Broker
    from headwater.broker.server import Server

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 10.0
_CHEAP_S = 0.02
MAX_CONNECTIONS = 64  # one more ends the oldest: the broker's descriptors are for its clients


class HttpEndpoint:
    """Answers one request per connection."""

    def __init__(self, broker: "Broker", server: "Server") -> None:
        self._broker = broker
        self._kafka_server = server
        self._server: asyncio.Server | None = None
        self.is_ready = False
        self._writers: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._metrics = b""
        self._metrics_until_s = 0.0

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._serve, host, port, limit=16 << 10)
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = None
        if len(self._writers) > MAX_CONNECTIONS:
            oldest = next(iter(self._writers))
            del self._writers[oldest]
            oldest.transport.abort()
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
            pass  # the peer is gone, does not read, or is no HTTP client
        finally:
            self._writers.pop(writer, None)
            writer.transport.abort()  # close() would wait for a peer that does not read

    def _exposition(self) -> bytes:
        """Where it takes long, at most a fifth of the event loop's time is spent on it."""
        began_s = time.monotonic()
        if began_s >= self._metrics_until_s:
            self._metrics = exposition(self._broker, self._kafka_server).encode()
            now_s = time.monotonic()
            took_s = now_s - began_s
            self._metrics_until_s = now_s + (4 * took_s if took_s > _CHEAP_S else 0)
        return self._metrics

    def _answer(self, request_line: bytes) -> tuple[str, str, bytes]:
        match request_line.split(b" "):
            case [b"GET", b"/metrics", _]:
                return "200 OK", CONTENT_TYPE, self._exposition()
            case [b"GET", b"/live", _]:
                return "200 OK", "text/plain", b"alive\n"
            case [b"GET", b"/ready", _]:
                reason = self._not_ready_because()
                if reason is None:
                    return "200 OK", "text/plain", b"ready\n"
                return "503 Service Unavailable", "text/plain", f"not ready: {reason}\n".encode()
        return "404 Not Found", "text/plain", b"try /metrics, /live or /ready\n"

    def _not_ready_because(self) -> str | None:
        if not self.is_ready:
            return "the broker is starting or stopping"
        failed = self._broker.store.failed
        if failed:
            some = next(iter(failed))
            return f"{len(failed)} partitions cannot be written: {some.failure}"
        return None
