"""Request checks in front of the routes: Host, pages of other sites, and who asks.

1. Host. A page of another site can make a browser ask 127.0.0.1 by a name of its own (DNS
   rebinding); so the name must be one of the gateway's own. An IP address cannot be rebound.
2. Pages of other sites. A browser says from which site a request comes (Origin, Sec-Fetch-Site).
   Only those that `gateway.allowed_origins` names are answered, whatever their method, with
   CORS headers. Clients that are no browsers send neither.
3. Who asks. Without a password or token nothing is answered but /health, /live and /ready; where
   the broker has no users, everybody may ask.
"""

from typing import TYPE_CHECKING, Final

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from headwater.errors import HeadwaterError
from headwater.gateway.answers import Refusal, failed
from headwater.web.hosts import host_is_ours, is_same_host

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from headwater.gateway.app import Gateway

# What is answered to everybody.
OPEN: Final = ("/health", "/live", "/ready")
# What is signed instead: its route verifies that.
SIGNED: Final = "/webhooks/"
BEARER_PROTOCOL: Final = "bearer."  # new WebSocket(url, ["headwater", "bearer.hw_…"])

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_CORS_METHODS: Final = "GET, POST, PUT, DELETE"
_CORS_REQUEST_HEADERS: Final = (
    "Authorization, Content-Type, Accept, Last-Event-ID, Idempotency-Key, Headwater-Key,"
    " Headwater-Header, Headwater-Position"
)
_CORS_ANSWER_HEADERS: Final = "Headwater-Position, Idempotent-Replayed, Retry-After"


class Guard:
    """Wraps the app. What comes through has `request.state.caller`."""

    def __init__(self, app: "ASGIApp", gateway: "Gateway") -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "websocket":
            await self._guard_socket(WebSocket(scope, receive, send))
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        guarded = _with_headers(send, self._allowed_origin(request))
        try:
            answer = await self._checked(request)
        except HeadwaterError as error:
            answer = failed(error)
        except ClientDisconnect:
            return
        await (answer or self._app)(scope, receive, guarded)

    async def _guard_socket(self, socket: WebSocket) -> None:
        """A browser lets any page open a WebSocket: Origin is all that protects its user. A page
        cannot set Authorization, so a token may also come as a subprotocol.
        """
        try:
            await self._check(socket, _bearer_of(socket))
        except HeadwaterError as error:
            await socket.send_denial_response(failed(error))
            return
        await self._app(socket.scope, socket.receive, socket.send)

    async def _checked(self, request: Request) -> Response | None:
        path: str = request.scope["path"]  # by which routes are found
        is_open = path in OPEN or path.startswith(SIGNED) or request.method == "OPTIONS"
        header = request.headers.get("authorization")
        await self._check(request, header, is_open=is_open)
        return Response(status_code=204) if request.method == "OPTIONS" else None

    async def _check(
        self, request: HTTPConnection, authorization: str | None, *, is_open: bool = False
    ) -> None:
        """Raises Refusal, BrokerUnreachable."""
        headers = request.headers
        host = headers.get("host", "")
        if not host_is_ours(host, self._gateway.hosts):
            raise Refusal(
                421,
                "the gateway does not answer to this name",
                detail=repr(host[:100]),
                hint="gateway.allowed_hosts names those that it does",
            )
        self._check_site(request)
        if is_open:
            return
        address = request.client.host if request.client else ""
        request.state.caller = await self._gateway.authentication.caller(authorization, address)

    def _check_site(self, request: HTTPConnection) -> None:
        """Raises Refusal for a request of a page of another site."""
        if self._allowed_origin(request) is not None:
            return
        headers = request.headers
        origin = headers.get("origin")
        is_other = origin is not None and not is_same_host(origin, headers.get("host", ""))
        if is_other or headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Refusal(
                403,
                "pages of other sites are not answered",
                hint="gateway.allowed_origins names those that are",
            )

    def _allowed_origin(self, request: HTTPConnection) -> str | None:
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() in self._gateway.config.gateway.allowed_origins:
            return origin
        return None


def _bearer_of(socket: WebSocket) -> str | None:
    """What Authorization is, or would be."""
    header: str | None = socket.headers.get("authorization")
    if header is None:
        for protocol in socket.scope.get("subprotocols", ()):
            if protocol.startswith(BEARER_PROTOCOL):
                return f"Bearer {protocol.removeprefix(BEARER_PROTOCOL)}"
    return header


def _with_headers(send: "Send", origin: str | None) -> "Send":
    async def sending(message: "Message") -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if origin is not None:
                headers["Access-Control-Allow-Origin"] = origin
                headers["Access-Control-Allow-Credentials"] = "true"
                headers["Access-Control-Allow-Methods"] = _CORS_METHODS
                headers["Access-Control-Allow-Headers"] = _CORS_REQUEST_HEADERS
                headers["Access-Control-Expose-Headers"] = _CORS_ANSWER_HEADERS
                headers["Cross-Origin-Resource-Policy"] = "cross-origin"
                headers.add_vary_header("Origin")
        await send(message)

    return sending
