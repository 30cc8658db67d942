"""What a read asks for, from the query of its address."""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from starlette.datastructures import QueryParams
from starlette.requests import Request

from headwater.events.contract import Query, RecordedEvent
from headwater.events.input_checks import check_query, check_stream
from headwater.gateway.answers import Refusal
from headwater.gateway.parameters import check_names, one_of, whole_number

JSON, NDJSON, SSE = "json", "ndjson", "sse"
DEFAULT_LIMIT: Final = 1000
_MAX_LIMIT: Final = 100_000
_LONGEST: Final = (1 << 62) - 1
_TYPES: Final = {
    "text/event-stream": SSE,
    "application/x-ndjson": NDJSON,
    "application/ndjson": NDJSON,
    "application/jsonl": NDJSON,
    "application/json": JSON,
}
_BOTH: Final = ("from", "until", "at", "type", "tag", "backwards", "limit", "format")
_OF_ALL: Final = ("category", *_BOTH)
_OF_STREAM: Final = ("from_version", "until_version", *_BOTH)
_OF_STATE: Final = ("version", "position", "at")


@dataclass(frozen=True, slots=True)
class Asked:
    """Bounds are inclusive. `starts_at_end`: only what comes from now on."""

    form: str
    stream: str | None = None
    category: str | None = None
    query: Query | None = None
    from_position: int = 1
    until_position: int | None = None
    from_version: int = 1
    until_version: int | None = None
    until: datetime | None = None
    backwards: bool = False
    limit: int | None = None
    starts_at_end: bool = False

    @property
    def has_end(self) -> bool:
        bounds = (self.until_position, self.until_version, self.until)
        return any(bound is not None for bound in bounds)

    def arguments(self, *, until_position: int) -> dict[str, Any]:
        """Of EventStore.read."""
        return {
            "stream": self.stream,
            "category": self.category,
            "query": self.query,
            "from_position": self.from_position,
            "until_position": until_position,
            "from_version": self.from_version,
            "until_version": self.until_version,
            "until": self.until,
            "backwards": self.backwards,
        }

    def going_on(self, at: int) -> "Asked":
        """The next page, which begins at this position (of a stream: version)."""
        if self.stream is None:
            if self.backwards:
                return replace(self, until_position=at)
            return replace(self, from_position=at)
        if self.backwards:
            return replace(self, until_version=at)
        return replace(self, from_version=at)

    def matches(self, event: RecordedEvent) -> bool:
        """As the store selects, without bounds."""
        if self.stream is not None and event.stream != self.stream:
            return False
        if self.category is not None and event.category != self.category:
            return False
        return self.query is None or any(
            (not item.types or event.type in item.types) and set(item.tags) <= set(event.tags)
            for item in self.query.items
        )


def of_stream(request: Request, stream: str) -> Asked:
    """Raises Refusal, EventRefused."""
    query = request.query_params
    check_names(query, _OF_STREAM)
    return replace(
        _common(request),
        stream=stream,
        from_version=whole_number(query, "from_version", 1, _LONGEST) or 1,
        until_version=whole_number(query, "until_version", 0, _LONGEST),
    )


def of_all(request: Request) -> Asked:
    """Of a category, or of everything. Raises Refusal, EventRefused."""
    check_names(request.query_params, _OF_ALL)
    category = request.query_params.get("category")
    if category is not None and check_stream(category).partition("-")[1]:
        raise Refusal(400, "category is what stands before the first - of a stream's name")
    return replace(_common(request), category=category)


def of_state(request: Request) -> dict[str, Any]:
    """Of a state: `version`, `position` or `at`. Raises Refusal."""
    query = request.query_params
    check_names(query, _OF_STATE)
    return {
        "until_version": whole_number(query, "version", 0, _LONGEST),
        "until_position": whole_number(query, "position", 0, _LONGEST),
        "until": _time(query, "at"),
    }


def _common(request: Request) -> Asked:
    query = request.query_params
    form = _form(request)
    types, tags = query.getlist("type"), query.getlist("tag")
    backwards = one_of(query, "backwards", ("false", "true")) == "true"
    first, starts_at_end = _from(request, form)
    asked = Asked(
        form,
        query=check_query(Query.of(types=types, tags=tags)) if types or tags else None,
        from_position=first,
        until_position=whole_number(query, "until", 0, _LONGEST),
        until=_time(query, "at"),
        backwards=backwards,
        limit=whole_number(query, "limit", 1, _MAX_LIMIT if form == JSON else _LONGEST),
        starts_at_end=starts_at_end,
    )
    if form == SSE and (backwards or asked.has_end or "until_version" in query):
        raise Refusal(
            400, "a subscription has no end", detail="backwards, until and at are for reads"
        )
    return asked


def _form(request: Request) -> str:
    """The query's, else the first that the client accepts, else JSON."""
    if "format" in request.query_params:
        return one_of(request.query_params, "format", (JSON, NDJSON, SSE))
    for accepted in request.headers.get("accept", "").split(","):
        found = _TYPES.get(accepted.partition(";")[0].strip().lower())
        if found is not None:
            return found
    return JSON


def _from(request: Request, form: str) -> tuple[int, bool]:
    """The first position, and whether it is the end of now. Where a browser goes on by itself is
    stronger than what its page asked for at first.
    """
    resumed = request.headers.get("last-event-id") if form == SSE else None
    if resumed:
        if re.fullmatch(r"[0-9]{1,18}", resumed) is None:
            raise Refusal(400, "Last-Event-ID is a position", detail=resumed[:100])
        return int(resumed) + 1, False
    text = request.query_params.get("from", "end" if form == SSE else "start")
    if text in ("start", "end"):
        if text == "end" and form != SSE:
            raise Refusal(400, "from=end is for subscriptions", hint="backwards=true&limit=10")
        return 1, text == "end"
    return whole_number(request.query_params, "from", 1, _LONGEST) or 1, False


def _time(query: QueryParams, name: str) -> datetime | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        # A + in an address is a space.
        at = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
    except ValueError:
        raise Refusal(
            400, f"{name} is a time, for example 2026-11-18T12:00:00Z", detail=text[:100]
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
