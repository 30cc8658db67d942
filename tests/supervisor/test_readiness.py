"""How a child is asked whether it is ready."""

import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from support.certificates import Authority

from headwater import config
from headwater.supervisor.plan import CONSOLE, ChildPlan
from headwater.supervisor.readiness import not_ready_because


class _Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def answering(context=None):
    with HTTPServer(("127.0.0.1", 0), _Ready) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def asked(address, **console):
    settings = {f"console.{name}": value for name, value in console.items()}
    loaded = config.load(settings, environ={}, cwd="/nonexistent")
    return not_ready_because(ChildPlan("console", CONSOLE, ()), loaded, {"listen": address})


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY"])
def test_no_proxy_is_asked_for_a_child_on_this_machine(monkeypatch, variable):
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    with answering() as address:
        assert asked(address) is None


def test_a_console_with_a_certificate_is_asked_by_https(tmp_path):
    certificate, key = Authority(tmp_path).issue("console")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with answering(context) as address:
        assert asked(address, tls_cert=certificate, tls_key=key) is None
        assert "does not answer" in asked(address)
