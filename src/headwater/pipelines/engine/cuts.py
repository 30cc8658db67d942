"""Batches that end at consistent cuts: the same transaction boundary in all topics of a capture.

Captures publish their cuts (capture/publishing/cuts.py). All writes of a process share the index of
them, which follows the topic of cuts with the tail of the log. For the partitions that a write
reads, `limits` gives the offsets of the latest cut up to which all records have arrived. A
partition that no cut mentions (a topic without a capture, or whose capture is of an earlier
version) has no limit.

Cuts of a capture are in the order of the topic, and the ends of a partition grow from cut to cut,
so the latest that fits is found by binary search.
"""

import dataclasses
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from headwater.capture.publishing.cuts import TOPIC, Cut, decode
from headwater.client.reading.arrow import to_arrow
from headwater.client.reading.fetching import EARLIEST, LATEST
from headwater.client.reading.tailing import Tail
from headwater.client.writing.sending import TopicPartition
from headwater.errors import RequestRefused
from headwater.pipelines.source.log_ends import Offsets
from headwater.pipelines.source.options import SourceOptions
from headwater.pipelines.source.reading import fetcher_of

_PARTITION: Final[TopicPartition] = (TOPIC, 0)
_LOOK_EVERY_S: Final = 5.0  # for the topic, while there is none
_FOLLOW_EVERY_S: Final = 1.0  # after the tail has dropped it
_MOST_ENDS: Final = 500_000  # in memory


@dataclass
class _Ends:
    """Of one partition: the numbers of the cuts that have it, in order, and its ends there."""

    capture: str
    numbers: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    first: int = 0  # of the first one's records: everything before is older than the cut

    def at(self, number: int) -> int:
        found = bisect_right(self.numbers, number)
        return self.ends[found - 1] if found else self.first


