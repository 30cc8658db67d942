"""The bulk consumer: offsets of partitions, and their records as Arrow."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, Self

from headwater.client.cluster import DEFAULT_PATIENCE_S, Cluster
from headwater.client.offsets import (
    COMMITTED,
    EARLIEST,
    LATEST,
    NONE_THEN,
    UNCOMMITTED,
    list_offsets,
)
from headwater.client.reading.range_fetcher import RangeFetcher
from headwater.client.writing.sending import TopicPartition
from headwater.errors import MalformedMessage
from headwater.protocol.records import Record, records_of
from headwater.settings import ClientSettings

if TYPE_CHECKING:  # Arrow and numba are loaded to read records, not to look up offsets
    import pyarrow as pa

__all__ = ["DEFAULT_COLUMNS", "EARLIEST", "LATEST", "Fetcher", "Isolation"]

Isolation = Literal["read_committed", "read_uncommitted"]
DEFAULT_COLUMNS: Final = ("key", "value", "offset", "timestamp")
_INTERNAL: Final = "__"


class Fetcher:
    """Reads topics of one cluster. To be used by one thread; several `read`s may be under way.

    Raises BrokerUnreachable if there is no answer for `patience_s`, RequestRefused for what does
    not exist or may not be read.
    """

    def __init__(
        self,
        bootstrap: str,
        login: ClientSettings,
        *,
        isolation: Isolation = "read_committed",
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> None:
        self._cluster = Cluster(bootstrap, login, patience_s=patience_s)
        self._isolation = COMMITTED if isolation == "read_committed" else UNCOMMITTED

    def close(self) -> None:
        """Ends a `read` that is under way, too."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def partitions(self, topic: str) -> int:
        """How many there are now."""
        self._cluster.refresh([topic])
        return self._cluster.partitions(topic)

    def exists(self, topic: str) -> bool:
        """By one request: brokers may not report a topic that was created a moment ago."""
        return self._cluster.find_partitions(topic) is not None

    def topics_like(self, pattern: re.Pattern[str]) -> list[str]:
        """The topics whose whole name matches; internal ones ("__…") only if the pattern begins
        with these two signs.
        """
        names = self._cluster.topics()
        if not pattern.pattern.startswith(_INTERNAL):
            names = [name for name in names if not name.startswith(_INTERNAL)]
        return [name for name in names if pattern.fullmatch(name)]

    def offsets(self, partitions: Iterable[TopicPartition], at: int) -> dict[TopicPartition, int]:
        """Where the partitions begin (EARLIEST) or end (LATEST; the last stable offset for a
        reader of committed records), or the first offset whose record has this time
        (milliseconds) or a later one; the end if there is none.
        """
        found = list_offsets(self._cluster, partitions, at, self._isolation)
        late = [partition for partition, offset in found.items() if offset == NONE_THEN]
        return found | list_offsets(self._cluster, late, LATEST, self._isolation)

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
    ) -> "Iterator[pa.RecordBatch]":
        """All records with start <= offset < end, in order, each once, some MiB at a time.

        `end` is one that `offsets` has returned; a larger one waits for its record to be written.
        Raises DataLost if the log does not have all of the range (what compaction has removed is
        not lost), MalformedMessage at a batch that is damaged. What was yielded before is valid.
        """
        from headwater.client.reading.arrow import to_arrow

        fetcher = RangeFetcher(self._cluster, topic, partition, start, end, self._isolation)
        for fetched in fetcher.fetch():
            try:
                yield from to_arrow(fetched.data, fetched.batches, start, end, columns)
            except MalformedMessage as error:
                raise MalformedMessage(
                    f"{topic}-{partition} cannot be read", detail=str(error)
                ) from None

    def records(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        """As `read`, one at a time: for a screenful of records, without loading Arrow and numba."""
        fetcher = RangeFetcher(self._cluster, topic, partition, start, end, self._isolation)
        for fetched in fetcher.fetch():
            for header, position in fetched.batches:
                try:
                    for record in records_of(fetched.data[position : position + header.size_bytes]):
                        if start <= record.offset < end:
                            yield record
                except MalformedMessage as error:
                    raise MalformedMessage(
                        f"{topic}-{partition} cannot be read",
                        detail=f"the batch at offset {header.base_offset} is broken: {error}",
                    ) from None
