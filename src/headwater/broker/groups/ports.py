"""What the coordinator needs of the rest of the broker."""

from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID


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


class GroupLog(Protocol):
    """The partitions of `__consumer_offsets`."""

    @property
    def partition_count(self) -> int: ...

    def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        producer: tuple[int, int] | None = None,
    ) -> Awaitable[int]:
        """Appends the records as one batch: after a crash all of them are there, or none.

        Their place in the log is fixed when the call returns. What it returns resolves to that
        offset when they are durable, in the order of the calls to this partition, or raises
        `StorageFailed`. With a `producer` (id, epoch) they count once its transaction commits.
        """
        ...

    def read(self, partition: int) -> AsyncIterator[Sequence[StoredRecord | StoredMarker]]:
        """Everything in the partition, in order."""
        ...


# By topic id and partition.
StartOffsets = Mapping[tuple[UUID, int], int]


class Queues(Protocol):
    """The queue state of share groups: how far each has come in which partition.

    What is awaited is durable when it returns, or raises `ApiError` or `StorageFailed`.
    """

    async def initialize(self, group_id: str, offsets: StartOffsets) -> None:
        """Partitions that the group begins to read; -1: where its settings say."""
        ...

    async def alter(self, group_id: str, offsets: StartOffsets) -> None:
        """The group, which has no members, reads on from these offsets."""
        ...

    async def delete(self, group_id: str, topic_ids: Collection[UUID] | None) -> None:
        """Forgets all that the group has of these topics, or of all of them."""
        ...

    def member_left(self, group_id: str, member_id: str) -> None:
        """What the member has not acknowledged can go to others."""
        ...


class Topics(Protocol):
    """The topics as they are now. Whoever changes one calls `GroupCoordinator.topics_changed`."""

    def partition_count(self, name: str) -> int | None: ...

    def topic_id(self, name: str) -> UUID | None: ...

    def name_of(self, topic_id: UUID) -> str | None: ...

    def names(self) -> Iterable[str]: ...
