"""The end of the event store, read once for all clients that follow it.

One thread waits for new events and puts them into a ring that is bounded by bytes. A client is a
position: what the ring still has it takes from there, anything before it reads from the store
itself. So a client that is slow loses nothing, and a thousand clients are one reader.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from headwater.errors import EventStoreError, EventStoreUnreachable, HeadwaterError
from headwater.events.contract import RecordedEvent
from headwater.events.store import EventStore

_RING_BYTES: Final = 8 << 20
_EVENT_BYTES: Final = 500  # of an event beside its data, in memory
_BATCH: Final = 200
_WAIT_S: Final = 1.0
_PAUSE_S: Final = 1.0

logger = logging.getLogger(__name__)
Read = Callable[[Callable[[EventStore], Any]], Awaitable[Any]]


class _Held(NamedTuple):
    event: RecordedEvent
    size_bytes: int


class Feed:
    """Used on the event loop. It runs while it has clients."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._clients = 0
        self._beginning = asyncio.Lock()
        self._is_over = threading.Event()
        self._is_over.set()
        self._ring: deque[_Held] = deque()
        self._ring_bytes = 0
        self._changed = asyncio.Event()
        self._failure: HeadwaterError | None = None
        self.floor = 0  # the ring has every event behind this position
        self.head = 0

    async def join(self) -> None:
        """Returns when `head` is the end of the store, at the time of the call or later."""
        self._clients += 1
        try:
            async with self._beginning:
                if self._is_over.is_set():
                    await self._begin()
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        self._clients -= 1
        if not self._clients:
            self.stop()

    def stop(self) -> None:
        """From any thread."""
        self._is_over.set()

    def behind(self, position: int) -> Sequence[RecordedEvent]:
        """The events behind a position that is not before the floor."""
        return [held.event for held in self._ring if held.event.position > position]

    def check(self) -> None:
        """Raises EventStoreError if nothing new will come."""
        if self._failure is not None:
            raise EventStoreError(
                "the event store cannot be followed",
                detail=str(self._failure),
                hint="connect again",
            )

    async def wait(self, position: int, timeout_s: float) -> None:
        """Until the head is behind this position, or the time is over."""
        changed = self._changed
        if self.head <= position:
            try:
                async with asyncio.timeout(timeout_s):
                    await changed.wait()
            except TimeoutError:
                pass

    async def _begin(self) -> None:
        store, head = await self._read(lambda store: (store, store.head()))
        self._ring.clear()
        self._ring_bytes = 0
        self.floor = self.head = head
        self._failure = None
        self._changed = asyncio.Event()
        self._is_over = threading.Event()
        threading.Thread(
            target=self._watch,
            args=(store, head, self._is_over, asyncio.get_running_loop()),
            name="gateway-event-feed",
            daemon=True,
        ).start()

    def _watch(
        self,
        store: EventStore,
        head: int,
        is_over: threading.Event,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """In a thread. A database that does not answer is asked again: clients miss nothing."""
        position = head
        while not is_over.is_set():
            try:
                with store.subscribe(after=position) as subscription:
                    while not is_over.is_set():
                        batch = subscription.next_batch(_WAIT_S, _BATCH)
                        if batch and not is_over.is_set():
                            position = batch[-1].position
                            loop.call_soon_threadsafe(self._add, batch, is_over)
            except EventStoreUnreachable as error:
                logger.warning("%s; trying again", error)
                is_over.wait(_PAUSE_S)
            except HeadwaterError as error:
                if not is_over.is_set():
                    loop.call_soon_threadsafe(self._fail, error, is_over)
                return
            except RuntimeError:  # the loop was closed
                return

    def _fail(self, error: HeadwaterError, is_over: threading.Event) -> None:
        if is_over is self._is_over:
            self._failure = error
            is_over.set()  # the next one who joins begins again
            self._changed.set()

    def _add(self, batch: Sequence[RecordedEvent], is_over: threading.Event) -> None:
        if is_over is not self._is_over or is_over.is_set():
            return  # of an earlier thread
        for event in batch:
            size_bytes = len(event.json) + len(event.metadata_json or "") + _EVENT_BYTES
            self._ring.append(_Held(event, size_bytes))
            self._ring_bytes += size_bytes
        while self._ring_bytes > _RING_BYTES and len(self._ring) > 1:
            dropped = self._ring.popleft()
            self._ring_bytes -= dropped.size_bytes
            self.floor = dropped.event.position
        self.head = batch[-1].position
        self._changed.set()
        self._changed = asyncio.Event()
