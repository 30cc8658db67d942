"""Server-sent events, and the limit of open streams.

A browser that is slower than the events does not fill a buffer here: the next event is made when
the last one has been taken.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import StreamingResponse

from headwater.errors import NotReady

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

HEARTBEAT = b": still here\n\n"  # so that proxies and browsers do not take silence for the end


def event(name: str, data: Any, *, identity: str = "") -> bytes:
    """One event; the data are JSON on one line."""
    head = f"event: {name}\n" + (f"id: {identity}\n" if identity else "")
    return head.encode() + b"data: " + orjson.dumps(data, default=str) + b"\n\n"


class Stream(StreamingResponse):
    """A streamed response. `ended` is called when it has ended, also if the client disconnected
    before the first chunk was made.
    """

    def __init__(
        self,
        source: AsyncIterator[bytes],
        ended: Callable[[], None],
        *,
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(source, media_type=media_type, headers=headers)
        self._ended = ended

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


class DuplexStream(Stream):
    """A streamed response whose source reads the body of the request meanwhile. Starlette's own
    reads it, too, to find out whether the client has gone.
    """

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        try:
            await self.stream_response(send)
        finally:
            self._ended()


def events(source: AsyncIterator[bytes], ended: Callable[[], None]) -> Stream:
    headers = {"X-Accel-Buffering": "no"}  # a proxy such as nginx passes each on at once
    return Stream(source, ended, media_type="text/event-stream", headers=headers)


class StreamLimit:
    """The limit of streams at once: each has a connection to the broker, and some memory.

    A user may open only a part of them, so that none shuts out the others. Without sign-in (the
    user is "") users cannot be distinguished, and only the total is limited.
    """

    def __init__(self, most: int, most_of_user: int, what: str) -> None:
        self._open: Counter[str] = Counter()
        self._most = most
        self._most_of_user = most_of_user
        self._what = what

    @property
    def open_count(self) -> int:
        return self._open.total()

    def acquire(self, user: str) -> None:
        """Raises NotReady."""
        if self.open_count >= self._most:
            raise NotReady(f"{self._most} {self._what} are open", hint="close one, or wait")
        if user and self._open[user] >= self._most_of_user:
            raise NotReady(
                f"{user} has {self._most_of_user} {self._what} open", hint="close one, or wait"
            )
        self._open[user] += 1

    def release(self, user: str) -> None:
        self._open[user] -= 1
        self._open += Counter()  # drops users without open streams