class CutIndex:
    """The cuts of all captures, by their offsets in the topic of cuts. Not thread-safe."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _Ends] = {}
        self._numbers: dict[str, list[int]] = defaultdict(list)  # of the cuts of a capture
        self._count = 0

    def add(self, number: int, cut: Cut) -> None:
        """In the order of the topic. One that was added before changes nothing."""
        numbers = self._numbers[cut.capture]
        if numbers and number <= numbers[-1]:
            return
        for partition, (first, end) in cut.ends.items():
            found = self._partitions.get(partition)
            # A topic that was deleted and created again begins at offset 0.
            if found is None or end < found.ends[-1]:
                self._partitions[partition] = _Ends(cut.capture, [number], [end], first)
            else:
                found.numbers.append(number)
                found.ends.append(end)
        numbers.append(number)
        self._count += len(cut.ends)
        if self._count > _MOST_ENDS:
            self._forget_half()

    def has(self, partition: TopicPartition) -> bool:
        return partition in self._partitions

    def last_end(self, partition: TopicPartition) -> int:
        return self._partitions[partition].ends[-1]

    def drop(self, partition: TopicPartition) -> None:
        """It has no limit, until a cut mentions it again."""
        self._partitions.pop(partition, None)

    def extend(self, partition: TopicPartition, end: int) -> None:
        """There are records behind the last cut that belong to none."""
        self._partitions[partition].ends[-1] = end

    def limits(self, starts: Offsets, ends: Offsets, most_rows: int) -> Offsets:
        """Ends of a batch from `starts` on, each of a cut and none behind `ends`, which are where
        records have arrived. As late as `most_rows` permits; the next cut if that has more.
        """
        by_capture: dict[str, list[TopicPartition]] = defaultdict(list)
        for partition in starts:
            if partition in self._partitions:
                by_capture[self._partitions[partition].capture].append(partition)
        limits: Offsets = {}
        for capture, partitions in by_capture.items():
            limits |= self._of_capture(
                self._numbers[capture], partitions, starts, ends, most_rows // len(by_capture)
            )
        return limits

    def _of_capture(
        self,
        numbers: Sequence[int],
        partitions: Sequence[TopicPartition],
        starts: Offsets,
        ends: Offsets,
        most_rows: int,
    ) -> Offsets:
        def cut(at: int) -> Offsets:
            """That of the cut, but not before the start, which need not be one of a cut."""
            return {
                one: max(self._partitions[one].at(numbers[at]), starts[one]) for one in partitions
            }

        def has_arrived(at: int) -> bool:
            return all(end <= ends.get(one, 0) for one, end in cut(at).items())

        def rows(at: int) -> int:
            return sum(end - starts[one] for one, end in cut(at).items())

        arrived = _count_true(len(numbers), has_arrived)
        fitting = _count_true(arrived, lambda at: rows(at) <= most_rows)
        if fitting and (fitting == arrived or rows(fitting - 1)):
            return cut(fitting - 1)
        if fitting < arrived:
            return cut(fitting)  # one transaction is larger
        return {one: starts[one] for one in partitions}

    def _forget_half(self) -> None:
        """The older ones. Of each partition, the last end stays."""
        every = sorted({number for numbers in self._numbers.values() for number in numbers})
        oldest = every[len(every) // 2]
        for capture, numbers in self._numbers.items():
            self._numbers[capture] = numbers[bisect_right(numbers, oldest - 1) :]
        for found in self._partitions.values():
            gone = min(bisect_right(found.numbers, oldest - 1), len(found.numbers) - 1)
            if gone > 0:
                found.first = found.ends[gone - 1]
                del found.numbers[:gone], found.ends[:gone]
        self._count = sum(len(found.numbers) for found in self._partitions.values())


class FollowedCuts:
    """The index of all cuts that have arrived. Thread-safe."""

    def __init__(self, options: SourceOptions, tail: Tail) -> None:
        self._options = options
        self._uncommitted = dataclasses.replace(options, isolation="read_uncommitted")
        self._tail = tail
        self._lock = threading.Lock()
        self._index = CutIndex()
        self._at: int | None = None  # the next offset of the topic; None: there is no topic
        self._look_due_s = 0.0
        self._follow_due_s = 0.0

    def limits(self, starts: Offsets, ends: Offsets, most_rows: int) -> Offsets:
        """CutIndex.limits, by all cuts that have arrived."""
        with self._lock:
            self._follow()
            return self._index.limits(starts, ends, most_rows)

    def resolve(self, ends: Offsets) -> None:
        """For records up to `ends` that have waited for their cut. Besides a slow broker there are
        two reasons:

        - Another program has written them. A cut is written before its transaction is committed: if
          the cuts have been read to the end that the topic has after the records were seen, there
          is none for these.
        - The topic was deleted and created again, and ends before its last cut.
        """
        with self._lock:
            if self._at is None:
                return
            mentioned = [one for one in ends if self._index.has(one)]
            high = fetcher_of(self._uncommitted).offsets([_PARTITION, *mentioned], LATEST)
            self._follow()
            is_read = self._at is not None and self._at >= high[_PARTITION]
            for one in filter(self._index.has, mentioned):
                last = self._index.last_end(one)
                if high[one] < last - 1:  # the marker is written last
                    self._index.drop(one)
                elif is_read and ends[one] > last:
                    self._index.extend(one, ends[one])

    def _follow(self) -> None:
        try:
            if self._at is None:
                self._at = self._found()
            if self._at is not None:
                self._read_arrived(self._at)
        except RequestRefused:  # this client may not read it
            self._index, self._at = CutIndex(), None

    def _found(self) -> int | None:
        """Where the topic begins; None if there is none, because no capture has published a cut."""
        if time.monotonic() < self._look_due_s:
            return None
        self._look_due_s = time.monotonic() + _LOOK_EVERY_S
        fetcher = fetcher_of(self._options)  # of this thread
        if not fetcher.exists(TOPIC):
            return None
        return fetcher.offsets([_PARTITION], EARLIEST)[_PARTITION]

    def _read_arrived(self, at: int) -> None:
        followed = self._tail.ends([_PARTITION])
        if _PARTITION not in followed:
            if time.monotonic() < self._follow_due_s:
                return  # the tail has dropped it, and wakes all readers whenever it does
            self._follow_due_s = time.monotonic() + _FOLLOW_EVERY_S
            end = fetcher_of(self._options).offsets([_PARTITION], LATEST)
            self._tail.follow(end)
            followed = {_PARTITION: (end[_PARTITION], end[_PARTITION])}
        arrived = followed[_PARTITION][0]
        if arrived < at:  # deleted and created again
            self._index, at = CutIndex(), 0
        if arrived > at:
            self._read(at, arrived)
        self._at = arrived

    def _read(self, start: int, end: int) -> None:
        columns = ("key", "value", "offset")
        chunks = self._tail.chunks(*_PARTITION, start, end)
        if chunks is None:
            for batch in fetcher_of(self._options).read(*_PARTITION, start, end, columns=columns):
                self._add(batch)
            return
        for chunk in chunks:
            for batch in to_arrow(chunk.data, chunk.batches, start, end, columns):
                self._add(batch)

    def _add(self, batch: pa.RecordBatch) -> None:
        for key, value, offset in zip(*(column.to_pylist() for column in batch), strict=True):
            cut = decode(key, value)
            if cut is not None:
                self._index.add(offset, cut)


def _count_true(count: int, is_true: Callable[[int], bool]) -> int:
    """How many of the first ones are true, of numbers below `count`: after them none is. All are
    as a rule.
    """
    if not count or is_true(count - 1):
        return count
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if is_true(middle):
            low = middle + 1
        else:
            high = middle
    return low
