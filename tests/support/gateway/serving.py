"""A gateway on a free port, in a thread of the test's process."""

import threading
from contextlib import contextmanager

import httpx

from headwater import config
from headwater.gateway.app import create
from headwater.gateway.routes import ROUTES
from headwater.gateway.server import StreamConnection
from headwater.gateway.sockets.routes import max_message_bytes
from headwater.gateway.webhooks.service import WebhookService
from headwater.settings import join_address
from headwater.web.connections import WebServer
from headwater.web.serving import bind, http_config

TIMEOUT_S = 60.0


class Served:
    def __init__(self, address, gateway):
        self.address = address
        self.url = f"http://{address}"
        self.gateway = gateway

    def client(self, *, user=None, token=None, **headers):
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.Client(
            base_url=self.url, auth=user, headers=headers, timeout=TIMEOUT_S, trust_env=False
        )


@contextmanager
def serving(tmp_path, listen="127.0.0.1:0", *, delivers=False, **flags):
    """A gateway; `flags` are settings ("broker__bootstrap"). `delivers`: also webhooks."""
    settings = {name.replace("__", "."): value for name, value in flags.items()}
    settings["gateway.listen"] = listen
    loaded = config.load(settings, environ={}, cwd=str(tmp_path))
    app = create(loaded, ROUTES)
    gateway = app.state.gateway
    listening = bind("gateway", listen)
    address = join_address(*listening.getsockname()[:2])
    gateway.listening_on(address)
    listening.listen(2048)
    server = WebServer(
        http_config(
            app,
            loaded.gateway,
            StreamConnection,
            max_message_bytes=max_message_bytes(loaded.gateway),
        ),
        max_connections=loaded.gateway.max_connections,
    )
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    webhooks = WebhookService(loaded)
    gateway.more_metrics.append(webhooks.metrics.lines)
    if delivers:
        webhooks.start()
    try:
        yield Served(address, gateway)
    finally:
        webhooks.close()
        gateway.stop()
        server.should_exit = True
        thread.join(TIMEOUT_S)
        gateway.close()
        listening.close()
