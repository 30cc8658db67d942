"""All routes of the gateway, beside those of `app`."""

from collections.abc import Sequence
from typing import Final

from starlette.routing import BaseRoute

from headwater.gateway.calls import routes as calls
from headwater.gateway.events import routes as events
from headwater.gateway.live import routes as live
from headwater.gateway.reading import routes as reading
from headwater.gateway.sockets import routes as sockets
from headwater.gateway.tables import routes as tables
from headwater.gateway.webhooks import receiving
from headwater.gateway.webhooks import routes as webhooks
from headwater.gateway.writing import routes as writing

ROUTES: Final[Sequence[BaseRoute]] = (
    *writing.ROUTES,
    *reading.ROUTES,
    *sockets.ROUTES,
    *tables.ROUTES,
    *webhooks.ROUTES,
    *receiving.ROUTES,
    *live.ROUTES,
    *calls.ROUTES,
    *events.ROUTES,
)
