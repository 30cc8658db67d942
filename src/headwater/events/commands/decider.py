"""Deciders: the rules of an application as two pure functions.

`decide(command, state)` gives the events that follow from a command, or raises CommandRefused;
`evolve(state, event)` gives the state after an event. Both are plain functions without a clock, a
random number or a lookup, so that the same events always give the same state. A decider reads
either one stream (`stream`) or the events of a query (`query`), the dynamic consistency boundary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from headwater.errors import ConfigError, FoldFailed, HeadwaterError
from headwater.events.contract import Query, RecordedEvent

C = TypeVar("C")
S = TypeVar("S")


@dataclass(frozen=True)
class Decider(Generic[C, S]):
    """Made of functions; or of an object with methods of these names by `Decider.of`.

    `stream` names the stream that the events go to. With `query` the state is folded from the
    events of that query, and the append succeeds only if no other of them has come meanwhile.
    """

    name: str
    initial: Callable[[], S]
    decide: Callable[[C, S], Sequence[Any]]
    evolve: Callable[[S, Any], S]
    stream: Callable[[C], str]
    query: Callable[[C], Query] | None = None
    state_type: Any = None  # of the state, for snapshots
    version: int = 1  # of the fold: another one ignores earlier snapshots

    @classmethod
    def of(cls, rules: Any) -> "Decider[Any, Any]":
        """From an object (or class) with `initial`, `decide`, `evolve`, `stream`, and perhaps
        `query`, `name`, `state_type` and `version`. Raises ConfigError.
        """
        if isinstance(rules, Decider):
            return rules
        if isinstance(rules, type):
            rules = rules()
        needed = ("initial", "decide", "evolve", "stream")
        missing = [name for name in needed if not callable(getattr(rules, name, None))]
        if missing:
            raise ConfigError(
                f"{type(rules).__name__} is no decider: it has no function {missing[0]}",
                hint=f"a decider has {', '.join(needed)}",
            )
        return cls(
            getattr(rules, "name", type(rules).__name__),
            rules.initial,
            rules.decide,
            rules.evolve,
            rules.stream,
            query=getattr(rules, "query", None),
            state_type=getattr(rules, "state_type", None),
            version=getattr(rules, "version", 1),
        )


def fold(decider: Decider[Any, S], state: S, events: Iterable[RecordedEvent]) -> S:
    """The state after these events. Raises FoldFailed, which names the event, if `evolve` does."""
    event: RecordedEvent | None = None
    try:
        for event in events:
            state = decider.evolve(state, event.data)
    except HeadwaterError:
        raise
    except Exception as error:
        where = f"{event.type} at position {event.position}" if event else "the first event"
        raise _failed(decider, where, error) from error
    return state


def fold_data(decider: Decider[Any, S], state: S, events: Iterable[tuple[str, Any]]) -> S:
    """As `fold`, of events that are not in the store yet: their types and data."""
    for name, data in events:
        try:
            state = decider.evolve(state, data)
        except HeadwaterError:
            raise
        except Exception as error:
            raise _failed(decider, f"a new {name}", error) from error
    return state


def _failed(decider: Decider[Any, Any], where: str, error: Exception) -> FoldFailed:
    return FoldFailed(
        f"`evolve` of {decider.name} raised {type(error).__name__}",
        detail=f"{where}: {error}",
        hint="facts cannot be refused: `evolve` must accept every event that is appended",
    )


def check_deterministic(decider: Decider[Any, S], events: Sequence[RecordedEvent]) -> S:
    """Folds twice and compares. Raises FoldFailed if the states differ."""
    first = fold(decider, decider.initial(), events)
    second = fold(decider, decider.initial(), events)
    if first != second and _text(first) != _text(second):
        raise FoldFailed(
            f"two replays of {decider.name} differ",
            detail=f"{_text(first)[:200]} and {_text(second)[:200]}",
            hint="`initial` and `evolve` must not use a clock, random numbers or shared objects",
        )
    return second


def _text(state: Any) -> str:
    try:
        return msgspec.json.encode(state, order="deterministic").decode()
    except (TypeError, msgspec.MsgspecError):
        return repr(state)
