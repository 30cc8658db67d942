"""The console's process: binds its address and serves until it is asked to stop."""

import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

import uvicorn
from starlette.applications import Starlette

from headwater.config import Config
from headwater.console.web import rendering
from headwater.console.web.app import create
from headwater.console.web.connections import KEEP_ALIVE_S, Connection, WebServer
from headwater.console_settings import ConsoleSettings
from headwater.errors import ConfigError, HeadwaterError, UsageError
from headwater.settings import is_loopback, join_address, split_address

_STOPPING_LIMIT_S: Final = 3


class _Server(WebServer):
    """Ends with 0 when it is asked to; uvicorn's would end by the signal it was sent."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.config.app.state.console.start()  # type: ignore[union-attr]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def ask(number: int, frame: FrameType | None) -> None:
            self.config.app.state.console.is_stopping = True  # type: ignore[union-attr]
            self.handle_exit(number, frame)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, ask)
        yield


def run(config: Config, ready: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM; `ready` gets the address once it accepts connections.
    Raises ConfigError and HeadwaterError if it cannot serve.
    """
    settings = config.console
    if not settings.is_on:
        raise UsageError("console.listen is off", hint="--listen 127.0.0.1:8080 serves it")
    check_assets()
    app = create(config)
    console = app.state.console
    check_tls(settings)
    check_network(config, needs_sign_in=console.needs_sign_in)
    listening = bind(settings.listen)
    host, port = listening.getsockname()[:2]
    address = join_address(host, port)
    console.listening_on(address)
    server = _Server(http_config(app, settings))
    try:
        scheme = "https" if settings.tls_cert else "http"
        listening.listen(2048)
        ready(f"{scheme}://{address}")
        server.run(sockets=[listening])
    finally:
        console.close()
        listening.close()


def http_config(app: Starlette, settings: ConsoleSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=_STOPPING_LIMIT_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        h11_max_incomplete_event_size=64 << 10,
        # uvicorn's default trusts these headers from any client on loopback.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def check_assets() -> None:
    missing = rendering.missing_assets()
    if missing:
        raise HeadwaterError(
            "the console lacks files that its pages load",
            detail=f"not in {rendering.VENDOR}: {', '.join(missing)}",
            hint="`make run` fetches them (tools/install_console_assets.sh); a wheel has them",
        )


def check_tls(settings: ConsoleSettings) -> None:
    """Raises ConfigError if the certificate cannot be used."""
    if settings.tls_cert is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:
        raise ConfigError(
            "the console's certificate cannot be used",
            detail=f"{settings.tls_cert}: {(error.strerror or str(error)).lower()}",
            hint="console.tls_cert and console.tls_key name PEM files",
        ) from error


def check_network(config: Config, *, needs_sign_in: bool) -> None:
    """Raises ConfigError if a network could read and change everything."""
    settings = config.console
    if is_loopback(settings.listen) or settings.allow_insecure_network:
        return
    if not needs_sign_in:
        reason = "any client there could read and change everything: the broker has no users"
        hint = 'broker.authentication = "sasl" (docs/security.md), or listen on 127.0.0.1'
    elif settings.tls_cert is None:
        reason = "passwords could be read on the way"
        hint = "set console.tls_cert and console.tls_key, or listen on 127.0.0.1 behind a proxy"
    else:
        return
    raise ConfigError(
        f"the console does not listen on {settings.listen}",
        detail=reason,
        hint=f"{hint}; console.allow_insecure_network = true allows it anyway",
    )


def bind(listen: str) -> socket.socket:
    """Raises HeadwaterError if the address cannot be bound."""
    host, port = split_address(listen)
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, number)
    except OSError as error:
        raise _cannot_listen(listen, error) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_listen(listen, error) from error
    return bound


def _cannot_listen(listen: str, error: OSError) -> HeadwaterError:
    return HeadwaterError(
        "the console cannot listen",
        detail=f"{listen}: {(error.strerror or str(error)).lower()}",
        hint="console.listen or --listen names another address, for example 127.0.0.1:8081",
    )
