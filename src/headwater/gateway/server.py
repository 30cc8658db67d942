"""The gateway's process: binds its address and serves until it is asked to stop."""

import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from headwater.config import Config
from headwater.direct.service import DirectMessaging
from headwater.errors import UsageError
from headwater.gateway.alerts.service import AlertService
from headwater.gateway.app import create
from headwater.gateway.routes import ROUTES
from headwater.gateway.sockets.routes import max_message_bytes
from headwater.gateway.webhooks.service import WebhookService
from headwater.web import serving
from headwater.web.connections import Connection
from headwater.web.serving import Server, http_config

_DESCRIPTORS_OF_CONNECTION: Final = 2  # one here, and room for one at the broker or a file


class StreamConnection(Connection):
    """The body of a request may take any time, as long as some of it comes now and then: it may be
    a stream without an end. While we do not take more of it, the client need not send.
    """

    def data_received(self, data: bytes) -> None:
        if self.waits_for() == "body":
            self.waiting_since_s = self.loop.time()
        super().data_received(data)

    def waits_for(self) -> str | None:
        found = super().waits_for()
        return None if found == "body" and self.flow.read_paused else found


def run(config: Config, ready: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM; `ready` gets the URL once it accepts connections.
    Raises ConfigError and HeadwaterError if it cannot serve.
    """
    settings = config.gateway
    if not settings.is_on:
        raise UsageError("gateway.listen is off", hint="--listen 127.0.0.1:8081 serves it")
    app = create(config, ROUTES)
    gateway = app.state.gateway
    if gateway.personal is not None:
        gateway.personal.flush()  # a key store that is lost is better found now than later
    serving.check_tls("gateway", settings)
    serving.check_network(
        "gateway",
        settings,
        needs_sign_in=gateway.authentication.is_required,
        reason="any client there could read and write everything: the broker has no users",
        hint="gateway.require_authentication = true asks for tokens, or listen on 127.0.0.1",
    )
    _raise_descriptors(settings.max_connections * _DESCRIPTORS_OF_CONNECTION)
    server = Server(
        http_config(app, settings, StreamConnection, max_message_bytes=max_message_bytes(settings)),
        lambda: None,
        gateway.stop,
        max_connections=settings.max_connections,
    )
    direct = DirectMessaging(config.bootstrap(), config.client, config.statsd, config.zeromq)
    gateway.more_metrics.append(direct.metrics)
    webhooks = WebhookService(config)
    alerts = AlertService(config)
    gateway.more_metrics += [webhooks.metrics.lines, alerts.metrics.lines]
    if gateway.authentication.has_own_login:
        webhooks.start()
        alerts.start()
    try:
        direct.start()
        serving.serve("gateway", settings, server, gateway.listening_on, ready)
    finally:
        direct.stop()
        alerts.close()
        webhooks.close()
        gateway.close()


def _raise_descriptors(wanted: int) -> None:
    """As far as the system allows; connections are bounded by what it does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < target:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
