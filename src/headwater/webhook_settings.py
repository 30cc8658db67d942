"""What can be set in [gateway.webhook.NAME]: a webhook of others that the gateway takes. Light."""

from dataclasses import MISSING, dataclass
from typing import Any, Final

from headwater.settings import Secret, SecretKind, integer, list_of, one_of, setting, size, text

STANDARD, GITHUB, STRIPE = "standard", "github", "stripe"
DELIVERY_ID: Final = "id"


def _key(value: Any) -> str:
    found = text(value)
    if found != DELIVERY_ID and not found.startswith("$"):
        raise ValueError('"id", or a path such as "$.data.object.id"')
    return found


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """One [gateway.webhook.NAME] section."""

    name: str
    topic: str = setting(MISSING, text, "Topic that deliveries are stored in.")
    verify: str = setting(
        MISSING,
        one_of(STANDARD, GITHUB, STRIPE),
        "How deliveries are signed: standard (Standard Webhooks), github or stripe.",
    )
    secret: Secret | None = setting(  # noqa: RUF009 (a Secret does not change)
        None, SecretKind(text), "Secret that signs them. Better in `secret_file`."
    )
    secret_file: str | None = setting(
        None,
        text,
        "File with the secret; with several, one on each line, each of them is good. It is read for"
        " each delivery.",
    )
    key: str = setting(
        DELIVERY_ID,
        _key,
        'Key of the records: the delivery\'s id (`id`), or a path in its JSON (`"$.data.id"`);'
        " without a value there, none.",
    )
    headers: tuple[str, ...] = setting(
        (),
        list_of(",", text),
        "HTTP headers that are stored with the record, besides its id. Outside the file: with `,`"
        " between them.",
    )
    tolerance_s: int = setting(
        300,
        integer(1, 86_400),
        "How far the signed time of a delivery may be from ours (standard and stripe).",
    )
    max_bytes: int = setting(1 << 20, size, "Largest body that is taken.")
