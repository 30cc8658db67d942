"""The process of a web server: binds its address and serves until it is asked to stop.

It listens on a network only where it speaks TLS and its users sign in.
"""

import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Final, Protocol

import uvicorn
from starlette.applications import Starlette

from headwater.errors import ConfigError, HeadwaterError
from headwater.settings import is_loopback, join_address, split_address
from headwater.web.connections import KEEP_ALIVE_S, Connection, WebServer
from headwater.web.websockets import WebSocketConnection

_STOPPING_LIMIT_S: Final = 3


class ServerSettings(Protocol):
    """What [console] and [gateway] have in common."""

    @property
    def listen(self) -> str: ...
    @property
    def trusted_proxies(self) -> Sequence[str]: ...
    @property
    def tls_cert(self) -> str | None: ...
    @property
    def tls_key(self) -> str | None: ...
    @property
    def allow_insecure_network(self) -> bool: ...


class Server(WebServer):
    """Ends with 0 when it is asked to; uvicorn's would end by the signal it was sent. `started` is
    called on the event loop before the first request, `stopping` when the signal has come.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        started: Callable[[], None],
        stopping: Callable[[], None],
        *,
        max_connections: int | None = None,
    ) -> None:
        super().__init__(config, max_connections=max_connections)
        self._on_started = started
        self._on_stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def ask(number: int, frame: FrameType | None) -> None:
            self._on_stopping()
            self.handle_exit(number, frame)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, ask)
        yield


def serve(
    name: str, settings: ServerSettings, server: Server, bound: Callable[[str], None],
    ready: Callable[[str], None],
) -> None:  # fmt: skip
    """Until SIGINT or SIGTERM. `bound` gets the address, `ready` the URL once connections are
    accepted. Raises HeadwaterError if the address cannot be bound.
    """
    listening = bind(name, settings.listen)
    try:
        host, port = listening.getsockname()[:2]
        address = join_address(host, port)
        bound(address)
        listening.listen(2048)
        ready(f"{'https' if settings.tls_cert else 'http'}://{address}")
        server.run(sockets=[listening])
    finally:
        listening.close()


def http_config(
    app: Starlette,
    settings: ServerSettings,
    protocol: type[Connection] = Connection,
    *,
    max_message_bytes: int | None = None,
) -> uvicorn.Config:
    """With a size for messages, requests may be upgraded to WebSockets."""
    return uvicorn.Config(
        app,
        http=protocol,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none" if max_message_bytes is None else WebSocketConnection,
        ws_max_size=max_message_bytes or 0,
        ws_per_message_deflate=False,  # a few bytes could become a large message
        timeout_graceful_shutdown=_STOPPING_LIMIT_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        h11_max_incomplete_event_size=64 << 10,
        # uvicorn's default trusts these headers from any client on loopback.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def check_tls(name: str, settings: ServerSettings) -> None:
    """Raises ConfigError if the certificate cannot be used."""
    if settings.tls_cert is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:
        raise ConfigError(
            f"the {name}'s certificate cannot be used",
            detail=f"{settings.tls_cert}: {(error.strerror or str(error)).lower()}",
            hint=f"{name}.tls_cert and {name}.tls_key name PEM files",
        ) from error


def check_network(
    name: str, settings: ServerSettings, *, needs_sign_in: bool, reason: str, hint: str
) -> None:
    """Raises ConfigError if a network could read and change everything. `reason` and `hint`: what
    to say where users need not sign in.
    """
    if is_loopback(settings.listen) or settings.allow_insecure_network:
        return
    if needs_sign_in and settings.tls_cert is not None:
        return
    if needs_sign_in:
        reason = "passwords could be read on the way"
        hint = f"set {name}.tls_cert and {name}.tls_key, or listen on 127.0.0.1 behind a proxy"
    raise ConfigError(
        f"the {name} does not listen on {settings.listen}",
        detail=reason,
        hint=f"{hint}; {name}.allow_insecure_network = true allows it anyway",
    )


def bind(name: str, listen: str) -> socket.socket:
    """Raises HeadwaterError if the address cannot be bound."""
    host, port = split_address(listen)
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, number)
    except OSError as error:
        raise _cannot_listen(name, listen, error) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_listen(name, listen, error) from error
    return bound


def _cannot_listen(name: str, listen: str, error: OSError) -> HeadwaterError:
    return HeadwaterError(
        f"the {name} cannot listen",
        detail=f"{listen}: {(error.strerror or str(error)).lower()}",
        hint=f"{name}.listen or --listen names another address, for example 127.0.0.1:8089",
    )
