"""The event store for asyncio: the same calls, awaited. Threads of its own wait for the database,
so the event loop does not; appends that are awaited at the same time share a commit.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar

from headwater.events.contract import ANY, Appended, Condition, RecordedEvent, StreamWrite
from headwater.events.store import EventStore, open_store

_T = TypeVar("_T")
_THREADS: Final = 16
_WAITING_THREADS: Final = 16
_PAGE: Final = 500
_WAIT_S: Final = 0.25


class AsyncEventStore:
    """Wraps a store, and closes it with itself."""

    def __init__(self, store: EventStore) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(_THREADS, "headwater-events")
        # Subscriptions wait most of the time; appends and reads shall not wait for them.
        self._waiting = ThreadPoolExecutor(_WAITING_THREADS, "headwater-events-waiting")

    async def append(
        self,
        stream: str,
        events: Sequence[Any],
        *,
        expected: int = ANY,
        condition: Condition | None = None,
        command_id: str | None = None,
    ) -> Appended:
        write = StreamWrite(stream, events, expected)
        return await self.append_all([write], condition=condition, command_id=command_id)

    async def append_all(
        self,
        writes: Sequence[StreamWrite],
        *,
        condition: Condition | None = None,
        command_id: str | None = None,
    ) -> Appended:
        """It is not cancelled half-way: a cancelled caller does not know whether it happened, and
        can repeat it with the same events.
        """
        return await self._in_thread(
            lambda: self.store.append_all(writes, condition=condition, command_id=command_id)
        )

    async def read(self, **selection: Any) -> AsyncIterator[RecordedEvent]:
        """As EventStore.read."""
        # In a thread from the beginning: a time is looked up in the database.
        events = await self._in_thread(lambda: self.store.read(**selection))

        def page() -> list[RecordedEvent]:
            return [event for event, _ in zip(events, range(_PAGE), strict=False)]

        while batch := await self._in_thread(page):
            for event in batch:
                yield event

    async def subscribe(self, **selection: Any) -> AsyncIterator[RecordedEvent]:
        """As EventStore.subscribe: leave the loop to end it."""
        subscription = self.store.subscribe(**selection)
        try:
            while True:
                loop = asyncio.get_running_loop()
                for event in await loop.run_in_executor(
                    self._waiting, subscription.next_batch, _WAIT_S, _PAGE
                ):
                    yield event
        finally:
            subscription.close()

    async def head(self) -> int:
        return await self._in_thread(self.store.head)

    async def version(self, stream: str) -> int:
        return await self._in_thread(lambda: self.store.version(stream))

    async def call(self, function: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        """Anything that waits for the store, such as a handler of commands, in a thread."""
        return await self._in_thread(lambda: function(*arguments, **options))

    async def close(self) -> None:
        for threads in (self._waiting, self._threads):
            await asyncio.to_thread(threads.shutdown)
        self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _in_thread(self, function: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


async def open_async_store(url: str, **options: Any) -> AsyncEventStore:
    """As `open_store`."""
    return AsyncEventStore(await asyncio.to_thread(lambda: open_store(url, **options)))
