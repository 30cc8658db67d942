"""The application: routes, and what a failed request looks like."""

import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from headwater import prometheus_text
from headwater.config import Config
from headwater.console.history.store import Histories
from headwater.console.pages import NAVIGATION, ROUTES
from headwater.console.project.event_store import ConsoleEvents
from headwater.console.project.jobs import Jobs, options_of
from headwater.console.project.overview import Overview
from headwater.console.topics.search import Searches
from headwater.console.web import documentation, rendering, signing_in
from headwater.console.web.access import Access
from headwater.console.web.not_found import NoSuchThing
from headwater.console.web.security import Guard
from headwater.console.web.sessions import Sessions, SignedIn
from headwater.errors import (
    BrokerUnreachable,
    EventStoreUnreachable,
    HeadwaterError,
    NotReady,
    RequestRefused,
)
from headwater.settings import ClientSettings, split_address
from headwater.web import logins
from headwater.web.attempts import Attempts
from headwater.web.live import StreamLimit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

_THREADS: Final = 16
_TAILS, _TAILS_OF_USER = 32, 8
_EXPORTS, _EXPORTS_OF_USER = 8, 2
_SEARCH_TESTS, _SEARCH_TESTS_OF_USER = 4, 2
_MOST_USERS: Final = 100  # with a connection of their own
_SERIES_OF_USER: Final = 256  # in memory, where the console has no login of its own


class Console:
    """State that all requests share."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.navigation = NAVIGATION
        self.sessions = Sessions()
        self.attempts = Attempts()
        self.has_warned_of_proxy = False
        self.needs_sign_in = logins.is_needed(config)
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="console")
        self.searches = Searches()
        self.tails = StreamLimit(_TAILS, _TAILS_OF_USER, "live tails")
        self.exports = StreamLimit(_EXPORTS, _EXPORTS_OF_USER, "exports")
        self.search_tests = StreamLimit(
            _SEARCH_TESTS, _SEARCH_TESTS_OF_USER, "tests of stored searches"
        )
        self.is_stopping = False  # ends streams without an end of their own
        self.requests: dict[int, int] = {}  # by status
        self.jobs = Jobs(options_of(config))
        self.events = ConsoleEvents(config)
        # With a login of its own, the console samples for all users; else each user's pages do.
        self._has_login = not self.needs_sign_in or config.client.username is not None
        self.histories = Histories(_history_directory(config))
        self._sampling: Access | None = None
        self._accesses: OrderedDict[str, Access] = OrderedDict()  # by user, the last used last
        self.listening_on(config.console.listen)

    def listening_on(self, address: str) -> None:
        """The address that was bound."""
        host, port = split_address(address)
        self.hosts = frozenset(
            {
                "localhost",
                host.lower(),
                *(name.lower() for name in self.config.console.allowed_hosts),
            }
        )
        # Browsers send a cookie to every port of a host.
        self.cookie_name = f"headwater_{port}"

    def set_cookie(self, session: str, scheme: str) -> str:
        secure = "; Secure" if scheme == "https" else ""
        value = self.sessions.cookie(session)
        return f"{self.cookie_name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def access(self, request: Request) -> Access:
        """The access of the user who sent the request, as it was when the request came: a session
        may end meanwhile. Raises RequestRefused if the user has not signed in:
        the console's own login must not serve users who need one.
        """
        signed_in: SignedIn | None = request.state.signed_in
        if signed_in is None and self.needs_sign_in:
            raise RequestRefused("no user has signed in", detail="the login of a user is needed")
        user, login = (signed_in.user, signed_in.login) if signed_in else ("", self.config.client)
        return self._access_of(user, login)

    def start(self) -> None:
        """Begins to sample, so that charts and rates do not begin with the first visitor; on the
        event loop. Where users sign in and the console has no login, nothing can be read before.
        """
        if not self.needs_sign_in:
            self.overview(self._access_of("", self.config.client)).start()
        elif self._has_login:
            # Beside those of users: it is not closed with one.
            self._sampling = Access(self.config.bootstrap(), self.config.client, self.threads)
            self.overview(self._sampling).start()

    def overview(self, access: Access) -> Overview:
        if self._has_login:
            return access.part(
                Overview,
                lambda: Overview(access, self.config, self.histories, is_recording=not access.user),
            )
        return access.part(
            Overview,
            lambda: Overview(
                access,
                self.config,
                Histories(None, most_series=_SERIES_OF_USER),
                is_recording=True,
            ),
        )

    def _access_of(self, user: str, login: ClientSettings) -> Access:
        found = self._accesses.get(user)
        if found is None or found.login != login:
            if found is not None:
                found.close()
            found = Access(self.config.bootstrap(), login, self.threads, user)
            self._accesses[user] = found
            while len(self._accesses) > _MOST_USERS:
                _, idle = self._accesses.popitem(last=False)
                idle.close()
        self._accesses.move_to_end(user)
        return found

    def forget(self, user: str) -> None:
        """Stops all reads for a user who is signed in nowhere."""
        if self.sessions.has(user):
            return
        access = self._accesses.pop(user, None)
        if access is not None:
            access.close()

    def close(self) -> None:
        self.is_stopping = True
        self.jobs.kill()
        self.searches.close()
        self.events.close()
        for access in self._accesses.values():
            access.close()
        if self._sampling is not None:
            self._sampling.close()
        self.histories.close()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def exposition(self) -> str:
        """Prometheus' text."""
        family = prometheus_text.family
        readings = sum(access.shared.asked for access in self._accesses.values())
        answers = [({"status": str(status)}, number) for status, number in self.requests.items()]
        lines = [
            *family("headwater_console_requests_total", "counter", "Requests answered.", answers),
            *family(
                "headwater_console_readings_total",
                "counter",
                "Requests sent to the broker and other sources, after caching.",
                [({}, readings)],
            ),
        ]
        return "".join(lines)


