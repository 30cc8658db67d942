"""Server-sent events: a page that is told what is new, instead of asking.

Whatever is slower than the events (a browser on a train) does not pile them up here: the next
event is made when the last one has been taken.
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
    """An answer that lasts. `ended` is called when it has ended, also if whoever asked was gone
    before the first of it was made.
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


def events(source: AsyncIterator[bytes], ended: Callable[[], None]) -> Stream:
    headers = {"X-Accel-Buffering": "no"}  # a proxy such as nginx passes each on at once
    return Stream(source, ended, media_type="text/event-stream", headers=headers)


class Places:
    """So many answers that last, at once: each has a connection to the broker, and some memory.

    A user has a part of them, so that nobody shuts out the others. Where nobody signs in (the user
    is "") there are no users to tell apart.
    """

    def __init__(self, most: int, most_of_user: int, what: str) -> None:
        self._taken: Counter[str] = Counter()
        self._most = most
        self._most_of_user = most_of_user
        self._what = what

    @property
    def taken(self) -> int:
        return self._taken.total()

    def take(self, user: str) -> None:
        """Raises NotReady."""
        if self.taken >= self._most:
            raise NotReady(f"{self._most} {self._what} are open", hint="close one, or wait")
        if user and self._taken[user] >= self._most_of_user:
            raise NotReady(
                f"{user} has {self._most_of_user} {self._what} open", hint="close one, or wait"
            )
        self._taken[user] += 1

    def leave(self, user: str) -> None:
        self._taken[user] -= 1
        self._taken += Counter()  # without those who have none
