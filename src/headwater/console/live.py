"""Server-sent events: a page that is told what is new, instead of asking.

Whatever is slower than the events (a browser on a train) does not pile them up here: the next
event is made when the last one has been taken.
"""

from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.responses import StreamingResponse

HEARTBEAT = b": still here\n\n"  # so that proxies and browsers do not take silence for the end


def event(name: str, data: Any, *, identity: str = "") -> bytes:
    """One event; the data are JSON on one line."""
    head = f"event: {name}\n" + (f"id: {identity}\n" if identity else "")
    return head.encode() + b"data: " + orjson.dumps(data, default=str) + b"\n\n"


def events(source: AsyncIterator[bytes]) -> StreamingResponse:
    headers = {"X-Accel-Buffering": "no"}  # a proxy such as nginx passes each on at once
    return StreamingResponse(source, media_type="text/event-stream", headers=headers)
