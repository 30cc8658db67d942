"""POST /rpc/NAME: a request to a service, and its reply. POST /rpc/NAME/ask: a question to all
partitions that a service answers for, and the answers.

The gateway calls with its own login, after the broker has said that the caller may write to the
topic of requests: replies of all callers are in one topic, which users need not be able to read.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.errors import CallFailed, CallTimedOut
from headwater.gateway.access import Access
from headwater.gateway.answers import Refusal, json_answer
from headwater.gateway.app import gateway_of
from headwater.gateway.callers import WRITE, caller_of
from headwater.gateway.parameters import check_names, seconds
from headwater.gateway.writing.bodies import Body
from headwater.rpc import api
from headwater.rpc.caller import Caller
from headwater.rpc.messages import topic_of

_PARAMETERS: Final = ("timeout_s",)
_TIMEOUT_S: Final = 30.0
_MAX_TIMEOUT_S: Final = 300.0


class Calls:
    """The caller of the gateway, made with its first call."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._caller: Caller | None = None
        self._making = asyncio.Lock()

    def stop(self) -> None:
        """Calls under way get their replies."""

    def close(self) -> None:
        if self._caller is not None:
            self._caller.close()

    async def caller(self) -> Caller:
        async with self._making:
            if self._caller is None:
                self._caller = await self._access.call(
                    Caller, self._access.bootstrap, self._access.login
                )
        return self._caller


async def _call(request: Request) -> Response:
    """A request to a service (`headwater rpc serve`), and its reply; timeout_s."""
    name, who = request.path_params["name"], caller_of(request)
    request_id = _id(request, who.name, name)

    async def call(caller: Caller, body: Any, timeout_s: float) -> Any:
        return await api.awaited(caller, name, body, timeout_s=timeout_s, request_id=request_id)

    return await _replied(request, name, call)


async def _ask(request: Request) -> Response:
    """A question to all partitions of a service: the list of their answers; timeout_s."""
    name = request.path_params["name"]

    async def ask(caller: Caller, body: Any, timeout_s: float) -> Any:
        return await api.asked(caller, name, body, timeout_s=timeout_s)

    return await _replied(request, name, ask)


async def _replied(
    request: Request, name: str, send: Callable[[Caller, Any, float], Awaitable[Any]]
) -> Response:
    check_names(request.query_params, _PARAMETERS)
    timeout_s = seconds(request.query_params, "timeout_s", _TIMEOUT_S, _MAX_TIMEOUT_S)
    gateway, who = gateway_of(request), caller_of(request)
    topic = topic_of(name)
    who.require(WRITE, topic)
    try:
        await gateway.access(request).topic(topic, WRITE)
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        raise Refusal(
            404, f"there is no service {name}", hint=f"`headwater rpc serve {name} …`"
        ) from None
    own = gateway.accesses.of_login(gateway.authentication.require_own_login())
    held = Body(gateway.budget)
    own.in_use += 1
    try:
        body = _parsed(await held.read(request, gateway.config.gateway.max_request_bytes))
        caller = await own.part(Calls, lambda: Calls(own)).caller()
        reply = await _while_connected(request, send(caller, body, timeout_s))
    except CallFailed as error:
        raise Refusal(502, error.what, detail=error.detail, hint=error.hint) from None
    except CallTimedOut as error:
        raise Refusal(504, error.what, detail=error.detail, hint=error.hint) from None
    finally:
        held.release()
        own.in_use -= 1
    return json_answer(reply)


async def _while_connected(request: Request, awaited: Any) -> Any:
    """A client that is gone cancels its request."""
    calling = asyncio.ensure_future(awaited)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((calling, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not calling.done():
            raise Refusal(499, "the client is gone")
        return calling.result()
    finally:
        for task in (calling, leaving):
            task.cancel()
        await asyncio.gather(calling, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _id(request: Request, who: str, name: str) -> str | None:
    """An idempotency key is the caller's own: others with the same one are not meant."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= 255:
        raise Refusal(400, "an Idempotency-Key has 1 to 255 characters")
    return hashlib.blake2b(f"{who}\n{name}\n{key}".encode(), digest_size=24).hexdigest()


def _parsed(data: bytearray) -> Any:
    try:
        return orjson.loads(data or b"null")
    except orjson.JSONDecodeError as error:
        raise Refusal(400, "the request is not JSON", detail=str(error)) from None


ROUTES: Final = [
    Route("/rpc/{name}", _call, methods=["POST"]),
    Route("/rpc/{name}/ask", _ask, methods=["POST"]),
]
