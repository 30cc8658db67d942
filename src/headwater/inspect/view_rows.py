"""The rows of a view, from its store: as they are, or as they were."""

import time
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from headwater import config
from headwater.errors import NotReady, UsageError
from headwater.inspect.pipelines import reported_writes
from headwater.inspect.positions import parse_position
from headwater.inspect.store_lookup import store_of_write
from headwater.pipelines.running import status
from headwater.pipelines.settings import ViewSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.sinks.contract import Contents, Store
    from headwater.sinks.topic.history import Moment


@contextmanager
def view_contents(
    loaded: config.Config, view: ViewSettings, as_of: "Moment | None"
) -> "Iterator[tuple[Contents, tuple[str, ...]]]":
    """The contents of the live version, and the columns of its key. Raises NotReady before the
    view has run.
    """
    from headwater.sinks.contract import AT_LEAST_ONCE

    writes = reported_writes(status.read(loaded.state_dir(), view.name))
    if not writes:
        raise _never_ran(view)
    (name, write), *_ = writes.items()
    store = store_of_write(loaded, view.name, write)
    try:
        if store.guarantee == AT_LEAST_ONCE:
            raise UsageError(f"{name} cannot be read back", hint="it is sent away, and not stored")
        live = next((one.number for one in store.versions() if one.is_live), None)
        if live is None:
            raise _never_ran(view)
        with _read(store, name, live, as_of) as contents:
            yield contents, tuple(write["key"])
    finally:
        store.close()


def _read(
    store: "Store", name: str, version: int, as_of: "Moment | None"
) -> AbstractContextManager["Contents"]:
    if as_of is None:
        return store.read(version)
    from headwater.sinks.topic.store import TopicStore

    if not isinstance(store, TopicStore):
        raise UsageError(
            f"{name} has no history: it is the table as it is now",
            hint='into = "topic" has every change of the view',
        )
    return store.read_as_of(version, as_of)


def parse_moment(text: str) -> "Moment":
    """A time (ISO, epoch milliseconds after @, or back from now as -1h), or an offset of the
    topic; of several partitions 0:120,1:80. Raises UsageError.
    """
    from headwater.sinks.topic.history import Moment

    parts = [part.partition(":") for part in text.split(",")]
    if all(one.isdigit() and other.isdigit() and colon for one, colon, other in parts):
        return Moment(offsets={int(one): int(other) for one, _, other in parts})
    if text.isdigit():
        return Moment(offsets={0: int(text)})
    found = parse_position(f"@{text.removeprefix('@')}", time.time_ns() // 1_000_000)
    if found is None:
        raise UsageError(
            f"not a time, nor an offset: {text}",
            hint="2026-11-15T10:00:00Z, -1h, 1200, or 0:1200,1:80 for several partitions",
        )
    return Moment(time_ms=found.number)


def _never_ran(view: ViewSettings) -> NotReady:
    return NotReady(
        f"view {view.name} has never run",
        hint=f"`headwater up`, or `headwater pipeline run {view.name}`, runs it",
    )
