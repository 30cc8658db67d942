"""The event store of `events.store`, opened when it is first asked for, and threads for its calls.

Calls of the store wait for a database, up to a minute where a file is locked. They have threads of
their own, so that neither the event loop nor what other routes do in threads waits for it; reads
and appends do not take each other's.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from headwater.config import Config
from headwater.errors import EventStoreMissing
from headwater.events.commands.replay import Deciders
from headwater.events.store import EventStore, open_store
from headwater.gateway.answers import Refusal
from headwater.gateway.events.feed import Feed
from headwater.subjects.access import PersonalTopics

_T = TypeVar("_T")
_APPENDS: Final = 16  # at the same time; they share commits
_READS: Final = 8


class OpenedStore:
    """For the event loop; what it is given to do runs in threads."""

    def __init__(self, config: Config, personal: PersonalTopics | None) -> None:
        self._url = config.events.store
        self._personal = personal
        self._appends = ThreadPoolExecutor(_APPENDS, thread_name_prefix="gateway-event-appends")
        self._reads = ThreadPoolExecutor(_READS, thread_name_prefix="gateway-event-reads")
        self._lock = threading.Lock()
        self._store: EventStore | None = None
        self.deciders = Deciders(config.events.deciders, config.base)
        self.feed = Feed(self.read)

    async def read(self, action: Callable[[EventStore], _T]) -> _T:
        """Raises Refusal if there is no store, and what the action does."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reads, lambda: action(self._opened(create=False)))

    async def append(self, action: Callable[[EventStore], _T]) -> _T:
        """The first append creates the store."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._appends, lambda: action(self._opened(create=True)))

    def stop(self) -> None:
        """From any thread."""
        self.feed.stop()

    def close(self) -> None:
        self.feed.stop()
        for threads in (self._appends, self._reads):
            threads.shutdown(wait=False, cancel_futures=True)
        if self._store is not None:
            self._store.close()

    def _opened(self, *, create: bool) -> EventStore:
        if self._url is None:
            raise Refusal(
                404,
                "this gateway has no event store",
                hint='[events] store = "sqlite:///events.db" in headwater.toml names one',
            )
        with self._lock:
            if self._store is None:
                try:
                    # Over HTTP personal fields are written, and never read in plain text.
                    self._store = open_store(
                        self._url.reveal(), create=create, personal=self._personal, decrypts=False
                    )
                except EventStoreMissing:
                    raise Refusal(
                        404, "the event store is empty", hint="the first append creates it"
                    ) from None
            return self._store
