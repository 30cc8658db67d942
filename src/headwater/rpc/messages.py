"""What is in the records of requests and replies: a JSON value, and headers.

headwater-id         of the request; a reply has the same
headwater-kind       call, ask (a question to every partition), cancel, reply, error
headwater-reply-to   the partition of the topic of replies
headwater-deadline   milliseconds since 1970: a request is not begun after that
"""

import re
import time
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final

import orjson

from headwater.client.topics import NewTopic
from headwater.errors import UsageError

REPLIES: Final = "__headwater_rpc_replies"
REPLY_PARTITIONS: Final = 16
NEW_REPLIES: Final = NewTopic(REPLIES, REPLY_PARTITIONS, {"retention.ms": "3600000"})
REQUEST_RETENTION_MS: Final = 86_400_000
CALL, ASK, CANCEL, REPLY, ERROR = "call", "ask", "cancel", "reply", "error"
ID, KIND, REPLY_TO, DEADLINE = (
    "headwater-id", "headwater-kind", "headwater-reply-to", "headwater-deadline",
)  # fmt: skip
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_ID: Final = re.compile(r"[!-~]{1,255}")
Headers = list[tuple[str, bytes]]


@dataclass(slots=True)
class Request:
    """One request, as a handler that wants more than the body gets it."""

    name: str
    id: str
    body: Any
    deadline_ms: int
    partition: int
    reply_to: int
    cancelled: Event = field(default_factory=Event)  # set when the caller no longer waits

    @property
    def left_s(self) -> float:
        """Time until nobody waits for the reply; negative if it is over."""
        return self.deadline_ms / 1000 - time.time()


class Unreadable(Exception):
    """A record that is no request or no reply."""


def topic_of(name: str) -> str:
    """Raises UsageError."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name[:100]!r} is no name of a service", hint="letters, digits, '.', '_' and '-'"
        )
    return f"rpc.{name}"


def check_id(text: str) -> str:
    """Raises UsageError."""
    if _ID.fullmatch(text) is None:
        raise UsageError("the id of a request has 1 to 255 visible characters of ASCII")
    return text


def encoded(body: Any) -> bytes:
    """Raises UsageError."""
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise UsageError("this cannot be sent as JSON", detail=str(error)) from None


def request_headers(identity: str, kind: str, reply_to: int, deadline_ms: int) -> Headers:
    return [
        (ID, identity.encode()),
        (KIND, kind.encode()),
        (REPLY_TO, str(reply_to).encode()),
        (DEADLINE, str(deadline_ms).encode()),
    ]


def reply_headers(identity: str, kind: str) -> Headers:
    return [(ID, identity.encode()), (KIND, kind.encode())]


def read_request(name: str, message: Any) -> tuple[str, Request]:
    """Kind and request. Raises Unreadable: anybody may have written the record."""
    headers = _headers(message)
    try:
        kind, identity = headers[KIND], check_id(headers[ID])
        reply_to, deadline_ms = int(headers[REPLY_TO]), int(headers[DEADLINE])
        body = orjson.loads(message.value() or b"null") if kind != CANCEL else None
    except (KeyError, ValueError, UsageError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None
    if kind not in (CALL, ASK, CANCEL) or not 0 <= reply_to < REPLY_PARTITIONS:
        raise Unreadable(f"{KIND} is {kind}, {REPLY_TO} is {reply_to}")
    return kind, Request(name, identity, body, deadline_ms, message.partition(), reply_to)


def read_reply(message: Any) -> tuple[str, str, Any]:
    """Id, kind and body. Raises Unreadable."""
    headers = _headers(message)
    try:
        return headers[ID], headers[KIND], orjson.loads(message.value() or b"null")
    except (KeyError, ValueError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None


def _headers(message: Any) -> dict[str, str]:
    return {
        name: (value or b"").decode("ascii", "replace") for name, value in message.headers() or ()
    }
