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
    records,
    search,
    stores,
    tail,
    topic_changes,
    topics,
)

# In the order of the navigation; "/" opens the first.
_PLACES: Final = (flow, topics, groups, queues, captures, pipelines, stores, jobs)
_WITHIN: Final = (records, search, tail, topic_changes)  # that others lead to

NAVIGATION: Final = tuple(module.PLACE for module in _PLACES)
ROUTES: Final[list[BaseRoute]] = [
    route for module in (*_PLACES, *_WITHIN) for route in module.ROUTES
]
