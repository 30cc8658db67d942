"""GET /live/T: a live query, as server-sent events."""

from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.errors import HeadwaterError
from headwater.gateway.access import Access
from headwater.gateway.answers import Refusal
from headwater.gateway.app import Gateway, gateway_of
from headwater.gateway.callers import READ, Caller, caller_of
from headwater.gateway.live import events, queries
from headwater.gateway.live.subscription import Subscription
from headwater.gateway.live.tables import tables_of
from headwater.gateway.parameters import check_names
from headwater.gateway.reading.schemas import schemas_of
from headwater.gateway.tables import derived
from headwater.web import live

_PARAMETERS: Final = (*queries.PARAMETERS, "from")


async def _live(request: Request) -> Response:
    """Rows of a table, and then every change of them, as server-sent events."""
    topic = request.path_params["table"]
    gateway, caller = gateway_of(request), caller_of(request)
    caller.require(READ, topic)
    check_names(request.query_params, _PARAMETERS)
    query = queries.parse(request.query_params)
    access = gateway.access(request)
    mark = request.headers.get("last-event-id") or request.query_params.get("from", "")
    own = gateway.config.client if gateway.authentication.has_own_login else access.login
    tables = tables_of(access, gateway.live_memory, own)
    schemas = schemas_of(gateway.config, access, topic)
    subscription = Subscription(access, tables, topic, query, schemas)
    gateway.streams.acquire(caller.name)
    access.in_use += 1

    def end() -> None:
        subscription.close()
        access.in_use -= 1
        gateway.streams.release(caller.name)

    try:
        await subscription.begin()
    except Refusal as refusal:
        end()
        if refusal.status == 404:
            await _refuse_derived(gateway, access, topic)
        raise
    except BaseException:
        end()
        raise
    return live.events(_sent(gateway, caller, subscription, mark), end)


async def _sent(
    gateway: Gateway, caller: Caller, subscription: Subscription, mark: str
) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    counted = 0
    try:
        async for part in subscription.events(mark):
            if part is None:
                await gateway.authentication.check_still_good(caller)
                continue
            yield part
            gateway.sent += subscription.sent - counted
            counted = subscription.sent
    except HeadwaterError as error:
        yield events.failure(error)


async def _refuse_derived(gateway: Gateway, access: Access, name: str) -> None:
    """Raises Refusal if it is a table of a database, of which nobody tells us the changes. For who
    has no right to see it there is no such topic, and that is the answer.
    """
    table = await access.call(derived.find, gateway.config, name, None)
    if table is None:
        return
    for topic in table.topics:
        await access.topic(topic, READ)
    raise Refusal(
        409,
        f"table {name} is in the database of sink {table.sink}, which has no stream of its changes",
        hint='write it to a topic, too: into = "topic" for a view, or a second'
        " flow.write(…) to a sink of kind topic, with a key; GET /tables/ reads it as it is",
    )


ROUTES: Final = [Route("/live/{table}", _live, methods=["GET"])]
