"""One module per page. Each has ROUTES; those in the navigation have a NAVIGATION_ENTRY."""

from typing import Final

from starlette.routing import BaseRoute

from headwater.console.pages import (
    alerts,
    captures,
    events,
    flow,
    groups,
    jobs,
    pipelines,
    queues,
    stored_searches,
    stores,
    webhooks,
)
from headwater.console.pages.cluster import access, brokers, processes
from headwater.console.pages.topics import (
    overview,
    records,
    search,
    tail,
    topic_changes,
    topic_settings,
)

# In the order of the navigation; "/" opens the first.
_MAIN_PAGES: Final = (
    flow,
    overview,
    groups,
    queues,
    captures,
    pipelines,
    stores,
    events,
    stored_searches,
    webhooks,
    alerts,
    jobs,
    brokers,
)
_SUBPAGES: Final = (
    records,
    search,
    tail,
    topic_changes,
    topic_settings,
    access,
    processes,
)  # linked from the main ones

NAVIGATION: Final = tuple(module.NAVIGATION_ENTRY for module in _MAIN_PAGES)
ROUTES: Final[list[BaseRoute]] = [
    route for module in (*_MAIN_PAGES, *_SUBPAGES) for route in module.ROUTES
]
