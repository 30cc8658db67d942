"""Sagas (process managers): they react to events with commands, exactly once.

The position of a saga, the events of its commands and what it schedules are committed in one
transaction: after a crash it continues behind the last event that it has reacted to completely. A
command that is refused does not stop a saga; it is recorded in headwater_refused_commands.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from headwater.errors import CommandRefused, EventStoreError, EventStoreUnreachable
from headwater.events.commands import schedule
from headwater.events.contract import RecordedEvent
from headwater.events.event_types import EventTypes
from headwater.events.store import EventStore, Transaction

_BATCH: Final = 100
logger = logging.getLogger(__name__)

# (command, its id, the transaction that it is handled in)
Handle = Callable[[Any, str, Transaction], Any]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A command for later: `after_s` seconds after the event that is reacted to, or at a time. A
    schedule with the same `id` replaces it; `Cancel(id)` removes it.
    """

    id: str
    command: Any
    after_s: float | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """The command that was scheduled under this id is not needed any more."""

    id: str


@dataclass(frozen=True, slots=True)
class Saga:
    """`react` gets each event of these types, in order, and the transaction (to read from); it
    gives commands, Schedules and Cancels. It should not have effects outside of the database.
    """

    name: str
    react: Callable[[RecordedEvent, Transaction], Iterable[Any]]
    types: Sequence[str] = ()
    category: str | None = None

    @property
    def progress(self) -> str:
        return f"saga:{self.name}"


def position_of(store: EventStore | Transaction, saga: Saga) -> int | None:
    rows = store.run("SELECT position FROM headwater_progress WHERE name = ?", (saga.progress,))
    return rows[0][0] if rows else None


def step(store: EventStore, saga: Saga, commands: EventTypes, handle: Handle) -> int:
    """Reacts to the next events, some at a time; gives their number. Raises EventStoreError, which
    names the event, if `react` or a decider raises anything but CommandRefused: the saga stands
    before that event then.
    """
    if position_of(store, saga) == store.head():
        return 0
    limit = _BATCH
    while True:
        done: list[RecordedEvent] = []
        try:
            return _react(store, saga, commands, handle, limit, done)
        except EventStoreUnreachable:
            raise
        except Exception as error:
            if not done and isinstance(error, EventStoreError):
                raise
            if len(done) > 1:
                limit = len(done) - 1  # those before it first: they shall not wait for a repair
                continue
            where = f"{done[0].type} at position {done[0].position}" if done else "no event"
            raise EventStoreError(
                f"saga {saga.name} raised {type(error).__name__}",
                detail=f"{where}: {error}",
                hint="it stands before this event, and tries it again",
            ) from error


def _react(
    store: EventStore,
    saga: Saga,
    commands: EventTypes,
    handle: Handle,
    limit: int,
    done: list[RecordedEvent],
) -> int:
    with store.transaction() as transaction:
        position = position_of(transaction, saga)
        head = transaction.head()
        for event in list(
            transaction.read(
                category=saga.category,
                types=saga.types,
                from_position=(position or 0) + 1,
                limit=limit,
            )
        ):
            done.append(event)
            for number, effect in enumerate(saga.react(event, transaction)):
                _perform(transaction, saga, commands, handle, event, number, effect)
        reached = done[-1].position if len(done) == limit else head
        if position is None:
            transaction.run(
                "INSERT INTO headwater_progress VALUES (?, ?)", (saga.progress, reached)
            )
        else:
            transaction.run(
                "UPDATE headwater_progress SET position = ? WHERE name = ?",
                (reached, saga.progress),
            )
    return len(done)


def _perform(
    transaction: Transaction,
    saga: Saga,
    commands: EventTypes,
    handle: Handle,
    event: RecordedEvent,
    number: int,
    effect: Any,
) -> None:
    if isinstance(effect, Cancel):
        schedule.remove(transaction, effect.id)
        return
    if isinstance(effect, Schedule):
        due_ms = event.at_ms + int((effect.after_s or 0) * 1000)
        if effect.at is not None:
            due_ms = int(effect.at.timestamp() * 1000)
        schedule.add(transaction, commands, effect.id, effect.command, due_ms)
        return
    command_id = f"{saga.progress}:{event.position}:{number}"
    try:
        handle(effect, command_id, transaction)
    except CommandRefused as refusal:
        logger.warning("saga %s: a command was refused: %s", saga.name, refusal)
        schedule.record_refusal(
            transaction, commands, command_id, saga.progress, effect, str(refusal), event.at_ms
        )
