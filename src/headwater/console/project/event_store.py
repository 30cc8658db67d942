"""The event store of `events.store` for the console: categories, streams, and a stream's history
with the state after each event, by the decider that `[events.deciders]` names for its category.

All methods wait for the database; they run in threads.
"""

import threading
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec

from headwater.config import Config
from headwater.errors import EventStoreMissing, HeadwaterError
from headwater.events.commands.replay import Deciders
from headwater.events.contract import RecordedEvent, category_of
from headwater.events.store import EventStore, open_store

_MOST_FOLDED: Final = 20_000  # events, for the states of one page
_PAGE_BYTES: Final = 2 << 20  # of data, and as much of states


@dataclass(slots=True)
class History:
    """Some events of a stream, the newest first, and their states by version."""

    version: int  # of the stream
    events: list[RecordedEvent]
    states: dict[int, Any] = field(default_factory=dict)
    decider: str = ""
    no_states: str = ""  # why there are none
    fold_error: HeadwaterError | None = None


class ConsoleEvents:
    """Opened when it is first asked for. For any thread."""

    def __init__(self, config: Config) -> None:
        self._url = config.events.store
        self._deciders = Deciders(config.events.deciders, config.base)
        self._lock = threading.Lock()
        self._store: EventStore | None = None

    @property
    def is_configured(self) -> bool:
        return self._url is not None

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def store(self) -> EventStore | None:
        """None: no store is configured, or it does not exist yet."""
        with self._lock:
            if self._store is None and self._url is not None:
                try:
                    self._store = open_store(self._url.reveal(), create=False)
                except EventStoreMissing:
                    return None
            return self._store

    def categories(self) -> list[str]:
        store = self.store()
        return [] if store is None else store.categories()

    def overview(self, categories: list[str]) -> dict[str, Any]:
        """Of these categories; what waits is of the whole store."""
        store = self.store()
        if store is None:
            return {"categories": [], "events": 0, "progress": {}}
        counted = [counts for counts in store.counts() if counts.name in categories]
        waiting = store.waiting()
        return {
            "categories": [
                {
                    "category": counts.name,
                    "streams": counts.streams,
                    "events": counts.events,
                    "has_decider": counts.name in self._deciders,
                }
                for counts in counted
            ],
            **waiting,
        }

    def streams(
        self, category: str | None, first: str, after: str, limit: int
    ) -> list[tuple[str, int]]:
        """Those behind `after`, or from the name `first` on."""
        store = self.store()
        if store is None:
            return []
        found: list[tuple[str, int]] = []
        if first and not after and category in (None, category_of(first)):
            version = store.version(first)
            found = [(first, version)] if version else []
        behind = store.streams(category=category, after=after or first, limit=limit - len(found))
        return found + behind

    def history(self, stream: str, until_version: int | None, limit: int) -> History | None:
        """Up to a version. None: there is no such stream."""
        store = self.store()
        version = store.version(stream) if store is not None else 0
        if store is None or not version:
            return None
        events: list[RecordedEvent] = []
        size_bytes = 0
        for event in store.read(
            stream=stream, until_version=until_version, backwards=True, limit=limit
        ):
            size_bytes += len(event.json)
            if events and size_bytes > _PAGE_BYTES:
                break
            events.append(event)
        history = History(version, events)
        if events:
            self._add_states(store, stream, history)
        return history

    def _add_states(self, store: EventStore, stream: str, history: History) -> None:
        category = category_of(stream)
        first, last = history.events[-1].version, history.events[0].version
        if category not in self._deciders:
            history.no_states = f"No decider folds events of {category}."
            return
        if last > _MOST_FOLDED:
            history.no_states = (
                f"States are shown for the first {_MOST_FOLDED:,} events of a stream: the console"
                " folds from its beginning."
            )
            return
        try:
            replay = self._deciders.of(category)
            history.decider = replay.decider.name
            size_bytes = 0
            states = replay.states(store, stream, from_version=first, until_version=last)
            for event, state in islice(states, len(history.events)):
                size_bytes += len(msgspec.json.encode(state))
                if size_bytes > _PAGE_BYTES:
                    history.no_states = "The states are too large to show them all."
                    return
                history.states[event.version] = state
        except HeadwaterError as error:
            history.fold_error = error
