"""The server: accepts connections, and bounds their number and what they hold together.

A request that does not come in one piece gets room for all of it set aside before it is read on;
if there is none it waits for its turn. So a hundred producers that begin a large request at the
same time cannot block each other with halves of them. Bulky ones stand in a line of their own, and
small ones pass beside both: a quarter of the room is theirs. Whoever was given room and does not
use it loses it to those who wait.

Connections that have not authenticated have a small budget apart, in which none waits: when it is
full, the one that holds the most is closed. So they take nothing from authenticated ones.
"""

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

from headwater.broker.network.connection import Connection
from headwater.broker.security.authentication import (
    UNAUTHENTICATED_MAX_REQUEST_BYTES,
    UNAUTHENTICATED_TIMEOUT_S,
)

if TYPE_CHECKING:
    import socket

    from headwater.broker.api.registry import ClientConnection
    from headwater.broker.broker import Broker
    from headwater.broker.security.tls import TlsContext

log = logging.getLogger(__name__)

SCRATCH_BYTES = 256 << 10
IDLE_TIMEOUT_S = 600.0  # as Kafka's connections.max.idle.ms
FRAME_TIMEOUT_S = 30.0  # half a request and then silence
SWEEP_S = 5.0
REASONS_LOGGED_PER_SWEEP = 20
BULKY_BYTES = 4 << 20
UNAUTHENTICATED_SHARE = 16  # their budget is this part of the whole


class _Line:
    """Connections that wait for room for a request, and what is set aside for those let in."""

    __slots__ = ("limit_bytes", "unfinished_bytes", "waiting")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.waiting: deque[Connection] = deque()
        self.unfinished_bytes = 0

    def has_room_for(self, size_bytes: int) -> bool:
        return not self.unfinished_bytes or self.unfinished_bytes + size_bytes <= self.limit_bytes


