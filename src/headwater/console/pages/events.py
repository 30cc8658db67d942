"""/events: categories and streams of the event store; /events/STREAM/: a stream's history, each
event with the state after it.
"""

from typing import Any, Final
from urllib.parse import quote, urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response

from headwater.capture.records.outbox import TOPICS
from headwater.client.topics import READ_BIT, authorized_operations
from headwater.console.project.event_store import ConsoleEvents, History
from headwater.console.web.access import Access
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.not_found import NoSuchThing
from headwater.console.web.paging import whole
from headwater.console.web.rendering import both, seen, shown, wants_json
from headwater.errors import EventRefused, HeadwaterError, RequestRefused
from headwater.events.contract import RecordedEvent, category_of
from headwater.events.input_checks import check_stream
from headwater.inspect.decoding import forms
from headwater.inspect.decoding.part import Part

NAVIGATION_ENTRY: Final = NavigationEntry("Events", "/events")

_ROWS: Final = 50
_EVENTS: Final = 20
_MOST_ROWS: Final = 200
_MOST_SHOWN_BYTES: Final = 20_000  # of the data of an event; all are in the JSON
_LINE_CHARACTERS: Final = 80
_RIGHT_AGE_S: Final = 10.0
_COUNTS_AGE_S: Final = 5.0


async def _events(request: Request) -> Response:
    events, access = _events_of(request), _access(request)
    query = request.query_params
    readable, hides_some = await _readable(events, access)
    category = query.get("category") or None
    if category is not None and category not in readable:
        raise NoSuchThing(f"there is no category {category[:200]}")
    overview = await access.read(
        ("events", *readable), events.overview, readable, max_age_s=_COUNTS_AGE_S
    )
    first, after = query.get("stream", "").strip()[:255], query.get("after", "")[:255]
    limit = min(max(whole(query.get("rows"), _ROWS), 1), _MOST_ROWS)
    found: list[tuple[str, int]] = []
    if category is not None or not hides_some:
        found = await access.call(events.streams, category, first, after, limit + 1)
        if first and not after and found[:1] and found[0][0] == first and not wants_json(request):
            return seen(address_of(first))
    rows, more = found[:limit], found[limit:]
    data = {
        "is_configured": events.is_configured,
        "categories": overview["categories"],
        "category": category,
        "streams": [{"stream": stream, "version": version} for stream, version in rows],
        "next": rows[-1][0] if more else None,
        "first": first,
        **({} if hides_some else {name: overview[name] for name in overview}),
    }
    return shown(
        request,
        "events.html",
        data,
        hides_some=hides_some,
        after=after,
        address_of=address_of,
        address=lambda **changes: _address(
            {"category": category, "stream": first, "after": after, **changes}
        ),
    )


async def _stream(request: Request) -> Response:
    events, access = _events_of(request), _access(request)
    stream = request.path_params["stream"]
    try:
        check_stream(stream)
    except EventRefused:
        raise NoSuchThing(f"there is no stream {stream[:255]}") from None
    if not await _may_read(access, category_of(stream)):
        raise RequestRefused(
            f"no right to read events of category {category_of(stream)}",
            detail="TOPIC_AUTHORIZATION_FAILED",
            hint=f"READ on the topic {TOPICS}{category_of(stream)} is needed",
        )
    query = request.query_params
    until = whole(query.get("version"), 0) or None
    limit = min(max(whole(query.get("rows"), _EVENTS), 1), _MOST_ROWS)
    history = await access.call(events.history, stream, until, limit)
    if history is None:
        raise NoSuchThing(f"there is no stream {stream}")
    return await _shown_history(request, access, stream, history, limit)


async def _shown_history(
    request: Request, access: Access, stream: str, history: History, limit: int
) -> Response:
    listed = history.events
    newest, oldest = (listed[0].version, listed[-1].version) if listed else (0, 0)
    error = history.fold_error
    data = {
        "stream": stream,
        "category": category_of(stream),
        "last_version": history.version,
        "decider": history.decider,
        "no_states": history.no_states,
        "fold_error": None if error is None else _error(error),
        "events": [_event_json(event, history) for event in listed],
        "older": oldest - 1 if oldest > 1 else None,
        "newer": min(newest + limit, history.version) if newest < history.version else None,
    }
    if wants_json(request):
        return shown(request, "event_stream.html", data)
    rows = await access.call(lambda: [_event_shown(event, history) for event in listed])
    more: dict[str, Any] = {"rows_shown": rows, "rows": limit, "newest": newest, "oldest": oldest}
    return shown(request, "event_stream.html", data, **more)


def _event_json(event: RecordedEvent, history: History) -> dict[str, Any]:
    row = event.as_dict()
    if event.version in history.states:
        row["state"] = history.states[event.version]
    return row


def _event_shown(event: RecordedEvent, history: History) -> dict[str, Any]:
    """For a thread: data of others may take long to indent."""
    has_state = event.version in history.states
    return {
        "version": event.version,
        "position": event.position,
        "at_ms": event.at_ms,
        "type": event.type,
        "schema_version": event.schema_version,
        "tags": event.tags,
        "id": event.id,
        "command_id": event.command_id,
        "metadata": _text(event.metadata_json) if event.metadata_json else "",
        "data": _text(event.json),
        "state": _text(_dumped(history.states[event.version])) if has_state else None,
    }


def _text(json: str) -> str:
    """On one line if it is short, else indented, and cut where it would fill the page."""
    if len(json) <= _LINE_CHARACTERS:
        return json
    data = json.encode()
    if len(data) > _MOST_SHOWN_BYTES:
        beginning = data[:_MOST_SHOWN_BYTES].decode(errors="ignore")
        return f"{beginning}\n… {len(data):,} bytes; this page as JSON has all of it"
    return forms.shown(Part(data, len(data)), "json").text


def _dumped(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def _error(error: HeadwaterError) -> dict[str, str]:
    return {"error": error.what, "detail": error.detail, "hint": error.hint}


async def _readable(events: ConsoleEvents, access: Access) -> tuple[list[str], bool]:
    """The categories that this user may read, and whether there are others."""
    names = await access.call(events.categories)
    readable = [name for name in names if await _may_read(access, name)]
    return readable, len(readable) < len(names)


async def _may_read(access: Access, category: str) -> bool:
    """As in the gateway: the right to a category is that to its topic."""
    if not access.user:
        return True
    topic = TOPICS + category
    bits = await access.shared.get(
        ("operations", topic),
        lambda: access.ask(lambda cluster: authorized_operations(cluster, topic)),
        _RIGHT_AGE_S,
    )
    return bool(bits >> READ_BIT & 1)


def _events_of(request: Request) -> ConsoleEvents:
    events: ConsoleEvents = request.app.state.console.events
    return events


def _access(request: Request) -> Access:
    access: Access = request.app.state.console.access(request)
    return access


def address_of(stream: str) -> str:
    return f"/events/{quote(stream, safe='')}/"


def _address(values: dict[str, Any]) -> str:
    return "/events?" + urlencode({name: value for name, value in values.items() if value})


ROUTES: Final = [*both("/events", _events), *both("/events/{stream:path}/", _stream)]
