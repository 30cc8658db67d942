"""Streaming reads of the log: offset ranges of micro-batches, in a process beside the driver."""

import logging
import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headwater.client.reading.fetching import EARLIEST
from headwater.client.writing.sending import TopicPartition
from headwater.errors import DataLost, HeadwaterError
from headwater.pipelines.source.admission import admit
from headwater.pipelines.source.log_ends import LogEnds, Offsets
from headwater.pipelines.source.options import SourceOptions, offsets_from_json, offsets_to_json
from headwater.pipelines.source.plain_errors import plain_errors
from headwater.pipelines.source.planned_ends import read_end
from headwater.pipelines.source.progress import split_end_markers, with_end_markers
from headwater.pipelines.source.reading import OffsetRange, fetcher_of, read_range
from headwater.pipelines.source.sizing import LARGEST_BYTES, shortened

_LOG = logging.getLogger(__name__)
_LOOK_FOR_PARTITIONS_EVERY_S: Final = 1.0
_SAMPLE_ROWS: Final = 1000
_SAMPLE_AGAIN_S: Final = 1.0
_GROUP_PATIENCE_S: Final = 5.0


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets in Spark's checkpoint are {"topic": {"0": 123}}. Spark calls:

    initialOffset    once for a stream without a checkpoint: {}, so that the first micro-batch has
                     no rows and records where the stream begins
    latestOffset     before every micro-batch, and every few milliseconds while there is nothing
    partitions       for every micro-batch, also for one that is repeated after a crash
    commit           with the end of the one before, at the begin of the next
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._log_ends = LogEnds(options)
        self._cached_partitions: list[TopicPartition] = []
        self._look_again_s = 0.0
        self._ends: Offsets = {}
        self._planned: Offsets = {}  # where the log ended for the last micro-batch
        self._target: Offsets | None = None  # of Trigger.AvailableNow
        self._has_begun = False  # topics that appear from now on are new
        self._is_checked = False  # whether the log still has the records of a repeated micro-batch
        self._sizes: dict[str, tuple[float, float]] = {}  # of a topic: bytes per offset, when
        self._group: Any = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_rows)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return offsets_to_json(self._ends) or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with plain_errors():
            self._target = self._log_ends.latest(self._partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with plain_errors():
            if (planned := read_end(self._options, start)) is not None:
                return planned
            end = self._next_end(offsets_from_json(split_end_markers(start)[0]), limit)
            return with_end_markers(offsets_to_json(end), self._at_end(end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
        with plain_errors():
            return self._ranges(start, end)

    def _ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
        ends, at_end = split_end_markers(end)
        ranges = self._offset_ranges(
            offsets_from_json(split_end_markers(start)[0]), offsets_from_json(ends)
        )
        if self._options.progress:
            ranges = _with_progress(ranges, offsets_from_json(ends), at_end)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        with plain_errors():
            yield from read_range(self._options, partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.group is not None:
            self._commit_to_group(offsets_from_json(split_end_markers(end)[0]))

    def stop(self) -> None:
        if self._group is not None:
            self._group.close()

    # Where a micro-batch ends

    def _next_end(self, start: Offsets, limit: ReadLimit) -> Offsets:
        partitions = self._partitions()
        self._check_none_is_deleted(start, partitions)
        if entering := [partition for partition in partitions if partition not in start]:
            self._planned = self._log_ends.latest(partitions) if self._options.progress else {}
            return start | self._entries(start, entering)
        self._has_begun = self._is_checked = True
        self._ends = self._log_ends.latest(start.keys() & set(partitions))
        ends = start | self._ends
        if self._target is not None:
            ends = {
                partition: min(end, self._target.get(partition, start[partition]))
                for partition, end in ends.items()
            }
        self._planned = ends
        begins = self._with_new_begins(start, ends)
        if isinstance(limit, ReadAllAvailable):
            return ends
        admitted = admit(
            begins,
            ends,
            self._options.max_rows,
            self._options.max_bytes,
            lambda topic: self._bytes_per_offset(topic, begins, ends),
        )
        return shortened(
            begins,
            admitted,
            self._options.max_bytes,
            self._sampled,
            self._largest_bytes(begins, admitted),
        )

    def _largest_bytes(self, start: Offsets, end: Offsets) -> int:
        """What no record between these offsets exceeds, as far as that can be seen cheaply."""
        return LARGEST_BYTES

    def _at_end(self, end: Offsets) -> Offsets:
        """Partitions that a micro-batch reads to their end. They are recorded with the offsets, so
        that they are the same when the micro-batch runs again.
        """
        if not self._options.progress:
            return {}
        return {
            partition: at
            for partition, at in end.items()
            if at >= self._planned.get(partition, at + 1)
        }

    def _entries(self, start: Offsets, entering: list[TopicPartition]) -> Offsets:
        """The first offsets of partitions that are new to the stream: those that it begins with by
        the option `start`, later ones from their first record.
        """
        if start or self._has_begun:
            return self._log_ends.earliest(entering)
        return self._log_ends.at(self._options.start, entering, unnamed=EARLIEST)

    def _partitions(self) -> list[TopicPartition]:
        if time.monotonic() >= self._look_again_s:
            self._cached_partitions = self._log_ends.partitions()
            self._look_again_s = time.monotonic() + _LOOK_FOR_PARTITIONS_EVERY_S
            self._has_begun |= not self._cached_partitions
        return self._cached_partitions

    def _check_none_is_deleted(self, start: Offsets, partitions: list[TopicPartition]) -> None:
        deleted = sorted(start.keys() - set(partitions))
        if deleted and self._options.on_lost == "fail":
            topic, partition = deleted[0]
            raise DataLost(topic, partition, start[deleted[0]], 0, 0)

    def _with_new_begins(self, start: Offsets, ends: Offsets) -> Offsets:
        """A log that ends before the offset that was reached was recreated or truncated."""
        cut = [partition for partition, end in ends.items() if end < start[partition]]
        if not cut:
            return start
        firsts = self._log_ends.earliest(cut)
        if self._options.on_lost == "fail":
            topic, partition = cut[0]
            raise DataLost(topic, partition, start[cut[0]], firsts[cut[0]], ends[cut[0]])
        for topic, partition in cut:
            _LOG.warning("%s-%d was recreated; reading it from its first record", topic, partition)
        return start | firsts

    def _bytes_per_offset(self, topic: str, start: Offsets, ends: Offsets) -> float:
        """By a sample of the next records; one a second is enough, and none if there are few."""
        partitions = [partition for partition in ends if partition[0] == topic]
        longest = max(partitions, key=lambda partition: ends[partition] - start[partition])
        rows = sum(max(ends[partition] - start[partition], 0) for partition in partitions)
        size_bytes, sampled_s = self._sizes.get(topic, (0.0, 0.0))
        is_little = size_bytes * rows * 4 < self._options.max_bytes
        if sampled_s and (is_little or time.monotonic() < sampled_s + _SAMPLE_AGAIN_S):
            return size_bytes
        first = start[longest]
        sampled = self._sampled(longest, first, min(first + _SAMPLE_ROWS, ends[longest]))
        size_bytes = sampled or size_bytes
        self._sizes[topic] = (size_bytes, time.monotonic())
        return size_bytes

    def _sampled(self, partition: TopicPartition, first: int, last: int) -> float:
        """Bytes per offset; 0 if there are no records."""
        try:
            sample = next(fetcher_of(self._options).read(*partition, first, last), None)
        except DataLost:  # the task that reads it reports it
            sample = None
        if sample is None:
            return 0.0
        offsets: int = sample.column("offset")[-1].as_py() + 1 - first
        return float(sample.nbytes / offsets)

    # What a micro-batch reads

    def _offset_ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        lost = set() if self._is_checked else self._lost_since(start, end)
        ranges = []
        for partition in sorted(start.keys() & end.keys() - lost):
            if end[partition] > start[partition]:
                ranges.append(OffsetRange(*partition, start[partition], end[partition]))
            elif end[partition] < start[partition]:  # recreated: `_with_new_begins` has accepted it
                ranges.append(OffsetRange(*partition, EARLIEST, end[partition]))
        return ranges

    def _lost_since(self, start: Offsets, end: Offsets) -> set[TopicPartition]:
        """Before a micro-batch is repeated: partitions whose log no longer has all of it. They have
        no rows in it then; the next one finds the log truncated.
        """
        self._is_checked = True
        repeated = [partition for partition in start if end.get(partition, 0) > start[partition]]
        latest = self._log_ends.latest(self._log_ends.existing(repeated))
        lost = {partition for partition in repeated if latest.get(partition, 0) < end[partition]}
        for partition in sorted(lost):
            if self._options.on_lost == "fail":
                raise DataLost(*partition, end[partition] - 1, 0, latest.get(partition, 0))
            _LOG.warning("%s-%d ends before the micro-batch does; skipped", *partition)
        return lost

    # Offsets committed to a group, for its lag

    def _commit_to_group(self, end: Offsets) -> None:
        """A failure is only logged: the stream goes by its checkpoint."""
        from headwater.client.group_offsets import GroupOffsets

        group = self._options.group
        assert group is not None
        try:
            if self._group is None:
                self._group = GroupOffsets(
                    self._options.bootstrap,
                    self._options.client,
                    group,
                    patience_s=_GROUP_PATIENCE_S,
                )
            self._group.commit(end)
        except HeadwaterError as error:
            _LOG.warning("offsets are not committed to group %s: %s", group, error)


def _with_progress(
    ranges: list[OffsetRange], ends: Offsets, at_end: set[TopicPartition]
) -> list[OffsetRange]:
    """A range for each partition, also for those that have nothing to read."""
    starts = {(offsets.topic, offsets.partition): offsets.start for offsets in ranges}
    return [
        OffsetRange(*partition, starts.get(partition, end), end, is_end=partition in at_end)
        for partition, end in sorted(ends.items())
    ]
