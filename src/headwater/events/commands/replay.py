"""Deciders by name, from the application's Python files, and the states that they fold.

A reference is FILE.py:NAME. The file is run as a module of its own; its `types`, if it has any,
decode the events. The command line, the console and the gateway find deciders this way.
"""

import runpy
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headwater.errors import ConfigError, UsageError
from headwater.events.commands.decider import Decider, check_deterministic, fold
from headwater.events.contract import Event, RecordedEvent
from headwater.events.event_types import EventTypes
from headwater.events.reads import Reads
from headwater.events.selecting import with_types
from headwater.spelling import nearest


class Replay(NamedTuple):
    """A decider, and the types that its file registers."""

    decider: Decider[Any, Any]
    types: EventTypes | None

    def typed(self, event: Event) -> Event:
        """As a store with these types takes it: with their tags and schema version. Raises
        EventRefused if it is of none of these types, or does not fit.
        """
        types = self.types
        if types is None:
            return event
        version = types.version_of(event.type)
        value = types.decode(event.type, version, types.encode(event.type, event.data))
        tags = (*dict.fromkeys((*event.tags, *types.tags_of(value))),)
        return replace(event, tags=tags, schema_version=version)

    def states(
        self, store: Reads, stream: str, *, from_version: int = 1, **bounds: Any
    ) -> Iterator[tuple[RecordedEvent, Any]]:
        """Each event of the stream from a version on, with the state after it as plain data.
        `bounds` are upper ones of a read. Raises FoldFailed, EventRefused.
        """
        state = self.decider.initial()
        for event in with_types(store.read(stream=stream, **bounds), store.decoding(self.types)):
            state = fold(self.decider, state, [event])
            if event.version >= from_version:
                yield event, plain(state)

    def state_at(
        self, store: Reads, stream: str, *, twice: bool = False, **bounds: Any
    ) -> dict[str, Any]:
        """The last of these states, with the version and position of the stream that it is of.
        `twice`: folded again, to see whether the fold is deterministic.
        """
        version = position = 0

        def counted() -> Iterator[RecordedEvent]:
            nonlocal version, position
            for event in with_types(
                store.read(stream=stream, **bounds), store.decoding(self.types)
            ):
                version, position = event.version, event.position
                yield event

        if twice:
            state = check_deterministic(self.decider, list(counted()))
        else:
            state = fold(self.decider, self.decider.initial(), counted())
        return {
            "stream": stream,
            "version": version,
            "position": position,
            "decider": self.decider.name,
            "state": plain(state),
        }


def load(reference: str, base: Path) -> Replay:
    """Raises UsageError and ConfigError."""
    file, _, name = reference.rpartition(":")
    path = base / file
    if not file or not path.is_file():
        raise UsageError(
            f"{reference} names no decider",
            detail=f"there is no file {path}" if file else "",
            hint="bank.py:Account, a file and a name",
        )
    try:
        names = runpy.run_path(str(path))
    except Exception as error:
        raise ConfigError(
            f"{file} cannot be run", detail=f"{type(error).__name__}: {error}"
        ) from error
    if name not in names:
        meant = nearest(name, [one for one in names if not one.startswith("_")])
        raise UsageError(
            f"{file} has no {name}", hint=f"did you mean {file}:{meant}?" if meant else ""
        )
    return Replay(Decider.of(names[name]), names.get("types"))


class Deciders:
    """Those of a project, by category. A file that was changed is run again. For any thread."""

    def __init__(self, references: Mapping[str, str], base: Path) -> None:
        self._references = references
        self._base = base
        self._lock = threading.Lock()
        self._loaded: dict[str, tuple[int, Replay]] = {}

    def __contains__(self, category: str) -> bool:
        return category in self._references

    def of(self, category: str) -> Replay:
        """Raises KeyError, ConfigError."""
        reference = self._references[category]
        file = self._base / reference.rpartition(":")[0]
        with self._lock:
            changed_ns = file.stat().st_mtime_ns if file.is_file() else 0
            stamp, replay = self._loaded.get(category, (-1, None))
            if replay is None or stamp != changed_ns:
                try:
                    replay = load(reference, self._base)
                except UsageError as error:
                    raise ConfigError(error.what, detail=error.detail, hint=error.hint) from None
                self._loaded[category] = (changed_ns, replay)
            return replay


def plain(state: Any) -> Any:
    """As JSON has it; what JSON has not as its text."""
    try:
        return msgspec.json.decode(msgspec.json.encode(state))
    except (TypeError, ValueError, msgspec.MsgspecError):
        return repr(state)
