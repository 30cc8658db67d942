"""Scheduled commands: stored until their time has come, handled once, also after restarts.

A command is handled and removed in one transaction.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from headwater.errors import CommandRefused, EventRefused
from headwater.events.event_types import EventTypes
from headwater.events.store import EventStore, Transaction

_BATCH: Final = 100
logger = logging.getLogger(__name__)


def add(
    transaction: Transaction, commands: EventTypes, schedule_id: str, command: Any, due_ms: int
) -> None:
    """One that is scheduled under the same id is replaced."""
    name = _name_of(commands, command)
    transaction.run(
        "INSERT INTO headwater_scheduled VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
        " due_ms = excluded.due_ms, type = excluded.type, payload = excluded.payload",
        (schedule_id, due_ms, name, commands.encode(name, command).decode()),
    )


def remove(transaction: Transaction, schedule_id: str) -> None:
    transaction.run("DELETE FROM headwater_scheduled WHERE id = ?", (schedule_id,))


def step(
    store: EventStore,
    commands: EventTypes,
    handle: Callable[[Any, str, Transaction], Any],
    now_ms: int,
) -> int:
    """Handles what is due, each in a transaction of its own; gives the number. One that fails does
    not keep others waiting: its error is raised when they are done.
    """
    failure: Exception | None = None
    count = 0
    for schedule_id, due_ms in _due(store, now_ms):
        try:
            count += _handle(store, commands, handle, schedule_id, due_ms)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return count


def _due(store: EventStore, now_ms: int) -> Iterator[tuple[str, int]]:
    """All that are due, also behind as many that fail as a batch has."""
    last: tuple[int, str] = (-(1 << 62), "")
    while True:
        batch = store.run(
            "SELECT id, due_ms FROM headwater_scheduled WHERE due_ms <= ?"
            " AND (due_ms, id) > (?, ?) ORDER BY due_ms, id LIMIT ?",
            (now_ms, *last, _BATCH),
        )
        for schedule_id, due_ms in batch:
            last = (due_ms, schedule_id)
            yield schedule_id, due_ms
        if len(batch) < _BATCH:
            return


def _handle(
    store: EventStore,
    commands: EventTypes,
    handle: Callable[[Any, str, Transaction], Any],
    schedule_id: str,
    due_ms: int,
) -> int:
    with store.transaction() as transaction:
        rows = transaction.run(
            "SELECT type, payload FROM headwater_scheduled WHERE id = ? AND due_ms = ?",
            (schedule_id, due_ms),
        )
        if not rows:  # another process has handled it, or it was cancelled meanwhile
            return 0
        ((name, payload),) = rows
        command = commands.decode(name, commands.version_of(name), payload)
        remove(transaction, schedule_id)
        command_id = f"scheduled:{schedule_id}:{due_ms}"
        try:
            handle(command, command_id, transaction)
        except CommandRefused as refusal:
            logger.info("the scheduled command %s was refused: %s", schedule_id, refusal)
            record_refusal(
                transaction, commands, command_id, "scheduled", command, str(refusal), due_ms
            )
    return 1


def record_refusal(
    transaction: Transaction,
    commands: EventTypes,
    command_id: str,
    origin: str,
    command: Any,
    reason: str,
    at_ms: int,
) -> None:
    name = _name_of(commands, command)
    transaction.run(
        # The same id may be scheduled again for the same time, and be refused again.
        "INSERT INTO headwater_refused_commands VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET type = excluded.type, payload = excluded.payload,"
        " reason = excluded.reason, at_ms = excluded.at_ms",
        (command_id, origin, name, commands.encode(name, command).decode(), reason, at_ms),
    )


def _name_of(commands: EventTypes, command: Any) -> str:
    name = commands.name_of(command)
    if name is None:
        raise EventRefused(
            f"an object of class {type(command).__name__} is no command",
            hint="commands of sagas and schedules are registered: @commands.register",
        )
    return name
