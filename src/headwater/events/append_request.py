"""A request to append whose input was checked, before it waits for a transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwater.errors import EventRefused
from headwater.events.contract import ANY, Condition, StreamWrite
from headwater.events.event_types import EventTypes
from headwater.events.input_checks import (
    Encoded,
    Limits,
    check_append_size,
    check_command_id,
    check_query,
    check_stream,
    encoded,
)


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """An append whose input was checked. `writes`: (stream, expected version, its events)."""

    writes: Sequence[tuple[str, int, Sequence[Encoded]]]
    condition: Condition | None
    command_id: str | None
    size_bytes: int


def check_request(
    writes: Sequence[StreamWrite],
    condition: Condition | None,
    command_id: str | None,
    types: EventTypes | None,
    limits: Limits,
) -> AppendRequest:
    """Raises EventRefused."""
    check_command_id(command_id)
    if condition is not None:
        check_query(condition.query)
    streams: dict[str, tuple[int, list[Any]]] = {}
    for write in writes:
        expected = write.expected
        if not isinstance(expected, int) or expected < ANY:
            raise EventRefused(
                f"{expected!r} is no version of a stream", hint="ANY, NO_STREAM, or a number from 1"
            )
        if check_stream(write.stream) in streams:
            raise EventRefused(f"stream {write.stream} is written twice in one append")
        streams[write.stream] = (expected, encoded(write.events, types, limits))
    events = [event for _, written in streams.values() for event in written]
    if len({event.id for event in events}) < len(events):
        raise EventRefused("two events of an append have the same id")
    if not events and command_id is None:
        raise EventRefused("an append needs at least one event")
    return AppendRequest(
        [(stream, *write) for stream, write in streams.items()],
        condition,
        command_id,
        check_append_size(events, limits),
    )
