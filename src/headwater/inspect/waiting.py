"""Reading your own writes: waiting until a derived store has what was written.

A token says which records must be in: `orders:0:41` is the one at offset 41 of orders-0. A
producer gets the offset of its record; `token_of` makes a token of that. Without a token,
one waits for everything that was committed before now: in the captured databases behind the
pipeline's topics (their captures have to be past it), and in the log.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headwater import config
from headwater.errors import HeadwaterError, NotReady, PipelineError, UsageError
from headwater.inspect.store_lookup import store_of_write
from headwater.pipelines.offsets import ends_of, has_reached, lag_records
from headwater.pipelines.running import status
from headwater.pipelines.running.capture_position import await_capture
from headwater.sinks.contract import Log, Offsets, Position, Store
from headwater.spelling import nearest

_POLL_S: Final = 0.05
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
    """How far a store has to be. Raises UsageError."""
    ends: dict[str, dict[int, int]] = {}
    for part in token.split(","):
        try:
            topic, partition, offset = part.rsplit(":", 2)
            of_topic = ends.setdefault(topic, {})
            of_topic[int(partition)] = max(of_topic.get(int(partition), 0), int(offset) + 1)
        except ValueError:
            raise UsageError(
                f"{part!r} is no token", hint="it looks like orders:0:41 (topic:partition:offset)"
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
        topics = {topic for reported in writes.values() for topic in reported["topics"]}
        _await_captures(loaded, topics, ends_s)
        log = Log(loaded.bootstrap(), loaded.client)
        wanted = {write: ends_of(log, reported["topics"]) for write, reported in writes.items()}
    return {
        write: _await_store(loaded, pipeline, write, reported, wanted[write], ends_s)
        for write, reported in writes.items()
    }


def _writes(
    loaded: config.Config, pipeline: str, only: str, ends_s: float
) -> dict[str, dict[str, Any]]:
    """A pipeline that starts for the first time reports its writes after a while."""
    if pipeline not in loaded.pipelines:
        meant = nearest(pipeline, list(loaded.pipelines))
        raise UsageError(
            f"there is no pipeline {pipeline}", hint=f"did you mean {meant}?" if meant else ""
        )
    reported = status.read(loaded.state_dir(), pipeline)
    while _is_starting(reported) and time.monotonic() < ends_s:
        time.sleep(_POLL_S)
        reported = status.read(loaded.state_dir(), pipeline)
    writes = {
        write: dict(report)
        for write, report in reported.writes.items()
        if "sink" in report and only in ("", write, report["table"])
    }
    if not writes and _is_starting(reported):
        raise NotReady(f"pipeline {pipeline} is starting", hint="--timeout waits longer")
    if not writes:
        raise NotReady(
            f"{pipeline}/{only} has never run" if only else f"pipeline {pipeline} has never run",
            hint=f"`headwater pipeline run {pipeline}` starts it",
        )
    return writes


def _is_starting(reported: status.Status) -> bool:
    has_stores = any("sink" in write for write in reported.writes.values())
    return (
        reported.is_running
        and not has_stores
        and reported.writes.get("", {}).get("state") == status.STARTING
    )


def _check_topics(
    pipeline: str, writes: Mapping[str, dict[str, Any]], wanted: Mapping[str, Offsets]
) -> None:
    for write, reported in writes.items():
        for topic in wanted[write]:
            if topic not in reported["topics"]:
                raise UsageError(
                    f"{pipeline}/{write} does not read {topic}",
                    detail="it reads " + ", ".join(reported["topics"]),
                )


def _await_captures(loaded: config.Config, topics: Iterable[str], ends_s: float) -> None:
    """Until what is committed in the databases now is in the log."""
    from headwater.capture.settings import with_password
    from headwater.capture.sources import source_of

    for capture in sorted({topic.split(".")[0] for topic in topics} & loaded.captures.keys()):
        source = source_of(with_password(loaded.captures[capture]), loaded.bootstrap())
        try:
            tables = source.tables()
            if not tables or source.snapshots_itself:
                continue
            # Of a table without a key all rows would be read.
            table = next((candidate for candidate in tables if candidate.key), tables[0])
            seen = source.read_chunk(table, None, 1)
        finally:
            source.close()
        await_capture(Log(loaded.bootstrap(), loaded.client), capture, seen, ends_s)


def _await_store(
    loaded: config.Config,
    pipeline: str,
    write: str,
    reported: dict[str, Any],
    wanted: Offsets,
    ends_s: float,
) -> Position:
    store = store_of_write(loaded, pipeline, reported)
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
        return None  # it may come back in time
