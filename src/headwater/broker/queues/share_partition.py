"""A share partition: one partition as one share group reads it, with its in-memory state."""

from typing import TYPE_CHECKING
from uuid import UUID

from headwater.broker.queues.window import Rules, Window

if TYPE_CHECKING:
    import asyncio

    from headwater.broker.groups.configs import ShareGroupSettings
    from headwater.broker.queues.ordering import KeyOrder
    from headwater.broker.queues.read_ahead import ReadAhead
    from headwater.broker.queues.waiting import Waiters
    from headwater.clock import Timer
    from headwater.log.partitions.partition import PartitionLog

UNRESOLVED = -1  # where the group begins is decided when it first fetches

Key = tuple[UUID, int]  # topic id, partition


class SharePartition:
    """State only; `Queues` acts on it."""

    __slots__ = (
        "ahead", "archiving_since_ms", "dead_letters", "group_id", "index", "is_deleted", "log",
        "looking", "order", "resolving", "snapshot_epoch", "state_epoch", "timer", "timer_due_s",
        "topic_id", "waiters", "was_full", "window",
    )  # fmt: skip

    def __init__(self, group_id: str, topic_id: UUID, index: int, log: "PartitionLog") -> None:
        self.group_id = group_id
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.window = Window(UNRESOLVED)
        self.state_epoch = 0
        self.snapshot_epoch = -1  # nothing is stored yet
        self.resolving: asyncio.Task[None] | None = None
        self.ahead: ReadAhead | None = None
        self.looking: asyncio.Future[None] | None = None  # until a fetch has found what is ahead
        self.was_full = False  # when a fetch last looked for records to acquire
        self.order: KeyOrder | None = None
        self.waiters: Waiters | None = None
        self.timer: Timer | None = None
        self.timer_due_s = 0.0
        self.archiving_since_ms = 0  # of what the last process had begun to copy
        self.dead_letters = 0  # copied since the start of the process
        self.is_deleted = False

    @property
    def key(self) -> Key:
        return self.topic_id, self.index

    @property
    def is_resolved(self) -> bool:
        return self.window.start_offset != UNRESOLVED

    def wake(self) -> None:
        """Something may be delivered that could not be before."""
        if self.waiters:
            self.waiters.wake()

    def came(self, _size_bytes: int) -> None:
        """The log has more."""
        self.wake()

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def rules_of(settings: "ShareGroupSettings", topic: str) -> Rules:
    return Rules(
        lock_s=settings.record_lock_duration_ms / 1000,
        delivery_limit=settings.delivery_count_limit,
        dead_letters=settings.dead_letters and has_dead_letters(topic),
        backoff_s=settings.backoff_ms / 1000,
        backoff_max_s=max(settings.backoff_max_ms, settings.backoff_ms) / 1000,
    )


DEAD_LETTERS_SUFFIX = ".dlq"
_LONGEST_NAME = 249


def has_dead_letters(topic: str) -> bool:
    """Dead letters have none of their own, nor has a topic whose name leaves no room."""
    return (
        not topic.endswith(DEAD_LETTERS_SUFFIX)
        and not topic.startswith("__")
        and len(topic) + len(DEAD_LETTERS_SUFFIX) <= _LONGEST_NAME
    )
