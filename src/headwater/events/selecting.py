"""SQL of reads and conditions: the events of a selection or a query, in pages of bounded size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from headwater.events.contract import Query, QueryItem, RecordedEvent, Selection
from headwater.events.databases.session import PageStatement, Row, Session
from headwater.events.event_types import EventTypes

_COLUMNS: Final = (
    "e.position, e.id, e.aggregateid, e.version, e.type, e.schema_version, e.payload, e.tags,"
    " e.metadata, e.command_id, e.at_ms"
)
_FIRST_PAGE_ROWS: Final = 64
_PAGE_ROWS: Final = 2000
PAGE_BYTES: Final = 4 << 20  # of data, which a page exceeds by its last event at most
_NO_END: Final = (1 << 63) - 1

Run = Callable[[str, Sequence[Any]], list[Row]]
# The rows of a page, and whether its bytes were too many for more of them.
RunPage = Callable[[PageStatement, int], tuple[list[Row], bool]]


def read_pages(
    run_page: RunPage, selection: Selection, types: EventTypes | None
) -> Iterator[RecordedEvent]:
    """Page by page; no statement stays open between pages, and a page holds a few MiB. Because
    events do not change and positions have no gaps, the pages together are one consistent read.
    """
    by_version = selection.stream is not None
    low, high = (
        (selection.from_version, selection.until_version)
        if by_version
        else (selection.from_position, selection.until_position)
    )
    high = _NO_END if high is None else high
    left = _NO_END if selection.limit is None else selection.limit
    page_rows = _FIRST_PAGE_ROWS
    while left > 0 and low <= high:
        asked = min(page_rows, left)
        rows, is_cut = run_page(_page(selection, low, high, asked), PAGE_BYTES)
        for row in rows:
            yield recorded(row, types)
        if len(rows) < asked and not is_cut:
            return
        left -= len(rows)
        last = rows[-1][3 if by_version else 0]
        low, high = (low, last - 1) if selection.backwards else (last + 1, high)
        page_rows = _PAGE_ROWS


def with_types(
    events: Iterable[RecordedEvent], types: EventTypes | None
) -> Iterator[RecordedEvent]:
    """Events of a store without types, whose data are then decoded by these."""
    return (msgspec.structs.replace(event, types=types) for event in events)


def recorded(row: Row, types: EventTypes | None) -> RecordedEvent:
    """From the columns of a read."""
    return RecordedEvent(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10],
        types,
    )  # fmt: skip


def first_match(query: Query, after: int) -> tuple[str, list[Any]]:
    """A scalar expression: the position of an event that matches behind `after`, or null."""
    parts, values = [], []
    for item in query.items:
        statement, of_item, _ = _positions(item, after + 1, None)
        parts.append(f"({statement} LIMIT 1)")
        values += of_item
    return (f"coalesce({', '.join(parts)}, NULL)", values)


def head_of(session: Session) -> int:
    ((position,),) = session.run("SELECT max(position) FROM headwater_events")
    return position or 0


def _page(selection: Selection, low: int, high: int, rows: int) -> PageStatement:
    order = "position"
    where: list[str] = []
    values: list[Any] = []
    if selection.stream is not None:
        order = "version"
        where.append("e.aggregateid = ?")
        values.append(selection.stream)
        if selection.from_position > 1:
            where.append("e.position >= ?")
            values.append(selection.from_position)
        if selection.until_position is not None:
            where.append("e.position <= ?")
            values.append(selection.until_position)
    where.append(f"e.{order} >= ?")
    values.append(low)
    if high != _NO_END:
        where.append(f"e.{order} <= ?")
        values.append(high)
    if selection.category is not None:
        where.append("e.aggregatetype = ?")
        values.append(selection.category)
    direction = " DESC" if selection.backwards else ""
    if selection.query is not None:
        if selection.stream is not None or not any(item.tags for item in selection.query.items):
            condition, of_query = _each_matches(selection.query)
        else:
            condition, of_query = _found_by_tags(selection, low, high, direction, rows)
        where.append(condition)
        values += of_query
    return PageStatement(
        f"SELECT {_COLUMNS} FROM headwater_events e WHERE {' AND '.join(where)}"
        f" ORDER BY e.{order}{direction} LIMIT ?",
        [*values, rows],
        order + direction,
    )


def _each_matches(query: Query) -> tuple[str, list[Any]]:
    """A condition on `e`: each event is looked at."""
    parts: list[str] = []
    values: list[Any] = []
    for item in query.items:
        terms = [
            (
                "EXISTS (SELECT 1 FROM headwater_event_tags t"
                " WHERE t.tag = ? AND t.position = e.position)"
            )
        ] * len(item.tags)
        values += item.tags
        if item.types:
            terms.append(f"e.type IN ({_marks(item.types)})")
            values += item.types
        parts.append(f"({' AND '.join(terms)})" if terms else "1 = 1")
    return f"({' OR '.join(parts)})", values


def _found_by_tags(
    selection: Selection, low: int, high: int, direction: str, rows: int
) -> tuple[str, list[Any]]:
    """A condition on `e`: the indexes of tags and types give the positions, of each item no more
    than a page has. (All of a tag for each page would be a square of what the tag has.)
    """
    assert selection.query is not None
    statements: list[str] = []
    values: list[Any] = []
    for item in selection.query.items:
        statement, of_item, column = _positions(
            item, low, None if high == _NO_END else high, selection.category
        )
        statements.append(
            f"SELECT position FROM ({statement} ORDER BY {column}{direction} LIMIT ?) found"
        )
        values += (*of_item, rows)
    return f"e.position IN ({' UNION '.join(statements)})", values


def _positions(
    item: QueryItem, low: int, high: int | None, category: str | None = None
) -> tuple[str, list[Any], str]:
    """A statement: positions of the events that match, from `low` to `high`; its values, and the
    column that has the position.
    """
    values: list[Any] = []
    of_event: list[str] = []
    if item.types:
        of_event.append(f"i.type IN ({_marks(item.types)})")
    if category is not None:
        of_event.append("i.aggregatetype = ?")
    of_event_values = [*item.types, *([] if category is None else [category])]
    if item.tags:
        first, *others = item.tags
        column = "t0.position"
        statement = "SELECT t0.position AS position FROM headwater_event_tags t0"
        for number, tag in enumerate(others, 1):
            statement += (
                f" JOIN headwater_event_tags t{number}"
                f" ON t{number}.position = t0.position AND t{number}.tag = ?"
            )
            values.append(tag)
        if of_event:
            statement += " JOIN headwater_events i ON i.position = t0.position AND " + " AND ".join(
                of_event
            )
            values += of_event_values
        statement += " WHERE t0.tag = ? AND t0.position >= ?"
        values += (first, low)
    else:
        column = "i.position"
        statement = "SELECT i.position AS position FROM headwater_events i WHERE i.position >= ?"
        values.append(low)
        if of_event:
            statement += " AND " + " AND ".join(of_event)
            values += of_event_values
    if high is not None:
        statement += f" AND {column} <= ?"
        values.append(high)
    return statement, values, column


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
