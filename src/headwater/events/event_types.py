"""Registered types of events (and of commands): their classes, versions, upcasters and JSON.

    types = EventTypes()

    @types.register(tags=lambda event: [f"user:{event.name}"])
    class UserRegistered(msgspec.Struct):
        name: str

The class is a dataclass or a msgspec.Struct. When its fields change, `version` is raised and an
upcaster brings the data of the version before into the new form; stored events stay as they are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import msgspec

from headwater.errors import EventRefused
from headwater.spelling import nearest

_C = TypeVar("_C", bound=type)
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
Tags = Callable[[Any], Iterable[str]]


@dataclass(slots=True)
class _Registered:
    name: str
    cls: type
    version: int
    tags: Tags | None
    decoder: msgspec.json.Decoder[Any]
    upcasters: dict[int, Upcaster]


class EventTypes:
    """The types that a store accepts, by name. Raises EventRefused for everything else."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Registered] = {}
        self._by_class: dict[type, _Registered] = {}
        self._encoder = msgspec.json.Encoder()

    @overload
    def register(self, cls: _C) -> _C: ...
    @overload
    def register(
        self, *, name: str | None = None, version: int = 1, tags: Tags | None = None
    ) -> Callable[[_C], _C]: ...
    def register(
        self,
        cls: type | None = None,
        *,
        name: str | None = None,
        version: int = 1,
        tags: Tags | None = None,
    ) -> Any:
        """A decorator of classes. The name of a type is its class's, unless given; `tags` gives
        the tags of an event from its data.
        """
        if cls is None:
            return lambda decorated: self._add(decorated, name, version, tags)
        return self._add(cls, name, version, tags)

    def _add(self, cls: type, name: str | None, version: int, tags: Tags | None) -> type:
        name = name or cls.__name__
        if name in self._by_name:
            raise EventRefused(f"event type {name} is registered twice")
        if version < 1:
            raise EventRefused(f"versions of event type {name} begin at 1", detail=str(version))
        try:
            decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(cls)
        except TypeError as error:
            raise EventRefused(
                f"the class of event type {name} cannot be read from JSON",
                detail=str(error),
                hint="a dataclass or a msgspec.Struct with annotated fields",
            ) from error
        registered = _Registered(name, cls, version, tags, decoder, {})
        self._by_name[name] = self._by_class[cls] = registered
        return cls

    def upcast(self, name: str, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """A decorator: the function makes the data of `from_version + 1` from `from_version`."""
        registered = self._named(name)
        if not 1 <= from_version < registered.version:
            raise EventRefused(
                f"no version {from_version} of {name} needs an upcaster",
                detail=f"its class has version {registered.version}",
            )

        def add(function: Upcaster) -> Upcaster:
            registered.upcasters[from_version] = function
            return function

        return add

    def names(self) -> list[str]:
        return list(self._by_name)

    def name_of(self, value: Any) -> str | None:
        """The name of the type of an object, or None if its class is not registered."""
        registered = self._by_class.get(type(value))
        return registered.name if registered else None

    def tags_of(self, value: Any) -> tuple[str, ...]:
        registered = self._by_class.get(type(value))
        return (*registered.tags(value),) if registered and registered.tags else ()

    def version_of(self, name: str) -> int:
        return self._named(name).version

    def encoded(self, value: Any) -> tuple[str, int, bytes, Iterable[str]] | None:
        """Type, version, JSON and tags of an object, or None if its class is not registered."""
        registered = self._by_class.get(type(value))
        if registered is None:
            return None
        tags = () if registered.tags is None else registered.tags(value)
        return registered.name, registered.version, self._json(registered, value), tags

    def encode(self, name: str, value: Any) -> bytes:
        """JSON of an object of the type's class, or of plain data that fit it."""
        return self._json(self._named(name), value)

    def _json(self, registered: _Registered, value: Any) -> bytes:
        try:
            text = self._encoder.encode(value)
            # Also an object's: its fields may hold what its annotations do not allow.
            registered.decoder.decode(text)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise EventRefused(
                f"data of an event do not fit its type {registered.name}", detail=str(error)
            ) from error
        return text

    def decode(self, name: str, version: int, json: str | bytes) -> Any:
        """An object of the type's class, from data of this version or an older one."""
        registered = self._named(name)
        try:
            if version == registered.version:
                return registered.decoder.decode(json)
            return self._upcasted(registered, version, msgspec.json.decode(json))
        except EventRefused:
            raise
        except Exception as error:  # an upcaster may raise anything
            raise EventRefused(
                f"a stored event does not fit its type {name}",
                detail=f"schema version {version}: {type(error).__name__}: {error}",
                hint=""
                if version == registered.version
                else f"the upcasters from version {version} on must give what the class has",
            ) from error

    def _upcasted(self, registered: _Registered, version: int, data: Any) -> Any:
        if version > registered.version:
            raise EventRefused(
                f"an event of type {registered.name} is newer than its registered class",
                detail=f"schema version {version}, registered is {registered.version}",
                hint="a newer version of the application has written it",
            )
        for older in range(version, registered.version):
            if older not in registered.upcasters:
                raise EventRefused(
                    f"event type {registered.name} has no upcaster from version {older}",
                    hint=f'@types.upcast("{registered.name}", from_version={older})',
                )
            data = registered.upcasters[older](data)
        return msgspec.convert(data, registered.cls, str_keys=True)

    def _named(self, name: str) -> _Registered:
        registered = self._by_name.get(name)
        if registered is None:
            meant = nearest(name, list(self._by_name))
            raise EventRefused(
                f"event type {name} is not registered",
                detail=f"registered types: {', '.join(self._by_name) or 'none'}",
                hint=f"did you mean {meant}?" if meant else "",
            )
        return registered
