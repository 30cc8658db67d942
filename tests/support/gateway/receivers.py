"""Receivers of webhooks: one HTTP server, on which every path is a receiver with its own habits."""

import threading
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson


class Got:
    def __init__(self, headers, body):
        self.headers = headers
        self.body = body
        self.json = orjson.loads(body)

    @property
    def place(self):
        return self.json["partition"], self.json["offset"]


class Receivers:
    def __init__(self):
        self.got = defaultdict(list)  # by name: what was taken
        self.asked = defaultdict(int)
        self.answers = {}  # by name: called with number of requests before and the request
        self.news = threading.Condition()
        self.url = ""

    def url_of(self, name):
        return f"{self.url}/{name}"

    def wait(self, condition, timeout_s):
        with self.news:
            assert self.news.wait_for(condition, timeout_s), dict(self.asked)

    def answer(self, name, got):
        with self.news:
            number = self.asked[name]
            self.asked[name] += 1
        status, headers = self.answers.get(name, lambda *_: (204, {}))(number, got)
        with self.news:
            if status < 300:
                self.got[name].append(got)
            self.news.notify_all()
        return status, headers


@contextmanager
def receivers():
    here = Receivers()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if len(body) < int(self.headers["Content-Length"]):  # the sender was killed
                self.close_connection = True
                return
            status, headers = here.answer(self.path.strip("/"), Got(dict(self.headers), body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", "7")
            self.end_headers()
            if status != 204:
                self.wfile.write(b"because")

        def log_message(self, *_):
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 500

        def handle_error(self, *_):
            return  # senders are killed

    server = Server(("127.0.0.1", 0), Handler)
    here.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield here
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
