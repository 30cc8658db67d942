"""The sender of responses to one client: in order, and no faster than it takes them.

A response is bytes with splices in between, the slices of segment files that a fetch found. They
are read piece by piece: from the page cache at once, from the disk in a thread, so that a slow
disk or a slow client holds one piece in memory and delays no other client.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from headwater.protocol.primitives import Out, Splice

CHUNK_BYTES = 256 << 10


class Sender:
    """Writes responses to `transport`, which is set once there is one.

    `read` fills a buffer with a splice's bytes from a position on, in a thread. `fail` is called
    with the reason when a response cannot be sent to its end, `went_on` when a wait for the disk is
    over.
    """

    __slots__ = (
        "_at", "_done_bytes", "_ended", "_fail", "_number", "_out", "_queue", "_read", "_reading",
        "_went_on", "is_writable", "transport",
    )  # fmt: skip

    def __init__(
        self,
        read: Callable[[Splice, memoryview, int], Awaitable[int]],
        fail: Callable[[str], None],
        went_on: Callable[[], None],
    ) -> None:
        self.transport: Any = None
        self.is_writable = True  # the transport takes more
        self._read = read
        self._fail = fail
        self._went_on = went_on
        self._queue: deque[Out] = deque()
        self._out: Out | None = None  # the response with splices that is being sent, and how far:
        self._at = self._number = self._done_bytes = 0  # its own bytes, splices, bytes of this one
        self._reading: asyncio.Task[None] | None = None  # from the disk
        self._ended = False

    @property
    def is_idle(self) -> bool:
        return self._out is None and not self._queue

    @property
    def is_behind(self) -> bool:
        """Whether a response waits for the one before it."""
        return bool(self._queue)

    def send(self, out: Out) -> None:
        """Takes a response; its splices are released when they are sent, or never will be."""
        if self._ended:
            _release(out)
            return
        self._queue.append(out)
        self.flush()

    def end(self) -> None:
        """Nothing is sent any more; what waits is released."""
        self._ended = True
        if self._reading is not None:
            self._reading.cancel()
        for out in self._queue:
            _release(out)
        self._queue.clear()
        if self._out is not None:
            _release(self._out)
            self._out = None

    def flush(self) -> None:
        """Sends what is ready, as far as the client takes it."""
        while self.is_writable and self._reading is None and not self._ended:
            if self._out is not None:
                self._send_on(self._out)
            elif self._queue:
                out = self._queue.popleft()
                if out.splices:
                    self._out, self._at, self._number, self._done_bytes = out, 0, 0, 0
                elif out:
                    self.transport.write(out)
            else:
                return

    def _send_on(self, out: Out) -> None:
        """Sends the next piece of a response, or begins to read it."""
        if self._number == len(out.splices):
            self._out = None
            self.transport.write(memoryview(out)[self._at :])
            return
        position, splice = out.splices[self._number]
        if self._at < position:
            at, self._at = self._at, position
            self.transport.write(memoryview(out)[at:position])
        chunk = memoryview(bytearray(min(CHUNK_BYTES, splice.size_bytes - self._done_bytes)))
        try:
            size_bytes = splice.read_cached(chunk, self._done_bytes)
        except OSError as error:
            self._give_up(f"a segment cannot be read: {error}")
            return
        if size_bytes > 0:
            self._write(out, chunk[:size_bytes])
        else:
            self._reading = asyncio.ensure_future(self._read_from_disk(out, splice, chunk))

    async def _read_from_disk(self, out: Out, splice: Splice, chunk: memoryview) -> None:
        """The page cache does not have it: a thread reads, and sending goes on afterwards."""
        size_bytes, reason = 0, "a segment is shorter than it was"
        try:
            size_bytes = await self._read(splice, chunk, self._done_bytes)
        except OSError as error:
            reason = f"a segment cannot be read: {error}"
        self._reading = None
        if size_bytes <= 0:
            self._give_up(reason)
            return
        self._write(out, chunk[:size_bytes])
        self.flush()
        self._went_on()

    def _write(self, out: Out, chunk: memoryview) -> None:
        """Sends a piece of the splice in turn; after the last one it is released."""
        position, splice = out.splices[self._number]
        self._done_bytes += len(chunk)
        if self._done_bytes == splice.size_bytes:
            out.splices[self._number] = (position, _SENT)
            self._number, self._done_bytes = self._number + 1, 0
            splice.release()
        self.transport.write(chunk)

    def _give_up(self, reason: str) -> None:
        """The length that was announced to the client cannot be sent: only closing is left."""
        self._fail(reason)
        self.end()


class _Sent(Splice):
    """Stands where a splice was that is sent and released."""

    __slots__ = ()
    size_bytes = 0

    def release(self) -> None:
        pass


_SENT = _Sent()


def _release(out: Out) -> None:
    for _, splice in out.splices:
        splice.release()
