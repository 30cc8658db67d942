"""`metrics_listen` of a capture: Prometheus' text at /metrics, liveness at /live, readiness at
/ready, as the broker has them.
"""

import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

from headwater.capture.metrics import CaptureState, exposition
from headwater.errors import ConfigError
from headwater.prometheus_text import CONTENT_TYPE
from headwater.settings import join_address, split_address

_REQUEST_TIMEOUT_S = 5.0


class HttpEndpoint:
    """Answers in a thread of its own, one request at a time, until it is closed."""

    def __init__(self, listen: str, state: CaptureState) -> None:
        """Raises ConfigError if the address cannot be bound."""

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_TIMEOUT_S

            def do_GET(self) -> None:
                status, content_type, body = _answer(self.path, state)
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass  # nobody wants a line per scrape

        host, port = split_address(listen)
        try:
            self._server = _server(host)((host, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"capture.{state.name}.metrics_listen cannot be bound",
                detail=f"{listen}: {(error.strerror or str(error)).lower()}",
            ) from error
        self.address = join_address(*self._server.socket.getsockname()[:2])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _server(host: str) -> type[socketserver.TCPServer]:
    """Not http.server's, which asks DNS for its own name when it starts."""

    class Server(socketserver.TCPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        allow_reuse_address = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Whoever asked is gone, or is no HTTP client."""

    return Server


def _answer(path: str, state: CaptureState) -> tuple[int, str, bytes]:
    match path:
        case "/metrics":
            return 200, CONTENT_TYPE, exposition(state).encode()
        case "/live":
            return 200, "text/plain", b"alive\n"
        case "/ready":
            reason = state.not_ready_because()
            if reason is None:
                return 200, "text/plain", b"ready\n"
            return 503, "text/plain; charset=utf-8", f"not ready: {reason}\n".encode()
    return 404, "text/plain", b"try /metrics, /live or /ready\n"
