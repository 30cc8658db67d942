"""Sign-in with a name and password of the broker.

The broker decides whether they are right and what the user may do: the console has no users of its
own.
"""

import asyncio
import logging
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from headwater.console.web import rendering
from headwater.errors import BrokerUnreachable, HeadwaterError, RequestRefused
from headwater.web.logins import login_of, try_login

log = logging.getLogger(__name__)


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
