"""A test message to a webhook's receiver, from here and at once, signed as all others."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import orjson

from headwater.gateway.webhooks.definitions import Webhook
from headwater.gateway.webhooks.posting import NoAnswer, Poster
from headwater.gateway.webhooks.targets import ForbiddenTarget, Network, parse_target
from headwater.sinks.notifications.standard_webhooks import secret_bytes, signed_headers


async def send_test(webhook: Webhook, allowed: Sequence[Network]) -> dict[str, Any]:
    """What the receiver answered. Raises nothing of the receiver's."""
    body = orjson.dumps({"test": True, "webhook": webhook.name, "topics": webhook.topics})
    identity = f"msg_test_{uuid4().hex}"
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "headwater",
        "Headwater-Webhook": webhook.name,
        **signed_headers(identity, body, map(secret_bytes, webhook.secrets)),
    }
    poster = Poster(parse_target(webhook.url), allowed, webhook.timeout_s)
    began_s = time.monotonic()
    try:
        answer = await poster.post(body, headers)
    except (NoAnswer, ForbiddenTarget) as error:
        return {"delivered": False, "status": None, "error": str(error), "id": identity}
    finally:
        poster.close()
    return {
        "delivered": 200 <= answer.status < 300,
        "status": answer.status,
        "error": "" if 200 <= answer.status < 300 else f"answered {answer.status}: {answer.text}",
        "id": identity,
        "took_ms": round((time.monotonic() - began_s) * 1000),
    }


def send_test_now(webhook: Webhook, allowed: Sequence[Network]) -> dict[str, Any]:
    """Blocks."""
    return asyncio.run(send_test(webhook, allowed))
