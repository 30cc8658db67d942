"""Overload policies of topics: what happens to producers that are faster than their consumers.

    buffer        nothing: records wait on disk until retention takes them
    backpressure  a produce request waits, unread by the log, until the group has caught up; so the
                  group is never behind by more than the limit and one request
    drop          a batch beyond the limit is refused (POLICY_VIOLATION), or acknowledged and
                  discarded; either way counted by topic

The limit is in bytes of a partition that the group has not read. The group's position is looked up
when it commits; between two commits the bytes that are added since are counted.
"""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from headwater.broker.background import Background
from headwater.errors import CorruptLog
from headwater.log.config import OverloadPolicy
from headwater.log.partitions.partition import PartitionLog

if TYPE_CHECKING:
    from headwater.broker.broker import Broker
    from headwater.broker.groups.offsets.store import OffsetKey

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 1.0  # at the position of a group that holds producers back


class _Watch:
    """One partition and how far the group of its policy is behind."""

    __slots__ = ("is_looking", "looked_at_s", "pending_bytes", "read_upto_bytes", "waiting")

    def __init__(self) -> None:
        self.read_upto_bytes: int | None = None  # on the scale of `PartitionLog.committed_bytes`
        self.pending_bytes = 0  # taken in, not yet on disk
        self.looked_at_s = float("-inf")
        self.is_looking = False
        self.waiting: asyncio.Future[None] | None = None


class Overload:
    """Decides for each batch of a topic with a policy whether it may come in now."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._watches: dict[PartitionLog, _Watch] = {}
        self._background = Background("looking how far a group is")

    @property
    def is_any(self) -> bool:
        """Whether a topic with a policy has been produced to since the start."""
        return bool(self._watches)

    def must_wait(self, partition: PartitionLog, size_bytes: int) -> "asyncio.Future[None] | None":
        """What a producer with a batch of that size has to wait for, if it has to."""
        policy = partition.config.overload
        if policy is None or policy.policy != "backpressure":
            return None
        watch = self._watch(partition, policy)
        if watch.read_upto_bytes is not None and not _is_over(partition, policy, watch, size_bytes):
            return None
        if watch.waiting is None:
            watch.waiting = asyncio.get_running_loop().create_future()
        return watch.waiting

    def is_dropped(self, partition: PartitionLog, size_bytes: int) -> bool:
        """Whether a batch of that size is one too many."""
        policy = partition.config.overload
        if policy is None or policy.policy != "drop":
            return False
        watch = self._watch(partition, policy)
        # Unknown only for the first milliseconds: better one too many than one too few.
        return watch.read_upto_bytes is not None and _is_over(partition, policy, watch, size_bytes)

    def taken(self, partition: PartitionLog, size_bytes: int) -> None:
        """A batch has come in; `settled` follows when it is on disk, or failed."""
        policy = partition.config.overload
        if policy is not None:
            self._watch(partition, policy).pending_bytes += size_bytes

    def settled(self, partition: PartitionLog, size_bytes: int) -> None:
        watch = self._watches.get(partition)
        if watch is not None:
            watch.pending_bytes = max(watch.pending_bytes - size_bytes, 0)

    def committed(self, group_id: str, key: "OffsetKey") -> None:
        """A group has committed an offset."""
        partition = self._broker.store.partitions.get((key.topic, key.partition))
        watch = None if partition is None else self._watches.get(partition)
        if partition is None or watch is None:
            return
        policy = partition.config.overload
        if policy is not None and policy.group == group_id:
            watch.looked_at_s = float("-inf")
            self._look(partition, policy, watch)

    async def close(self) -> None:
        await self._background.stop()

    def _watch(self, partition: PartitionLog, policy: OverloadPolicy) -> _Watch:
        watch = self._watches.get(partition)
        if watch is None:
            watch = self._watches[partition] = _Watch()
            for deleted in [watch for watch in self._watches if watch.deleted]:
                del self._watches[deleted]
        if self._broker.clock.monotonic_s() - watch.looked_at_s >= LOOK_AGAIN_S:
            self._look(partition, policy, watch)
        return watch

    def _look(self, partition: PartitionLog, policy: OverloadPolicy, watch: _Watch) -> None:
        """Finds the group's position again; at the end of the log that needs no search."""
        if watch.is_looking:
            return
        watch.looked_at_s = self._broker.clock.monotonic_s()
        offset = self._broker.read_upto(policy.group, partition)
        if offset >= partition.high_watermark:
            self._found(partition, watch, 0)
            return
        watch.is_looking = True
        self._background.start(self._search(partition, watch, offset))

    async def _search(self, partition: PartitionLog, watch: _Watch, offset: int) -> None:
        try:
            position = None
            with contextlib.suppress(CorruptLog, OSError):
                position = await self._broker.store.in_reader(partition.position_of, offset)
            behind_bytes = 0 if position is None else partition.bytes_from(position)
        finally:
            watch.is_looking = False
        self._found(partition, watch, behind_bytes)
        policy = partition.config.overload
        if policy is not None and watch.looked_at_s == float("-inf"):  # it has committed since
            self._look(partition, policy, watch)

    def _found(self, partition: PartitionLog, watch: _Watch, behind_bytes: int) -> None:
        watch.read_upto_bytes = partition.committed_bytes - behind_bytes
        if watch.waiting is not None:
            watch.waiting.set_result(None)
            watch.waiting = None


def _is_over(
    partition: PartitionLog, policy: OverloadPolicy, watch: _Watch, size_bytes: int
) -> bool:
    lag_bytes = partition.committed_bytes - (watch.read_upto_bytes or 0) + watch.pending_bytes
    # A batch larger than the limit comes in when there is nothing else.
    return lag_bytes > 0 and lag_bytes + size_bytes > policy.limit_bytes
