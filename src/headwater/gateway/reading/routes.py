"""GET /topics/T: records as server-sent events, as NDJSON, or by long polling.

`Reading` is one reading of a topic by a request's parameters; WebSockets (sockets) use it, too.
"""

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import orjson
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.errors import HeadwaterError
from headwater.gateway.answers import Counted, error_fields
from headwater.gateway.app import gateway_of
from headwater.gateway.callers import READ, caller_of
from headwater.gateway.parameters import check_names, one_of, seconds, whole_number
from headwater.gateway.reading import filters, positions
from headwater.gateway.reading.entries import AUTO, NONE
from headwater.gateway.reading.feeds import Chunk
from headwater.gateway.reading.schemas import schemas_of
from headwater.gateway.reading.subscription import Lost, Subscription
from headwater.web import live

PARAMETERS: Final = (
    "from", "until", "limit", "wait_s", "format", "decode", *filters.NAMES,
)  # fmt: skip
SSE, NDJSON, POLL, WEBSOCKET = "sse", "ndjson", "json", "websocket"
_TYPES: Final = {
    "text/event-stream": SSE,
    "application/x-ndjson": NDJSON,
    "application/ndjson": NDJSON,
    "application/jsonl": NDJSON,
    "application/json": POLL,
}
_HEARTBEAT_S: Final = 10.0
_DEFAULT_LIMIT: Final = 1000
_MAX_LIMIT: Final = 100_000
_MAX_POLL_BYTES: Final = 4 << 20
_MAX_WAIT_S: Final = 60.0


async def _read(request: Request) -> Response:
    """Records: server-sent events, NDJSON or JSON, as `Accept` or `format` asks."""
    topic = request.path_params["topic"]
    caller_of(request).require(READ, topic)
    query = request.query_params
    check_names(query, PARAMETERS)
    form = _form(request)
    reading = Reading(request, topic, form)
    await reading.begin()
    return await reading.answer(request.method)


def _form(request: Request) -> str:
    """The query's, else the first that the client accepts, else JSON."""
    if "format" in request.query_params:
        return one_of(request.query_params, "format", (SSE, NDJSON, POLL))
    for accepted in request.headers.get("accept", "").split(","):
        found = _TYPES.get(accepted.partition(";")[0].strip().lower())
        if found is not None:
            return found
    return POLL


