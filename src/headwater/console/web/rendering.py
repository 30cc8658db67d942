"""Responses: a page from a template, or the same data as JSON.

A handler puts its data into one dict. `/topics` shows it by a template, `/topics.json` (or
Accept: application/json) gives the dict itself: a page can show nothing that a program cannot have.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2
import orjson
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

import headwater
from headwater.console.history.chosen_range import cookie_of, range_of
from headwater.console.history.ranges import RANGES
from headwater.console.history.small_line import small_line
from headwater.errors import HeadwaterError
from headwater.terminal.output import count, duration, plural, size

HERE: Final = Path(__file__).parents[1]
STATIC: Final = HERE / "static"
VENDOR: Final = STATIC / "vendor"
_VENDORED: Final = (
    "htmx.min.js", "idiomorph-ext.min.js", "uPlot.iife.min.js", "uPlot.min.css",
)  # fmt: skip
_INTERVAL_S: Final = 2  # of live parts


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        options = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(content, default=str, option=options)


class _Number(Convertor[int]):
    """{partition:number} in a route. Python does not read thousands of digits; with Starlette's own
    `int` they are an unexpected error, here there is no such page.
    """

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())


def both(path: str, handler: Any, *, name: str | None = None) -> list[Route]:
    """The routes of a page and of its JSON. The page of one thing by name ends with "/", so that
    a thing called "x.json" has a page, too: /topics/x.json/ and /topics/x.json.json.
    """
    json_path = "/index.json" if path == "/" else path.rstrip("/") + ".json"
    return [
        Route(json_path, handler, methods=["GET"], name=None),
        Route(path, handler, methods=["GET"], name=name),
    ]


def wants_json(request: Request) -> bool:
    route = request.scope.get("route")
    if route is not None and route.path.endswith(".json"):
        return True
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


def shown(
    request: Request, template: str, data: Mapping[str, Any], *, status: int = 200, **more: Any
) -> Response:
    """The page with this data, or the data. `more` is for the template only."""
    if wants_json(request):
        return JsonResponse(data, status)
    response = HTMLResponse(render(request, template, {**data, **more}), status)
    asked = request.query_params.get("range", "")
    if asked in RANGES:  # for the next page with plots, too
        response.set_cookie(cookie_of(request), asked, path="/", samesite="strict", httponly=True)
    return response


def render(request: Request, template: str, data: Mapping[str, Any]) -> str:
    console = request.app.state.console
    state = request.state
    values = {
        **data,
        "request": request,
        "path": request.url.path,
        "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        "user": getattr(state, "user", ""),
        "csrf": console.sessions.token(state.session),
        "navigation": console.navigation,
        "bootstrap": console.config.bootstrap(),
        "needs_sign_in": console.needs_sign_in,
        "interval_s": _INTERVAL_S,
        "ranges": RANGES,
        "shown_range": range_of(request),
    }
    return _environment().get_template(template).render(values)


def part(request: Request, template: str, data: Mapping[str, Any]) -> HTMLResponse:
    """A template that is no whole page."""
    return HTMLResponse(render(request, template, data))


def seen(to: str) -> RedirectResponse:
    """After a change: the page that shows it."""
    return RedirectResponse(to, 303)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked before something is changed."""

    title: str  # "Delete topic orders?"
    button: str  # "Delete it"
    detail: str = ""  # what will be lost or begin
    type_name: str = ""  # what must be typed, if a click is not enough
    is_dangerous: bool = False
    back: str = "/"


def confirmed(request: Request, *, type_name: str = "") -> bool:
    """Whether the form was sent from the page that asks."""
    form = request.state.form
    is_typed = not type_name or form.get("typed") == type_name
    return bool(form.get("confirmed") == "yes" and is_typed)


def ask(request: Request, question: Question, fields: Mapping[str, str] | None = None) -> Response:
    """The page that asks. It sends the same form again, to the same address, confirmed; with
    `fields` instead of what was sent, where that means something else a moment later.
    """
    form = request.state.form
    hidden = [
        (name, value)
        for name, value in (form.multi_items() if fields is None else fields.items())
        if name not in ("csrf", "confirmed", "typed")
    ]
    data = {
        "question": question,
        "fields": hidden,
        "was_wrong": form.get("confirmed") == "yes",
    }
    return HTMLResponse(render(request, "confirm.html", data))


def failed(request: Request, error: HeadwaterError, status: int) -> Response:
    """What happened, the detail and the hint. A live part is left as it is, under a line that says
    what is wrong, and continues by itself.
    """
    data = {"error": error.what, "detail": error.detail, "hint": error.hint}
    if wants_json(request):
        return JsonResponse(data, status)
    headers = {}
    if request.headers.get("hx-request"):
        headers = {"HX-Retarget": "#trouble", "HX-Reselect": "#trouble", "HX-Reswap": "outerHTML"}
    page = render(request, "failed.html", {**data, "status": status})
    return HTMLResponse(page, status, headers)


def missing_assets() -> list[str]:
    return [name for name in _VENDORED if not (VENDOR / name).is_file()]


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "sentence": lambda text: text[:1].upper() + text[1:],
        "count": _count,
        "size": size,
        "duration": duration,
        "rate": _rate,
        "moment": _moment,
        "line": small_line,
        "figure": _figure,
        "json": lambda value: orjson.dumps(value, default=str).decode(),
    }
    environment.globals |= {
        "plural": plural,
        "version": headwater.__version__,
        "asset": _asset,
        "utc_offset_minutes": _utc_offset_minutes,
        "zone": _zone,
    }
    return environment


def _utc_offset_minutes() -> int:
    """Of this machine, in whose time all pages show what happened: tables, charts and forms."""
    return time.localtime().tm_gmtoff // 60


def _zone() -> str:
    """UTC, UTC+01:00"""
    minutes = _utc_offset_minutes()
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{'-' if minutes < 0 else '+'}{hours:02d}:{rest:02d}" if minutes else "UTC"


def _count(number: float | None) -> str:
    return "?" if number is None else count(int(number))


def _rate(per_s: float | None) -> str:
    """1,234/s, 0.4/s, – while there is no value."""
    if per_s is None:
        return "–"
    return f"{per_s:,.0f}/s" if per_s >= 10 or per_s == 0 else f"{per_s:.1f}/s"


def _figure(value: float | None, unit: str) -> str:
    """A value of a plot in its unit; static/console.js writes them alike."""
    if value is None:
        return "–"
    match unit:
        case "B":
            return size(int(value))
        case "ms":
            return duration(value / 1000)
        case "s":
            return duration(value)
        case "/s":
            return _rate(value)
        case "cores":
            return f"{value:.2f} cores"
        case _:
            return count(int(value)) if value >= 100 or value == int(value) else f"{value:.2f}"


def _moment(at_ms: float | None) -> str:
    """2026-11-16 02:40:11.123, by this machine's clock."""
    if at_ms is None or not 0 <= at_ms < 253_402_300_800_000:
        return "–" if at_ms is None or at_ms < 0 else str(at_ms)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))
    return f"{stamp}.{int(at_ms) % 1000:03d}"


@cache
def _asset(name: str) -> str:
    """Its address, which changes with its content: browsers may cache it indefinitely."""
    import hashlib

    file = STATIC / name
    stamp = hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.is_file() else "missing"
    return f"/static/{name}?v={stamp}"
