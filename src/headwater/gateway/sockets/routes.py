"""GET /topics/T, upgraded to a WebSocket: records of the topic out, records of the client in.

Messages are JSON texts. Out come

    {"position": "0:41"}                        first, and when nothing was sent for a while
    {"position": "0:42", "record": {…}}         a record; `from=0:42` goes on behind it
    {"position": …, "lost": {…}}                what retention has deleted before it was read
    {"error": …, "detail": …, "hint": …}        before the end, if it is an error
    {"id": 7, "written": [{"partition": 0, "offset": 12}]}    the answer to what came in
    {"id": 7, "error": …, "record": 2}          the same, if nothing or not all was written

and in `{"id": 7, "records": [{"key", "value", "headers", …}, …]}`; the id is the client's own, or
missing. A message is answered when its records are durable, and the next one is read then: a client
that sends faster is slowed down by TCP. One that does not take what is sent holds up nobody else,
and is disconnected after 60 s, as with any stream.
"""

import asyncio
import contextlib
from typing import Any, Final

import orjson
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from headwater.errors import HeadwaterError
from headwater.gateway.answers import Refusal, error_fields, failed, status_of
from headwater.gateway.app import gateway_of
from headwater.gateway.callers import READ, WRITE, caller_of
from headwater.gateway.parameters import check_names
from headwater.gateway.reading.feeds import Chunk
from headwater.gateway.reading.routes import PARAMETERS, WEBSOCKET, Reading
from headwater.gateway.reading.subscription import Lost
from headwater.gateway.writing import forms
from headwater.gateway.writing.checks import checked
from headwater.gateway.writing.delivery import delivery_of
from headwater.gateway.writing.forms import BadRecord, Defaults
from headwater.gateway_settings import GatewaySettings

PROTOCOL: Final = "headwater"  # the subprotocol, for clients that ask for one
NOTHING: Final = "none"  # from=none: the client only writes
_MAX_MESSAGE_BYTES: Final = 1 << 20
_NOT_FOR_SOCKETS: Final = frozenset({"format", "until", "wait_s"})
_END, _UNSUPPORTED, _REFUSED, _FAILED = 1000, 1003, 1008, 1011  # RFC 6455, 7.4.1


def max_message_bytes(settings: GatewaySettings) -> int:
    """Of a client's message: it is in memory as a whole before it is counted."""
    return min(settings.max_request_bytes, _MAX_MESSAGE_BYTES)


async def _socket(socket: WebSocket) -> None:
    """Records of a topic to a WebSocket, and records of its client into the topic."""
    exchange = _Exchange(socket)
    try:
        await exchange.begin()
    except HeadwaterError as error:
        await socket.send_denial_response(failed(error))
        return
    offered = socket.scope.get("subprotocols", ())
    try:
        await socket.accept(PROTOCOL if PROTOCOL in offered else None)
        await exchange.run()
    except WebSocketDisconnect:
        pass
    finally:
        exchange.end()


class _Exchange:
    """One WebSocket."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._topic = socket.path_params["topic"]
        self._gateway = gateway_of(socket)
        self._caller = caller_of(socket)
        self._reading: Reading | None = None
        self._is_open = False

    async def begin(self) -> None:
        """Raises what is to be answered instead."""
        query = self._socket.query_params
        is_reader = query.get("from") != NOTHING
        self._caller.require(READ if is_reader else WRITE, self._topic)
        check_names(query, tuple(name for name in PARAMETERS if name not in _NOT_FOR_SOCKETS))
        self._access = self._gateway.access(self._socket)
        if is_reader:
            reading = Reading(self._socket, self._topic, WEBSOCKET)
            await reading.begin()
            self._reading = reading
        else:
            await self._access.topic(self._topic, WRITE)
            self._gateway.streams.acquire(self._caller.name)
            self._access.in_use += 1
        self._is_open = True

    def end(self) -> None:
        if self._reading is not None:
            self._reading.end()
        elif self._is_open:
            self._access.in_use -= 1
            self._gateway.streams.release(self._caller.name)

    async def run(self) -> None:
        """Until the client goes, has what it asked for, or may not go on."""
        tasks = [asyncio.create_task(self._take())]
        if self._reading is not None:
            tasks.append(asyncio.create_task(self._send_records(self._reading)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            with contextlib.suppress(WebSocketDisconnect):
                task.result()

    # Out

    async def _send_records(self, reading: Reading) -> None:
        await self._send({"position": reading.position})
        async for found in reading.pieces():
            match found:
                case None:
                    await self._send({"position": reading.position})
                case Lost():
                    await self._send({"position": reading.position, "lost": found.as_json()})
                case HeadwaterError():
                    await self._send(error_fields(found))
                    is_refused = status_of(found) in (401, 403, 404)
                    await self._socket.close(_REFUSED if is_refused else _FAILED)
                    return
                case Chunk():
                    for text in reading.messages(found):
                        await self._socket.send_text(text)
        await self._socket.close(_END)

    async def _send(self, message: dict[str, Any]) -> None:
        await self._socket.send_text(orjson.dumps(message).decode())

    # In

    async def _take(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:
                await self._send({"error": "messages are JSON texts, not bytes"})
                await self._socket.close(_UNSUPPORTED)
                return
            await self._answer(text.encode())

    async def _answer(self, data: bytes) -> None:
        budget = self._gateway.budget
        await budget.take(len(data))
        identity: dict[str, Any] = {}
        try:
            answer = await self._written(data, identity)
        except BadRecord as bad:
            found = {"error": f"record {bad.line} cannot be taken", "detail": bad.what}
            answer = found | {"record": bad.line, "written": []}
        except HeadwaterError as error:
            answer = {**error_fields(error), "written": []}
        finally:
            budget.give(len(data))
        await self._send({**identity, **answer})

    async def _written(self, data: bytes, identity: dict[str, Any]) -> dict[str, Any]:
        """Raises HeadwaterError. `identity` gets the message's own id as soon as it was read."""
        document = _loaded(data)
        if "id" in document:
            identity["id"] = document.pop("id")
        self._caller.require(WRITE, self._topic)
        await self._gateway.authentication.check_still_good(self._caller)
        topic = await self._access.topic(self._topic, WRITE)
        validation = self._gateway.validation
        check = await validation.check_of(self._topic) if validation is not None else None
        records = [
            checked(number, record, topic, check, self._gateway.personal)
            for number, record in enumerate(
                forms.records_of_body(forms.RECORDS, orjson.dumps(document), Defaults()), 1
            )
        ]
        await self._gateway.store_keys(self._topic)
        limit_bytes = self._gateway.config.gateway.max_request_bytes
        delivered = await delivery_of(self._access, limit_bytes).send(self._topic, records)
        self._gateway.written += delivered.written
        written = [
            {"partition": partition, "offset": offset} if offset >= 0 else None
            for partition, offset in delivered.positions
        ]
        failure = {} if delivered.error is None else error_fields(delivered.error)
        return {**failure, "written": written}


def _loaded(data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Refusal(
            400, "it is not JSON", detail=f"{error.msg} at column {error.colno}"
        ) from None
    if not isinstance(document, dict):
        raise Refusal(400, 'it is not of the form {"id": …, "records": [{"value": …}, …]}')
    return document


ROUTES: Final = [WebSocketRoute("/topics/{topic}", _socket)]
