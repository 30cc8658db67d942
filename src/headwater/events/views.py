"""Synchronous views: tables that are updated in the transaction of the append.

A view follows from its own stored position, so it is complete even if other processes, which do
not have it, append: the next append that does have it applies what it has missed first. A new
version of a view is a view of another name, filled beside the old one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from headwater.errors import EventStoreRefused
from headwater.events.appending import Written
from headwater.events.contract import RecordedEvent, Selection
from headwater.events.databases.session import Row, Session
from headwater.events.selecting import head_of, read_pages

_BATCH: Final = 1000


class Statements(Protocol):
    """Runs SQL in the transaction that is open, with the database's own placeholders: ? in SQLite,
    %s in PostgreSQL. It cannot commit.
    """

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[Row]: ...


@dataclass(frozen=True, slots=True)
class View:
    """`apply` gets events in order, each once, and statements in their transaction. `create` is
    run once, before the first event: the view's tables.
    """

    name: str
    apply: Callable[[Sequence[RecordedEvent], Statements], None]
    create: Callable[[Statements], None] | None = None

    @property
    def progress(self) -> str:
        return f"view:{self.name}"


class SessionStatements:
    """`Statements` on a session whose transaction is open."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        first = statement.lstrip().partition(" ")[0].rstrip(";").upper()
        if first in {"COMMIT", "ROLLBACK", "BEGIN", "END", "START", "ABORT"}:
            raise EventStoreRefused(
                f"{first} is refused inside a transaction of the event store",
                hint="the store commits when the events and all that belongs to them are written",
            )
        return self._session.run_users(statement, values)


def update(session: Session, views: Sequence[View], written: Written) -> None:
    """Brings all views up to the events of this transaction, those included."""
    if not views:
        return
    names = [view.progress for view in views]
    rows = session.run(
        "SELECT name, position FROM headwater_progress"
        f" WHERE name IN ({', '.join('?' * len(names))})",
        names,
    )
    positions: dict[str, int] = {name: position for name, position in rows}  # noqa: C416
    new = written.events()
    first_new = new[0].position if new else head_of(session) + 1
    for view in views:
        statements = SessionStatements(session)
        position = positions.get(view.progress)
        if position is None:
            position = 0
            session.run("INSERT INTO headwater_progress VALUES (?, 0)", (view.progress,))
            if view.create is not None:
                view.create(statements)
        last = _catch_up(session, view, statements, position, first_new - 1, written)
        if new:
            view.apply(new, statements)
            last = new[-1].position
        if last != position:
            session.run(
                "UPDATE headwater_progress SET position = ? WHERE name = ?", (last, view.progress)
            )


def _catch_up(
    session: Session,
    view: View,
    statements: Statements,
    position: int,
    until: int,
    written: Written,
) -> int:
    missed = Selection(until_position=until, limit=_BATCH)
    while position < until:
        page = replace(missed, from_position=position + 1)
        events = list(read_pages(session.run_page, page, written.types))
        view.apply(events, statements)
        position = events[-1].position
    return position
