"""Checks of the captures of the configuration: their databases, rules and positions.
For `headwater doctor`; changes nothing.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Final

from headwater import config
from headwater.capture import positions
from headwater.capture.contract import Source
from headwater.capture.positions import Stored
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings, with_password
from headwater.capture.sources import source_of
from headwater.cli.checks import Finding
from headwater.client.reading.compacted import read_committed_latest
from headwater.errors import HeadwaterError, PositionLost, SchemaRefused, TableRefused
from headwater.inspect.captures import connected, stored_of
from headwater.inspect.subjects import existing_personal_topics
from headwater.schema_lookup.sources import schema_source
from headwater.settings import ClientSettings
from headwater.subjects.access import PersonalTopics
from headwater.terminal.output import plural

_NOT_FOUND: Final = 404


def check_captures(read: config.Config, client: ClientSettings) -> Iterator[Finding]:
    """`client`: as whom to ask the broker for their positions."""
    records: Mapping[bytes, bytes] = {}
    loaded = dataclasses.replace(read, client=client)
    try:
        connected(loaded)
        records = read_committed_latest(loaded.bootstrap(), client, positions.TOPIC)
    except HeadwaterError as error:
        found = f"their positions cannot be read: {error}"
        yield Finding("warning", "captures", found, error.hint)
    for name, settings in read.captures.items():
        yield from _check_capture(loaded, settings, positions.decode(name, records))


def _check_capture(
    loaded: config.Config, settings: CaptureSettings, stored: Stored
) -> Iterator[Finding]:
    check = f"capture {settings.name}"
    if settings.format == "avro":
        yield from _check_registry(check, loaded)
    try:
        source = source_of(with_password(settings))
    except HeadwaterError as error:
        yield _finding(check, error)
        return
    try:
        problems = source.check()
        yield from (_finding(check, problem) for problem in problems)
        if all(isinstance(problem, TableRefused) for problem in problems):
            yield from _check_tables(check, settings, source, existing_personal_topics(loaded))
            yield from _check_position(check, loaded, settings.name, stored, source)
            for advice in source.advice():
                yield Finding("warning", check, str(advice), advice.hint)
    except HeadwaterError as error:
        yield _finding(check, error)
    finally:
        source.close()
    for table, state in stored.tables.items():
        if state.failed is not None:
            found = f"{table} is not followed: {state.failed.what}"
            yield Finding("broken", check, found, state.failed.hint)


def _check_registry(check: str, loaded: config.Config) -> Iterator[Finding]:
    """Whether the registry of Avro's schemas answers. Without an address it is the topic `_schemas`
    of the broker, which the capture creates.
    """
    if loaded.schemas.url is None:
        return
    registry = schema_source(loaded.schemas, loaded.bootstrap(), loaded.client)
    try:
        registry.latest(check)  # any subject: that there is none is an answer
    except SchemaRefused as error:
        if error.code // 100 != _NOT_FOUND:
            yield _finding(check, error)
            return
    except HeadwaterError as error:
        yield _finding(check, error)
        return
    finally:
        registry.close()
    yield Finding("ok", check, f"the schema registry at {loaded.schemas.url} answers")


def _check_position(
    check: str, loaded: config.Config, name: str, stored: Stored, source: Source
) -> Iterator[Finding]:
    if stored.capture is None:
        return
    try:
        is_retained = source.check_position(stored.capture.position)
    except PositionLost:
        # A running capture may have moved on, and the database have forgotten, since it was read.
        now = stored_of(name, loaded.bootstrap(), loaded.client).capture
        if now is None or now.position == stored.capture.position:
            raise
        is_retained = True
    if is_retained:
        yield Finding("ok", check, "the database's log goes back to its position")


def _check_tables(
    check: str, settings: CaptureSettings, source: Source, personal: PersonalTopics | None
) -> Iterator[Finding]:
    tables = source.tables()
    if tables:
        found = f"{settings.shown_source} answers; {plural(len(tables), 'table')} to follow"
        yield Finding("ok", check, found)
        shaper = Shaper(settings, source.connector, source.database, personal)
        yield from (_finding(check, problem) for problem in shaper.check(tables))
    else:
        hint = f"do the patterns fit? capture.{settings.name}.tables = {list(settings.tables)}"
        yield Finding(
            "warning", check, f"{settings.shown_source} answers; no table to follow", hint
        )


def _finding(check: str, error: HeadwaterError) -> Finding:
    level = "warning" if isinstance(error, TableRefused) else "broken"
    return Finding(level, check, str(error).replace("\n", "; "), error.hint)
