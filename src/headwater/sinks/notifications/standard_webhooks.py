"""Standard Webhooks (standardwebhooks.com): how a request is signed, and when it may be repeated.

webhook-id          the same for a repetition
webhook-timestamp   seconds since 1970
webhook-signature   v1,<base64 of HMAC-SHA256 over "id.timestamp.body">, several with spaces
"""

import base64
import hashlib
import hmac
import time
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import Final

from headwater.errors import ConfigError

PREFIX: Final = "whsec_"
_LONGEST_RETRY_AFTER_S: Final = 300.0


def secret_bytes(given: str) -> bytes:
    """whsec_ and base64; any other text is taken literally. Raises ConfigError."""
    if given.startswith(PREFIX):
        try:
            return base64.b64decode(given.removeprefix(PREFIX), validate=True)
        except ValueError as error:
            raise ConfigError("secret: what follows whsec_ is not base64") from error
    return given.encode()


def signature(secret: bytes, identity: str, timestamp: str, body: bytes) -> str:
    signed = f"{identity}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


def signed_headers(identity: str, body: bytes, secrets: Iterable[bytes]) -> dict[str, str]:
    """Of a request that is sent now; one signature for each secret."""
    timestamp = str(int(time.time()))
    headers = {"webhook-id": identity, "webhook-timestamp": timestamp}
    signatures = [f"v1,{signature(secret, identity, timestamp, body)}" for secret in secrets]
    if signatures:
        headers["webhook-signature"] = " ".join(signatures)
    return headers


def retry_after_s(given: str | None) -> float:
    """Of the Retry-After header: seconds or a date; anything else is ignored."""
    if given is None:
        return 0.0
    try:
        wait_s = float(given)
    except ValueError:
        try:
            wait_s = parsedate_to_datetime(given).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(max(0.0, wait_s), _LONGEST_RETRY_AFTER_S)
