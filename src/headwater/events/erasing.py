"""Erasure of values in stored events: the only change of events that there is.

An event that was appended in plain text, before its fields were personal, gets JSON without them.
Everything else of it stays: position, version, id, type, tags, time. The new JSON and a note that
the files are still to be rewritten are one transaction, so that an erasure which was interrupted is
recognised and completed.
"""

from collections.abc import Mapping
from typing import Final

from headwater.events.store import EventStore, Transaction

_NOTE: Final = "rewriting"


def replace_payloads(store: EventStore, payloads: Mapping[int, str]) -> None:
    """JSON by position. When it returns, the former JSON is in no table and index, but it may be
    in the files of the database until `rewrite_files`. Raises EventStoreRefused for a user who does
    not own the tables.
    """
    with store.transaction() as transaction:
        for statement in store.database.unlocking:
            transaction.run(statement)
        for position, payload in payloads.items():
            transaction.run(
                "UPDATE headwater_events SET payload = ? WHERE position = ?", (payload, position)
            )
        for statement in store.database.locking:
            transaction.run(statement)
        note_rewriting(transaction)


def note_rewriting(transaction: Transaction) -> None:
    """In the transaction that has deleted or replaced something."""
    transaction.run(
        "INSERT INTO headwater_event_store VALUES (?, '1') ON CONFLICT (name) DO NOTHING", (_NOTE,)
    )


def is_rewriting(store: EventStore) -> bool:
    """Whether the files may hold what was erased: an erasure was interrupted."""
    return bool(store.run("SELECT 1 FROM headwater_event_store WHERE name = ?", (_NOTE,)))


def rewrite_files(store: EventStore) -> None:
    """If something was erased since the last time. It takes as long as a copy of the store, and
    as much room; appends wait meanwhile.
    """
    if is_rewriting(store):
        store.database.rewrite()
        store.run("DELETE FROM headwater_event_store WHERE name = ?", (_NOTE,))
