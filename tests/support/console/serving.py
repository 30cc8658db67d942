"""A console on a free port, in a thread of the test's process, and requests to it."""

import http.client
import json
import re
import threading
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlencode

from headwater import config
from headwater.console.web.app import create
from headwater.settings import join_address
from headwater.web.connections import WebServer
from headwater.web.serving import bind, http_config

TIMEOUT_S = 60.0


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self):
        return self.body.decode()

    @property
    def json(self):
        return json.loads(self.body)


class Browser:
    """What a browser does without scripts: stores the cookie, sends forms with their token."""

    def __init__(self, address):
        self.address = address
        self.cookies = {}

    def get(self, path, **headers):
        return self._request("GET", path, None, headers)

    def post(self, path, fields=None, *, token=True, **headers):
        fields = dict(fields or {})
        if token:
            fields.setdefault("csrf", self.token())
        headers.setdefault("Content_Type", "application/x-www-form-urlencoded")
        return self._request("POST", path, urlencode(fields), headers)

    def token(self):
        page = self.get("/sign-in").text
        return re.search(r'name="csrf" content="([^"]+)"', page)[1]

    def _request(self, method, path, body, headers):
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)
        try:
            if self.cookies:
                cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
                headers = {"Cookie": cookies, **headers}
            headers = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            for cookie in answer.headers.get_all("set-cookie") or ():
                name, _, value = cookie.partition(";")[0].partition("=")
                self.cookies[name] = value
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()


class Served:
    def __init__(self, address, console):
        self.address = address
        self.url = f"http://{address}"
        self.console = console

    def browser(self):
        return Browser(self.address)


@contextmanager
def serving(tmp_path, **flags):
    """A console; `flags` are settings ("broker__bootstrap")."""
    settings = {name.replace("__", "."): value for name, value in flags.items()}
    settings.setdefault("console.listen", "127.0.0.1:0")
    loaded = config.load(settings, environ={}, cwd=str(tmp_path))
    app = create(loaded)
    console = app.state.console
    listening = bind("console", "127.0.0.1:0")
    address = join_address(*listening.getsockname()[:2])
    console.listening_on(address)
    listening.listen(128)
    server = WebServer(http_config(app, loaded.console))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield Served(address, console)
    finally:
        console.is_stopping = True
        server.should_exit = True
        thread.join(TIMEOUT_S)
        console.close()
        listening.close()
