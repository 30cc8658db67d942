"""Webhooks: rows as JSON by POST to an HTTP address, each request with an idempotency key.

At least once (delivery.py):

    POST /path
    Content-Type: application/json
    Idempotency-Key: 5b0c…            and webhook-id, webhook-timestamp, webhook-signature as
    Headwater-Target: orders          Standard Webhooks has them (standardwebhooks.com)

    {"id": 1, "total": "9.90", "_op": "u"}        or an array, if rows_per_request is set

    2xx              delivered
    408, 425, 429, 5xx, no answer   retried; Retry-After is honoured
    401, 403, 404, 405, 410, 3xx    the address or the credentials are wrong: StoreRefused
    any other 4xx    the rows are wrong: RowRefused; rows that came together are tried one by one
"""

import base64
import http.client
import ssl
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa

from headwater.errors import ConfigError, RowRefused, StoreRefused, StoreUnreachable
from headwater.sinks.contract import Log, Target
from headwater.sinks.notifications.delivery import (
    DeliveryStore,
    Message,
    Sender,
    TryAgain,
    number_of,
    password_of,
    refuse_clear_credentials,
    split_address,
    tls_context,
    untrusted,
)
from headwater.sinks.notifications.standard_webhooks import (
    retry_after_s,
    secret_bytes,
    signed_headers,
)
from headwater.sinks.rows.row_validation import shown
from headwater.sinks.settings import SinkSettings

OPTIONS: Final = ("secret", "bearer_token", "rows_per_request", "timeout_s", "tls_ca")
TARGET_OPTIONS: Final = ("rows_per_request",)

_LATER: Final = (408, 425, 429)
_NOT_OURS: Final = (401, 403, 404, 405, 407, 410)
_SHOWN_BYTES: Final = 300
_COMMIT_EVERY_S: Final = 0.1


class WebhookStore(DeliveryStore):
    kind = "webhook"

    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        super().__init__(settings, target, log)
        _Webhook(settings, target)  # raises at once if the settings are wrong

    def check(self) -> None:
        """Connects, and sends nothing."""
        super().check()
        webhook = _Webhook(self.settings, self.target)
        try:
            webhook.connect()
        except ssl.SSLCertVerificationError as error:
            raise untrusted(webhook.address, error) from error
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnreachable(
                f"{webhook.address} does not answer", detail=str(error)
            ) from error
        finally:
            webhook.close()

    def sender(self, fields: pa.Schema | None) -> Sender:
        return _Webhook(self.settings, self.target)


class _Webhook(Sender):
    commit_every_s = _COMMIT_EVERY_S

    def __init__(self, settings: SinkSettings, target: Target) -> None:
        url = split_address(
            f"sink {settings.name}",
            settings.url.reveal() if settings.url is not None else "",
            ("http", "https"),
            'url = "https://host/path" is the address that is posted to',
        )
        assert url.hostname is not None
        options = {**settings.options, **target.options}
        self.address = f"{url.scheme}://{url.hostname}:{url.port or ''}".rstrip(":")
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._path = quote(path, safe="/?%:@!$&'()*+,;=~")
        self.rows_per_message = int(number_of(options, "rows_per_request", "1", 1))
        self._is_array = "rows_per_request" in options
        timeout_s = number_of(options, "timeout_s", "10", 0.001)
        self._secrets = [secret_bytes(options["secret"])] if "secret" in options else []
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": "headwater",
            "Headwater-Target": quote(target.name, safe=" /"),
        }
        if "bearer_token" in options:
            if not options["bearer_token"].isascii() or not options["bearer_token"].isprintable():
                raise ConfigError(
                    f"sink {settings.name}: bearer_token has characters that no header can have"
                )
            self._headers["Authorization"] = f"Bearer {options['bearer_token']}"
        elif url.username is not None:
            password = password_of(settings, url.password)
            pair = f"{unquote(url.username)}:{password}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        if "Authorization" in self._headers and url.scheme == "http":
            refuse_clear_credentials(
                f"sink {settings.name}", url.hostname, "https:// encrypts it; `secret` only signs"
            )
        self._connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(
                url.hostname,
                url.port,
                timeout=timeout_s,
                context=tls_context(options.get("tls_ca")),
            )
            if url.scheme == "https"
            else http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)
        )

    def connect(self) -> None:
        self._connection.connect()

    def close(self) -> None:
        self._connection.close()

    def send(self, message: Message) -> list[RowRefused]:
        status, answer = self._post(message.key, message.texts)
        if status is None:
            return []
        if len(message.texts) == 1:
            return [self._refused(message.rows, 0, status, answer)]
        refused = []
        for at, text in enumerate(message.texts):
            status, answer = self._post(f"{message.key}-{at}", [text])
            if status is not None:
                refused.append(self._refused(message.rows, at, status, answer))
        return refused

    def _post(self, key: str, texts: Sequence[bytes]) -> tuple[int | None, str]:
        """None if it is delivered; otherwise the status of a permanent refusal, and its text."""
        body = b"[" + b",".join(texts) + b"]" if self._is_array else texts[0]
        headers = {
            **self._headers,
            "Idempotency-Key": key,
            **signed_headers(key, body, self._secrets),
        }
        try:
            self._connection.request("POST", self._path, body, headers)
            answer = self._connection.getresponse()
            status, content = answer.status, answer.read(_SHOWN_BYTES)
            if answer.read(1):
                self._connection.close()  # the rest of a long answer is not waited for
        except ssl.SSLCertVerificationError as error:
            raise untrusted(self.address, error) from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise TryAgain(f"{self.address}: {type(error).__name__}: {error}") from error
        text = content.decode(errors="replace").strip()
        if 200 <= status < 300:
            return None, ""
        if status in _LATER or status >= 500:
            raise TryAgain(
                f"{self.address} answered {status}: {text}",
                retry_after_s(answer.getheader("Retry-After")),
            )
        if status < 400 or status in _NOT_OURS:
            raise StoreRefused(
                f"{self.address} answered {status}",
                detail=answer.getheader("Location") or text,
                hint="are url, secret and token of the sink right?",
            )
        return status, text

    def _refused(self, rows: pa.Table, at: int, status: int, answer: str) -> RowRefused:
        return RowRefused(
            f"{self.address} refuses a row with {status}",
            row=shown(rows.slice(at, 1))[0],
            detail=answer,
        )
