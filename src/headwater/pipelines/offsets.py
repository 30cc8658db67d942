"""Start and end offsets of a pipeline's topics, and the lag of a position."""

import re
from collections.abc import Iterable, Mapping

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.client.writing.sending import TopicPartition
from headwater.errors import PipelineError
from headwater.pipelines.settings import PipelineSettings
from headwater.sinks.contract import Log, Offsets, Position


def check_derivable(settings: PipelineSettings, log: Log, topics: Iterable[str]) -> None:
    """Raises PipelineError unless the pipeline begins at the start of the log, and the log still
    has the first record of each topic: records that it skipped, or that retention has removed,
    cannot be derived again.
    """
    if settings.start != "earliest":
        raise PipelineError(
            f"pipeline {settings.name} does not begin at the start of the log",
            detail=f"start = {settings.start!r}",
            hint="its rows cannot be derived again",
        )
    fetcher = Fetcher(log.bootstrap, log.login)
    try:
        for topic in topics:
            partitions = [(topic, number) for number in range(fetcher.partitions(topic))]
            cut = {
                at: offset for at, offset in fetcher.offsets(partitions, EARLIEST).items() if offset
            }
            if cut:
                (_, partition), first = next(iter(cut.items()))
                raise PipelineError(
                    f"{topic} no longer begins at its first record",
                    detail=f"partition {partition} begins at offset {first}",
                    hint="a topic that stores are derived from has to be compacted, or retained"
                    " indefinitely (retention.ms=-1)",
                )
    finally:
        fetcher.close()


def ends_of(log: Log, topics: Iterable[str], patterns: Iterable[str] = ()) -> Offsets:
    """The end offsets of the topics now, for readers of committed records."""
    fetcher = Fetcher(log.bootstrap, log.login)
    try:
        matching = (fetcher.topics_like(re.compile(pattern)) for pattern in patterns)
        topics = dict.fromkeys((*topics, *(name for names in matching for name in names)))
        partitions = [
            (topic, number) for topic in topics for number in range(fetcher.partitions(topic))
        ]
        return by_topic(fetcher.offsets(partitions, LATEST))
    finally:
        fetcher.close()


def by_topic(offsets: Mapping[TopicPartition, int]) -> Offsets:
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in offsets.items():
        found.setdefault(topic, {})[partition] = offset
    return found


def has_reached(position: Position | None, offsets: Offsets) -> bool:
    if position is None:
        return not any(any(ends.values()) for ends in offsets.values())
    return all(
        position.offsets.get(topic, {}).get(partition, 0) >= end
        for topic, partitions in offsets.items()
        for partition, end in partitions.items()
    )


def lag_records(position: Position | None, ends: Offsets) -> int:
    """How many offsets the log is ahead."""
    return lag_of(position.offsets if position else {}, ends)


def lag_of(read: Offsets, ends: Offsets) -> int:
    return sum(
        max(0, end - read.get(topic, {}).get(partition, 0))
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )
