"""What the event store takes and gives: events, queries over them, and results of appends.

A *stream* is the history of one thing (`account-17`); the part before its first "-" is its
*category* (`account`). Versions count the events of a stream from 1. Positions count all events of
a store from 1, without gaps, in the order in which they became visible.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from headwater.events.event_types import EventTypes

ANY: Final = -1  # `expected`: whatever version the stream has
NO_STREAM: Final = 0  # `expected`: the stream has no events
# A digit of a UUID whose upper two bits are 10.
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def new_id() -> str:
    """A UUID of version 7: it begins with the time, so that indexes of ids grow at their end."""
    return new_ids(1)[0]


def new_ids(count: int) -> list[str]:
    """So many of them, in ascending order."""
    time_ms = f"{time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF:012x}"
    head = f"{time_ms[:8]}-{time_ms[8:]}-7"
    digits = os.urandom(10 * count).hex()
    ids = [
        f"{head}{digits[at : at + 3]}-{_VARIANT[digits[at + 3]]}{digits[at + 4 : at + 7]}"
        f"-{digits[at + 7 : at + 19]}"
        for at in range(0, 20 * count, 20)
    ]
    ids.sort()
    return ids


def category_of(stream: str) -> str:
    return stream.partition("-")[0]


@dataclass(frozen=True, slots=True)
class Event:
    """An event to append. `data` is anything that JSON has, or an object of a registered class.

    The id makes an append idempotent: events whose ids are in the store are not appended again.
    """

    type: str
    data: Any = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] | None = None
    id: str = field(default_factory=new_id)
    schema_version: int = 1


class RecordedEvent(msgspec.Struct, frozen=True):
    """An event of the store. It never changes."""

    position: int
    id: str
    stream: str
    version: int
    type: str
    schema_version: int
    json: str
    tags_json: str
    metadata_json: str | None
    command_id: str | None
    at_ms: int
    types: "EventTypes | None" = None

    @property
    def category(self) -> str:
        return category_of(self.stream)

    @property
    def data(self) -> Any:
        """The event in its current schema version: an object of its registered class, or what
        JSON has if the store has no registered types. Raises EventRefused for a type that is not
        registered, and for data that does not fit its class.
        """
        if self.types is None:
            return msgspec.json.decode(self.json)
        return self.types.decode(self.type, self.schema_version, self.json)

    @property
    def tags(self) -> tuple[str, ...]:
        return (*msgspec.json.decode(self.tags_json),)

    @property
    def metadata(self) -> dict[str, Any]:
        return msgspec.json.decode(self.metadata_json) if self.metadata_json else {}

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it, with the data as they were written."""
        return {
            "position": self.position,
            "id": self.id,
            "stream": self.stream,
            "version": self.version,
            "type": self.type,
            "schema_version": self.schema_version,
            "data": msgspec.json.decode(self.json),
            "tags": list(self.tags),
            "metadata": self.metadata,
            "command_id": self.command_id,
            "at_ms": self.at_ms,
        }


@dataclass(frozen=True, slots=True)
class QueryItem:
    """Events of any of these types that have all of these tags. No types: of every type."""

    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def __str__(self) -> str:
        types = " or ".join(self.types) if self.types else "any event"
        return f"{types} with {' and '.join(self.tags)}" if self.tags else types


@dataclass(frozen=True, slots=True)
class Query:
    """Events that match any of the items."""

    items: tuple[QueryItem, ...]

    @classmethod
    def of(cls, *, types: Iterable[str] = (), tags: Iterable[str] = ()) -> "Query":
        return cls((QueryItem((*types,), (*tags,)),))

    def __or__(self, other: "Query") -> "Query":
        return Query((*self.items, *other.items))

    def __str__(self) -> str:
        return "; ".join(map(str, self.items))


@dataclass(frozen=True, slots=True)
class Condition:
    """An append happens only if no event that matches `query` is behind position `after`."""

    query: Query
    after: int = 0


@dataclass(frozen=True, slots=True)
class StreamWrite:
    """Events for one stream, and the version that it must have: ANY, NO_STREAM or a number."""

    stream: str
    events: Sequence[Any]
    expected: int = ANY


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append has done. `is_duplicate`: the same events, or the same command, were appended
    earlier, and this is that append's result.
    """

    first_position: int  # of the events of this append; 0 if it had none
    last_position: int
    versions: Mapping[str, int]  # of the streams that were written, after it
    is_duplicate: bool = False

    @property
    def version(self) -> int:
        """Of the only stream."""
        (version,) = self.versions.values()
        return version


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events to read, and in which order. Bounds are inclusive."""

    stream: str | None = None
    category: str | None = None
    query: Query | None = None
    from_position: int = 1
    until_position: int | None = None
    from_version: int = 1
    until_version: int | None = None
    backwards: bool = False
    limit: int | None = None
