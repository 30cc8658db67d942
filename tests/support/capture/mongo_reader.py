"""A source as a test reads it: opened on one database, taken from until a condition holds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headwater.capture.contract import (
    Begin,
    Change,
    Commit,
    Event,
    PositionAdvanced,
    SourcePosition,
)
from headwater.capture.mongo.source import MongoSource
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret
from support.capture.mongo_server import MongoServer

TIMEOUT_S = 60


def settings_of(mongo: MongoServer, database: str, **changed: Any) -> CaptureSettings:
    return CaptureSettings(name="docs", source=Secret(mongo.url + database), **changed)


@contextmanager
def source_of(mongo: MongoServer, database: str, **changed: Any) -> Iterator[MongoSource]:
    source = MongoSource(settings_of(mongo, database, **changed))
    try:
        yield source
    finally:
        source.close()


def read_until(
    source: MongoSource, after: SourcePosition, is_enough: Callable[[list[Event]], bool]
) -> list[Event]:
    """What the stream sends, without the signs of life."""
    events: list[Event] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    stream = source.changes(after)
    try:
        for event in stream:
            if event is not None:
                events.append(event)
                if is_enough(events):
                    return events
            assert time.monotonic() < deadline_s, f"only {events}"
    finally:
        stream.close()
    raise AssertionError("the stream ended")


def read_transactions(source: MongoSource, after: SourcePosition, count: int) -> list[Event]:
    return without_progress(
        read_until(source, after, lambda events: sum(type(e) is Commit for e in events) == count)
    )


def without_progress(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, PositionAdvanced)]


def changes_in(events: list[Event]) -> list[Change]:
    return [event for event in events if isinstance(event, Change)]


def begins_in(events: list[Event]) -> list[Begin]:
    return [event for event in events if isinstance(event, Begin)]
