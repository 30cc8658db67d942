"""Every generated message with its versions, and Hypothesis values for it."""

import importlib
import pkgutil
import re
from typing import Any, get_args, get_origin
from uuid import UUID

from hypothesis import strategies as st

from headwater.protocol import messages, schema
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.schema import Kind, Message

FIRST_TAG_OF_OURS = 10_000  # see EXTENSIONS in tools/generate_messages.py
_VERSIONS = re.compile(r"(?:Request|Response) of (\w+), versions (\d+)(?:-(\d+))?")
_INTEGERS = {
    kind.__metadata__[0].read: bounds
    for kind, bounds in (
        (schema.int8, (-(2**7), 2**7 - 1)),
        (schema.int16, (-(2**15), 2**15 - 1)),
        (schema.int32, (-(2**31), 2**31 - 1)),
        (schema.int64, (-(2**63), 2**63 - 1)),
        (schema.uint16, (0, 2**16 - 1)),
        (schema.uint32, (0, 2**32 - 1)),
    )
}
_BOOLEAN = schema.boolean.__metadata__[0].read
_FLOAT = schema.float64.__metadata__[0].read
_UUID = schema.uuid.__metadata__[0].read


def all_messages() -> list[tuple[type[Message], int]]:
    """(class, version) of every request and response."""
    found = []
    for module in pkgutil.iter_modules(messages.__path__):
        loaded = importlib.import_module(f"{messages.__name__}.{module.name}")
        for member in vars(loaded).values():
            stated = _VERSIONS.match(getattr(member, "__doc__", None) or "")
            if stated and isinstance(member, type) and issubclass(member, Message):
                first, last = int(stated[2]), int(stated[3] or stated[2])
                found += [(member, version) for version in range(first, last + 1)]
    return found


def values(cls: type[Message], version: int, *, tame: bool = False) -> st.SearchStrategy[Message]:
    """Messages with the fields that `version` has. Tame: no nulls, numbers that mean something
    (codes that exist, durations that are not negative), and no fields of our own.
    """
    flexible = version >= cls.flexible
    return _message(cls, version, flexible, tame)


def _message(
    cls: type[Message], version: int, flexible: bool, tame: bool
) -> st.SearchStrategy[Message]:
    fields = {
        field.name: _value(field.name, field.type, field.nullable, version, flexible, tame)
        for field in schema._present(cls, version)
        if field.versions.tag is None
        or (flexible and not (tame and field.versions.tag >= FIRST_TAG_OF_OURS))
    }
    return st.builds(cls, **fields)


def _value(
    name: str, kind: Any, nullable: bool, version: int, flexible: bool, tame: bool
) -> st.SearchStrategy[Any]:
    if nullable and not tame:
        return st.none() | _value(name, kind, False, version, flexible, tame)
    if get_origin(kind) is list:
        bare, element_nullable, _ = schema._split(get_args(kind)[0])
        element = _value(name, bare, element_nullable, version, flexible, tame)
        return st.lists(element, max_size=3)
    if isinstance(kind, Kind):
        return _primitive(name, kind, tame)
    return _message(kind, version, flexible, tame)


def _primitive(name: str, kind: Kind, tame: bool) -> st.SearchStrategy[Any]:
    if kind.read in _INTEGERS:
        low, high = _INTEGERS[kind.read]
        if tame and "error_code" in name:
            return st.sampled_from([int(code) for code in ErrorCode])
        if tame:
            return st.integers(0, min(high, 2**40))
        return st.integers(low, high)
    if kind.read is _BOOLEAN:
        return st.booleans()
    if kind.read is _FLOAT:
        return st.floats(allow_nan=False)
    if kind.read is _UUID:
        return st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number))
    if kind.zero == "":
        return st.text(max_size=6)
    return st.binary(max_size=20)