def _history_directory(config: Config) -> Path | None:
    """Beside the log, if this is a project; a console for a cluster elsewhere leaves no files."""
    directory = (config.base / config.broker.data_dir).resolve()
    return directory / "console" if config.path is not None or directory.is_dir() else None


def console_of(request: Request) -> Console:
    console: Console = request.app.state.console
    return console


def create(config: Config) -> Starlette:
    """The app; `app.state.console` has what it shares."""
    console = Console(config)
    app = Starlette(
        routes=[
            Route("/", _home),
            Route("/ready", _ready),
            Route("/live", _live),
            Route("/metrics", _metrics),
            *signing_in.ROUTES,
            *ROUTES,
            *documentation.ROUTES,
            Mount("/static", _Static(directory=rendering.STATIC), name="static"),
        ],
        middleware=[Middleware(Guard, console=console), Middleware(_Edge, console=console)],
        exception_handlers={
            HeadwaterError: _failed,
            HTTPException: _no_page,
        },
    )
    app.state.console = console
    return app


class _Static(StaticFiles):
    """The address of a file has a stamp of its content: browsers need not request it again."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


class _Edge:
    """Counts what was answered, and answers what went wrong, with the headers of every answer."""

    def __init__(self, app: "ASGIApp", console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        has_begun = False

        async def counting(message: "Message") -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                status = message["status"]
                self._console.requests[status] = self._console.requests.get(status, 0) + 1
            await send(message)

        try:
            await self._app(scope, receive, counting)
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise
            answer = _broken(Request(scope, receive), error)
            await answer(scope, receive, counting)


async def _home(request: Request) -> Response:
    return RedirectResponse(NAVIGATION[0].path, 303)


async def _ready(request: Request) -> Response:
    """Whether pages can be shown; what they show of a broker that does not answer is theirs."""
    missing = rendering.missing_assets()
    if missing:
        return PlainTextResponse(f"not ready: {', '.join(missing)} not installed\n", 503)
    return PlainTextResponse("ready\n")


async def _live(request: Request) -> Response:
    return PlainTextResponse("alive\n")


async def _metrics(request: Request) -> Response:
    text = console_of(request).exposition()
    return Response(text, media_type=prometheus_text.CONTENT_TYPE)


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadwaterError)
    return rendering.failed(request, error, status_of(error))


def status_of(error: HeadwaterError) -> int:
    if isinstance(error, BrokerUnreachable | NotReady | EventStoreUnreachable):
        return 503
    if isinstance(error, NoSuchThing):
        return 404
    if isinstance(error, RequestRefused):
        return 403 if "AUTHORIZATION" in error.detail or "login" in error.what else 409
    return 400 if error.exit_code == 2 else 500


async def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = "there is no such page" if error.status_code == 404 else error.detail.lower()
    return rendering.failed(request, HeadwaterError(what), error.status_code)


def _broken(request: Request, error: Exception) -> Response:
    log.error("a page failed: %s", request.url.path, exc_info=error)
    unexpected = HeadwaterError(
        f"unexpected {type(error).__name__}",
        hint="this is a bug in headwater; the console's log has the traceback",
    )
    return rendering.failed(request, unexpected, 500)
