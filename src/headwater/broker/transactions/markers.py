"""Transaction markers: the end of a transaction, written into the partitions that it wrote to."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from headwater.broker.transactions.transaction import TopicPartition
from headwater.clock import Clock, sleep
from headwater.errors import StorageFailed
from headwater.log.partitions.commit import Done, when_durable
from headwater.log.store import LogStore
from headwater.protocol.error_codes import ApiError, ErrorCode

logger = logging.getLogger(__name__)

RETRY_S = 0.5
PER_TURN = 100


class Marker(NamedTuple):
    """A control record: this producer's transaction was committed or aborted here."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int


class OffsetsTopic(Protocol):
    """The groups, whose offsets wait for the markers in their topic."""

    def transaction_ended(self, partition: int, producer_id: int, *, committed: bool) -> None: ...


class Markers:
    """Appends markers. `close` gives up those that wait for a disk; a restart writes them."""

    def __init__(
        self, store: LogStore, clock: Clock, offsets_topic: str, groups: OffsetsTopic
    ) -> None:
        self._store = store
        self._clock = clock
        self._offsets_topic = offsets_topic
        self._groups = groups
        self._waiting: set[asyncio.Task[object]] = set()
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        for task in self._waiting:
            task.cancel()

    def append(self, marker: Marker, topic: str, index: int) -> "asyncio.Future[None]":
        """Resolves when the marker is durable; raises ApiError or StorageFailed.

        A group's offsets are committed or dropped before the caller that waits for it continues.
        """
        try:
            partition = self._store.partitions.get((topic, index))
            if partition is None:
                raise ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {topic}-{index}"
                )

            def append(done: Done) -> None:
                partition.append_marker(
                    marker.producer_id,
                    marker.producer_epoch,
                    commit=marker.committed,
                    coordinator_epoch=marker.coordinator_epoch,
                    done=done,
                )

            future = when_durable(append)
        except (ApiError, StorageFailed) as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        if topic == self._offsets_topic:
            future.add_done_callback(lambda written: self._notify_groups(marker, index, written))
        return future

    def _notify_groups(self, marker: Marker, index: int, written: "asyncio.Future[None]") -> None:
        # As a callback of the future, like those of the groups' own writes: in the log's order.
        if not written.cancelled() and written.exception() is None:
            self._groups.transaction_ended(index, marker.producer_id, committed=marker.committed)

    async def write(
        self, marker: Marker, partitions: Iterable[TopicPartition], delayed: Callable[[], None]
    ) -> None:
        """Returns when the marker is in every partition that still exists.

        A disk that refuses it is tried again until it does not; `delayed` is called when that
        happens.
        """
        left = list(partitions)
        while left:
            writes = []
            for topic, index in left:
                writes.append(self.append(marker, topic, index))
                if len(writes) % PER_TURN == 0:  # others have their turn, too
                    await asyncio.sleep(0)
            outcomes = await asyncio.gather(*writes, return_exceptions=True)
            failed = []
            for partition, outcome in zip(left, outcomes, strict=True):
                if isinstance(outcome, StorageFailed):
                    failed.append(partition)
                elif isinstance(outcome, ApiError):
                    if outcome.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        logger.error("%s-%d takes no marker: %s", *partition, outcome)
                elif outcome is not None:
                    raise outcome
            left = failed
            if left:
                delayed()
                await self.pause()

    async def pause(self) -> None:
        """Waits a little for the disk to recover; ends the task when all is being closed."""
        task = asyncio.current_task()
        if self._is_closed or task is None:
            raise asyncio.CancelledError
        self._waiting.add(task)
        try:
            await sleep(self._clock, RETRY_S)
        finally:
            self._waiting.discard(task)
