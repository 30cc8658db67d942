"""A source of a write that runs in the driver: offset ranges of its batches, and their rows."""

import dataclasses
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headwater.client.reading.fetching import EARLIEST
from headwater.client.writing.sending import TopicPartition
from headwater.pipelines.engine.local_plan import Source
from headwater.pipelines.engine.shared_log import (
    SharedLog,
    TailedEnds,
    bytes_per_offset,
    decoded,
    most_bytes,
)
from headwater.pipelines.source.log_ends import LogEnds, Offsets
from headwater.pipelines.source.options import offsets_from_json, offsets_to_json
from headwater.pipelines.source.progress import (
    progress_row,
    split_end_markers,
    with_end_markers,
)
from headwater.pipelines.source.reading import OffsetRange, read_range, rows_of
from headwater.pipelines.source.sizing import shortened
from headwater.pipelines.source.streaming import LogStreamReader

MOST_ROWS: Final = 20_000  # of a batch in the driver
MOST_BYTES: Final = 8 << 20
_OVERSIZE: Final = 2  # times as much: sizes are estimates


class TailedSource(LogStreamReader):
    """Plans and reads as the source of a streaming query does, from the shared tail of the log
    where that has the records. To be used by one thread.
    """

    def __init__(self, source: Source, log: SharedLog, *, is_query: bool = False) -> None:
        """`is_query`: it only plans, for micro-batches of a query, which are larger."""
        options = source.options
        if not is_query:
            options = dataclasses.replace(
                options,
                max_rows=min(options.max_rows, MOST_ROWS),
                max_bytes=min(options.max_bytes, MOST_BYTES),
            )
        super().__init__(options, source.schema)
        self._log = log
        self._tailed = TailedEnds(options, log)
        self._log_ends = self._tailed
        self._rows = rows_of(options, source.schema)
        self._fields = to_arrow_schema(source.schema, timezone="UTC")
        self._how = f"{options.value} {options.on_bad} {options.name} {options.decoding}" + (
            source.schema.json()
        )

    def arrived(self, start: dict[str, Any]) -> dict[TopicPartition, tuple[int, int]]:
        """Of each partition that is read: where the next batch begins, and how far records have
        arrived.
        """
        offsets = offsets_from_json(split_end_markers(start)[0])
        ends = self._tailed.latest(offsets.keys() & set(self._partitions()))
        if self._target is not None:
            ends = {one: min(end, self._target.get(one, offsets[one])) for one, end in ends.items()}
        return {one: (offsets[one], end) for one, end in ends.items()}

    def is_news(
        self, start: dict[str, Any], arrived: dict[TopicPartition, tuple[int, int]]
    ) -> bool:
        """Whether `next_end` has anything to do: records, other partitions, or (of a table that is
        joined) a log that has grown.
        """
        return (
            self._options.progress
            or any(begin != end for begin, end in arrived.values())
            or len(arrived) != len(self._partitions())
            or len(arrived) != sum(map(len, split_end_markers(start)[0].values()))
        )

    def next_end(
        self, start: dict[str, Any], limits: Offsets | None = None, *, is_bounded: bool = True
    ) -> dict[str, Any]:
        """The end of the next batch, for the checkpoint; equal to `start` if there is nothing.
        No partition's is behind its limit. `is_bounded`: by rows and bytes.
        """
        offsets = offsets_from_json(split_end_markers(start)[0])
        self._tailed.limits = {
            one: max(at, offsets.get(one, 0)) for one, at in (limits or {}).items()
        }
        limit = ReadMaxRows(self._options.max_rows) if is_bounded else ReadAllAvailable()
        try:
            end = self._next_end(offsets, limit)
        finally:
            self._tailed.limits = {}
        return with_end_markers(offsets_to_json(end), self._at_end(end))

    def has_reached(self, end: dict[str, Any], limits: Offsets) -> bool:
        """Whether the batch ends where it was to end, rather than before for its size."""
        offsets = offsets_from_json(split_end_markers(end)[0])
        return all(at >= limits.get(one, at) for one, at in offsets.items())

    def has_more_of_table(self, end: dict[str, Any], limits: Offsets) -> bool:
        """Whether this is a joined table whose log goes on where a limit has ended the batch."""
        if not self._options.progress:
            return False
        offsets, at_end = split_end_markers(end)
        return any(
            at == limits.get(one) and one not in at_end
            for one, at in offsets_from_json(offsets).items()
        )

    def backlog(self, start: dict[str, Any]) -> int:
        """How many offsets the log has behind `start`, after `next_end`."""
        offsets = offsets_from_json(split_end_markers(start)[0])
        ends = self._tailed.log_ends
        return sum(max(ends.get(one, at) - at, 0) for one, at in offsets.items())

    def is_oversize(
        self, start: dict[str, Any], end: dict[str, Any], *, times: int = _OVERSIZE
    ) -> bool:
        """Whether the range is so many times larger than a batch here, by rows or bytes."""
        begins = offsets_from_json(split_end_markers(start)[0])
        ends = offsets_from_json(split_end_markers(end)[0])
        ends = {one: at for one, at in ends.items() if at > begins.get(one, at)}
        if sum(at - begins[one] for one, at in ends.items()) > times * MOST_ROWS:
            return True
        return shortened(begins, ends, times * MOST_BYTES, self._sampled) != ends

    def read_batch(self, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
        """The rows of a batch, by partition in the order of the log."""
        batches = [
            batch
            for offsets in self._ranges(start, end)
            for batch in self._read(offsets)
            if batch.num_rows
        ]
        return pa.Table.from_batches(batches, schema=self._fields)

    def _read(self, offsets: OffsetRange) -> list[pa.RecordBatch]:
        chunks = None
        if offsets.start != EARLIEST:
            chunks = self._log.tail.chunks(
                offsets.topic, offsets.partition, offsets.start, offsets.end
            )
        if chunks is None:
            return list(read_range(self._options, offsets, self._schema))
        batches = list(
            decoded(self._log.tail, chunks, offsets.start, offsets.end, self._rows, self._how)
        )
        if offsets.is_end is not None:
            batches.append(
                progress_row(
                    offsets.topic,
                    offsets.partition,
                    offsets.end,
                    is_end=offsets.is_end,
                    schema=self._fields,
                )
            )
        return batches

    def _at_end(self, end: Offsets) -> Offsets:
        if not self._options.progress:
            return {}
        log_ends = self._tailed.log_ends
        if self._target is not None:  # what comes later is not read by this query
            log_ends = {one: min(at, self._target.get(one, at)) for one, at in log_ends.items()}
        return {one: at for one, at in end.items() if at >= log_ends.get(one, at + 1)}

    def _partitions(self) -> list[TopicPartition]:
        found = self._log_ends.partitions()
        self._has_begun |= not found
        return found

    def _sampled(self, partition: TopicPartition, first: int, last: int) -> float:
        chunks = self._log.tail.chunks(*partition, first, last)
        return bytes_per_offset(chunks) if chunks else super()._sampled(partition, first, last)

    def _largest_bytes(self, start: Offsets, end: Offsets) -> int:
        """By what has arrived; a topic may have larger records than brokers have by default."""
        largest_bytes = 0
        for partition, last in end.items():
            if last <= start[partition]:
                continue
            chunks = self._log.tail.chunks(*partition, start[partition], last)
            if not chunks:
                return super()._largest_bytes(start, end)
            largest_bytes = max(largest_bytes, *map(most_bytes, chunks))
        return largest_bytes

    def _with_new_begins(self, start: Offsets, ends: Offsets) -> Offsets:
        """The tail may be behind what a query has read: only the broker knows the log's end."""
        behind = [one for one, end in ends.items() if end < start[one]]
        if behind:
            asked = LogEnds(self._options).latest(behind)
            ends |= {one: min(start[one], asked[one]) for one in behind}
        return super()._with_new_begins(start, ends)

    def _lost_since(self, start: Offsets, end: Offsets) -> set[TopicPartition]:
        self._log_ends = LogEnds(self._options)  # as above
        try:
            return super()._lost_since(start, end)
        finally:
            self._log_ends = self._tailed
