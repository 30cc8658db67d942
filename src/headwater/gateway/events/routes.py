"""GET and POST /events, /events/STREAM, /events/STREAM/state; GET /streams and /categories."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.errors import ConditionFailed, VersionConflict
from headwater.events.commands.replay import Deciders
from headwater.events.contract import Appended, Condition, StreamWrite, category_of
from headwater.events.input_checks import check_stream
from headwater.events.store import EventStore
from headwater.gateway.answers import Counted, Refusal, json_answer
from headwater.gateway.app import gateway_of
from headwater.gateway.callers import READ, WRITE
from headwater.gateway.events import parameters
from headwater.gateway.events.append_bodies import StreamAppend, StreamsAppend, parsed
from headwater.gateway.events.pages import Page, read_page
from headwater.gateway.events.parameters import DEFAULT_LIMIT, JSON, Asked
from headwater.gateway.events.rights import Rights
from headwater.gateway.events.streaming import Streaming
from headwater.gateway.parameters import check_names, whole_number
from headwater.gateway.writing.bodies import Body

_LARGE_BYTES: Final = 64 << 10  # a body that is parsed in a thread
_MAX_STREAMS: Final = 10_000


async def _append(request: Request) -> Response:
    """Append events to a stream: events, expected, condition, command_id."""
    stream = check_stream(_stream_of(request))
    rights = Rights(request)
    await rights.require(WRITE, category_of(stream))
    held = Body(gateway_of(request).budget)
    try:
        body = await _parsed(request, held, StreamAppend)
        return await _appended(request, rights, body, body.writes(stream))
    finally:
        held.release()


async def _append_all(request: Request) -> Response:
    """Append events to several streams, all or nothing."""
    held = Body(gateway_of(request).budget)
    try:
        body = await _parsed(request, held, StreamsAppend)
        rights = Rights(request)
        for category in {category_of(check_stream(write.stream)) for write in body.streams}:
            await rights.require(WRITE, category)
        return await _appended(request, rights, body, body.writes())
    finally:
        held.release()


async def _parsed(request: Request, held: Body, kind: Any) -> Any:
    check_names(request.query_params, ())
    gateway = gateway_of(request)
    data = await held.read(request, gateway.config.gateway.max_request_bytes)
    if len(data) < _LARGE_BYTES:
        return parsed(data, kind)
    return await gateway.access(request).call(parsed, data, kind)


async def _appended(
    request: Request, rights: Rights, body: StreamAppend | StreamsAppend, writes: list[StreamWrite]
) -> Response:
    gateway = gateway_of(request)
    command_id = _command_id(request, body.command_id)
    condition: Condition | None = None
    if body.condition is not None:
        # What it finds, or does not find, is of any category.
        condition = body.condition.condition()
        try:
            await rights.require_everything()
        except Refusal as refusal:
            if refusal.status != 404:  # of a store that this append creates
                raise
    deciders = gateway.event_store.deciders

    def append(store: EventStore) -> Appended:
        return store.append_all(
            [_typed(write, deciders) for write in writes],
            condition=condition,
            command_id=command_id,
        )

    try:
        result = await gateway.event_store.append(append)
    except VersionConflict as conflict:
        raise _conflict(
            conflict,
            stream=conflict.stream,
            expected=conflict.expected or "none",
            actual=conflict.actual or "none",
        ) from None
    except ConditionFailed as conflict:
        raise _conflict(conflict, after=conflict.after, position=conflict.position) from None
    if result.is_duplicate:
        _check_same(result, writes)
    else:
        gateway.appended_events += sum(len(write.events) for write in writes)
    return _result(result)


def _typed(write: StreamWrite, deciders: Deciders) -> StreamWrite:
    """With the types that the category's decider comes with: what the application's own store
    refuses is refused here, too.
    """
    if category_of(write.stream) not in deciders:
        return write
    replay = deciders.of(category_of(write.stream))
    return replace(write, events=[replay.typed(event) for event in write.events])


def _conflict(error: VersionConflict | ConditionFailed, **fields: Any) -> Refusal:
    return Refusal(409, error.what, detail=error.detail, hint=error.hint, fields=fields)


def _check_same(result: Appended, writes: Sequence[StreamWrite]) -> None:
    """The result of another command would show streams that the caller may not see."""
    if set(result.versions) != {write.stream for write in writes}:
        raise Refusal(
            409,
            "this command id was used for other streams",
            hint="a repeated append has the same streams; a new command has a new id",
        )


def _result(result: Appended) -> Response:
    answer: dict[str, Any] = {
        "first_position": result.first_position,
        "last_position": result.last_position,
        "versions": result.versions,
        "is_duplicate": result.is_duplicate,
    }
    headers = {"Idempotent-Replayed": "true"} if result.is_duplicate else {}
    return json_answer(answer, headers=headers)


def _command_id(request: Request, of_body: str | None) -> str | None:
    """The header is the same as the field."""
    header = request.headers.get("idempotency-key")
    if header is not None and of_body is not None and header != of_body:
        raise Refusal(
            400,
            "the Idempotency-Key is another one than command_id",
            hint="one of them is enough",
            fields={"field": "command_id"},
        )
    return of_body if header is None else header


async def _read_stream(request: Request) -> Response:
    """Events of a stream: from_version, type, tag, backwards, limit; or followed (sse)."""
    stream = check_stream(_stream_of(request))
    rights = Rights(request)
    await rights.require(READ, category_of(stream))
    asked = parameters.of_stream(request, stream)
    return await _answered(request, asked, rights)


async def _read_all(request: Request) -> Response:
    """Events of a category, or all: from, type, tag, backwards, limit; or followed (sse)."""
    asked = parameters.of_all(request)
    rights = Rights(request)
    if asked.category is not None:
        await rights.require(READ, asked.category)
    else:
        await rights.require_everything()
    return await _answered(request, asked, rights)


async def _answered(request: Request, asked: Asked, rights: Rights) -> Response:
    gateway = gateway_of(request)
    version: int | None = None
    if asked.stream is not None:
        stream = asked.stream
        version = await gateway.event_store.read(lambda store: store.version(stream))
        if not version:
            raise _no_stream(stream)
    if request.method == "HEAD":
        return Response()
    if asked.form != JSON:
        return await Streaming(request, asked, rights).answer()
    limit = DEFAULT_LIMIT if asked.limit is None else asked.limit
    page = await gateway.event_store.read(lambda store: read_page(store, asked, limit))
    gateway.sent_events += len(page.entries)
    about = {} if asked.stream is None else {"stream": asked.stream, "version": version}
    return _page_answer(request, page, about)


def _page_answer(request: Request, page: Page, about: dict[str, Any]) -> Response:
    budget = gateway_of(request).budget
    size_bytes = 2 * sum(len(entry.text) for entry in page.entries)  # alone, and in the answer
    budget.take_now(size_bytes)
    answer = {
        **about,
        "events": [orjson.Fragment(entry.text) for entry in page.entries],
        "next": page.next,
        "is_end": page.is_end,
    }
    return Counted(orjson.dumps(answer) + b"\n", lambda: budget.give(size_bytes))


async def _state(request: Request) -> Response:
    """The state of a stream by its decider, now or as of version, position or at."""
    if len(_segments(request)) == 1:  # the name of a stream that ends with an encoded slash
        return await _read_stream(request)
    stream = check_stream(_stream_of(request, behind=[b"state"]))
    await Rights(request).require(READ, category_of(stream))
    bounds = parameters.of_state(request)
    gateway = gateway_of(request)
    deciders = gateway.event_store.deciders
    if category_of(stream) not in deciders:
        raise Refusal(
            404,
            f"there is no decider for category {category_of(stream)}",
            hint=f'[events.deciders] {category_of(stream)} = "FILE.py:NAME" names it',
        )

    def folded(store: EventStore) -> dict[str, Any]:
        if not store.version(stream):
            raise _no_stream(stream)
        return deciders.of(category_of(stream)).state_at(store, stream, **bounds)

    return json_answer(await gateway.event_store.read(folded))


async def _streams(request: Request) -> Response:
    """Names of streams and their versions: category, after, limit."""
    query = request.query_params
    check_names(query, ("category", "after", "limit"))
    category, after = query.get("category"), query.get("after", "")
    limit = whole_number(query, "limit", 1, _MAX_STREAMS) or 100
    rights = Rights(request)
    if category is not None:
        await rights.require(READ, category_of(check_stream(category)))
    else:
        await rights.require_everything()
    if after:
        check_stream(after)
    found = await gateway_of(request).event_store.read(
        lambda store: store.streams(category=category, after=after, limit=limit)
    )
    return json_answer(
        {
            "streams": [{"stream": stream, "version": version} for stream, version in found],
            "next": found[-1][0] if len(found) == limit else None,
        }
    )


async def _categories(request: Request) -> Response:
    """Categories that the caller may read, with their numbers of streams and events."""
    check_names(request.query_params, ())
    rights = Rights(request)
    store = gateway_of(request).event_store
    names = [
        name
        for name in await store.read(lambda store: store.categories())
        if await rights.may_read(name)
    ]
    counted = await store.read(
        lambda store: [counts for counts in store.counts() if counts.name in names]
    )
    return json_answer(
        {
            "categories": [
                {"category": counts.name, "streams": counts.streams, "events": counts.events}
                for counts in counted
            ]
        }
    )


def _stream_of(request: Request, behind: Sequence[bytes] = ()) -> str:
    """The segment behind /events/, which may have an encoded slash in it. Raises Refusal."""
    segments = _segments(request)
    if segments[1:] != [*behind]:
        raise Refusal(
            404, "there is nothing at this address", hint="a slash in a stream's name is %2F"
        )
    try:
        return unquote_to_bytes(segments[0]).decode()
    except UnicodeDecodeError:
        raise Refusal(400, "the name of the stream is not UTF-8") from None


def _segments(request: Request) -> list[bytes]:
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    return raw.partition(b"?")[0].split(b"/")[2:]


def _no_stream(stream: str) -> Refusal:
    return Refusal(404, f"there is no stream {stream}", hint="GET /streams lists them")


ROUTES: Final = [
    Route("/categories", _categories, methods=["GET"]),
    Route("/streams", _streams, methods=["GET"]),
    Route("/events", _read_all, methods=["GET"]),
    Route("/events", _append_all, methods=["POST"]),
    Route("/events/{stream:path}/state", _state, methods=["GET"]),
    Route("/events/{stream:path}", _read_stream, methods=["GET"]),
    Route("/events/{stream:path}", _append, methods=["POST"]),
]
