"""/topics/NAME/search: records by key, value, header and JSON path."""

import math
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.pages.topics.overview import existing
from headwater.console.pages.topics.records import record_json, rows_of, time_ms_of
from headwater.console.topics.search import MOST_FOUND, Search, Wanted
from headwater.console.web.access import Access
from headwater.console.web.not_found import NoSuchThing
from headwater.console.web.paging import whole
from headwater.console.web.rendering import both, seen, shown

_ROWS: Final = 50


async def _form(request: Request) -> Response:
    console = request.app.state.console
    access: Access = console.access(request)
    topic = await existing(access, request.path_params["topic"])
    console.searches.prepare()
    wanted = Wanted(key=request.query_params.get("key", ""))
    data = {"topic": topic.name, "partitions": len(topic.partitions), "search": None}
    return shown(request, "search.html", data, wanted=wanted, tab="search", since="")


async def _start(request: Request) -> Response:
    console = request.app.state.console
    access: Access = console.access(request)
    topic = await existing(access, request.path_params["topic"])
    form = request.state.form
    given = {name: str(form.get(name, "")).strip() for name in ("partition", "since")}
    wanted = Wanted(
        key=form.get("key", ""),
        key_is_whole=form.get("key_is") != "part",
        value=form.get("value", ""),
        ignore_case=form.get("ignore_case") == "1",
        header=form.get("header", "").strip(),
        header_value=form.get("header_value", ""),
        path=form.get("path", "").strip(),
        path_value=form.get("path_value", ""),
        partition=whole(given["partition"], len(topic.partitions)) if given["partition"] else None,
        since_ms=time_ms_of(given["since"]) if given["since"] else None,
    )
    if wanted.partition is not None and wanted.partition >= len(topic.partitions):
        raise NoSuchThing(f"topic {topic.name} has no partition {given['partition'][:20]}")
    search = console.searches.start(access, topic.name, len(topic.partitions), wanted)
    return seen(f"/topics/{topic.name}/search/{search.id}/")


async def _search(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    search = _known(request, access)
    topic = await existing(access, search.topic)
    pages = max(1, math.ceil(len(search.found) / _ROWS))
    page = min(max(whole(request.query_params.get("page"), 1), 1), pages)
    found = search.found[(page - 1) * _ROWS : page * _ROWS]
    data: dict[str, Any] = {
        **search.as_json(),
        "page": page,
        "pages": pages,
        "records": [record_json(record) for record in found],
    }
    return shown(
        request,
        "search.html",
        data,
        partitions=len(topic.partitions),
        search=search,
        wanted=search.wanted,
        rows_shown=await access.call(rows_of, request, topic.name, found),
        most=MOST_FOUND,
        tab="search",
        since="",
    )


async def _cancel(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    search = _known(request, access)
    search.cancel()
    return seen(f"/topics/{search.topic}/search/{search.id}/")


def _known(request: Request, access: Access) -> Search:
    searches = request.app.state.console.searches
    search: Search | None = searches.find(access, request.path_params["search"])
    if search is None or search.topic != request.path_params["topic"]:
        raise NoSuchThing(
            "this search does not exist any more", hint="the console was restarted; start it again"
        )
    return search


ROUTES: Final = [
    Route("/topics/{topic}/search", _start, methods=["POST"]),
    *both("/topics/{topic}/search", _form),
    *both("/topics/{topic}/search/{search}/", _search),
    Route("/topics/{topic}/search/{search}/cancel", _cancel, methods=["POST"]),
]
