"""Watermarks by punctuations: producers send their own watermarks inside the stream.

A row whose watermark is not null says that its producer has sent everything before that time, this
row included. A producer that writes to several partitions sends it to each: a punctuation counts in
its own partition alone, since rows in another may not be read yet.

The watermark of a partition is the least of the producers that are present in it, and never goes
back. A producer is present from its first row with a time or a watermark in the partition on;
before its first watermark it holds the watermark at that row's time, less `delay`. It leaves by a
watermark in the year 9999, or is removed when it is idle, and is a new one if it comes again. A row
is late by the watermark of its own partition before its own offset: by the log before it, and
nothing else. The input's watermark is the least of the partitions in which producers are present;
with none left, the furthest.

State and work of a bucket grow with the producers that are present. Their number is limited.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import PipelineError
from headwater.jit import kernel
from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, Input, PartitionProgress
from headwater.pipelines.operators.time.punctuations import LEFT, MARK, in_log_order
from headwater.pipelines.operators.time.watermarks import NEVER_US, Watermarks
from headwater.pipelines.position import WATERMARK_PARTITION

MOST_PRODUCERS: Final = 100_000  # of one input, counted in each partition
_ABSENT_US: Final = 2**62  # the watermark of an absent producer: it holds nothing back

Partition = tuple[str, int]


class ProducerWatermarks(Watermarks):
    def __init__(
        self, delay_us: int, stored: Mapping[str, Any] | None = None, *, idle_us: int | None = None
    ) -> None:
        super().__init__(delay_us, stored, idle_us=idle_us)
        self._members: dict[Partition, _Members] = {
            (entry["topic"], entry["partition"]): _Members(
                entry["watermark"],
                pa.array(entry["producers"], pa.string()),
                np.array(entry["watermarks"], np.int64),
                np.array(entry["absent"], np.int64),
            )
            for entry in (stored or {}).get("members", ())
        }
        self._replayed: tuple[Iterable[PartitionProgress], dict[Partition, _Replayed]] | None = None

    def to_json(self) -> dict[str, Any]:
        members = [
            {
                "topic": topic,
                "partition": partition,
                "watermark": of_partition.watermark_us,
                "producers": of_partition.names.to_pylist(),
                "watermarks": of_partition.watermarks_us.tolist(),
                "absent": of_partition.absent_us.tolist(),
            }
            for (topic, partition), of_partition in sorted(self._members.items())
        ]
        return {"members": members, "now": self._now_us, "idle": self._is_idle}

    def of_rows(self, given: Input) -> npt.NDArray[np.int64]:
        """The watermark of its own partition before each row: its own does not make it late."""
        watermarks = np.full(len(given.rows), NEVER_US, np.int64)
        if not len(given.rows):
            return watermarks
        origins = given.rows[ORIGIN].combine_chunks().to_numpy()
        offsets = given.rows[OFFSET].combine_chunks().to_numpy()
        replayed = self._replay(given.progress)
        for code, partition in enumerate(given.origins):
            rows = slice(None) if len(given.origins) == 1 else origins == code
            replay = replayed.get(partition)
            if replay is not None:
                before = np.searchsorted(replay.offsets, offsets[rows], side="left")
                watermarks[rows] = replay.course_us[before]
        return watermarks

    def advance(self, progress: Iterable[PartitionProgress], now_us: int) -> None:
        replayed, self._replayed = self._replay(progress), None
        for partition in {*self._members, *replayed}:
            replay = replayed.get(partition)
            if replay is None:
                members = self._members[partition]
                is_met = np.zeros(len(members.names), np.bool_)
            else:
                members, is_met = replay.after, replay.is_met
            self._members[partition] = members.after_batch(is_met, now_us, self._idle_us)
        count = sum(len(present.names) for present in self._members.values())
        if count > MOST_PRODUCERS:
            raise PipelineError(
                f"{count:,} producers have a watermark, and {MOST_PRODUCERS:,} can",
                hint="idle= of hw.event_time removes those that are silent; or let `producer` be"
                " something of which there are fewer",
            )
        if self._members:
            watermarks_us = [
                present.watermark_us for present in self._members.values() if len(present.names)
            ]
            furthest = max(present.watermark_us for present in self._members.values())
            self._is_idle = not watermarks_us
            self._now_us = max(self._now_us, min(watermarks_us, default=furthest))

    def _replay(self, progress: Iterable[PartitionProgress]) -> "dict[Partition, _Replayed]":
        """The batch's punctuations applied to each partition; cached for of_rows and advance."""
        if self._replayed is None or self._replayed[0] is not progress:
            replays = {}
            for reached in progress:
                if reached.partition == WATERMARK_PARTITION:  # of the operator before
                    continue
                partition = reached.topic, reached.partition
                before = self._members.get(partition, _NO_MEMBERS)
                replays[partition] = before.replay(
                    in_log_order(reached.punctuations), self._delay_us
                )
            self._replayed = progress, replays
        return self._replayed[1]


