"""`hw.wait`: read your own writes, by waiting until a derived store has them.

A token names the records to wait for: `orders:0:41` is the one at offset 41 of orders-0. A producer
gets the offset of its record; `token_of` makes a token of that. Without a token, `wait` waits for
everything that was committed before now: in the captured databases behind the
pipeline's topics (their captures have to be past it), and in the log.
"""

import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from headwater import config
from headwater.errors import HeadwaterError, NotReady, PipelineError, UsageError
from headwater.pipelines.offsets import ends_of, has_reached, lag_records
from headwater.pipelines.running import status
from headwater.pipelines.running.store_lookup import find_store, state_dir_of
from headwater.sinks.contract import Log, Offsets, Position, Store

if TYPE_CHECKING:
    from headwater.capture.contract import Chunk

_POLL_S: Final = 0.05
_ASK_EVERY_S: Final = 1.0  # as long as a capture polls quickly after a request
DEFAULT_TIMEOUT_S: Final = 30.0


def token_of(*records: Any) -> str:
    """Of records that were written: what confluent-kafka's delivery callback is given, or
    (topic, partition, offset). The token of several stands for all of them.
    """
    return ",".join(
        ":".join(map(str, record))
        if isinstance(record, tuple)
        else f"{record.topic()}:{record.partition()}:{record.offset()}"
        for record in records
    )


def offsets_of(token: str) -> Offsets:
    """The offsets that a store has to reach. Raises UsageError."""
    ends: dict[str, dict[int, int]] = {}
    for record in token.split(","):
        try:
            topic, partition, offset = record.rsplit(":", 2)
            partitions = ends.setdefault(topic, {})
            partitions[int(partition)] = max(partitions.get(int(partition), 0), int(offset) + 1)
        except ValueError:
            raise UsageError(
                f"{record!r} is no token", hint="it looks like orders:0:41 (topic:partition:offset)"
            ) from None
    return ends


def wait(
    name: str,
    token: str | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    loaded: config.Config | None = None,
) -> dict[str, Position]:
    """Returns when the stores of the pipeline (or the one of pipeline/sink/table) have it, with
    their positions. Raises NotReady if that takes longer than `timeout_s`.
    """
    loaded = loaded or config.load()
    ends_s = time.monotonic() + timeout_s
    pipeline, _, only = name.partition("/")
    writes = _writes(loaded, pipeline, only, ends_s)
    if token is not None:
        wanted = {write: offsets_of(token) for write in writes}
        _check_topics(pipeline, writes, wanted)
    else:
        topics = {topic for entry in writes.values() for topic in entry["topics"]}
        _await_captures(loaded, topics, ends_s)
        log = Log(loaded.bootstrap(), loaded.client)
        wanted = {write: ends_of(log, entry["topics"]) for write, entry in writes.items()}
    return {
        write: _await_store(loaded, pipeline, write, entry, wanted[write], ends_s)
        for write, entry in writes.items()
    }


def _writes(
    loaded: config.Config, pipeline: str, only: str, ends_s: float
) -> dict[str, dict[str, Any]]:
    """Waits for a pipeline that starts for the first time, until its status has its writes."""
    if pipeline not in loaded.pipelines:
        meant = config.nearest(pipeline, list(loaded.pipelines))
        raise UsageError(
            f"there is no pipeline {pipeline}", hint=f"did you mean {meant}?" if meant else ""
        )
    found = status.read(state_dir_of(loaded), pipeline)
    while _is_starting(found) and time.monotonic() < ends_s:
        time.sleep(_POLL_S)
        found = status.read(state_dir_of(loaded), pipeline)
    writes = {
        write: dict(entry)
        for write, entry in found.writes.items()
        if "sink" in entry and only in ("", write, entry["table"])
    }
    if not writes and _is_starting(found):
        raise NotReady(f"pipeline {pipeline} is starting", hint="--timeout waits longer")
    if not writes:
        raise NotReady(
            f"{pipeline}/{only} has never run" if only else f"pipeline {pipeline} has never run",
            hint=f"`headwater pipeline run {pipeline}` starts it",
        )
    return writes


def _is_starting(found: status.Status) -> bool:
    if not found.is_running or any("sink" in entry for entry in found.writes.values()):
        return False
    return found.writes.get("", {}).get("state") == status.STARTING


def _check_topics(
    pipeline: str, writes: Mapping[str, dict[str, Any]], wanted: Mapping[str, Offsets]
) -> None:
    for write, entry in writes.items():
        for topic in wanted[write]:
            if topic not in entry["topics"]:
                raise UsageError(
                    f"{pipeline}/{write} does not read {topic}",
                    detail="it reads " + ", ".join(entry["topics"]),
                )


def _await_captures(loaded: config.Config, topics: Iterable[str], ends_s: float) -> None:
    """Until the changes that are committed in the databases now are in the log."""
    from headwater.capture.settings import with_password
    from headwater.capture.sources import source_of

    for capture in sorted({topic.split(".")[0] for topic in topics} & loaded.captures.keys()):
        source = source_of(with_password(loaded.captures[capture]), loaded.bootstrap())
        try:
            tables = source.tables()
            if not tables or source.snapshots_itself:
                continue
            # Of a table without a key all rows would be read.
            table = next((table for table in tables if table.key), tables[0])
            seen = source.read_chunk(table, None, 1)
        finally:
            source.close()
        await_capture(Log(loaded.bootstrap(), loaded.client), capture, seen, ends_s)


def await_capture(log: Log, capture: str, seen: "Chunk", ends_s: float) -> None:
    """Until all changes that the chunk contains are in the log. Raises NotReady."""
    from headwater.capture import positions
    from headwater.capture.signals import ask_for_position
    from headwater.client.compacted import read_committed_latest

    asked_s = -math.inf
    while True:
        records = read_committed_latest(log.bootstrap, log.login, positions.TOPIC)
        stored = positions.decode(capture, records).capture
        if stored is not None and seen.is_passed(stored.position.at):
            return
        if time.monotonic() > ends_s:
            raise NotReady(
                f"capture {capture} has not caught up with the database",
                hint=f"`headwater capture status {capture}` shows its position",
            )
        if stored is not None and time.monotonic() - asked_s > _ASK_EVERY_S:
            ask_for_position(capture, log.bootstrap, log.login)
            asked_s = time.monotonic()
        time.sleep(_POLL_S)


def _await_store(
    loaded: config.Config,
    pipeline: str,
    write: str,
    entry: dict[str, Any],
    wanted: Offsets,
    ends_s: float,
) -> Position:
    store = find_store(loaded, pipeline, entry)
    try:
        while True:
            position = _live(store)
            if position is not None and has_reached(position, wanted):
                return position
            if time.monotonic() > ends_s:
                raise NotReady(
                    f"{pipeline}/{write} is {lag_records(position, wanted):,} records behind",
                    hint=f"`headwater pipeline status {pipeline}` shows why",
                )
            time.sleep(_POLL_S)
    finally:
        store.close()


def _live(store: Store) -> Position | None:
    try:
        return next((version.position for version in store.versions() if version.is_live), None)
    except PipelineError:
        raise
    except HeadwaterError:
        return None  # it may recover in time
