"""Notices of alerts: `log`, `webhook:https://…` and `mailto:name@host`.

A webhook gets a POST of {"alert", "event", "when", "value", "at_ms", "text", …} with a webhook-id,
the same for each attempt. The address is the operator's own setting, so it may be anywhere.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

import orjson

from headwater.alert_settings import AlertSettings
from headwater.config import Config
from headwater.errors import HeadwaterError
from headwater.gateway.alerts.rules import FIRED, sentence
from headwater.gateway.webhooks.posting import NoAnswer, Poster
from headwater.gateway.webhooks.targets import ForbiddenTarget, parse_networks, parse_target
from headwater.sinks.notifications.standard_webhooks import signed_headers

log = logging.getLogger(__name__)

_EVERYWHERE: Final = parse_networks(["0.0.0.0/0", "::/0"])
_TIMEOUT_S: Final = 10.0


async def send(config: Config, alert: AlertSettings, to: str, event: Mapping[str, Any]) -> str:
    """Why it has not arrived; "" if it has."""
    if to == "log":
        level = logging.WARNING if event["event"] == FIRED else logging.INFO
        log.log(level, "%s", sentence(event))
        return ""
    kind, _, address = to.partition(":")
    if kind == "webhook":
        return await _post(address, event)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, _mail, config, alert, address, event)


async def _post(url: str, event: Mapping[str, Any]) -> str:
    body = orjson.dumps({**event, "text": sentence(event)})
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "headwater",
        **signed_headers(f"msg_{event['id']}", body, ()),
    }
    try:
        poster = Poster(parse_target(url), _EVERYWHERE, _TIMEOUT_S)
        try:
            answer = await poster.post(body, headers)
        finally:
            poster.close()
    except (NoAnswer, ForbiddenTarget, HeadwaterError) as error:
        return str(error)
    return "" if 200 <= answer.status < 300 else f"answered {answer.status}: {answer.text}"


def _mail(config: Config, alert: AlertSettings, to: str, event: Mapping[str, Any]) -> str:
    import pyarrow as pa

    from headwater.sinks.contract import Log, Target
    from headwater.sinks.notifications.delivery import Message, TryAgain
    from headwater.sinks.notifications.email import EmailStore

    settings = config.sinks[alert.mail or ""]
    options = {"to": to, "subject": "{subject}", "body": "{body}"}
    target = Target(f"alert {alert.name}", "alerts", (), options)
    text = sentence(event)
    rows = pa.table({"subject": [f"[headwater] {text}"], "body": [f"{text}\n"]})
    try:
        store = EmailStore(settings, target, Log(config.bootstrap(), config.client))
        sender = store.sender(rows.schema)
        try:
            refused = sender.send(Message(str(event["id"]), [b"{}"], rows))
        finally:
            sender.close()
    except (TryAgain, HeadwaterError) as error:
        return str(error)
    return str(refused[0]) if refused else ""
