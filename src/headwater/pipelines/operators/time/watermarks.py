"""Watermarks of an input: one for each partition, and their minimum.

Every partition has a watermark of its own: the latest time that was seen in it, less the `delay`
by which rows may be out of order. A row is late for what ended before the watermark of its own
partition at its own offset. So whether it is late is a fact of the log: it does not depend on how
the log was cut into batches, nor on other partitions. The watermark of the input, by which windows
close, is the least of all partitions; no row that is in time can find its window closed, because
that watermark is never ahead of the row's own.

There are two exceptions. A partition counts from its first row with a time on. And a partition
that is idle is left out of the minimum until it has rows again. Its rows may then find their window
closed; `lateness.admit` decides by `closed_us`.

Behind another operator the watermark is also that operator's, which no later row is before
(runtime/watermark_rows.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headwater.pipelines.operators.runtime.contract import (
    ORIGIN,
    SEEN,
    TIME,
    WATERMARK,
    Input,
    PartitionProgress,
)
from headwater.pipelines.position import WATERMARK_PARTITION

NEVER_US: Final = -(2**62)  # a watermark before the first row


def watermark_of(document: Mapping[str, Any]) -> int:
    """The watermark of an operator, by the document of one of its buckets."""
    found: int = document.get(WATERMARK, NEVER_US)
    return found


class Watermarks:
    """The watermarks of one input, the same in all buckets. Made by `EventTime.watermarks`.

    In a batch: `of_rows` first, for what the rows find, then `advance`, then `now_us`.

    A partition is idle when batches had no rows of it over a span longer than `idle_us`, from the
    first such batch on. The source gives each partition with unread records a share of each batch,
    so a partition without rows was read to its end: neither a backlog nor a long batch nor a stop
    of the pipeline makes it idle.
    """

    def __init__(
        self, delay_us: int, stored: Mapping[str, Any] | None = None, *, idle_us: int | None = None
    ) -> None:
        self._delay_us = delay_us
        self._idle_us = idle_us
        stored = stored or {}
        self._partitions: dict[tuple[str, int], _Partition] = {
            (topic, number): _Partition(seen, absent)
            for topic, number, seen, absent in stored.get("partitions", ())
        }
        self._now_us: int = stored.get("now", NEVER_US)
        self._is_idle: bool = stored.get("idle", False)

    def to_json(self) -> dict[str, Any]:
        return {
            "partitions": [
                [*origin, partition.seen_us, partition.absent_us]
                for origin, partition in sorted(self._partitions.items())
            ],
            "now": self._now_us,
            "idle": self._is_idle,
        }

    def of_rows(self, given: Input) -> npt.NDArray[np.int64]:
        """The watermark of its own partition at each row's offset, the row itself included."""
        if not len(given.rows):
            return np.empty(0, np.int64)
        partitions = [self._partitions.get(origin) for origin in given.origins]
        before = np.array(
            [NEVER_US if partition is None else partition.seen_us for partition in partitions],
            np.int64,
        )
        seen = given.rows[SEEN].combine_chunks().fill_null(NEVER_US).to_numpy()
        own: npt.NDArray[np.int64] = before[given.rows[ORIGIN].combine_chunks().to_numpy()]
        watermarks: npt.NDArray[np.int64] = np.maximum(seen, own) - self._delay_us
        return watermarks

    def advance(self, progress: Iterable[PartitionProgress], now_us: int) -> None:
        present = set()
        for reached in progress:
            if reached.seen_us is None:  # partitions without a time hold no watermark back
                continue
            if reached.partition == WATERMARK_PARTITION:
                self._now_us = max(self._now_us, reached.seen_us)
                continue
            origin = reached.topic, reached.partition
            present.add(origin)
            partition = self._partitions.setdefault(origin, _Partition(reached.seen_us))
            partition.absent_us = None
            partition.seen_us = max(partition.seen_us, reached.seen_us)
        for origin, partition in self._partitions.items():
            if origin not in present and partition.absent_us is None:
                partition.absent_us = now_us
        if self._partitions:
            self._move(now_us)

    def _move(self, now_us: int) -> None:
        awake = [
            partition.seen_us
            for partition in self._partitions.values()
            if not self._idles(partition, now_us)
        ]
        self._is_idle = not awake
        # If all partitions are idle, the furthest of them counts.
        watermark_us = (
            min(awake)
            if awake
            else max(partition.seen_us for partition in self._partitions.values())
        )
        self._now_us = max(self._now_us, watermark_us - self._delay_us)

    def _idles(self, partition: "_Partition", now_us: int) -> bool:
        if self._idle_us is None or partition.absent_us is None:
            return False
        return now_us - partition.absent_us > self._idle_us

    @property
    def now_us(self) -> int:
        """The least of all partitions that are not idle, less the delay, or the watermark of the
        operator before, if that is later. It never goes back.
        """
        return self._now_us

    def complete_before(self, origin: tuple[str, int], now_us: int) -> int | None:
        """For rows of this partition with a time before the result, all rows have come that are
        before them in the order of time, topic, partition and offset. None: for all its rows,
        since there is no other partition. Idle ones are not waited for.
        """
        others = [
            # Rows of the same time in a later partition come after them.
            partition.seen_us + (other > origin)
            for other, partition in self._partitions.items()
            if other != origin and not self._idles(partition, now_us)
        ]
        return min(others, default=None)

    @property
    def is_idle(self) -> bool:
        """Whether all partitions are: an operator of several inputs need not wait for this one."""
        return self._is_idle


@dataclass(slots=True)
class _Partition:
    seen_us: int  # the latest time
    absent_us: int | None = None  # the first of the batches without rows of it, if it has none now


class PassedOnWatermarks(Watermarks):
    """Only those of the operator before: its rows come in any order, and none is late."""

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        super().__init__(0, stored)

    def of_rows(self, given: Input) -> npt.NDArray[np.int64]:
        return np.full(len(given.rows), NEVER_US, np.int64)

    def advance(self, progress: Iterable[PartitionProgress], now_us: int) -> None:
        passed_on = [reached for reached in progress if reached.partition == WATERMARK_PARTITION]
        super().advance(passed_on, now_us)


class BatchTime(Watermarks):
    """Processing time: the watermark is the time of the batch."""

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        super().__init__(0, stored)

    def of_rows(self, given: Input) -> npt.NDArray[np.int64]:
        times: npt.NDArray[np.int64] = given.rows[TIME].combine_chunks().to_numpy()
        return times

    def advance(self, progress: Iterable[PartitionProgress], now_us: int) -> None:
        self._now_us = max(self._now_us, now_us)
