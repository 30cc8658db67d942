"""What the coordinator needs of the rest of the broker."""

from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID


class StoredRecord(NamedTuple):
    """A record of `__consumer_offsets`; a null value deletes its key."""

    key: bytes
    value: bytes | None
    timestamp_ms: int


class GroupLog(Protocol):
    """The partitions of `__consumer_offsets`."""

    @property
    def partition_count(self) -> int: ...

    def append(
        self, partition: int, records: Sequence[tuple[bytes, bytes | None]]
    ) -> Awaitable[None]:
        """Appends the records as one batch: after a crash all of them are there, or none.

        Their place in the log is fixed when the call returns. What it returns resolves when they
        are durable, in the order of the calls to this partition, or raises `StorageFailed`.
        """
        ...

    def read(self, partition: int) -> AsyncIterator[Sequence[StoredRecord]]:
        """Everything in the partition, in order."""
        ...


class Topics(Protocol):
    """The topics as they are now. Whoever changes one calls `GroupCoordinator.topics_changed`."""

    def partition_count(self, name: str) -> int | None: ...

    def topic_id(self, name: str) -> UUID | None: ...

    def name_of(self, topic_id: UUID) -> str | None: ...

    def names(self) -> Iterable[str]: ...
