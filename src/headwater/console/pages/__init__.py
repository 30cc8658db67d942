"""One module per page. Each has ROUTES; those in the navigation have a PLACE there."""

from typing import Final

from starlette.routing import BaseRoute

from headwater.console.pages import (
    captures,
    flow,
    groups,
    jobs,
    pipelines,
    queues,
    stores,
    topics,
)

_MODULES: Final = (flow, topics, groups, queues, captures, pipelines, stores)

NAVIGATION: Final = tuple(module.PLACE for module in _MODULES)
ROUTES: Final[list[BaseRoute]] = [route for module in (*_MODULES, jobs) for route in module.ROUTES]
