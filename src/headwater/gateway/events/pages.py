"""Some events as JSON, bounded by number and bytes. For threads: the store is read here."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from headwater.events.contract import RecordedEvent
from headwater.events.store import EventStore
from headwater.gateway.events.parameters import Asked

MAX_PAGE_BYTES: Final = 4 << 20


class Entry(NamedTuple):
    position: int
    category: str
    text: bytes


@dataclass(frozen=True, slots=True)
class Page:
    entries: list[Entry]
    next: int | None  # the position (of a stream: the version) that the next page begins at
    is_end: bool  # there was nothing more
    position: int  # up to which all that was asked for is in this page and those before


def read_page(store: EventStore, asked: Asked, limit: int, max_bytes: int = MAX_PAGE_BYTES) -> Page:
    """Of all that was asked for the first, at least one if there is one."""
    head = store.head() if asked.until_position is None else asked.until_position
    entries: list[Entry] = []
    size_bytes, last = 0, None
    events = store.read(**asked.arguments(until_position=head), limit=limit)
    for event in events:
        text = event_json(event)
        if entries and size_bytes + len(text) > max_bytes:
            break
        entries.append(Entry(event.position, event.category, text))
        size_bytes += len(text)
        last = event
    else:
        if len(entries) < limit:
            return Page(entries, _behind_end(store, asked, head, last), True, head)
    assert last is not None  # limit is at least 1
    at = last.version if asked.stream is not None else last.position
    return Page(entries, at - 1 if asked.backwards else at + 1, False, last.position)


def _behind_end(
    store: EventStore, asked: Asked, head: int, last: RecordedEvent | None
) -> int | None:
    """Where a reader goes on later; None: there will be nothing more."""
    if asked.backwards or asked.has_end:
        return None
    if asked.stream is None:
        return max(head + 1, asked.from_position)
    if last is not None and not asked.query:
        return last.version + 1
    return max(store.version(asked.stream) + 1, asked.from_version)


def event_json(event: RecordedEvent) -> bytes:
    """On one line, with the data as they were written."""
    return orjson.dumps(
        {
            "position": event.position,
            "id": event.id,
            "stream": event.stream,
            "version": event.version,
            "type": event.type,
            "schema_version": event.schema_version,
            "data": _on_one_line(event.json),
            "tags": _on_one_line(event.tags_json),
            "metadata": _on_one_line(event.metadata_json or "{}"),
            "command_id": event.command_id,
            "at_ms": event.at_ms,
        }
    )


def _on_one_line(json: str) -> Any:
    """Another program may have written it, with line ends that would break a stream of lines."""
    if "\n" not in json and "\r" not in json:
        return orjson.Fragment(json)
    try:
        return orjson.Fragment(msgspec.json.encode(msgspec.json.decode(json)))
    except msgspec.MsgspecError:
        return json
