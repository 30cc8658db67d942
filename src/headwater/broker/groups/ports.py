"""Ports of the group coordinator: what it needs of the rest of the broker."""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol
from uuid import UUID

# By topic id and partition.
StartOffsets = Mapping[tuple[UUID, int], int]


class Queues(Protocol):
    """The queue state of share groups: the progress of each in every partition.

    What is awaited is durable when it returns, or raises `ApiError` or `StorageFailed`.
    """

    async def initialize(self, group_id: str, offsets: StartOffsets) -> None:
        """Partitions that the group begins to read; -1: where its settings say."""
        ...

    async def alter(self, group_id: str, offsets: StartOffsets) -> None:
        """The group, which has no members, reads on from these offsets."""
        ...

    async def delete(self, group_id: str, topic_ids: Collection[UUID] | None) -> None:
        """Deletes the group's state of these topics, or of all of them."""
        ...

    def member_left(self, group_id: str, member_id: str) -> None:
        """Records that the member has not acknowledged can go to others."""
        ...


class Topics(Protocol):
    """The topics as they are now. Changes are followed by `GroupCoordinator.topics_changed`."""

    def partition_count(self, name: str) -> int | None: ...

    def topic_id(self, name: str) -> UUID | None: ...

    def name_of(self, topic_id: UUID) -> str | None: ...

    def names(self) -> Iterable[str]: ...
