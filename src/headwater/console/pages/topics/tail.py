"""/topics/NAME/tail: records as they are written."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.pages.topics.overview import command_for, existing
from headwater.console.pages.topics.records import chosen_partitions, rows_of
from headwater.console.topics.records import parse_positions, positions_text
from headwater.console.topics.tail import News, Tail
from headwater.console.web.access import Access
from headwater.console.web.rendering import both, render, shown
from headwater.errors import HeadwaterError
from headwater.web import live

_PAUSE_S: Final = 0.4
_HEARTBEAT_S: Final = 10.0


async def _page(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    topic = await existing(access, request.path_params["topic"])
    query = request.query_params
    partitions = chosen_partitions(topic, query.get("partition", ""))
    only = f" -p {partitions[0]}" if len(partitions) == 1 and len(topic.partitions) > 1 else ""
    data = {"topic": topic.name, "partitions": len(topic.partitions)}
    return shown(
        request,
        "tail.html",
        data,
        contains=query.get("contains", ""),
        partition=partitions[0] if len(partitions) == 1 else None,
        tab="tail",
        command=command_for(request, f"headwater consume {topic.name} -o end{only}"),
    )


async def _events(request: Request) -> Response:
    console = request.app.state.console
    access: Access = console.access(request)
    topic = await existing(access, request.path_params["topic"])
    query = request.query_params
    partitions = chosen_partitions(topic, query.get("partition", ""))
    after = parse_positions(query.get("after", ""))
    console.tails.acquire(access.user)
    try:
        tail: Tail = await access.call(
            Tail, access, topic.name, partitions, query.get("contains", ""), after
        )
    except BaseException:
        console.tails.release(access.user)
        raise

    def ended() -> None:
        console.tails.release(access.user)
        tail.close()

    return live.events(_new_records(request, access, topic.name, tail), ended)


async def _new_records(
    request: Request, access: Access, topic: str, tail: Tail
) -> AsyncIterator[bytes]:
    console = request.app.state.console
    sent_s = time.monotonic()
    is_first = True
    while not console.is_stopping and _may_go_on(request):
        try:
            news = await access.call(tail.news)
        except HeadwaterError as error:
            yield live.event("trouble", {"what": error.what, "detail": error.detail})
            return  # the browser comes again
        if news.records or news.left_out or is_first:
            yield live.event("records", await _news(request, access, topic, news))
            sent_s, is_first = time.monotonic(), False
        elif time.monotonic() - sent_s > _HEARTBEAT_S:
            yield live.HEARTBEAT
            sent_s = time.monotonic()
        await asyncio.sleep(_PAUSE_S)


def _may_go_on(request: Request) -> bool:
    """Not after its user has signed out."""
    state = request.state
    is_open: bool = request.app.state.console.sessions.is_open(state.session)
    return state.signed_in is None or is_open


async def _news(request: Request, access: Access, topic: str, news: News) -> dict[str, Any]:
    rows = await access.call(rows_of, request, topic, news.records[::-1])
    return {
        "html": render(request, "_rows.html", {"rows_shown": rows}),
        "records": len(rows),
        "left_out": news.left_out,
        "after": positions_text(news.positions),
    }


ROUTES: Final = [
    *both("/topics/{topic}/tail", _page),
    Route("/topics/{topic}/tail/events", _events, methods=["GET"]),
]
