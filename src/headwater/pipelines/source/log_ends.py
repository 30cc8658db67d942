"""Partitions of the topics that are read, and the offsets at which they begin and end."""

import re
from collections.abc import Iterable

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.client.writing.sending import TopicPartition
from headwater.errors import ConfigError, RequestRefused
from headwater.pipelines.source.options import OffsetSpec, SourceOptions
from headwater.pipelines.source.reading import fetcher_of

Offsets = dict[TopicPartition, int]


class LogEnds:
    """Queries the brokers with each call; nothing is cached."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @property
    def _fetcher(self) -> Fetcher:
        return fetcher_of(self._options)

    def partitions(self) -> list[TopicPartition]:
        """Those of all topics that are named or match the pattern; RequestRefused if one that is
        named does not exist.
        """
        names: Iterable[str] = self._options.topic
        if self._options.pattern is not None:
            names = self._fetcher.topics_like(re.compile(self._options.pattern))
        return [
            (topic, partition)
            for topic in sorted(set(names))
            for partition in range(self._fetcher.partitions(topic))
        ]

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._fetcher.offsets(partitions, LATEST)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._fetcher.offsets(partitions, EARLIEST)

    def at(
        self, spec: OffsetSpec, partitions: Iterable[TopicPartition], *, unnamed: int
    ) -> Offsets:
        """The offsets of a spec; `unnamed` (EARLIEST or LATEST) are those of partitions that a spec
        of offsets does not name. ConfigError if it names partitions that do not exist.
        """
        partitions = list(partitions)
        if isinstance(spec, int):
            return self._fetcher.offsets(partitions, spec)
        if unread := sorted(spec.keys() - set(partitions)):
            topic, partition = unread[0]
            raise ConfigError(
                f"offsets are given for {topic}-{partition}, which is not read",
                hint="name partitions that exist, of the topics that are read",
            )
        latest = self.latest(spec)
        for (topic, partition), offset in spec.items():
            if not 0 <= offset <= latest[topic, partition]:
                raise ConfigError(
                    f"offset {offset} of {topic}-{partition} does not exist",
                    detail=f"the log ends at {latest[topic, partition]}",
                )
        others = [topic_partition for topic_partition in partitions if topic_partition not in spec]
        return dict(spec) | self._fetcher.offsets(others, unnamed)

    def existing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those whose topic has not been deleted."""
        found: list[TopicPartition] = []
        counts: dict[str, int] = {}
        for topic, partition in partitions:
            if topic not in counts:
                try:
                    counts[topic] = self._fetcher.partitions(topic)
                except RequestRefused:
                    counts[topic] = 0
            if partition < counts[topic]:
                found.append((topic, partition))
        return found
