"""/alerts: all alerts with their state, and their history; they can be silenced."""

import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.config import Config
from headwater.console.project.overview import Overview, no_such, overview_of
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.rendering import both, seen, shown
from headwater.gateway.alerts import store
from headwater.gateway.alerts.overview import rows_of, with_times

NAVIGATION_ENTRY: Final = NavigationEntry("Alerts", "/alerts")

_SILENCE_MS: Final = 3600 * 1000
_MOST_EVENTS: Final = 50


async def _alerts(request: Request) -> Response:
    overview = overview_of(request)
    config: Config = request.app.state.console.config
    data = await overview.access.read("alerts", _read, overview, config)
    return shown(request, "alerts.html", data)


def _read(overview: Overview, config: Config) -> dict[str, Any]:
    bootstrap, login = overview.access.bootstrap, overview.access.login
    return {
        "alerts": rows_of(config, store.read(bootstrap, login)),
        "history": with_times(store.history(bootstrap, login, _MOST_EVENTS)),
        "is_watched": config.gateway.is_on,
    }


async def _silence(request: Request) -> Response:
    overview = overview_of(request)
    config: Config = request.app.state.console.config
    name = request.path_params["alert"]
    if name not in config.alerts:
        raise no_such("alert", name, list(config.alerts))
    until_ms = time.time_ns() // 1_000_000 + _SILENCE_MS
    await overview.access.call(
        store.silence,
        overview.access.bootstrap,
        overview.access.login,
        name,
        None if request.state.form.get("end") else until_ms,
    )
    overview.forget("alerts")
    return seen("/alerts")


ROUTES: Final = [
    *both("/alerts", _alerts),
    Route("/alerts/{alert}/silence", _silence, methods=["POST"]),
]
