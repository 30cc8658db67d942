"""What is wrong with the captures of the configuration: their databases, rules and positions.
For `headwater doctor`; changes nothing.
"""

from collections.abc import Iterator, Mapping

from headwater import config
from headwater.capture import positions
from headwater.capture.contract import Source
from headwater.capture.positions import Stored
from headwater.capture.settings import CaptureSettings, with_password
from headwater.capture.sources import source_of
from headwater.cli.capture_positions import read_positions
from headwater.cli.cluster import Cluster
from headwater.cli.doctor import Finding
from headwater.cli.output import plural
from headwater.client import login
from headwater.errors import HeadwaterError, TableRefused
from headwater.settings import ClientSettings


def check_captures(read: config.Config, client: ClientSettings) -> Iterator[Finding]:
    """`client`: as whom to ask the broker for their positions."""
    records: Mapping[bytes, bytes] = {}
    try:
        cluster = Cluster(read.bootstrap(), login.properties_of(client))
        cluster.require_listener()
        records = read_positions(cluster)
    except HeadwaterError as error:
        found = f"their positions cannot be read: {error}"
        yield Finding("warning", "captures", found, error.hint)
    for name, settings in read.captures.items():
        yield from _check_capture(settings, positions.decode(name, records))


def _check_capture(settings: CaptureSettings, stored: Stored) -> Iterator[Finding]:
    check = f"capture {settings.name}"
    try:
        source = source_of(with_password(settings))
    except HeadwaterError as error:
        yield _finding(check, error)
        return
    try:
        problems = source.check()
        yield from (_finding(check, problem) for problem in problems)
        if all(isinstance(problem, TableRefused) for problem in problems):
            yield from _check_tables(check, settings, source)
            if stored.capture is not None and source.check_position(stored.capture.position):
                yield Finding("ok", check, "the database's log goes back to its position")
    except HeadwaterError as error:
        yield _finding(check, error)
    finally:
        source.close()
    for table, state in stored.tables.items():
        if state.failed is not None:
            found = f"{table} is no longer followed: {state.failed.what}"
            yield Finding("broken", check, found, state.failed.hint)


def _check_tables(check: str, settings: CaptureSettings, source: Source) -> Iterator[Finding]:
    tables = source.tables()
    if tables:
        found = f"{settings.shown_source} answers; {plural(len(tables), 'table')} to follow"
        yield Finding("ok", check, found)
    else:
        hint = f"do the patterns fit? capture.{settings.name}.tables = {list(settings.tables)}"
        yield Finding(
            "warning", check, f"{settings.shown_source} answers; no table to follow", hint
        )


def _finding(check: str, error: HeadwaterError) -> Finding:
    level = "warning" if isinstance(error, TableRefused) else "broken"
    return Finding(level, check, str(error).replace("\n", "; "), error.hint)
