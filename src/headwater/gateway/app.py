"""The application: routes, shared state, and what a failed request looks like."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

import headwater
from headwater import prometheus_text
from headwater.config import Config
from headwater.errors import HeadwaterError
from headwater.gateway.access import Access, Accesses
from headwater.gateway.answers import Refusal, failed, json_answer
from headwater.gateway.authentication import Authentication
from headwater.gateway.budget import Budget
from headwater.gateway.callers import caller_of
from headwater.gateway.events.opened import OpenedStore
from headwater.gateway.guard import Guard
from headwater.gateway.live.memory import Memory
from headwater.gateway.reading.subscription import Shared
from headwater.gateway.registry.mounting import mounted_registry
from headwater.gateway.tables.latest import LatestTopics
from headwater.gateway.writing.once import Once
from headwater.inspect.subjects import personal_topics
from headwater.settings import split_address
from headwater.web.live import StreamLimit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from headwater.gateway.registry.validation import Validation

log = logging.getLogger(__name__)

_THREADS: Final = 32
_STORE_READINGS: Final = 8  # of databases, at the same time


class Gateway:
    """State that all requests share. Routes are given to `create`: they import this module."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gateway")
        self.authentication = Authentication(config, self.threads)
        self.accesses = Accesses(config.bootstrap(), self.threads)
        self.is_stopping = False  # ends streams without an end of their own
        self.requests: Counter[tuple[str, int]] = Counter()  # by route and status
        self.budget = Budget(config.gateway.max_buffered_bytes)
        self.once = Once(config.bootstrap(), config.client, self.threads)
        most = config.gateway.max_connections
        self.streams = StreamLimit(most, max(most // 2, 1), "streams")
        self.readers = Shared()
        self.latest = LatestTopics()
        self.personal = personal_topics(config)  # None: nothing is encrypted
        self.event_store = OpenedStore(config, self.personal)
        self.live_memory = Memory(config.gateway.max_table_bytes)
        self.store_turns = asyncio.Semaphore(_STORE_READINGS)
        self.written = 0  # records
        self.sent = 0
        self.refused = 0  # lines
        self.appended_events = 0
        self.sent_events = 0
        self.more_metrics: list[Callable[[], Iterable[str]]] = []  # of what runs beside HTTP
        self.on_close: list[Callable[[], None]] = []  # of parts that routes have opened
        self.validation: Validation | None = None  # of records by their schemas
        self.listening_on(config.gateway.listen)

    def listening_on(self, address: str) -> None:
        """The address that was bound."""
        host = split_address(address)[0] if ":" in address else ""
        names = {"localhost", host.lower(), *map(str.lower, self.config.gateway.allowed_hosts)}
        self.hosts = frozenset(names - {""})

    async def store_keys(self, topic: str) -> None:
        """Before records of this topic that were encrypted are written. Raises KeyStoreError."""
        if self.personal is not None and topic in self.personal.marked:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.threads, self.personal.flush)

    def access(self, request: HTTPConnection) -> Access:
        """Of the caller who sent the request."""
        return self.accesses.of(caller_of(request))

    def stop(self) -> None:
        """Streams end; what is under way may go on. From any thread."""
        self.is_stopping = True
        self.accesses.stop()
        self.event_store.stop()

    def close(self) -> None:
        self.is_stopping = True
        self.once.close()
        for close in self.on_close:
            close()
        self.event_store.close()
        self.accesses.close()
        self.authentication.close()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def exposition(self) -> str:
        """Prometheus' text."""
        family = prometheus_text.family
        answers = [
            ({"route": route, "status": str(status)}, number)
            for (route, status), number in sorted(self.requests.items())
        ]
        return "".join(
            [
                *family(
                    "headwater_gateway_requests_total", "counter", "Requests answered.", answers
                ),
                *family(
                    "headwater_gateway_written_records_total",
                    "counter",
                    "Records written to topics.",
                    [({}, self.written)],
                ),
                *family(
                    "headwater_gateway_sent_records_total",
                    "counter",
                    "Records sent to clients.",
                    [({}, self.sent)],
                ),
                *family(
                    "headwater_gateway_appended_events_total",
                    "counter",
                    "Events appended to the event store.",
                    [({}, self.appended_events)],
                ),
                *family(
                    "headwater_gateway_sent_events_total",
                    "counter",
                    "Events of the event store sent to clients.",
                    [({}, self.sent_events)],
                ),
                *family(
                    "headwater_gateway_streams",
                    "gauge",
                    "Clients that read a topic or follow events at the moment.",
                    [({}, self.streams.open_count)],
                ),
                *family(
                    "headwater_gateway_refused_lines_total",
                    "counter",
                    "Lines that were left out (on_error=skip).",
                    [({}, self.refused)],
                ),
                *family(
                    "headwater_gateway_buffered_bytes",
                    "gauge",
                    "Bytes of requests in memory.",
                    [({}, self.budget.used_bytes)],
                ),
                *family(
                    "headwater_gateway_table_bytes",
                    "gauge",
                    "Bytes of tables in memory, for live queries.",
                    [({}, self.live_memory.used_bytes)],
                ),
                *family(
                    "headwater_gateway_logins",
                    "gauge",
                    "Logins with connections to the broker.",
                    [({}, self.accesses.count)],
                ),
                *family(
                    "headwater_gateway_memory_peak_bytes",
                    "gauge",
                    "Largest resident size of the process so far.",
                    [({}, prometheus_text.memory_peak_bytes())],
                ),
                *(line for metrics in self.more_metrics for line in metrics()),
            ]
        )


def gateway_of(request: HTTPConnection) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def create(config: Config, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """The app with more `routes` beside its own; `app.state.gateway` has what it shares. The guard
    stands in front of all of them: `callers.caller_of(request)` is who asks.
    """
    gateway = Gateway(config)
    app = Starlette(
        routes=[
            Route("/", _index, methods=["GET"]),
            Route("/health", _health, methods=["GET"]),
            Route("/live", _live, methods=["GET"]),
            Route("/ready", _ready, methods=["GET"]),
            Route("/metrics", _metrics, methods=["GET"]),
            *mounted_registry(gateway),
            *routes,
        ],
        middleware=[Middleware(_Edge, gateway=gateway), Middleware(Guard, gateway=gateway)],
        exception_handlers={HeadwaterError: _failed, HTTPException: _no_route},
    )
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    return app


class _Edge:
    """Counts what was answered, and answers what went wrong."""

    def __init__(self, app: "ASGIApp", gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        has_begun = False

        async def counting(message: "Message") -> None:
            nonlocal has_begun
            status = _status_of(message)
            if status is not None:
                has_begun = True
                self._gateway.requests[_route_of(scope), status] += 1
            await send(message)

        try:
            await self._app(scope, receive, counting)
        except ClientDisconnect:
            return
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise
            log.error("a request failed: %s", scope["path"], exc_info=error)
            unexpected = Refusal(
                500,
                f"unexpected {type(error).__name__}",
                hint="this is a bug in headwater; the gateway's log has the traceback",
            )
            await failed(unexpected)(scope, receive, counting)


def _route_of(scope: "Scope") -> str:
    """Never the path itself, of which there are as many as clients think of."""
    route = scope.get("route")
    if isinstance(route, WebSocketRoute):
        return f"WEBSOCKET {route.path}"
    return f"{scope['method']} {route.path}" if isinstance(route, Route) else "other"


def _status_of(message: "Message") -> int | None:
    """Of the answer that begins with this message."""
    if message["type"] in ("http.response.start", "websocket.http.response.start"):
        return int(message["status"])
    return 101 if message["type"] == "websocket.accept" else None


async def _index(request: Request) -> Response:
    """The list of these addresses."""
    routes = {
        f"{method} {route.path}": (route.endpoint.__doc__ or "").partition("\n")[0]
        for route in request.app.routes
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    } | {
        f"WEBSOCKET {route.path}": (route.endpoint.__doc__ or "").partition("\n")[0]
        for route in request.app.routes
        if isinstance(route, WebSocketRoute)
    }
    return json_answer({"headwater": headwater.__version__, "routes": routes})


async def _health(request: Request) -> Response:
    """Whether the gateway serves."""
    return json_answer({"status": "ok"})


async def _live(request: Request) -> Response:
    """Whether the process runs."""
    return PlainTextResponse("alive\n")


async def _ready(request: Request) -> Response:
    """Whether requests are answered; a broker that is away is each request's own error."""
    if gateway_of(request).is_stopping:
        return PlainTextResponse("not ready: it is stopping\n", 503)
    return PlainTextResponse("ready\n")


async def _metrics(request: Request) -> Response:
    """Prometheus metrics."""
    text = gateway_of(request).exposition()
    return Response(text, media_type=prometheus_text.CONTENT_TYPE)


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadwaterError)
    return failed(error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: "there is nothing at this address", 405: "this method is not for this address"}
    refusal = Refusal(
        error.status_code,
        what.get(error.status_code, error.detail.lower()),
        hint="GET / lists the addresses" if error.status_code in what else "",
        headers=error.headers,
    )
    return failed(refusal)
