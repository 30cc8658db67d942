"""One append inside a write transaction: checks first, then rows. It fails before it writes.

Order of the checks: a command or events that are in the store already are no conflict but a
duplicate; then expected versions; then the condition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headwater.errors import AppendConflict, ConditionFailed, EventRefused, VersionConflict
from headwater.events.append_request import AppendRequest
from headwater.events.contract import ANY, Appended, RecordedEvent, category_of
from headwater.events.databases.session import Row, Session
from headwater.events.event_types import EventTypes
from headwater.events.selecting import Run, first_match, recorded


@dataclass(slots=True)
class Head:
    """The end of the store in this transaction, and the time that its next events get."""

    position: int
    at_ms: int


@dataclass(slots=True)
class Written:
    """What the appends of one transaction have written, for its synchronous views."""

    types: EventTypes | None
    rows: list[Row] = field(default_factory=list)

    def add(self, rows: Sequence[Row]) -> None:
        self.rows += rows

    def events(self) -> list[RecordedEvent]:
        return [recorded((*row[:2], *row[3:]), self.types) for row in self.rows]


def append(
    session: Session,
    request: AppendRequest,
    now_ms: int | None,
    written: Written,
    *,
    checks_ids: bool = True,
) -> Appended:
    """Raises AppendConflict and EventRefused; then the transaction has nothing of this append.

    Without `checks_ids`, an append that nothing else stops is written as if its ids were new. If
    one is not, the database refuses it with EventStoreRefused, at the latest with the commit.
    """
    counted = _ids(request) if checks_ids else []
    head, versions, found_ids, found_command, match = _looked_up(session, request, now_ms, counted)
    if found_command and request.command_id is not None:
        earlier = result_of_command(session.run, request.command_id)
        assert earlier is not None
        return earlier
    refusal = _refusal(request, versions, match)
    if refusal is not None and not checks_ids:
        found_ids = _found_ids(session, _ids(request))
    if found_ids:
        return _earlier(session, request, found_ids)
    if refusal is not None:
        raise refusal
    rows, tags, after = _rows(request, head, versions)
    if rows:
        session.insert_events(rows, tags)
        written.add(rows)
    first, last = (rows[0][0], rows[-1][0]) if rows else (0, head.position)
    if request.command_id is not None:
        session.insert_command(
            (request.command_id, first, last, msgspec.json.encode(after).decode(), head.at_ms)
        )
    return Appended(first, last, after)


def _ids(request: AppendRequest) -> list[str]:
    return [event.id for _, _, events in request.writes for event in events]


def _found_ids(session: Session, ids: Sequence[str]) -> int:
    """How many of them exist."""
    if not ids:
        return 0
    ((found,),) = session.run(
        f"SELECT count(*) FROM headwater_events WHERE id IN ({_marks(ids)})", ids
    )
    return int(found)


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _refusal(
    request: AppendRequest, versions: Mapping[str, int], match: int | None
) -> AppendConflict | None:
    conflict = _conflict(request, versions)
    if conflict is None and request.condition is not None and match is not None:
        return ConditionFailed(str(request.condition.query), request.condition.after, match)
    return conflict


def append_together(
    session: Session,
    requests: Sequence[AppendRequest],
    now_ms: int | None,
    written: Written,
    *,
    checks_ids: bool = True,
) -> list[Appended | VersionConflict] | None:
    """Several appends that have expected versions only, looked up and written at once: as if each
    came after the one before. None: they have to be done one by one, and nothing was written.
    """
    ids = [event_id for request in requests for event_id in _ids(request)]
    if len(set(ids)) < len(ids) or any(
        request.condition is not None or request.command_id is not None for request in requests
    ):
        return None
    streams = dict.fromkeys(stream for request in requests for stream, _, _ in request.writes)
    head, versions, found_ids = _looked_up_streams(
        session, list(streams), ids if checks_ids else [], now_ms
    )
    if found_ids:
        return None
    results: list[Appended | VersionConflict] = []
    all_rows: list[Row] = []
    all_tags: list[tuple[str, int]] = []
    for request in requests:
        conflict = _conflict(request, versions)
        if conflict is not None:
            if not checks_ids and _found_ids(session, _ids(request)):
                return None
            results.append(conflict)
            continue
        of_request = {stream: versions[stream] for stream, _, _ in request.writes}
        rows, tags, after = _rows(request, head, of_request)
        all_rows += rows
        all_tags += tags
        versions |= after
        head.position = rows[-1][0]
        results.append(Appended(rows[0][0], rows[-1][0], after))
    if all_rows:
        session.insert_events(all_rows, all_tags)
        written.add(all_rows)
    return results


def _conflict(request: AppendRequest, versions: Mapping[str, int]) -> VersionConflict | None:
    for stream, expected, _ in request.writes:
        if expected not in (ANY, versions[stream]):
            return VersionConflict(stream, expected, versions[stream])
    return None


def _looked_up_streams(
    session: Session, streams: Sequence[str], ids: Sequence[str], now_ms: int | None
) -> tuple[Head, dict[str, int], int]:
    """The head, versions of these streams, and how many of these ids exist."""
    found = f"(SELECT count(*) FROM headwater_events WHERE id IN ({_marks(ids)}))" if ids else "0"
    ((position, at_ms, server_ms, found_ids),) = session.run(
        "SELECT (SELECT max(position) FROM headwater_events),"
        " (SELECT at_ms FROM headwater_events ORDER BY position DESC LIMIT 1),"
        f" {session.now_sql if now_ms is None else 'NULL'}, {found}",
        ids,
    )
    return (
        _head(position, at_ms, server_ms, now_ms),
        _versions(session, streams),
        found_ids,
    )


def _head(position: int | None, at_ms: int | None, server_ms: Any, now_ms: int | None) -> Head:
    """A clock that was set back does not bring time and position out of order."""
    return Head(position or 0, max(int(server_ms) if now_ms is None else now_ms, at_ms or 0))


def _versions(session: Session, streams: Sequence[str]) -> dict[str, int]:
    versions = dict.fromkeys(streams, 0)
    if streams:
        versions |= session.run(
            "SELECT aggregateid, max(version) FROM headwater_events"
            f" WHERE aggregateid IN ({_marks(streams)}) GROUP BY aggregateid",
            streams,
        )
    return versions


def _looked_up(
    session: Session, request: AppendRequest, now_ms: int | None, ids: Sequence[str]
) -> tuple[Head, dict[str, int], int, bool, int | None]:
    """All that the checks need, in one statement (two, if several streams are written). `ids`: of
    which those that exist are counted.
    """
    streams = [stream for stream, _, _ in request.writes]
    columns = [
        "(SELECT max(position) FROM headwater_events)",
        "(SELECT at_ms FROM headwater_events ORDER BY position DESC LIMIT 1)",
        session.now_sql if now_ms is None else "NULL",
    ]
    values: list[Any] = []
    if ids:
        columns.append(f"(SELECT count(*) FROM headwater_events WHERE id IN ({_marks(ids)}))")
        values += ids
    else:
        columns.append("0")
    if request.command_id is not None:
        columns.append("(SELECT count(*) FROM headwater_commands WHERE id = ?)")
        values.append(request.command_id)
    else:
        columns.append("0")
    if request.condition is not None:
        expression, of_query = first_match(request.condition.query, request.condition.after)
        columns.append(expression)
        values += of_query
    else:
        columns.append("NULL")
    if len(streams) == 1:
        columns.append("(SELECT max(version) FROM headwater_events WHERE aggregateid = ?)")
        values += streams
    # A condition is planned for its values, which may be rare or frequent.
    run = session.run if ids or request.condition is not None else session.run_often
    ((position, at_ms, server_ms, found_ids, found_command, match, *version),) = run(
        f"SELECT {', '.join(columns)}", values
    )
    versions = {streams[0]: version[0] or 0} if version else _versions(session, streams)
    head = _head(position, at_ms, server_ms, now_ms)
    return head, versions, found_ids, bool(found_command), match


def _rows(
    request: AppendRequest, head: Head, versions: Mapping[str, int]
) -> tuple[list[Row], list[tuple[str, int]], dict[str, int]]:
    rows: list[Row] = []
    tags: list[tuple[str, int]] = []
    after = dict(versions)
    position = head.position
    for stream, _, events in request.writes:
        category = category_of(stream)
        version = after[stream]
        for event in events:
            position += 1
            version += 1
            rows.append(
                (
                    position, event.id, category, stream, version, event.type,
                    event.schema_version, event.json, event.tags_json, event.metadata_json,
                    request.command_id, head.at_ms,
                )
            )  # fmt: skip
            tags += ((tag, position) for tag in event.tags)
        after[stream] = version
    return rows, tags, after


def _earlier(session: Session, request: AppendRequest, found: int) -> Appended:
    """The result of the append that these events were in. Raises EventRefused if only some of
    them are in the store, or in other streams.
    """
    wanted = {event.id: stream for stream, _, events in request.writes for event in events}
    rows = session.run(
        "SELECT id, aggregateid, position, version FROM headwater_events"
        f" WHERE id IN ({_marks(list(wanted))})",
        list(wanted),
    )
    if found < len(wanted) or any(wanted[row[0]] != row[1] for row in rows):
        raise EventRefused(
            "ids of events are used already",
            detail=", ".join(f"{row[0]} at position {row[2]}" for row in rows[:3]),
            hint="a repeated append has the same events in the same streams; new events have new"
            " ids",
        )
    versions: dict[str, int] = {}
    for _, stream, _, version in rows:
        versions[stream] = max(version, versions.get(stream, 0))
    positions = [row[2] for row in rows]
    return Appended(min(positions), max(positions), versions, is_duplicate=True)


def result_of_command(run: Run, command_id: str) -> Appended | None:
    """What a command that was handled has appended."""
    for first, last, versions in run(
        "SELECT first_position, last_position, versions FROM headwater_commands WHERE id = ?",
        (command_id,),
    ):
        return Appended(first, last, msgspec.json.decode(versions), is_duplicate=True)
    return None
