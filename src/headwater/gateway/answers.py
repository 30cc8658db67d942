"""Answers of the gateway: JSON, and every error as {"error", "detail", "hint"} with its status."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response

from headwater.errors import (
    BrokerUnreachable,
    ConfigError,
    EventRefused,
    EventStoreUnreachable,
    HeadwaterError,
    KeyStoreError,
    NotReady,
    PersonalDataRefused,
    RequestRefused,
    StoreUnreachable,
    UsageError,
)

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

JSON: Final = "application/json"
_RETRY_S: Final = 1
_UNREACHABLE: Final = (
    BrokerUnreachable,
    KeyStoreError,
    NotReady,
    StoreUnreachable,
    EventStoreUnreachable,
)


class Refusal(HeadwaterError):
    """A request that is refused: with this status, these headers, and more fields in its answer."""

    def __init__(
        self,
        status: int,
        what: str,
        *,
        detail: str = "",
        hint: str = "",
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(what, detail=detail, hint=hint)
        self.status = status
        self.headers = dict(headers or {})
        self.fields = dict(fields or {})


class Counted(Response):
    """An answer in JSON whose bytes count until it was sent."""

    def __init__(self, body: bytes, sent: Callable[[], None]) -> None:
        super().__init__(body, media_type=JSON)
        self._sent = sent

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._sent()


def json_answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE)
    return Response(body, status, headers, media_type=JSON)


def failed(error: HeadwaterError) -> Response:
    """The answer for an error; empty parts are left out."""
    headers: dict[str, str] = {}
    fields: Mapping[str, Any] = {}
    status = status_of(error)
    if isinstance(error, Refusal):
        headers, fields = error.headers, error.fields
    elif status == 503:
        headers = {"Retry-After": str(_RETRY_S)}
    return json_answer({**error_fields(error), **fields}, status, headers)


def error_fields(error: HeadwaterError) -> dict[str, str]:
    parts = {"error": error.what, "detail": error.detail, "hint": error.hint}
    return {name: text for name, text in parts.items() if text}


def status_of(error: HeadwaterError) -> int:
    if isinstance(error, Refusal):
        return error.status
    if isinstance(error, _UNREACHABLE):
        return 503
    if isinstance(error, PersonalDataRefused):
        return 400
    if isinstance(error, RequestRefused):
        said = f"{error.what} {error.detail}"
        if "AUTHORIZATION" in said or "no right to" in said:
            return 403
        if error.what.startswith("there is no topic") or "UNKNOWN_TOPIC" in said:
            return 404
        if "TOO_LARGE" in said:
            return 413
        return 409
    if isinstance(error, UsageError | EventRefused):
        return 400
    if isinstance(error, ConfigError):
        return 500  # a mistake of who runs the gateway
    return 500
