"""An application: a store, deciders for its commands, and sagas; and the loop that runs these.

    app = Application(store, commands, {Deposit: account, Withdraw: account}, sagas=[transfers])
    app.handle(Deposit("account-1", 100))

Several processes can run the same application. A saga's event and a scheduled command are handled
by one of them.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headwater.errors import ConfigError, EventStoreUnreachable
from headwater.events.commands import saga as sagas_module
from headwater.events.commands import schedule
from headwater.events.commands.handler import CommandHandler, Handled
from headwater.events.commands.saga import Saga
from headwater.events.event_types import EventTypes
from headwater.events.store import EventStore, Transaction

_PAUSE_S: Final = 0.1
_PAUSE_UNREACHABLE_S: Final = 1.0
logger = logging.getLogger(__name__)


class Application:
    """`deciders`: the decider (or its handler) of each class of commands."""

    def __init__(
        self,
        store: EventStore,
        commands: EventTypes,
        deciders: Mapping[type, Any],
        *,
        sagas: Sequence[Saga] = (),
    ) -> None:
        names = [saga.name for saga in sagas]
        if len(set(names)) < len(names):
            raise ConfigError("two sagas have the same name", detail=", ".join(names))
        self.store = store
        self.commands = commands
        self.sagas = (*sagas,)
        made: dict[int, CommandHandler[Any]] = {}
        self._handlers: dict[type, CommandHandler[Any]] = {}
        for command, decider in deciders.items():
            if isinstance(decider, CommandHandler):
                self._handlers[command] = decider
            else:
                handler = made.setdefault(id(decider), CommandHandler(store, decider))
                self._handlers[command] = handler

    def handler(self, command: type) -> CommandHandler[Any]:
        """Of this class of commands. Raises ConfigError."""
        found = self._handlers.get(command)
        if found is None:
            raise ConfigError(
                f"no decider handles {command.__name__}",
                detail="commands: " + ", ".join(known.__name__ for known in self._handlers),
            )
        return found

    def handle(
        self, command: Any, *, command_id: str | None = None, within: Transaction | None = None
    ) -> Handled[Any]:
        """As CommandHandler.handle."""
        return self.handler(type(command)).handle(command, command_id=command_id, within=within)

    def step(self) -> int:
        """Lets sagas react to what is new, and handles commands that are due; gives their number.
        Raises EventStoreError, after all others have had their turn.
        """
        count = 0
        failure: Exception | None = None
        for saga in self.sagas:
            try:
                count += sagas_module.step(self.store, saga, self.commands, self._handle)
            except Exception as error:
                failure = failure or error
        try:
            # The clock that events got their times from, whatever the one of this machine shows.
            count += schedule.step(self.store, self.commands, self._handle, self.store.time_ms())
        except Exception as error:
            failure = failure or error
        if failure is not None:
            raise failure
        return count

    def settle(self) -> None:
        """Steps until nothing is left to react to."""
        while self.step():
            pass

    def run(self, stop: threading.Event) -> None:
        """Steps until `stop` is set. A database that does not answer is asked again."""
        while not stop.is_set():
            try:
                if not self.step():
                    stop.wait(_PAUSE_S)
            except EventStoreUnreachable as error:
                logger.warning("%s; trying again", error)
                stop.wait(_PAUSE_UNREACHABLE_S)

    def _handle(self, command: Any, command_id: str, within: Transaction) -> Handled[Any]:
        return self.handle(command, command_id=command_id, within=within)
