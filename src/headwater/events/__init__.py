"""The event store: commands become facts, and state is a fold over them.

It needs neither a broker nor Spark. `store` has the interface; `appending`, `selecting` and
`views` are what happens in a transaction; `databases` are SQLite and PostgreSQL.
"""

from typing import TYPE_CHECKING

from headwater.lazy_imports import lazy_names

if TYPE_CHECKING:
    from headwater.events.async_store import AsyncEventStore, open_async_store
    from headwater.events.commands.application import Application
    from headwater.events.commands.decider import Decider
    from headwater.events.commands.handler import CommandHandler, Handled
    from headwater.events.commands.saga import Cancel, Saga, Schedule
    from headwater.events.contract import (
        ANY,
        NO_STREAM,
        Appended,
        Condition,
        Event,
        Query,
        QueryItem,
        RecordedEvent,
        StreamWrite,
        new_id,
    )
    from headwater.events.event_types import EventTypes
    from headwater.events.input_checks import Limits
    from headwater.events.store import EventStore, Transaction, open_store
    from headwater.events.subscription import Subscription
    from headwater.events.views import Statements, View

__all__ = [
    "ANY",
    "NO_STREAM",
    "Appended",
    "Application",
    "AsyncEventStore",
    "Cancel",
    "CommandHandler",
    "Condition",
    "Decider",
    "Event",
    "EventStore",
    "EventTypes",
    "Handled",
    "Limits",
    "Query",
    "QueryItem",
    "RecordedEvent",
    "Saga",
    "Schedule",
    "Statements",
    "StreamWrite",
    "Subscription",
    "Transaction",
    "View",
    "new_id",
    "open_async_store",
    "open_store",
]

_MODULES_OF = {
    "async_store": ("AsyncEventStore", "open_async_store"),
    "commands.application": ("Application",),
    "commands.decider": ("Decider",),
    "commands.handler": ("CommandHandler", "Handled"),
    "commands.saga": ("Cancel", "Saga", "Schedule"),
    "contract": (
        "ANY",
        "NO_STREAM",
        "Appended",
        "Condition",
        "Event",
        "Query",
        "QueryItem",
        "RecordedEvent",
        "StreamWrite",
        "new_id",
    ),
    "event_types": ("EventTypes",),
    "input_checks": ("Limits",),
    "store": ("EventStore", "Transaction", "open_store"),
    "subscription": ("Subscription",),
    "views": ("Statements", "View"),
}
_HOMES = {
    name: f"headwater.events.{module}" for module, names in _MODULES_OF.items() for name in names
}

__getattr__ = lazy_names(__name__, _HOMES)
