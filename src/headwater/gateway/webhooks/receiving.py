"""POST /webhooks/NAME: a webhook of others, stored before it is answered, once for each id.

The record has the body as it came, and as headers `webhook-id`, `webhook-received-by` (NAME) and
those that the setting names. It is written with the gateway's own login.
"""

from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.gateway.answers import Refusal, json_answer
from headwater.gateway.app import gateway_of
from headwater.gateway.callers import WRITE
from headwater.gateway.reading.filters import parse_path, value_at
from headwater.gateway.webhooks.verification import verified
from headwater.gateway.writing import once, shards
from headwater.gateway.writing.bodies import Body
from headwater.inspect.record_json import Record
from headwater.subjects.access import PersonalTopics
from headwater.webhook_settings import DELIVERY_ID, WebhookSettings


async def _receive(request: Request) -> Response:
    """Takes a webhook of others ([gateway.webhook.NAME])."""
    gateway = gateway_of(request)
    settings = gateway.config.webhooks.get(request.path_params["name"])
    if settings is None:
        raise Refusal(
            404, "there is no such webhook", hint="[gateway.webhook.NAME] in headwater.toml"
        )
    login = gateway.authentication.require_own_login()
    body = Body(gateway.budget)
    try:
        data = bytes(await body.read(request, settings.max_bytes))
        identity = verified(settings, request.headers, data)
        access = gateway.accesses.of_login(login)
        topic = await access.topic(settings.topic, WRITE)
        wanted = shards.Request(
            once.identity_of(f"webhook:{settings.name}", settings.topic, identity),
            "webhook",  # the id alone decides: a repetition has another time and signature
            settings.topic,
            topic.partitions,
            [_record(settings, request, identity, data, gateway.personal)],
        )
        await gateway.store_keys(settings.topic)
        delivered, is_repeated = await gateway.once.write(wanted)
    finally:
        body.release()
    if not is_repeated:
        gateway.written += delivered.written
    headers = {"Idempotent-Replayed": "true"} if is_repeated else {}
    return json_answer({"id": identity, "stored": True}, headers=headers)


def _record(
    settings: WebhookSettings,
    request: Request,
    identity: str,
    data: bytes,
    personal: PersonalTopics | None,
) -> Record:
    headers = [
        ("webhook-id", identity.encode()),
        ("webhook-received-by", settings.name.encode()),
        *(
            (name.lower(), value.encode("latin-1", "replace"))
            for name in settings.headers
            for value in request.headers.getlist(name)
        ),
    ]
    value = data if personal is None else personal.value(settings.topic, data)
    return Record(_key(settings, identity, data), value, headers)


def _key(settings: WebhookSettings, identity: str, data: bytes) -> bytes | None:
    if settings.key == DELIVERY_ID:
        return identity.encode()
    try:
        found = value_at(orjson.loads(data), parse_path(settings.key))
    except orjson.JSONDecodeError:
        return None
    if isinstance(found, str):
        return found.encode()
    is_plain = isinstance(found, int | float) and not isinstance(found, bool)
    return orjson.dumps(found) if is_plain else None


ROUTES: Final = [Route("/webhooks/{name}", _receive, methods=["POST"])]
