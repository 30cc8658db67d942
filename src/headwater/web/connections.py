"""Connections to a web server: their limits in number and in waiting time.

A connection that waits for its peer (for a request, its body, or for an answer to be taken) has a
deadline. Where there are too many, all together or of one address, those that have waited longest
for their peer end first, so that who asks and reads is answered while others hold connections open.
One address has at most half of the room.
"""

import asyncio
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headwater.web.attempts import network_of
from headwater.web.websockets import WebSocketConnection

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 1000
# From the first byte to the last of a request's head (a TLS handshake has as long), and of its
# body; and how long the peer may take nothing of an answer.
HEAD_LIMIT_S: Final = 10.0
BODY_LIMIT_S: Final = 60.0
READING_LIMIT_S: Final = 60.0
KEEP_ALIVE_S: Final = 30
_CHECK_INTERVAL_S: Final = 1.0
# Ended together, so that a flood of connections does not look for each one's oldest.
_ENDED_AT_ONCE: Final = 16
_ACCEPT_RETRY_S: Final = 0.1


class Connection(H11Protocol):
    """uvicorn's protocol, with deadlines for what it waits for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.waiting_since_s = self.loop.time()
        self._waits_for: tuple[str | None, object] = ("head", None)
        self._check: asyncio.TimerHandle | None = None
        self._is_upgraded = False  # to a WebSocket, whose client may be silent

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._check = self.loop.call_later(_CHECK_INTERVAL_S, self._check_deadline)

    def connection_lost(self, exc: Exception | None) -> None:
        self.upgraded_connection_lost()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Of a request that cannot be read any further. Its answer may be about to begin, or have
        begun: nothing more of it is sent.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The connection is another protocol's from here on; its limits stay ours."""
        super().handle_websocket_upgrade(event)
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, WebSocketConnection)
        protocol.http = self
        self._is_upgraded = True

    def upgraded_connection_lost(self) -> None:
        if self._check is not None:
            self._check.cancel()
        if not self.ended.done():
            self.ended.set_result(None)

    def resume_writing(self) -> None:
        self.waiting_since_s = self.loop.time()
        super().resume_writing()

    def waits_for(self) -> str | None:
        """What the peer has to do next; None: it is our turn."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return "reading"
        if self._is_upgraded:
            return None
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        if self.conn.their_state is h11.IDLE:
            return "head" if self.timeout_keep_alive_task is None else "next"
        return None

    def limit_s(self, waits_for: str | None) -> float | None:
        """How long the peer may take for it; None: as long as it likes."""
        return {
            "head": HEAD_LIMIT_S, "body": BODY_LIMIT_S, "reading": READING_LIMIT_S,
        }.get(waits_for or "")  # fmt: skip

    def _check_deadline(self) -> None:
        now_s = self.loop.time()
        waits_for = (self.waits_for(), self.cycle)
        if waits_for != self._waits_for:
            self._waits_for, self.waiting_since_s = waits_for, now_s
        limit_s = self.limit_s(waits_for[0])
        if limit_s is not None and now_s - self.waiting_since_s > limit_s:
            self.transport.abort()
            return
        self._check = self.loop.call_later(_CHECK_INTERVAL_S, self._check_deadline)


class WebServer(uvicorn.Server):
    """uvicorn's server, with our own acceptor of connections."""

    def __init__(self, config: uvicorn.Config, *, max_connections: int | None = None) -> None:
        super().__init__(config)
        self._max_connections = MAX_CONNECTIONS if max_connections is None else max_connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        assert sockets is not None
        self._acceptor = _Acceptor(
            sockets[0], self._new_connection, self.config.ssl, self._max_connections
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._acceptor.close()
        await super().shutdown(sockets)

    def _new_connection(self) -> Connection:
        kind = cast("type[Connection]", self.config.http_protocol_class)
        return kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


@dataclass(eq=False, slots=True)
class _Visitor:
    """One connection, from its first moment on."""

    network: str
    since_s: float
    connection: Connection | None = None  # None: the TLS handshake is under way
    serving: "asyncio.Task[None] | None" = None

    def waits_since_s(self) -> float | None:
        if self.connection is None:
            return self.since_s
        is_waiting = self.connection.waits_for() is not None
        return self.connection.waiting_since_s if is_waiting else None

    def end(self) -> None:
        if self.connection is not None:
            self.connection.transport.abort()
        elif self.serving is not None:
            self.serving.cancel()


class _Acceptor:
    """Accepts connections until it is closed."""

    def __init__(
        self,
        listening: socket.socket,
        new_connection: Callable[[], Connection],
        tls: ssl.SSLContext | None,
        most: int,
    ) -> None:
        # Half of the descriptors remain for the broker's connections and files.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(most, descriptors // 2)
        self._new_connection = new_connection
        self._tls = tls
        self._visitors: set[_Visitor] = set()
        self._by_network: Counter[str] = Counter()
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listening))

    async def close(self) -> None:
        """Accepts no more connections; requests that are under way continue."""
        self._accepting.cancel()
        for visitor in self._visitors:
            if visitor.connection is None:
                visitor.end()
        await asyncio.gather(self._accepting, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:  # the peer has disconnected, or there are no descriptors
                log.warning("a connection cannot be accepted: %s", error)
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            visitor = _Visitor(network_of(address[0]), loop.time())
            if not self._has_room(visitor.network):
                accepted.close()
                continue
            self._visitors.add(visitor)
            self._by_network[visitor.network] += 1
            visitor.serving = asyncio.create_task(self._serve(visitor, accepted))
            await asyncio.sleep(0)  # accepting what waits already does not

    async def _serve(self, visitor: _Visitor, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, visitor.connection = await loop.connect_accepted_socket(
                self._new_connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HEAD_LIMIT_S,
            )
            await visitor.connection.ended
        except OSError:
            pass  # the peer has disconnected, or speaks no TLS
        finally:
            self._forget(visitor)

    def _forget(self, visitor: _Visitor) -> None:
        if visitor in self._visitors:
            self._visitors.discard(visitor)
            self._by_network[visitor.network] -= 1
            if not self._by_network[visitor.network]:
                del self._by_network[visitor.network]

    def _has_room(self, network: str) -> bool:
        """Makes room, if it must, by ending connections that wait for their peers."""
        if self._by_network[network] >= self._most // 2:
            return self._end_some(network)
        if len(self._visitors) >= self._most:
            ((largest, _),) = self._by_network.most_common(1)
            return self._end_some(largest)
        return True

    def _end_some(self, network: str) -> bool:
        waiting = [
            (since_s, visitor)
            for visitor in self._visitors
            if visitor.network == network and (since_s := visitor.waits_since_s()) is not None
        ]
        waiting.sort(key=lambda entry: entry[0])
        for _, visitor in waiting[:_ENDED_AT_ONCE]:
            visitor.end()
            self._forget(visitor)
        return bool(waiting)
