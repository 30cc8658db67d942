"""The listening side of the broker: connections, their number, and what they may hold together."""

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

from headwater.broker.connection import Connection

if TYPE_CHECKING:
    from headwater.broker.broker import Broker

log = logging.getLogger(__name__)

SCRATCH_BYTES = 256 << 10
IDLE_TIMEOUT_S = 600.0  # as Kafka's connections.max.idle.ms
FRAME_TIMEOUT_S = 30.0  # half a request and then silence
SWEEP_S = 5.0
REASONS_LOGGED_PER_SWEEP = 20


class Server:
    """Accepts connections and bounds what all of them hold in memory."""

    def __init__(
        self,
        broker: "Broker",
        *,
        max_connections: int,
        max_request_bytes: int,
        max_buffered_bytes: int,
    ) -> None:
        self.broker = broker
        self.max_connections = max_connections
        self.max_request_bytes = max_request_bytes
        self.max_buffered_bytes = max_buffered_bytes
        # One buffer for all: a read fills it and is taken apart before the next read begins.
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.connections: set[Connection] = set()
        self.buffered_bytes = 0
        self.starved: deque[Connection] = deque()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._reasons_logged = 0
        self._has_moved = True  # something was let go since the last sweep

    @property
    def is_full(self) -> bool:
        return self.buffered_bytes >= self.max_buffered_bytes

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Begins to accept; returns the address, with the port that was chosen for port 0."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), host, port, backlog=1024, reuse_address=True
        )
        self._sweeper = asyncio.create_task(self._sweep())
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        for connection in tuple(self.connections):
            connection.drop()
        while self.connections:
            await asyncio.sleep(0)

    # ── called by connections ─────────────────────────────────────────────────────────────────

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        self.broker.metrics.connections_opened += 1
        if len(self.connections) > self.max_connections:
            connection.close(f"more than {self.max_connections} connections")

    def lost(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def refused(self, connection: Connection, reason: str) -> None:
        """A connection is ended for a reason; a flood of them must not fill the log."""
        self.broker.metrics.connections_refused += 1
        self._reasons_logged += 1
        if self._reasons_logged <= REASONS_LOGGED_PER_SWEEP:
            log.warning("connection ended: %s: %s", connection.peer, reason)

    def took(self, size_bytes: int) -> None:
        self.buffered_bytes += size_bytes

    def released(self, size_bytes: int) -> None:
        self.buffered_bytes -= size_bytes
        self._has_moved = True
        while self.starved and not self.is_full:
            self.starved.popleft().room_again()

    # ── sweeping ──────────────────────────────────────────────────────────────────────────────

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            more = self._reasons_logged - REASONS_LOGGED_PER_SWEEP
            if more > 0:
                log.warning("%d more connections ended", more)
            self._reasons_logged = 0
            self._end_silent()
            self._make_room()

    def _end_silent(self) -> None:
        now_s = self.broker.clock.monotonic_s()
        for connection in tuple(self.connections):
            silent_s = now_s - connection.active_at_s
            if connection.is_in_frame and silent_s > FRAME_TIMEOUT_S:
                connection.close(f"half a request, then silence for {silent_s:.0f} s")
            elif silent_s > IDLE_TIMEOUT_S and connection.is_quiet:
                connection.drop()

    def _make_room(self) -> None:
        """Ends whoever holds most, if the server is full and nothing has moved for a sweep.

        That is so when all that is held are unfinished requests: none of them can be read to its
        end, because none is answered and lets go of its room.
        """
        excess_bytes = self.buffered_bytes - self.max_buffered_bytes
        if excess_bytes >= 0 and not self._has_moved:
            for connection in sorted(self.connections, key=lambda each: -each.held_bytes):
                excess_bytes -= connection.held_bytes
                connection.close(f"the server is full; {connection.held_bytes} bytes are held here")
                if excess_bytes < 0:
                    break
        self._has_moved = False


def parse_address(text: str) -> tuple[str, int]:
    """("127.0.0.1", 9092) of "127.0.0.1:9092"; IPv6 in brackets."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def raise_open_files_limit(wanted: int) -> int:
    """Lifts the soft limit of descriptors as far as allowed; returns what it is then."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft = target
    return soft
