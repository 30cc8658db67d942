"""/receivers: webhooks that are sent, over HTTP.

Who may read all topics of a webhook may register it, see it and change it.
"""

from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.errors import HeadwaterError, RequestRefused
from headwater.gateway.answers import Refusal, json_answer
from headwater.gateway.app import Gateway, gateway_of
from headwater.gateway.callers import READ, caller_of
from headwater.gateway.webhooks.administration import Administration
from headwater.gateway.webhooks.definitions import Webhook
from headwater.gateway.webhooks.targets import parse_networks
from headwater.gateway.webhooks.trying import send_test
from headwater.gateway.writing.bodies import Body
from headwater.spelling import nearest

_MAX_BODY_BYTES: Final = 100_000
_PATIENCE_S: Final = 3.0  # a client can ask again
_FIELDS: Final = (
    "name", "url", "topics", "key", "header", "where", "secret", "max_in_flight", "timeout_s",
    "retry_for_s", "from",
)  # fmt: skip


async def _list(request: Request) -> Response:
    """The webhooks that are sent, and how far each is."""
    gateway = gateway_of(request)
    found = await gateway.access(request).call(_administration(gateway).progress)
    seen = [progress for progress in found if await _may(request, progress.webhook)]
    return json_answer({"webhooks": [progress.as_json() for progress in seen]})


async def _add(request: Request) -> Response:
    """Registers a webhook: {"name", "url", "topics", …}. The answer has its secret, once."""
    gateway = gateway_of(request)
    body = Body(gateway.budget)
    try:
        data = bytes(await body.read(request, _MAX_BODY_BYTES))
    finally:
        body.release()
    webhook, begin = _parsed(data, caller_of(request).name)
    await _require(request, webhook)
    allowed = parse_networks(gateway.config.gateway.webhook_allowed_networks)
    added = await gateway.access(request).call(
        _administration(gateway).add, webhook, begin, allowed
    )
    return json_answer({"name": added.name, "secret": added.secrets[0]}, 201)


async def _show(request: Request) -> Response:
    """One webhook that is sent."""
    webhook = await _existing(request)
    gateway = gateway_of(request)
    (progress,) = await gateway.access(request).call(
        _administration(gateway).progress, [webhook.name]
    )
    return json_answer(progress.as_json())


async def _remove(request: Request) -> Response:
    """Removes a webhook; its dead letters stay in their topic."""
    webhook = await _existing(request)
    gateway = gateway_of(request)
    await gateway.access(request).call(_administration(gateway).remove, webhook.name)
    return json_answer({"name": webhook.name})


async def _act(request: Request) -> Response:
    """pause, resume, test or redeliver a webhook."""
    webhook = await _existing(request)
    gateway = gateway_of(request)
    administration = _administration(gateway)
    call = gateway.access(request).call
    match request.path_params["action"]:
        case "pause":
            who = caller_of(request).name or "a request"
            await call(administration.pause, webhook.name, f"paused by {who}")
        case "resume":
            await call(administration.resume, webhook.name)
        case "redeliver":
            count = await call(administration.redeliver, webhook.name)
            return json_answer({"name": webhook.name, "dead_letters": count})
        case "test":
            allowed = parse_networks(gateway.config.gateway.webhook_allowed_networks)
            return json_answer({"name": webhook.name, **await send_test(webhook, allowed)})
        case other:
            raise Refusal(404, f"there is no {other[:50]} of a webhook")
    return json_answer({"name": webhook.name})


def _administration(gateway: Gateway) -> Administration:
    return Administration(
        gateway.config.bootstrap(),
        gateway.authentication.require_own_login(),
        patience_s=_PATIENCE_S,
    )


async def _existing(request: Request) -> Webhook:
    """The answer is the same whether there is none, or the caller may not see it."""
    gateway = gateway_of(request)
    name = request.path_params["name"]
    missing = Refusal(404, f"there is no webhook {name[:64]}")
    try:
        webhook = await gateway.access(request).call(_administration(gateway).one, name)
    except RequestRefused as error:
        raise missing if error.what.startswith("there is no webhook") else error from None
    if not await _may(request, webhook):
        raise missing
    return webhook


async def _require(request: Request, webhook: Webhook) -> None:
    for topic in webhook.topics:
        caller_of(request).require(READ, topic)
        await gateway_of(request).access(request).topic(topic, READ)


async def _may(request: Request, webhook: Webhook) -> bool:
    try:
        await _require(request, webhook)
    except Refusal as refusal:
        return refusal.status == 404 and caller_of(request).token is None  # it was deleted
    except HeadwaterError:
        return False
    return True


def _parsed(data: bytes, owner: str) -> tuple[Webhook, str]:
    """Raises Refusal."""
    try:
        given: Any = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, "the body is no JSON", detail=str(error)) from None
    if not isinstance(given, dict):
        raise Refusal(400, "the body is no JSON object", hint='{"name", "url", "topics"}')
    for name in given:
        if name not in _FIELDS:
            meant = nearest(name, list(_FIELDS))
            raise Refusal(
                400,
                f"unknown field {name[:100]!r}",
                hint=f"did you mean {meant}?" if meant else f"there are {', '.join(_FIELDS)}",
            )
    filter_ = [("key", given["key"])] if "key" in given else []
    for name in ("header", "where"):
        filter_ += [(name, text) for text in _texts(given, name)]
    secret = given.get("secret")
    numbers = {
        name: given[name] for name in ("max_in_flight", "timeout_s", "retry_for_s") if name in given
    }
    for name, number in numbers.items():
        kinds = int if name == "max_in_flight" else (int, float)
        if isinstance(number, bool) or not isinstance(number, kinds):
            raise Refusal(400, f"{name} is a number")
    texts = [given.get("name"), given.get("url"), given.get("from", "end"), secret or "", *(
        value for _, value in filter_
    )]  # fmt: skip
    if not all(isinstance(text, str) for text in texts):
        raise Refusal(400, "name, url, key, secret and from are texts")
    webhook = Webhook(
        given["name"],
        given["url"],
        tuple(_texts(given, "topics")),
        tuple(filter_),
        () if secret is None else (secret,),
        owner=owner,
        **numbers,
    )
    return webhook, given.get("from", "end")


def _texts(given: dict[str, Any], name: str) -> list[str]:
    """A text stands for a list with it alone."""
    value = given.get(name, [])
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        raise Refusal(400, f"{name} is a list of texts")
    return values


ROUTES: Final = [
    Route("/receivers", _list, methods=["GET"]),
    Route("/receivers", _add, methods=["POST"]),
    Route("/receivers/{name}", _show, methods=["GET"]),
    Route("/receivers/{name}", _remove, methods=["DELETE"]),
    Route("/receivers/{name}/{action}", _act, methods=["POST"]),
]
