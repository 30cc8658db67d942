"""The handler of a decider's commands: read, fold, decide, append; again if others were faster.

A command with an id is handled once: when it is repeated, the result of the first time is given.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from headwater.errors import AppendConflict, ConfigError, EventStoreError
from headwater.events.commands import snapshots
from headwater.events.commands.decider import Decider, check_deterministic, fold, fold_data
from headwater.events.contract import Appended, Condition, RecordedEvent, StreamWrite
from headwater.events.input_checks import encoded_event
from headwater.events.store import EventStore, Transaction
from headwater.jitter import pause_between

logger = logging.getLogger(__name__)
S = TypeVar("S")
_ATTEMPTS: Final = 20
_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Handled(Generic[S]):
    """What became of a command. `state` is the state that was decided upon, with its events."""

    state: S
    events: Sequence[Any]
    appended: Appended


class CommandHandler(Generic[S]):
    """`attempts`: how often a command is decided at most when others append at the same time.
    `snapshot_every`: a snapshot after so many events (0: never). `check_replay`: folds are done
    twice and compared, for tests.
    """

    def __init__(
        self,
        store: EventStore,
        decider: Any,
        *,
        attempts: int = _ATTEMPTS,
        snapshot_every: int = 0,
        check_replay: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store
        self.decider: Decider[Any, S] = Decider.of(decider)
        if snapshot_every and (self.decider.state_type is None or self.decider.query is not None):
            raise ConfigError(
                f"decider {self.decider.name} cannot have snapshots",
                detail="they need a `state_type`, and a decider of streams",
            )
        self._attempts = max(attempts, 1)
        self._snapshot_every = snapshot_every
        self._check_replay = check_replay
        self._sleep = sleep

    def handle(
        self,
        command: Any,
        *,
        command_id: str | None = None,
        within: Transaction | None = None,
    ) -> Handled[S]:
        """Raises CommandRefused (from `decide`), AppendConflict when others were faster each time.
        `within` a transaction nothing can be faster.
        """
        for attempt in range(1, self._attempts + 1):
            try:
                return self._attempt(command, command_id, within)
            except AppendConflict:
                if attempt == self._attempts or within is not None:
                    raise
                pause_s = min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
                self._sleep(pause_between(0, pause_s))
        raise AssertionError

    def state(
        self,
        stream: str,
        *,
        version: int | None = None,
        position: int | None = None,
        at: datetime | None = None,
    ) -> S:
        """The state of a stream now, or as of a version, a position or a time."""
        if version is None and position is None and at is None:
            return self._folded(self.store, stream)[0]
        events = self.store.read(
            stream=stream, until_version=version, until_position=position, until=at
        )
        return fold(self.decider, self.decider.initial(), events)

    def _attempt(
        self, command: Any, command_id: str | None, within: Transaction | None
    ) -> Handled[S]:
        target = within or self.store
        decider = self.decider
        stream = decider.stream(command)
        condition: Condition | None = None
        if command_id is not None and (earlier := target.result_of(command_id)) is not None:
            return Handled(self._folded(target, stream)[0], (), earlier)
        if decider.query is None:
            state, version, stored = self._folded(target, stream)
            expected = version
        else:
            query, head = decider.query(command), target.head()
            state = self._folded_events(list(target.read(query=query, until_position=head)))
            condition, expected, version, stored = Condition(query, head), -1, 0, 0
        events = (*decider.decide(command, state),)
        # Before they are facts: what cannot be folded is not appended.
        after = fold_data(decider, state, [self._as_read(event) for event in events])
        if not events and command_id is None:
            return Handled(state, (), Appended(0, target.head(), {stream: version}))
        appended = target.append_all(
            [StreamWrite(stream, events, expected)], condition=condition, command_id=command_id
        )
        if appended.is_duplicate:
            return Handled(self._folded(target, stream)[0], (), appended)
        if self._snapshot_every and appended.version - stored >= self._snapshot_every:
            self._save(within, stream, after, appended)
        return Handled(after, events, appended)

    def _as_read(self, event: Any) -> tuple[str, Any]:
        """Type and data of a decided event as a later fold gets them: out of an `Event`, and
        through JSON, which may turn a tuple into a list.
        """
        encoded = encoded_event(event, self.store.types, self.store.limits)
        types = self.store.types
        if types is None:
            return encoded.type, msgspec.json.decode(encoded.json)
        return encoded.type, types.decode(encoded.type, encoded.schema_version, encoded.json)

    def _save(self, within: Transaction | None, stream: str, state: S, appended: Appended) -> None:
        """The command has happened: a snapshot that cannot be stored must not look as if not."""
        if within is not None:
            return
        try:
            snapshots.save(
                self.store, self.decider, stream, state, appended.version, appended.last_position
            )
        except (EventStoreError, msgspec.MsgspecError, TypeError, ValueError) as error:
            logger.warning("no snapshot of %s by %s: %s", stream, self.decider.name, error)

    def _folded(self, target: EventStore | Transaction, stream: str) -> tuple[S, int, int]:
        """The state, its version, and the version of the snapshot that it began with."""
        decider = self.decider
        state, stored = decider.initial(), 0
        if self._snapshot_every:
            found = snapshots.load(target.run, decider, stream)
            if found is not None:
                state, stored, _ = found
        version = stored
        if self._check_replay and not stored:
            events = list(target.read(stream=stream))
            return check_deterministic(decider, events), len(events), 0

        def counted() -> Any:
            nonlocal version
            for event in target.read(stream=stream, from_version=stored + 1):
                version = event.version
                yield event

        return fold(decider, state, counted()), version, stored

    def _folded_events(self, events: Sequence[RecordedEvent]) -> S:
        if self._check_replay:
            return check_deterministic(self.decider, events)
        return fold(self.decider, self.decider.initial(), events)
