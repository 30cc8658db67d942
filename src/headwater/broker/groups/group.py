"""The common interface of group kinds: classic, consumer (KIP-848) and share (KIP-932)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

from headwater.broker.groups.offsets.store import CommittedOffset
from headwater.broker.internal_topics.records import Record

# Whether a pattern that a member subscribes by matches a topic: (pattern, topic).
MatchesPattern = Callable[[str, str], bool]


class Group(ABC):
    """A group of one kind, as offsets, expiry and deletion use it. A refusal is an ApiError."""

    # As ListGroups and the metrics name the kind.
    kind: ClassVar[str]
    # Whether an empty group continues as one of the other consumer protocol (classic, KIP-848).
    is_convertible: ClassVar[bool] = True
    # Whether the group has queue state instead of committed offsets.
    has_queues: ClassVar[bool] = False

    group_id: str
    # Held while the group changes, for kinds that make one change at a time.
    changing: AbstractAsyncContextManager[Any, Any]

    @property
    @abstractmethod
    def state_name(self) -> str:
        """The state as clients see it, for example "Stable"."""

    @property
    @abstractmethod
    def listed_protocol_type(self) -> str:
        """The protocol type that ListGroups reports."""

    @property
    @abstractmethod
    def member_count(self) -> int: ...

    @property
    @abstractmethod
    def is_empty(self) -> bool: ...

    # Deletion

    @property
    @abstractmethod
    def is_dead(self) -> bool:
        """Whether a deletion is being written to the log, or has been."""

    @abstractmethod
    def begin_deletion(self) -> None:
        """Refuses all requests until the tombstones are in the log, or `survive` is called."""

    @abstractmethod
    def survive(self) -> None:
        """The deletion failed."""

    @abstractmethod
    def tombstones(self) -> Sequence[Record]:
        """The records that delete an empty group; its offsets have tombstones of their own."""

    @abstractmethod
    def close(self) -> None:
        """Cancels the group's timers and answers pending requests."""

    # Offsets

    @abstractmethod
    def verify_commit(
        self, member_id: str, instance_id: str | None, generation_or_epoch: int, api_version: int
    ) -> None:
        """Raises unless this member, or a client without one, may commit offsets."""

    @abstractmethod
    def verify_transactional_commit(
        self, member_id: str, instance_id: str | None, generation_or_epoch: int
    ) -> None:
        """Raises unless a producer may commit offsets for this member (KIP-447)."""

    @abstractmethod
    def verify_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raises unless this member may fetch the committed offsets."""

    @abstractmethod
    def verify_offset_delete(self) -> None:
        """Raises unless offsets of topics that are not subscribed to may be deleted."""

    @abstractmethod
    def is_subscribed_to(self, topic: str, matches: MatchesPattern) -> bool: ...

    @abstractmethod
    def offsets_age_from(self) -> Callable[[CommittedOffset], int] | None:
        """From when on the retention of an offset counts; None: no offset expires now."""
