"""Where the topics of a pipeline begin and end."""

from collections.abc import Iterable, Mapping

from headwater.client.fetching import EARLIEST, LATEST, Fetcher
from headwater.client.sending import TopicPartition
from headwater.errors import PipelineError
from headwater.pipelines.settings import PipelineSettings
from headwater.sinks.contract import Log, Offsets, Position


def check_derivable(settings: PipelineSettings, log: Log, topics: Iterable[str]) -> None:
    """Raises PipelineError unless a pipeline begins at the start of the log, and the log goes back
    to the first record of each topic: what it has passed over, or retention has cut away, cannot
    be derived again.
    """
    if settings.start != "earliest":
        raise PipelineError(
            f"pipeline {settings.name} does not begin at the start of the log",
            detail=f"start = {settings.start!r}",
            hint="what it has written cannot be derived again",
        )
    fetcher = Fetcher(log.bootstrap, log.login)
    try:
        for topic in topics:
            places = [(topic, number) for number in range(fetcher.partitions(topic))]
            cut = {at: offset for at, offset in fetcher.offsets(places, EARLIEST).items() if offset}
            if cut:
                (_, partition), first = next(iter(cut.items()))
                raise PipelineError(
                    f"{topic} no longer begins at its first record",
                    detail=f"partition {partition} begins at offset {first}",
                    hint="a topic that stores are derived from is compacted, or kept for ever"
                    " (retention.ms=-1)",
                )
    finally:
        fetcher.close()


def ends_of(log: Log, topics: Iterable[str]) -> Offsets:
    """Where the topics end now, for readers of what is committed."""
    fetcher = Fetcher(log.bootstrap, log.login)
    try:
        places = [
            (topic, number) for topic in topics for number in range(fetcher.partitions(topic))
        ]
        return by_topic(fetcher.offsets(places, LATEST))
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
