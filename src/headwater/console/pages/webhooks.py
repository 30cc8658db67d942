"""/webhooks: webhooks that are sent, with state, backlog and last error; /webhooks/NAME/: one, to
be paused, resumed, tested, redelivered and removed.
"""

from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.project.overview import Overview, overview_of
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.paging import page_of
from headwater.console.web.rendering import Question, ask, both, confirmed, seen, shown
from headwater.errors import UsageError
from headwater.gateway.webhooks.administration import Administration, Progress
from headwater.gateway.webhooks.targets import parse_networks
from headwater.gateway.webhooks.trying import send_test

NAVIGATION_ENTRY: Final = NavigationEntry("Webhooks", "/webhooks")

_COLUMNS: Final = {
    "name": lambda row: row["name"],
    "state": lambda row: row["state"],
    "backlog": lambda row: row["backlog"],
    "dead_letters": lambda row: row["dead_letters"],
    "delivered": lambda row: row["delivered"],
}


async def _webhooks(request: Request) -> Response:
    found = await _progress(overview_of(request))
    page = page_of(
        request,
        [progress.as_json() for progress in found],
        columns=_COLUMNS,
        default_sort="name",
        text=lambda row: f"{row['name']} {row['url']} {' '.join(row['topics'])}",
    )
    return shown(request, "webhooks.html", {**page.as_json(), "webhooks": page.rows}, listing=page)


async def _webhook(request: Request) -> Response:
    return await _page(request, None)


async def _act(request: Request) -> Response:
    overview = overview_of(request)
    name, action = request.path_params["name"], request.path_params["action"]
    administration = _administration(overview)
    call = overview.access.call
    match action:
        case "pause":
            who = overview.access.user or "the console"
            await call(administration.pause, name, f"paused by {who}")
        case "resume":
            await call(administration.resume, name)
        case "redeliver":
            await call(administration.redeliver, name)
        case "test":
            networks = request.app.state.console.config.gateway.webhook_allowed_networks
            webhook = await call(administration.one, name)
            return await _page(request, await send_test(webhook, parse_networks(networks)))
        case "remove":
            if not confirmed(request):
                return ask(
                    request,
                    Question(
                        f"Remove webhook {name}?",
                        "Remove it",
                        "Nothing more is sent. Its dead letters stay in their topic.",
                        is_dangerous=True,
                        back=address_of(name),
                    ),
                )
            await call(administration.remove, name)
            overview.forget("webhooks")
            return seen("/webhooks")
        case _:
            raise UsageError(f"there is no {action} of a webhook")
    overview.forget("webhooks")
    return seen(address_of(name))


async def _page(request: Request, tested: dict[str, Any] | None) -> Response:
    overview = overview_of(request)
    name = request.path_params["name"]
    (progress,) = await overview.access.call(_administration(overview).progress, [name])
    return shown(
        request, "webhook.html", progress.as_json(), address=address_of(name), tested=tested
    )


async def _progress(overview: Overview) -> list[Progress]:
    return await overview.access.read("webhooks", _administration(overview).progress)


def _administration(overview: Overview) -> Administration:
    return Administration(overview.access.bootstrap, overview.access.login)


def address_of(name: str) -> str:
    return f"/webhooks/{quote(name, safe='')}/"


ROUTES: Final = [
    *both("/webhooks", _webhooks),
    Route("/webhooks/{name}/{action}", _act, methods=["POST"]),
    *both("/webhooks/{name}/", _webhook),
]
