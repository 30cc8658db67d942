"""Bodies of appends: JSON whose every field is checked. A mistake is answered with its field."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from headwater.events.contract import (
    ANY,
    NO_STREAM,
    Condition,
    Event,
    Query,
    QueryItem,
    StreamWrite,
    new_id,
)
from headwater.gateway.answers import Refusal

_NAMED: Final = re.compile(r"(?:missing required field|unknown field) `([^`]*)`")
_PATH: Final = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_LONGEST: Final = (1 << 62) - 1

Position = Annotated[int, msgspec.Meta(ge=0, le=_LONGEST)]
Expected = Position | Literal["any", "none"]


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    """What has a name that is not known here is a mistake."""


class EventBody(_Strict):
    type: str
    data: Any = None
    tags: list[str] = []
    metadata: dict[str, Any] = {}
    id: str | None = None
    schema_version: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 1

    def event(self) -> Event:
        event_id = new_id() if self.id is None else self.id
        return Event(self.type, self.data, self.tags, self.metadata, event_id, self.schema_version)


class QueryItemBody(_Strict):
    types: list[str] = []
    tags: list[str] = []


class ConditionBody(_Strict):
    query: Annotated[list[QueryItemBody], msgspec.Meta(min_length=1)]
    after: Position = 0

    def condition(self) -> Condition:
        items = (QueryItem((*item.types,), (*item.tags,)) for item in self.query)
        return Condition(Query((*items,)), self.after)


class _Append(_Strict):
    condition: ConditionBody | None = None
    command_id: str | None = None


class StreamAppend(_Append, kw_only=True):
    """The body of POST /events/STREAM."""

    events: list[EventBody]
    expected: Expected = "any"

    def writes(self, stream: str) -> list[StreamWrite]:
        return [_write(stream, self.events, self.expected)]


class WriteBody(_Strict):
    stream: str
    events: list[EventBody]
    expected: Expected = "any"


class StreamsAppend(_Append, kw_only=True):
    """The body of POST /events: several streams, all or nothing."""

    streams: Annotated[list[WriteBody], msgspec.Meta(min_length=1)]

    def writes(self) -> list[StreamWrite]:
        return [_write(write.stream, write.events, write.expected) for write in self.streams]


_B = TypeVar("_B", StreamAppend, StreamsAppend)


def parsed(body: bytearray, kind: type[_B]) -> _B:
    """Raises Refusal: 400 with `field`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        path, named = _PATH.search(text), _NAMED.search(text)
        field = ".".join(filter(None, (path and path[1], named and named[1])))
        raise Refusal(
            400,
            "the append cannot be taken",
            detail=text,
            hint="docs/events.md has the fields of an append",
            fields={"field": field or "(the whole body)"},
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, "the body is not JSON", detail=str(error)) from None


def _write(stream: str, events: Sequence[EventBody], expected: Expected) -> StreamWrite:
    version = {"any": ANY, "none": NO_STREAM}.get(expected, ANY) if isinstance(
        expected, str
    ) else expected  # fmt: skip
    return StreamWrite(stream, [body.event() for body in events], version)
