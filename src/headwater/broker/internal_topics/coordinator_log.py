"""What a coordinator needs of the internal topic that stores its state."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import NamedTuple, Protocol


class StoredRecord(NamedTuple):
    """A record of a coordinator's topic; a null value deletes its key."""

    key: bytes
    value: bytes | None
    timestamp_ms: int
    offset: int = -1  # of the first record in its batch
    producer_id: int = -1  # whose transaction it is part of; -1: of none


class StoredMarker(NamedTuple):
    """The end of a producer's transaction in this partition."""

    producer_id: int
    committed: bool


class CoordinatorLog(Protocol):
    """The partitions of an internal topic, for example `__consumer_offsets`."""

    @property
    def partition_count(self) -> int: ...

    def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        producer: tuple[int, int] | None = None,
    ) -> Awaitable[int]:
        """Appends the records as one batch: after a crash all of them are there, or none.

        Their position in the log is fixed when the call returns. What it returns resolves to that
        offset when they are durable, in the order of the calls to this partition, or raises
        `StorageFailed`. With a `producer` (id, epoch) they count once its transaction commits.
        """
        ...

    def read(self, partition: int) -> AsyncIterator[Sequence[StoredRecord | StoredMarker]]:
        """Everything in the partition, in order."""
        ...