class Reading:
    """One request, or one WebSocket."""

    def __init__(self, request: HTTPConnection, topic: str, form: str) -> None:
        query = request.query_params
        self._request = request
        self._gateway = gateway_of(request)
        self._access = self._gateway.access(request)
        self._user = caller_of(request).name
        self._form = form
        self._mode = one_of(query, "decode", (AUTO, NONE))
        self._until_end = one_of(query, "until", ("never", "end")) == "end"
        self._wanted = positions.parse(_from(request, form))
        default = _DEFAULT_LIMIT if form == POLL else None
        self._limit = whole_number(query, "limit", 1, _MAX_LIMIT if form == POLL else 2**62)
        self._limit = default if self._limit is None else self._limit
        self._wait_s = seconds(query, "wait_s", 0.0, _MAX_WAIT_S)
        schemas = schemas_of(self._gateway.config, self._access, topic)
        self._subscription = Subscription(
            self._access, self._gateway.readers, topic, filters.parse(query), schemas
        )
        self._is_open = False
        self._taken_bytes = 0

    async def begin(self) -> None:
        """Raises what is to be answered instead of a stream."""
        self._gateway.streams.acquire(self._user)
        self._access.in_use += 1
        self._is_open = True
        try:
            await self._subscription.begin(self._wanted)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._subscription.close()
            self._access.in_use -= 1
            self._gateway.streams.release(self._user)

    async def answer(self, method: str) -> Response:
        if method == "HEAD":
            self.end()
            return Response()
        if self._form == POLL:
            try:
                return await self._poll()
            except BaseException:
                self._give()
                raise
            finally:
                self.end()
        if self._form == NDJSON:
            return live.Stream(
                self._lines(), self.end, media_type="application/x-ndjson",
                headers={"X-Accel-Buffering": "no"},
            )  # fmt: skip
        return live.events(self._events(), self.end)

    # Streams

    async def _events(self) -> AsyncIterator[bytes]:
        yield b"retry: 1000\nid: " + self._subscription.id + b"\n\n"
        async for found in self.pieces():
            match found:
                case None:
                    yield b": still here\nid: " + self._subscription.id + b"\n\n"
                case Lost():
                    yield _event("lost", found.as_json(), self._subscription.id)
                case HeadwaterError():
                    yield _event("error", error_fields(found), b"")
                case _:
                    yield self._encoded(found)

    async def _lines(self) -> AsyncIterator[bytes]:
        async for found in self.pieces():
            match found:
                case None:
                    continue
                case Lost():
                    yield orjson.dumps({"lost": found.as_json()}) + b"\n"
                case HeadwaterError():
                    yield orjson.dumps(error_fields(found)) + b"\n"
                case _:
                    yield self._encoded(found)

    async def pieces(self) -> AsyncIterator["Chunk | Lost | HeadwaterError | None"]:
        """Until the client has what it asked for, the gateway stops, or it cannot go on."""
        subscription = self._subscription
        ends = await subscription.ends() if self._until_end else None
        checked_s = sent_s = time.monotonic()
        while not self._gateway.is_stopping:
            if ends is not None and subscription.has_reached(ends):
                return
            try:
                found = await subscription.next(_HEARTBEAT_S)
                if time.monotonic() - checked_s >= _HEARTBEAT_S:
                    await self._gateway.authentication.check_still_good(caller_of(self._request))
                    checked_s = time.monotonic()
            except HeadwaterError as error:
                yield error
                return
            if isinstance(found, Chunk):
                found = self._limited(found)
                self._gateway.sent += len(found.entries)
                if not found.entries and time.monotonic() - sent_s < _HEARTBEAT_S:
                    continue
                found = found if found.entries else None
            yield found
            sent_s = time.monotonic()
            if self._limit is not None and self._limit <= 0:
                return

    @property
    def position(self) -> str:
        """Behind all that was sent; where a client goes on by `from`."""
        return self._subscription.id.decode()

    def messages(self, chunk: Chunk) -> Iterator[str]:
        """The records of a chunk for a WebSocket, each with the position behind it."""
        for entry in chunk.entries:
            text = b'{"position":"%b","record":%b}' % (entry.id, entry.as_json(self._mode))
            yield text.decode()

    def _limited(self, chunk: Chunk) -> Chunk:
        if self._limit is None:
            return chunk
        if len(chunk.entries) > self._limit:
            chunk = Chunk(chunk.behind, chunk.entries[: self._limit])
        self._limit -= len(chunk.entries)
        return chunk

    def _encoded(self, chunk: Chunk) -> bytes:
        key = (self._form, self._mode)
        found = chunk.encoded.get(key)
        if found is None:
            mode = self._mode
            if self._form == SSE:
                parts = [
                    b"id: %b\ndata: %b\n\n" % (entry.id, entry.as_json(mode))
                    for entry in chunk.entries
                ]
            else:
                parts = [entry.as_json(mode) + b"\n" for entry in chunk.entries]
            found = chunk.encoded[key] = b"".join(parts)
        return found

    # Long polling

    async def _poll(self) -> Response:
        """At once if there are records, else when some come or `wait_s` is over."""
        subscription = self._subscription
        ends = await subscription.ends()
        until_s = time.monotonic() + self._wait_s
        texts: list[bytes] = []
        lost: list[dict[str, Any]] = []
        size_bytes = 0
        identity = subscription.id
        limit = self._limit or _DEFAULT_LIMIT
        while len(texts) < limit and size_bytes < _MAX_POLL_BYTES:
            if subscription.has_reached(ends) and (
                texts or lost or time.monotonic() >= until_s or self._gateway.is_stopping
            ):
                identity = subscription.id
                break
            found = await subscription.next(
                min(1.0, max(0.0, until_s - time.monotonic())) if subscription.has_reached(ends)
                else 1.0
            )  # fmt: skip
            if isinstance(found, Lost):
                lost.append(found.as_json())
            elif found is not None:
                for entry in found.entries:
                    text = entry.as_json(self._mode)
                    self._take(len(text))
                    texts.append(text)
                    size_bytes += len(text)
                    identity = entry.id
                    if len(texts) >= limit or size_bytes >= _MAX_POLL_BYTES:
                        break
                else:
                    identity = subscription.id
        self._gateway.sent += len(texts)
        answer = {
            "records": [orjson.Fragment(text) for text in texts],
            "next": identity.decode(),
            **({"lost": lost} if lost else {}),
        }
        return Counted(orjson.dumps(answer) + b"\n", self._give)

    def _take(self, size_bytes: int) -> None:
        """Raises Refusal if requests hold too much. The text is there twice: alone, and in the
        answer.
        """
        budget = self._gateway.budget
        budget.take_now(2 * size_bytes)
        self._taken_bytes += 2 * size_bytes

    def _give(self) -> None:
        self._gateway.budget.give(self._taken_bytes)
        self._taken_bytes = 0


def _from(request: HTTPConnection, form: str) -> str:
    """Where a browser goes on by itself is stronger than what its page asked for at first."""
    resumed = request.headers.get("last-event-id")
    if resumed:
        return resumed
    return request.query_params.get("from", "start" if form == POLL else "end")


def _event(name: str, data: Any, identity: bytes) -> bytes:
    return live.event(name, data, identity=identity.decode())


ROUTES: Final = [Route("/topics/{topic}", _read, methods=["GET"])]
