"""An HTTP server that takes webhooks, and answers as a test wants."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson

Answer = tuple[int, dict[str, str]]


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["Idempotency-Key"]

    @property
    def json(self):
        return orjson.loads(self.body)


@dataclass
class Receiver:
    url: str = ""
    requests: list[Received] = field(default_factory=list)
    # What is answered to a request; it is called with the number of those before it.
    answer: Callable[[int, Received], Answer] = lambda number, request: (204, {})


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if len(body) < int(self.headers["Content-Length"]):  # the sender was killed
                self.close_connection = True
                return
            received = Received(self.path, dict(self.headers), body)
            with lock:
                status, headers = receiver.answer(len(receiver.requests), received)
                receiver.requests.append(received)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            body = b"" if status == 204 else b"because"
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            return  # senders are killed

    server = Server(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook?a=b"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
