"""Bodies of requests, as a whole or line by line, bounded by bytes.

All bytes that requests hold in memory count in one `Budget`. A body that is read as a whole is
refused if there is no room for it; a stream of lines waits, and so does its client.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from starlette.requests import ClientDisconnect, Request

from headwater.gateway.answers import Refusal
from headwater.gateway.budget import Budget

_DRAINED_BYTES: Final = 8 << 20
_DRAIN_S: Final = 2.0


class Body:
    """A body as a whole; its bytes count until `release`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._taken_bytes = 0
        self.data = bytearray()

    async def read(self, request: Request, max_bytes: int) -> bytearray:
        """Raises Refusal if it is longer, or there is no room."""
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > max_bytes:
            raise _too_long(max_bytes)
        async for chunk in request.stream():
            if len(self.data) + len(chunk) > max_bytes:
                raise _too_long(max_bytes)
            self._budget.take_now(len(chunk))
            self._taken_bytes += len(chunk)
            self.data += chunk
        return self.data

    def release(self) -> None:
        self._budget.give(self._taken_bytes)
        self._taken_bytes = 0


async def line_chunks(request: Request, max_line_bytes: int) -> AsyncIterator[list[bytes]]:
    """The lines of a body without their ends, as they come: a stream that trickles is not delayed.
    The last may lack its end. Raises Refusal at a line that is too long.
    """
    begun = bytearray()  # the line whose end has not come yet
    async for chunk in request.stream():
        *whole, last = chunk.split(b"\n")
        if whole:
            begun += whole[0]
            whole[0] = bytes(begun)
            begun = bytearray()
            yield whole
        begun += last
        if len(begun) > max_line_bytes:
            raise Refusal(413, f"a line has more than {max_line_bytes:,} bytes")
    if begun:
        yield [bytes(begun)]


async def drain(request: Request) -> None:
    """Takes some more of a body whose request is refused: a client that still sends would lose the
    answer with the connection. Not all of it, and not for long.
    """
    left_bytes = _DRAINED_BYTES
    with suppress(ClientDisconnect, TimeoutError, RuntimeError):
        async with asyncio.timeout(_DRAIN_S):
            async for chunk in request.stream():
                left_bytes -= len(chunk)
                if left_bytes <= 0:
                    return


def _too_long(max_bytes: int) -> Refusal:
    return Refusal(
        413,
        f"the body has more than {max_bytes:,} bytes",
        hint="lines (application/x-ndjson) may be a stream of any length;"
        " gateway.max_request_bytes allows more at once",
    )
