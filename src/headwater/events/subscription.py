"""A subscription: the events behind a position, and then every new one as it is committed.

It has a connection of its own, on which it waits. It reads before it waits and after each wait;
because positions have no gaps and become visible in their order, it only has to remember the last
position that it has read.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from headwater.errors import EventStoreUnreachable
from headwater.events.contract import RecordedEvent, Selection
from headwater.events.databases.session import EventDatabase, Session
from headwater.events.event_types import EventTypes
from headwater.events.selecting import Run, RunPage, read_pages

_LONGEST_WAIT_S: Final = 0.25  # for `close`; and for poolers that swallow notifications


class Subscription:
    def __init__(
        self,
        database: EventDatabase,
        selection: Selection,
        after: int,
        run: Run,
        run_page: RunPage,
        types: EventTypes | None,
    ) -> None:
        self.position = after  # up to which all matching events were given
        self._version = 0  # of the stream, if it is one, as far as it was read
        self._database = database
        self._selection = selection
        self._run = run
        self._run_page = run_page
        self._types = types
        self._session: Session | None = None
        self._is_closed = threading.Event()

    def __iter__(self) -> Iterator[RecordedEvent]:
        """Until it is closed."""
        while not self._is_closed.is_set():
            yield from self._new()
            self._wait(_LONGEST_WAIT_S)

    def next_batch(self, timeout_s: float, limit: int = 1000) -> Sequence[RecordedEvent]:
        """The next events, as soon as there is one; none if the time is over or it is closed."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            batch = list(self._new(limit))
            left_s = deadline_s - time.monotonic()
            if batch or left_s <= 0 or self._is_closed.is_set():
                return batch
            self._wait(min(left_s, _LONGEST_WAIT_S))

    def _new(self, limit: int | None = None) -> Iterator[RecordedEvent]:
        # Only up to the end of now: what is filtered out before it need not be looked at again.
        head = self._run("SELECT max(position) FROM headwater_events", ())[0][0] or 0
        if head <= self.position:
            return
        count = 0
        selection = replace(
            self._selection,
            from_position=self.position + 1,
            until_position=head,
            from_version=self._version + 1,
            limit=limit,
        )
        for event in read_pages(self._run_page, selection, self._types):
            if self._is_closed.is_set():
                return
            count += 1
            self.position, self._version = event.position, event.version
            yield event
        if limit is None or count < limit:
            self.position = max(self.position, head)

    def _wait(self, timeout_s: float) -> None:
        if self._is_closed.is_set():
            return
        if self._session is None or not self._session.is_usable:
            self._session = self._database.connect_waiting()
            return  # an event that came before we listened is read first
        try:
            self._session.wait(timeout_s)
        except EventStoreUnreachable:
            # The connection was lost: the next read shows whether the server is, too.
            self._session.close()

    def close(self) -> None:
        """Ends the iteration, also one of another thread, within a quarter of a second."""
        self._is_closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._session is not None:
            self._session.close()

    def __del__(self) -> None:
        session: Any = self._session
        if session is not None:
            session.close()
