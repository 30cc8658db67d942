"""Sign-in with a name and password of the broker.

The broker decides whether they are right and what the user may do: the console has no users of its
own.
"""

import asyncio
import dataclasses
import logging
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from headwater.client import login as client_login
from headwater.client.connection import Connection
from headwater.config import Config
from headwater.console.web import rendering
from headwater.errors import BrokerUnreachable, ConfigError, HeadwaterError, RequestRefused
from headwater.settings import ClientSettings, Secret

log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 10.0
_BY_PASSWORD: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


def is_needed(config: Config) -> bool:
    """Whether the broker authenticates users by passwords."""
    if config.broker.bootstrap is not None:
        return config.client.username is not None
    return config.broker.authentication == "sasl" or config.client.username is not None


def login_of(config: Config, name: str, password: str) -> ClientSettings:
    """A user's login at the broker: over TLS or not as [client] says. Raises ConfigError, and
    RequestRefused without a name, whatever the broker would say: "" stands for who did not sign in.
    """
    if not name:
        raise RequestRefused("a name is needed to sign in")
    offered: tuple[str, ...] = _BY_PASSWORD
    if config.broker.bootstrap is None and config.broker.authentication == "sasl":
        offered = tuple(name for name in _BY_PASSWORD if name in config.broker.sasl_mechanisms)
    if not offered:
        raise ConfigError(
            "sign-in by password is not possible here",
            detail="broker.sasl_mechanisms has only OAUTHBEARER",
            hint="add SCRAM-SHA-256 to it",
        )
    wanted = config.client.sasl_mechanism
    return dataclasses.replace(
        config.client,
        username=name,
        password=Secret(password),
        password_file=None,
        token_file=None,
        sasl_mechanism=wanted if wanted in offered else offered[0],
    )


def try_login(bootstrap: str, login: ClientSettings) -> None:
    """Raises RequestRefused if the broker does not believe it, BrokerUnreachable."""
    properties = client_login.properties_of(login)
    reasons = []
    for address in bootstrap.split(","):
        try:
            Connection(address, properties, _TIMEOUT_S).close()
            return
        except OSError as error:
            reasons.append(f"{address}: {(error.strerror or str(error)).lower()}")
    raise BrokerUnreachable("the broker does not answer", detail="; ".join(reasons))


async def _form(request: Request) -> Response:
    return _page(request, str(request.query_params.get("next", "/")))


def _page(
    request: Request, after: str, *, error: HeadwaterError | None = None, status: int = 200,
    headers: dict[str, str] | None = None,
) -> Response:  # fmt: skip
    form = request.state.form if error is not None else {}
    data = {"next": _local(after), "failure": error, "name": form.get("name", "")}
    return HTMLResponse(rendering.render(request, "sign_in.html", data), status, headers)


async def _sign_in(request: Request) -> Response:
    console = request.app.state.console
    form = request.state.form
    name, password = str(form.get("name", "")), str(form.get("password", ""))
    after = str(form.get("next", "/"))
    _warn_of_proxy(request)
    keys = (request.client.host if request.client else "", name)
    wait_s = console.attempts.wait_s(*keys)
    if wait_s > 0:
        error = HeadwaterError(
            "too many attempts", detail=f"the next one is possible in {wait_s:.0f} s"
        )
        headers = {"Retry-After": str(int(wait_s) + 1)}
        return _page(request, after, error=error, status=429, headers=headers)
    console.attempts.begin(*keys)
    await asyncio.sleep(console.attempts.delay_s())
    loop = asyncio.get_running_loop()
    try:
        login = login_of(console.config, name, password)
        await loop.run_in_executor(console.threads, try_login, console.config.bootstrap(), login)
    except RequestRefused as refused:
        return _page(request, after, error=refused, status=403)
    except BrokerUnreachable as unreachable:
        console.attempts.succeeded(*keys)  # the broker has not judged it
        return _page(request, after, error=unreachable, status=503)
    console.attempts.succeeded(*keys)
    session = console.sessions.sign_in(name, login)
    cookie = console.set_cookie(session, request.url.scheme)
    return RedirectResponse(_local(after), 303, {"Set-Cookie": cookie})


def _warn_of_proxy(request: Request) -> None:
    """Once: behind a proxy that is not trusted all users are one address, and the wrong passwords
    of one make the others wait.
    """
    console = request.app.state.console
    if console.has_warned_of_proxy or console.config.console.trusted_proxies:
        return
    if "x-forwarded-for" in request.headers:
        console.has_warned_of_proxy = True
        log.warning(
            "a proxy seems to stand before the console (%s); name it in console.trusted_proxies,"
            " or all its users count as one address when passwords are wrong",
            request.client.host if request.client else "unknown",
        )


async def _sign_out(request: Request) -> Response:
    console = request.app.state.console
    console.sessions.sign_out(request.state.session)
    console.forget(request.state.user)
    session = console.sessions.new()
    to = "/sign-in" if console.needs_sign_in else "/"
    cookie = console.set_cookie(session, request.url.scheme)
    return RedirectResponse(to, 303, {"Set-Cookie": cookie})


def _local(path: str) -> str:
    """An address of ours, never of another site."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_ours else "/"


ROUTES: Final = [
    Route("/sign-in", _form, methods=["GET"]),
    Route("/sign-in", _sign_in, methods=["POST"]),
    Route("/sign-out", _sign_out, methods=["POST"]),
]
