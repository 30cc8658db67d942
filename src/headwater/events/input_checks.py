"""Checks of what an application appends: names, sizes and JSON. Raises EventRefused.

Categories are names of topics (docs/events.md, publishing), so that no stored event can stop the
capture that publishes it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from headwater.errors import EventRefused
from headwater.events.contract import Event, Query, category_of, new_id, new_ids
from headwater.events.event_types import EventTypes

MAX_EVENT_BYTES: Final = 1 << 20
MAX_APPEND_BYTES: Final = 16 << 20
MAX_EVENTS: Final = 10_000
MAX_TAGS: Final = 64
_CATEGORY: Final = re.compile(r"[a-zA-Z0-9._]{1,200}")
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")
_encoder: Final = msgspec.json.Encoder()
_checked_types: Final[set[str]] = set()
_MAX_CHECKED_TYPES: Final = 10_000


class Encoded(NamedTuple):
    """An event as the database gets it."""

    id: str
    type: str
    schema_version: int
    json: str
    tags: tuple[str, ...]
    tags_json: str
    metadata_json: str | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one event and one append may have at most."""

    event_bytes: int = MAX_EVENT_BYTES
    append_bytes: int = MAX_APPEND_BYTES


def check_stream(stream: str) -> str:
    _check_name(stream, "the name of a stream")
    if not _CATEGORY.fullmatch(category_of(stream)):
        raise EventRefused(
            f"{stream!r} is no name of a stream",
            detail=f"its category (up to the first -) is {category_of(stream)!r}",
            hint="a category has 1 to 200 letters, digits, dots and underscores: account-17",
        )
    return stream


def check_command_id(command_id: str | None) -> None:
    if command_id is not None:
        _check_name(command_id, "a command id")


def check_query(query: Query) -> Query:
    if not query.items:
        raise EventRefused("a query needs at least one item", hint="Query.of(types=…, tags=…)")
    for item in query.items:
        for name in (*item.types, *item.tags):
            _check_name(name, "a type or tag of a query")
    return query


def query_of(query: Query | None, types: Sequence[str], tags: Sequence[str]) -> Query | None:
    """Of a read or a subscription, which has one or the other."""
    if types or tags:
        if query is not None:
            raise EventRefused("a read has either a query, or types and tags")
        query = Query.of(types=types, tags=tags)
    return None if query is None else check_query(query)


def encoded(events: Sequence[Any], types: EventTypes | None, limits: Limits) -> list[Encoded]:
    """Events and objects of registered classes, as the database gets them."""
    ids = iter(new_ids(sum(not isinstance(event, Event) for event in events)))
    return [
        encoded_event(event, types, limits)
        if isinstance(event, Event)
        else _encoded_object(event, next(ids), types, limits)
        for event in events
    ]


def check_append_size(encoded: Iterable[Encoded], limits: Limits) -> int:
    """The bytes of an append."""
    count = size_bytes = 0
    for event in encoded:
        count += 1
        size_bytes += len(event.json) + len(event.tags_json) + len(event.metadata_json or "")
    if count > MAX_EVENTS or size_bytes > limits.append_bytes:
        raise EventRefused(
            "an append is too large",
            detail=f"{count} events, {size_bytes} bytes; at most {MAX_EVENTS} events and"
            f" {limits.append_bytes} bytes",
            hint="several appends, each with the version that the one before has returned",
        )
    return size_bytes


def encoded_event(event: Any, types: EventTypes | None, limits: Limits) -> Encoded:
    if not isinstance(event, Event):
        return _encoded_object(event, new_id(), types, limits)
    _check_name(event.id, "the id of an event")
    version, tags = event.schema_version, (*event.tags,)
    _check_type(event.type)
    if types is not None:
        version = types.version_of(event.type)
        json = types.encode(event.type, event.data)
        tags += tuple(types.tags_of(event.data))
    else:
        json = _json(event.data, "data", event.type)
    metadata = _json(dict(event.metadata), "metadata", event.type) if event.metadata else None
    return _checked(event.id, event.type, version, json, tags, metadata, limits)


def _encoded_object(event: Any, event_id: str, types: EventTypes | None, limits: Limits) -> Encoded:
    found = types.encoded(event) if types is not None else None
    if found is None:
        raise EventRefused(
            f"an object of class {type(event).__name__} is no event",
            detail="no type is registered for its class",
            hint="Event(type, data), or a class that is registered with the store's types",
        )
    name, version, json, tags = found
    _check_type(name)
    return _checked(event_id, name, version, json, (*tags,), None, limits)


def _checked(
    event_id: str,
    event_type: str,
    version: int,
    json: bytes,
    tags: tuple[str, ...],
    metadata: bytes | None,
    limits: Limits,
) -> Encoded:
    size_bytes = len(json) + len(metadata or b"")
    if size_bytes > limits.event_bytes:
        raise EventRefused(
            f"an event of type {event_type} is too large",
            detail=f"{size_bytes} bytes of JSON; at most {limits.event_bytes}",
            hint="store large objects elsewhere, and their address in the event",
        )
    tags_json = "[]"
    if tags:
        tags = (*dict.fromkeys(tags),)
        if len(tags) > MAX_TAGS:
            raise EventRefused(
                f"an event of type {event_type} has too many tags",
                detail=f"{len(tags)}; at most {MAX_TAGS}",
            )
        for tag in tags:
            _check_name(tag, "a tag")
        tags_json = _encoder.encode(tags).decode()
    return Encoded(
        event_id, event_type, version, json.decode(), tags, tags_json,
        metadata.decode() if metadata else None,
    )  # fmt: skip


def _check_type(event_type: str) -> None:
    if not isinstance(event_type, str) or event_type not in _checked_types:
        _check_name(event_type, "the type of an event")
        if len(_checked_types) < _MAX_CHECKED_TYPES:
            _checked_types.add(event_type)


def _json(value: Any, what: str, event_type: str) -> bytes:
    try:
        return _encoder.encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise EventRefused(
            f"{what} of an event of type {event_type} cannot be written as JSON", detail=str(error)
        ) from error


def _check_name(name: str, what: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise EventRefused(
            f"{what} has 1 to 255 characters, and no control characters", detail=repr(name)[:300]
        )
