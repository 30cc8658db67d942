"""Snapshots: states of streams, stored so that a long stream need not be folded from its start.

They are a cache. Each is ignored, and written again, if it is of another version of the decider or
cannot be read; all of them can be deleted at any time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headwater.events.commands.decider import Decider
from headwater.events.store import EventStore, Transaction

Run = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]


def load(run: Run, decider: Decider[Any, Any], stream: str) -> tuple[Any, int, int] | None:
    """The state, and the version and position of the stream that it is of."""
    rows = run(
        "SELECT version, position, state FROM headwater_snapshots WHERE decider = ? AND stream = ?",
        (_key(decider), stream),
    )
    if not rows:
        return None
    ((version, position, state),) = rows
    try:
        return msgspec.json.decode(state, type=decider.state_type), version, position
    except (msgspec.MsgspecError, ValueError):
        return None


def save(
    store: EventStore, decider: Decider[Any, Any], stream: str, state: Any, version: int, head: int
) -> None:
    """A newer one that another process has stored stays."""
    text = msgspec.json.encode(state).decode()
    with store.transaction() as transaction:
        transaction.run(
            "INSERT INTO headwater_snapshots VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (decider, stream) DO UPDATE SET version = excluded.version,"
            " position = excluded.position, state = excluded.state"
            " WHERE headwater_snapshots.version < excluded.version",
            (_key(decider), stream, version, head, text),
        )


def delete_all(transaction: Transaction) -> None:
    transaction.run("DELETE FROM headwater_snapshots")


def _key(decider: Decider[Any, Any]) -> str:
    return f"{decider.name}/{decider.version}"
