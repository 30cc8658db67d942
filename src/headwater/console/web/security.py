"""Request checks in front of the pages: Host, session, cross-site requests and headers.

1. Host. A page of another site can make a browser ask 127.0.0.1 by a name of its own (DNS
   rebinding); so the name must be one of the console's own. An IP address cannot be rebound.
2. Session. Every browser has one; where the broker knows users, it must have signed in.
3. Cross-site requests. Only POST changes anything, and it must carry the session's token, which
   only our own pages have, and must not say that it comes from another site.
4. Headers. Scripts and styles from here only, no frames, nothing stored by caches.
"""

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote

from starlette.datastructures import Headers, ImmutableMultiDict, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from headwater.web.byte_budget import ByteBudget
from headwater.web.hosts import host_is_ours, is_same_host

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from headwater.console.web.app import Console

MAX_BODY_BYTES: Final = 4 << 20
_MAX_BODY_OF_STRANGERS_BYTES: Final = 64 << 10
_MAX_BUFFERED_BYTES: Final = 64 << 20  # of all bodies together
_MAX_FIELDS: Final = 1000
_FORM: Final = "application/x-www-form-urlencoded"
# What can be seen without having signed in.
_OPEN: Final = ("/sign-in", "/ready", "/live")

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Refused(Exception):
    """A request that is not answered, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Guard:
    """Wraps the app. What comes through has `request.state.session`, `.user`, and `.form` if it
    is a POST.
    """

    def __init__(self, app: "ASGIApp", console: "Console") -> None:
        self._app = app
        self._console = console
        self._budget = ByteBudget(_MAX_BUFFERED_BYTES)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        is_new, session = self._session(request)
        cookie = self._console.set_cookie(session, request.url.scheme) if is_new else None
        guarded = _with_headers(send, cookie, scope["path"])
        scope.setdefault("state", {})["session"] = session
        try:
            self._check_host(request.headers)
            if request.method not in ("GET", "HEAD", "POST"):
                raise Refused(405, "only GET, HEAD and POST are answered")
            if request.method == "POST":
                scope["state"]["form"] = await self._checked_form(request, session)
        except Refused as refused:
            await PlainTextResponse(refused.reason + "\n", refused.status)(scope, receive, guarded)
            return
        except ClientDisconnect:
            return  # disconnected before the form was complete
        answer = self._sign_in_first(request, session)
        await (answer or self._app)(scope, receive, guarded)

    # Host and session

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if not host_is_ours(host, self._console.hosts):
            raise Refused(
                421,
                f"this console does not answer to the name {host[:100]!r};"
                " console.allowed_hosts names those that it does",
            )

    def _session(self, request: Request) -> tuple[bool, str]:
        opened = self._console.sessions.opened(_cookie(request.headers, self._console.cookie_name))
        return opened is None, opened or self._console.sessions.new()

    def _sign_in_first(self, request: Request, session: str) -> Response | None:
        signed_in = self._console.sessions.who(session)
        request.state.signed_in = signed_in
        request.state.user = signed_in.user if signed_in else ""
        path: str = request.scope["path"]  # by which routes are found
        if (
            not self._console.needs_sign_in
            or signed_in
            or path in _OPEN
            or path.startswith("/static/")
        ):
            return None
        to = "/sign-in"
        if request.method == "GET":
            wanted = path + (f"?{request.url.query}" if request.url.query else "")
            to += f"?next={quote(wanted)}"
        if request.headers.get("hx-request"):
            # A part of a page: the browser goes to sign in as a whole.
            return Response(status_code=401, headers={"HX-Redirect": "/sign-in"})
        if path.endswith(".json") or "application/json" in request.headers.get("accept", ""):
            return PlainTextResponse("sign in first\n", 401)
        return RedirectResponse(to, 303)

    # Forms

    async def _checked_form(self, request: Request, session: str) -> ImmutableMultiDict[str, str]:
        headers = request.headers
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Refused(403, "a form of another site is not answered")
        origin = headers.get("origin")
        if origin is not None and not is_same_host(origin, headers.get("host", "")):
            raise Refused(403, "a form of another site is not answered")
        if headers.get("content-type", "").partition(";")[0].strip() != _FORM:
            raise Refused(415, f"a form is expected: {_FORM}")
        is_stranger = self._console.needs_sign_in and not self._console.sessions.is_open(session)
        most_bytes = _MAX_BODY_OF_STRANGERS_BYTES if is_stranger else MAX_BODY_BYTES
        body = await self._body(request, most_bytes)
        try:
            pairs = parse_qsl(
                body.decode(),
                keep_blank_values=True,
                max_num_fields=_MAX_FIELDS,
                strict_parsing=False,
            )
        except ValueError:
            raise Refused(400, "the form cannot be read") from None
        form = ImmutableMultiDict[str, str](pairs)
        token = form.get("csrf") or headers.get("x-csrf-token") or ""
        if not self._console.sessions.is_token(session, str(token)):
            raise Refused(
                403, "this form is no longer good (the console was restarted?); go back and reload"
            )
        return form

    async def _body(self, request: Request, most_bytes: int) -> bytearray:
        """Raises Refused if it is too long, or too much of all bodies is under way."""
        body = bytearray()
        try:
            async for chunk in request.stream():
                if len(body) + len(chunk) > most_bytes:
                    raise Refused(413, f"a form has at most {most_bytes >> 10} KiB")
                if not self._budget.try_take(len(chunk)):
                    raise Refused(503, "too many forms are being sent; try again")
                body += chunk
        finally:
            self._budget.give(len(body))
        return body


def _cookie(headers: Headers, name: str) -> str:
    """Not by `request.cookies`: the standard library unquotes values in quadratic time (before
    Python 3.11.10, CVE-2024-7592), and a header of 64 KiB would take a minute. Ours have no quotes.
    """
    for header in headers.getlist("cookie"):
        for pair in header.split(";"):
            key, _, value = pair.partition("=")
            if key.strip() == name:
                return value.strip()
    return ""


def _with_headers(send: "Send", cookie: str | None, path: str) -> "Send":
    async def sending(message: "Message") -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if not path.startswith("/static/"):
                headers.setdefault("Cache-Control", "no-store")
                if cookie is not None and "set-cookie" not in headers:
                    headers.append("Set-Cookie", cookie)
        await send(message)

    return sending