class Server:
    """Accepts connections and bounds what all of them hold in memory."""

    def __init__(
        self,
        broker: "Broker",
        *,
        max_connections: int,
        max_request_bytes: int,
        max_buffered_bytes: int,
        max_unauthenticated: int = 1000,
    ) -> None:
        self.broker = broker
        self.max_connections = max_connections
        self.max_request_bytes = max_request_bytes
        self.max_buffered_bytes = max_buffered_bytes
        # One buffer for all: a read fills it and is taken apart before the next read begins.
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.connections: set[Connection] = set()
        self.unauthenticated: dict[Connection, float] = {}  # and since when, the oldest first
        self.max_unauthenticated = max_unauthenticated
        self.unauthenticated_bytes = 0
        self._max_unauthenticated_bytes = max(
            max_buffered_bytes // UNAUTHENTICATED_SHARE, 2 * UNAUTHENTICATED_MAX_REQUEST_BYTES
        )
        self.tls: TlsContext | None = None  # set before `listen`
        self.buffered_bytes = 0
        self.starved: deque[Connection] = deque()
        self._ordinary = _Line(max_buffered_bytes // 2)
        self._bulky = _Line(max_buffered_bytes // 4)
        self._waiting_bytes = 0  # of the requests in these lines, what has come
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._reasons_logged = 0
        self._has_let_in = True  # someone who waited, since the last sweep

    @property
    def is_full(self) -> bool:
        return self.buffered_bytes + self._waiting_bytes >= self.max_buffered_bytes

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Takes the address; returns it, with the port that was chosen for port 0."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._accept, host, port, backlog=1024, reuse_address=True, start_serving=False
        )
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    @property
    def sockets(self) -> tuple["socket.socket", ...]:
        """Those that listen."""
        return () if self._server is None else self._server.sockets

    async def serve(self) -> None:
        """Begins to accept."""
        assert self._server is not None
        self._sweeper = asyncio.create_task(self._sweep())
        await self._server.start_serving()

    def _accept(self) -> asyncio.BaseProtocol:
        if self.tls is None:
            return Connection(self)
        from headwater.broker.network.tls_transport import TlsTransport

        return TlsTransport(Connection(self), self.tls.current())

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
        elif not connection.session.is_authenticated:
            self.unauthenticated[connection] = self.broker.clock.monotonic_s()
            if len(self.unauthenticated) > self.max_unauthenticated:
                # The newest is as likely an honest one; the oldest has had its time.
                oldest = next(iter(self.unauthenticated))
                self._end_unauthenticated(
                    oldest, f"more than {self.max_unauthenticated} have not authenticated"
                )

    def _end_unauthenticated(self, connection: Connection, reason: str) -> None:
        self.unauthenticated.pop(connection, None)
        connection.close(reason)
        connection.drop()  # also one that does not take its last answer

    def authenticated(self, connection: Connection) -> None:
        """It has proved who it is."""
        self.unauthenticated.pop(connection, None)
        self.unauthenticated_bytes -= connection.unauthenticated_bytes
        self.buffered_bytes += connection.unauthenticated_bytes
        connection.unauthenticated_bytes = 0

    def lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.unauthenticated.pop(connection, None)

    def refused(self, connection: Connection, reason: str) -> None:
        """A connection is ended for a reason; a flood of them must not fill the log."""
        self.broker.metrics.connections_refused += 1
        self._reasons_logged += 1
        if self._reasons_logged <= REASONS_LOGGED_PER_SWEEP:
            # Escaped and cut short: a client's own words may be in it.
            log.warning("connection ended: %s: %s", connection.peer, repr(reason)[1:-1][:500])

    def took(self, connection: Connection, size_bytes: int) -> None:
        if connection.session.is_authenticated:
            self.buffered_bytes += size_bytes
            return
        connection.unauthenticated_bytes += size_bytes
        self.unauthenticated_bytes += size_bytes
        if self.unauthenticated_bytes > self._max_unauthenticated_bytes:
            # Its bytes are released a moment later, by `connection_lost`.
            greediest = max(
                self.unauthenticated,
                key=lambda connection: connection.unauthenticated_bytes,
                default=connection,
            )
            self._end_unauthenticated(
                greediest, "unauthenticated connections hold too much together, and it the most"
            )

    def released(self, connection: Connection, size_bytes: int) -> None:
        if connection.session.is_authenticated:
            self.buffered_bytes -= size_bytes
        else:
            connection.unauthenticated_bytes -= size_bytes
            self.unauthenticated_bytes -= size_bytes
        self._let_in()

    def wait_for_room(self, connection: Connection) -> None:
        """`connection.admit` is called, now or later, when there is room for its frame."""
        if not connection.session.is_authenticated:
            self.took(connection, connection.receiver.frame_bytes)
            connection.admit()
            return
        connection.stands_in_line = True
        self._line_of(connection).waiting.append(connection)
        self._waiting_bytes += connection.receiver.filled_bytes
        self._let_in()

    def gave_up(self, connection: Connection) -> None:
        """A connection that waited is lost."""
        self._waiting_bytes -= connection.receiver.filled_bytes

    def finished(self, connection: Connection) -> None:
        """The frame of an admitted connection is whole, or never will be."""
        if connection.stands_in_line:
            connection.stands_in_line = False
            self._line_of(connection).unfinished_bytes -= connection.receiver.frame_bytes

    def _line_of(self, connection: Connection) -> _Line:
        return self._bulky if connection.receiver.frame_bytes > BULKY_BYTES else self._ordinary

    def _let_in(self) -> None:
        for line in (self._ordinary, self._bulky):
            while line.waiting and self._has_room(line, line.waiting[0].receiver.frame_bytes):
                connection = line.waiting.popleft()
                if connection in self.connections:
                    self._waiting_bytes -= connection.receiver.filled_bytes
                    line.unfinished_bytes += connection.receiver.frame_bytes
                    self.took(connection, connection.receiver.frame_bytes)
                    self._has_let_in = True
                    connection.admit()
        while self.starved and not self.is_full:
            self._has_let_in = True
            self.starved.popleft().room_again()

    def _has_room(self, line: _Line, size_bytes: int) -> bool:
        if not line.has_room_for(size_bytes):
            return False
        if self.buffered_bytes + size_bytes <= self.max_buffered_bytes:
            return True
        # A request larger than all the room gets its turn, alone, when little else is in work.
        is_alone = not self._ordinary.unfinished_bytes and not self._bulky.unfinished_bytes
        return is_alone and self.buffered_bytes < self.max_buffered_bytes // 4

    def end_former_users(self, asker: "ClientConnection") -> None:
        """Ends the connections of users who could no longer log in. Not that of the request itself:
        it gets its answer, and may have more to remove.
        """
        users = self.broker.users
        for connection in tuple(self.connections):
            session = connection.session
            if (
                session.proved_by_password
                and not users.still_knows(session.principal.name, session.mechanism)
                and connection is not asker
            ):
                connection.close(f"{session.principal} was deleted")

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
        for connection, since_s in tuple(self.unauthenticated.items()):
            if now_s - since_s < UNAUTHENTICATED_TIMEOUT_S:
                break
            self._end_unauthenticated(
                connection, f"not authenticated after {now_s - since_s:.0f} s"
            )
        for connection in tuple(self.connections):
            silent_s = now_s - connection.active_at_s
            if connection.is_in_frame and silent_s > FRAME_TIMEOUT_S:
                connection.close(f"half a request, then silence for {silent_s:.0f} s")
            elif silent_s > IDLE_TIMEOUT_S and connection.is_quiet:
                connection.drop()

    def _make_room(self) -> None:
        """Ends unfinished requests of which nothing comes while others wait for their room."""
        if self._ordinary.waiting or self._bulky.waiting or self.starved:
            unfinished = [
                connection
                for connection in self.connections
                if connection.is_admitted and connection.waits_for_client
            ]
            now_s = self.broker.clock.monotonic_s()
            ended = [
                connection for connection in unfinished if now_s - connection.active_at_s >= SWEEP_S
            ]
            if not ended and not self._has_let_in:  # they trickle
                by_size = sorted(unfinished, key=lambda other: other.receiver.frame_bytes)
                ended = by_size[-1:]
            for connection in ended:
                size_bytes = connection.receiver.frame_bytes
                connection.close(f"others wait for the room of its request of {size_bytes} bytes")
        self._has_let_in = False


def raise_open_files_limit(wanted: int) -> int:
    """Lifts the soft limit of descriptors as far as allowed; returns what it is then."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft = target
    return soft
