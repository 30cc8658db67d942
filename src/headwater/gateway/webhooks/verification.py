"""Signatures of webhooks that others send: Standard Webhooks, GitHub, Stripe.

    standard   webhook-id, webhook-timestamp, webhook-signature: v1,BASE64 …
    github     X-GitHub-Delivery, X-Hub-Signature-256: sha256=HEX; no time, and the id is not signed
    stripe     Stripe-Signature: t=SECONDS,v1=HEX,…; the id is that of the event

Every signature is compared with every secret, each in constant time: so a sender may change its
secret without a gap. A time that is too far from ours is refused, after the signature was right.
"""

import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from headwater.errors import ConfigError
from headwater.gateway.answers import Refusal
from headwater.sinks.notifications.standard_webhooks import secret_bytes, signature
from headwater.webhook_settings import GITHUB, STANDARD, WebhookSettings

_MAX_SIGNATURES: Final = 20
_MAX_ID_CHARACTERS: Final = 255


def verified(settings: WebhookSettings, headers: Mapping[str, str], body: bytes) -> str:
    """The id of the delivery. Raises Refusal: 401 for a wrong signature, 400 for a wrong time or
    a delivery without an id; ConfigError.
    """
    secrets = secrets_of(settings)
    if settings.verify == STANDARD:
        identity = headers.get("webhook-id", "")
        timestamp = headers.get("webhook-timestamp", "")
        given = [
            part.removeprefix("v1,")
            for part in headers.get("webhook-signature", "").split()
            if part.startswith("v1,")
        ]
        keys = [secret_bytes(secret) for secret in secrets]
        _check(given, [signature(key, identity, timestamp, body) for key in keys])
        _check_time(timestamp, settings.tolerance_s)
    elif settings.verify == GITHUB:
        text = headers.get("x-hub-signature-256", "")
        given = [text.removeprefix("sha256=")] if text.startswith("sha256=") else []
        _check(given, [_hex(secret, body) for secret in secrets])
        identity = headers.get("x-github-delivery", "")
    else:
        pairs = [
            part.strip().partition("=")[::2]
            for part in headers.get("stripe-signature", "").split(",")
        ]
        timestamp = next((value for name, value in pairs if name == "t"), "")
        given = [value for name, value in pairs if name == "v1"]
        signed = timestamp.encode("latin-1", "replace") + b"." + body
        _check(given, [_hex(secret, signed) for secret in secrets])
        _check_time(timestamp, settings.tolerance_s)
        identity = _event_id(body)
    if not 1 <= len(identity) <= _MAX_ID_CHARACTERS or not identity.isprintable():
        raise Refusal(400, "the delivery has no id")
    return identity


def secrets_of(settings: WebhookSettings) -> list[str]:
    """Raises ConfigError."""
    if settings.secret is not None:
        return [settings.secret.reveal()]
    assert settings.secret_file is not None
    try:
        lines = Path(settings.secret_file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8"
        raise ConfigError(
            f"gateway.webhook.{settings.name}.secret_file cannot be read",
            detail=f"{settings.secret_file}: {reason}",
        ) from error
    secrets = [line.strip() for line in lines if line.strip()]
    if not secrets:
        raise ConfigError(f"gateway.webhook.{settings.name}.secret_file is empty")
    return secrets


def _check(given: Sequence[str], expected: Iterable[str]) -> None:
    is_right = False
    for right in expected:
        for text in given[:_MAX_SIGNATURES]:
            is_right |= hmac.compare_digest(text.encode(errors="replace"), right.encode())
    if not is_right:
        raise Refusal(
            401,
            "the signature is wrong",
            hint="is the secret the sender's, and the body unchanged?",
        )


def _check_time(timestamp: str, tolerance_s: int) -> None:
    if not (timestamp.isascii() and timestamp.isdigit()) or len(timestamp) > 15:
        raise Refusal(400, "the delivery has no time")
    age_s = time.time() - int(timestamp)
    if abs(age_s) > tolerance_s:
        way = "old" if age_s > 0 else "far in the future"
        raise Refusal(
            400,
            f"the delivery is too {way}",
            detail=f"{abs(age_s):.0f} s; {tolerance_s} s are allowed",
        )


def _hex(secret: str, data: bytes) -> str:
    return hmac.new(secret.encode(), data, hashlib.sha256).hexdigest()


def _event_id(body: bytes) -> str:
    try:
        event: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    found = event.get("id") if isinstance(event, dict) else None
    return found if isinstance(found, str) else ""
