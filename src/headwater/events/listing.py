"""Lists of a store: its streams and categories, and what waits in it.

A page of streams costs as much as its rows, whatever the number of streams and of their events:
the index headwater_events_streams has one entry for each stream, and categories are found by
jumping from one to the next. Counts cost as much as the events since they were last counted.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headwater.errors import EventStoreError
from headwater.events.contract import category_of
from headwater.events.databases.session import Row

_COUNTED_AT_ONCE: Final = 200_000
_COUNTS_STORED_AFTER: Final = 20_000

Run = Callable[[str, Sequence[Any]], list[Row]]


@dataclass(frozen=True, slots=True)
class CategoryCounts:
    name: str
    streams: int
    events: int


class _StoredCounts(msgspec.Struct):
    position: int
    categories: dict[str, tuple[int, int]]  # streams and events


def streams(run: Run, category: str | None, after: str, limit: int) -> list[tuple[str, int]]:
    """Names and versions, by category and then by name, behind the stream `after`."""
    # `version = 1` is what the index has; the version of a stream is looked up for each.
    where, values = "s.version = 1", []
    if category is not None:
        where += " AND s.aggregatetype = ? AND s.aggregateid > ?"
        values += [category, after]
    elif after:
        where += " AND (s.aggregatetype, s.aggregateid) > (?, ?)"
        values += [category_of(after), after]
    return [
        (stream, version)
        for stream, version in run(
            "SELECT s.aggregateid, (SELECT max(e.version) FROM headwater_events e"
            " WHERE e.aggregateid = s.aggregateid)"
            f" FROM headwater_events s WHERE {where}"
            " ORDER BY s.aggregatetype, s.aggregateid LIMIT ?",
            [*values, limit],
        )
    ]


def categories(run: Run) -> list[str]:
    """Their names, in order."""
    rows = run(
        "WITH RECURSIVE found(name) AS ("
        "SELECT min(aggregatetype) FROM headwater_events"
        " UNION ALL SELECT (SELECT min(aggregatetype) FROM headwater_events"
        " WHERE aggregatetype > found.name) FROM found WHERE found.name IS NOT NULL"
        ") SELECT name FROM found WHERE name IS NOT NULL",
        (),
    )
    return [name for (name,) in rows]


def counts(run: Run) -> list[CategoryCounts]:
    """Of all categories, by name. What was counted up to a position is stored with the position,
    so that only later events are counted: events do not change, and positions have no gaps. It is
    a cache: without it, or without the right to store it, everything is counted.
    """
    position, counted = _stored_counts(run)
    ((head,),) = run("SELECT max(position) FROM headwater_events", ())
    while position < (head or 0):
        until = min(position + _COUNTED_AT_ONCE, head)
        for name, new_streams, new_events in run(
            "SELECT aggregatetype, sum(CASE WHEN version = 1 THEN 1 ELSE 0 END), count(*)"
            " FROM headwater_events WHERE position > ? AND position <= ? GROUP BY aggregatetype",
            (position, until),
        ):
            of_streams, of_events = counted.get(name, (0, 0))
            counted[name] = (of_streams + int(new_streams), of_events + int(new_events))
        if until - position >= _COUNTS_STORED_AFTER:
            _store_counts(run, until, counted)
        position = until
    return [CategoryCounts(name, *counted[name]) for name in sorted(counted)]


def _stored_counts(run: Run) -> tuple[int, dict[str, tuple[int, int]]]:
    for (text,) in run("SELECT value FROM headwater_event_store WHERE name = 'counts'", ()):
        try:
            stored = msgspec.json.decode(text, type=_StoredCounts)
        except msgspec.MsgspecError:
            break
        return stored.position, stored.categories
    return 0, {}


def _store_counts(run: Run, position: int, counted: dict[str, tuple[int, int]]) -> None:
    text = msgspec.json.encode(_StoredCounts(position, counted)).decode()
    with suppress(EventStoreError):  # no right to write, or the file is locked
        run(
            "INSERT INTO headwater_event_store VALUES ('counts', ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (text,),
        )


def waiting(run: Run) -> dict[str, Any]:
    """The last position, those of views and sagas, and what waits."""
    ((events, scheduled, refused, snapshots),) = run(
        "SELECT (SELECT max(position) FROM headwater_events),"
        " (SELECT count(*) FROM headwater_scheduled),"
        " (SELECT count(*) FROM headwater_refused_commands),"
        " (SELECT count(*) FROM headwater_snapshots)",
        (),
    )
    return {
        "events": events or 0,
        "progress": dict(run("SELECT name, position FROM headwater_progress ORDER BY name", ())),
        "scheduled": scheduled,
        "refused_commands": refused,
        "snapshots": snapshots,
    }


def stats(run: Run) -> dict[str, Any]:
    """What waits, with counts by category and in all."""
    counted = counts(run)
    return {
        **waiting(run),
        "streams": sum(one.streams for one in counted),
        "categories": {one.name: one.events for one in counted},
        "streams_by_category": {one.name: one.streams for one in counted},
    }