@dataclass(frozen=True, slots=True)
class _Members:
    """The producers that are present in one partition."""

    watermark_us: int  # the partition's
    names: pa.Array
    watermarks_us: npt.NDArray[np.int64]
    absent_us: npt.NDArray[np.int64]  # the first batch without it; NEVER_US: it was in the last

    def replay(self, punctuations: pa.Table, delay_us: int) -> "_Replayed":
        both = pa.concat_arrays([self.names, *punctuations["producer"].chunks]).dictionary_encode()
        codes = both.indices.to_numpy()[len(self.names) :]
        new = len(both.dictionary) - len(self.names)
        watermarks_us = np.append(self.watermarks_us, np.full(new, _ABSENT_US))
        is_met = np.zeros(len(watermarks_us), np.bool_)
        is_met[codes] = True
        course_us = _course(
            watermarks_us,
            self.watermark_us,
            codes,
            punctuations["kind"].combine_chunks().to_numpy(),
            punctuations["value"].combine_chunks().to_numpy(),
            delay_us,
        )
        absent_us = np.append(self.absent_us, np.full(new, NEVER_US))
        after = _Members(int(course_us[-1]), both.dictionary, watermarks_us, absent_us)
        is_present = watermarks_us != _ABSENT_US
        return _Replayed(
            punctuations["offset"].combine_chunks().to_numpy(),
            course_us,
            after.only(is_present),
            is_met[is_present],
        )

    def only(self, which: npt.NDArray[np.bool_]) -> "_Members":
        if which.all():
            return self
        return _Members(
            self.watermark_us,
            self.names.filter(pa.array(which)),
            self.watermarks_us[which],
            self.absent_us[which],
        )

    def after_batch(
        self, is_met: npt.NDArray[np.bool_], now_us: int, idle_us: int | None
    ) -> "_Members":
        """Producers that are idle by now are removed."""
        since = np.where(self.absent_us == NEVER_US, now_us, self.absent_us)
        here = replace(self, absent_us=np.where(is_met, NEVER_US, since))
        if idle_us is None:
            return here
        awake = here.only(is_met | (now_us - since <= idle_us))
        least_us = int(awake.watermarks_us.min()) if len(awake.names) else NEVER_US
        return replace(awake, watermark_us=max(self.watermark_us, least_us))


_NO_MEMBERS: Final = _Members(
    NEVER_US, pa.array([], pa.string()), np.empty(0, np.int64), np.empty(0, np.int64)
)


@dataclass(frozen=True, slots=True)
class _Replayed:
    offsets: npt.NDArray[np.int64]  # of the punctuations
    course_us: npt.NDArray[np.int64]  # the partition's watermark before the first, and after each
    after: _Members
    is_met: npt.NDArray[np.bool_]  # which of them are in the batch


@kernel
def _course(
    watermarks_us: npt.NDArray[np.int64],  # of the producers; changed in place
    watermark_us: int,
    codes: npt.NDArray[np.int32],
    kinds: npt.NDArray[np.int8],
    values: npt.NDArray[np.int64],
    delay_us: int,
) -> Any:
    """The least of the producers after each row, by a segment tree of minima: O(log n) a row."""
    course_us = np.empty(len(codes) + 1, np.int64)
    course_us[0] = watermark_us
    size = 1
    while size < len(watermarks_us):
        size *= 2
    least = np.full(2 * size, _ABSENT_US, np.int64)
    least[size : size + len(watermarks_us)] = watermarks_us
    for node in range(size - 1, 0, -1):
        least[node] = min(least[2 * node], least[2 * node + 1])
    for row in range(len(codes)):
        node = size + codes[row]
        before, value = least[node], values[row]
        if kinds[row] == LEFT:
            after = _ABSENT_US
        elif kinds[row] == MARK:
            after = value if before == _ABSENT_US else max(before, value)
        elif before == _ABSENT_US:
            after = value - delay_us
        else:
            after = before
        if after != before:
            least[node] = after
            node //= 2
            while node:
                least[node] = min(least[2 * node], least[2 * node + 1])
                node //= 2
        if least[1] != _ABSENT_US:
            watermark_us = max(watermark_us, least[1])
        course_us[row + 1] = watermark_us
    watermarks_us[:] = least[size : size + len(watermarks_us)]
    return course_us
