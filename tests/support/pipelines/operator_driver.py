"""An operator without Spark: both stages as they are, over batches that the test cuts as it likes.

    driver = Driver(operator, [Source(schema, ("name",), ("name",), stamping)], tmp_path)
    driver.batch({("topic", 0): [{"name": "a", "at": …}, …]})   # one input
    driver.batch(left_rows, right_rows)                         # two
    driver.again()                                              # the last batch once more

Every call runs the buckets from the state on disk, so each is a restart, too.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pyarrow as pa

from headwater.log.disk.files import Files
from headwater.pipelines.operators.runtime.contract import Operator, Stamping
from headwater.pipelines.operators.runtime.lineage import rows_with_position
from headwater.pipelines.operators.runtime.packing import (
    BUCKET,
    EVERY_BUCKET,
    NOW,
    Packing,
    packed_schema,
)
from headwater.pipelines.operators.runtime.unpacking import packets_in, unpacked
from headwater.pipelines.operators.state.state_files import FileState, MemoryState
from headwater.pipelines.position import POSITION, POSITION_TYPE

ADDED = [("_op", pa.string()), ("_at", pa.timestamp("us", "UTC")), (POSITION, POSITION_TYPE)]
START = datetime(2026, 1, 1, tzinfo=UTC)

Rows = Mapping[tuple[str, int], Sequence[dict]]


@dataclass(frozen=True)
class Source:
    """What a Side of planning.py is; the schema without `_op`, `_at` and `_position`."""

    schema: pa.Schema
    key: tuple[str, ...]
    columns: tuple[str, ...]
    stamping: Stamping | None = None
    everywhere: Callable[[dict], bool] = lambda row: False  # rows for every bucket

    @property
    def rows_schema(self) -> pa.Schema:
        return pa.schema([*self.schema, *ADDED])


class Unsynced(Files):
    """No test of these cuts the power, and thousands of syncs take minutes."""

    def fdatasync(self, fd):
        pass

    def sync_directory(self, path):
        pass


class Driver:
    def __init__(
        self,
        operator: Operator,
        sources: Sequence[Source],
        directory: Path | None,
        buckets: int = 3,
    ) -> None:
        """Without a directory it is a bounded run: one batch, no state on disk."""
        self._operator = operator
        self._sources = sources
        self._directory = directory
        self._buckets = buckets
        self._offsets = [{} for _ in sources]  # place to the next one
        self._numbers = count()
        self._last = None
        self.states = {}  # of the last batch, by bucket

    def batch(self, *rows: Rows, now: datetime = START) -> list[dict]:
        """Each input's rows, by topic and partition; offsets are given to those without one
        ("_position": 5), `_at` is `now`, `_op` is "c" if they say nothing else."""
        packets = []
        for side, (source, given) in enumerate(zip(self._sources, rows, strict=True)):
            packing = Packing(side, self._buckets, source.stamping, source.columns)
            for task, (partition, of_partition) in enumerate(given.items()):
                frame = self._frame(side, source, partition, of_partition, now)
                packets += [
                    packet
                    for one in packing.pack(iter([frame]), task)
                    for packet in packets_in(one)
                ]
        self._last = next(self._numbers), packets
        return self.again()

    def again(self) -> list[dict]:
        number, packets = self._last
        schemas = [self._packed(source) for source in self._sources]
        found: list[dict] = []
        order = sorted(
            packets, key=lambda packet: (packet.bucket, packet.side, packet.task, packet.number)
        )
        for bucket in range(self._buckets):
            of_bucket = [packet for packet in order if packet.bucket == bucket]
            if not of_bucket:
                continue
            if self._directory is None:
                state = MemoryState()
            else:
                state = FileState(
                    self._directory, bucket, number, buckets=self._buckets, files=Unsynced()
                )
            result = self._operator.step(state, unpacked(iter(of_bucket), schemas))
            found += result.cast(self._operator.output).to_pylist()
            if self._directory is not None:
                state.commit()
            self.states[bucket] = state
        return found

    def lineage(self, rows: Sequence[dict]) -> list[list[dict]]:
        """Of a bounded run: for each input, its rows that these rows of the result come from, with
        `_position`."""
        _, packets = self._last
        schemas = [self._packed(source) for source in self._sources]
        wanted = pa.Table.from_pylist(list(rows), schema=self._operator.output)
        found: list[list[dict]] = [[] for _ in self._sources]
        order = sorted(
            packets, key=lambda packet: (packet.bucket, packet.side, packet.task, packet.number)
        )
        for bucket in range(self._buckets):
            of_bucket = [packet for packet in order if packet.bucket == bucket]
            if not of_bucket:
                continue
            inputs = unpacked(iter(of_bucket), schemas)
            for side, which in enumerate(self._operator.lineage(inputs, wanted)):
                found[side] += rows_with_position(inputs[side], which).to_pylist()
        return found

    def counter(self, name: str) -> int:
        return sum(state.counters.get(name, 0) for state in self.states.values())

    def _packed(self, source: Source) -> pa.Schema:
        fields = [source.rows_schema.field(name) for name in source.columns]
        return packed_schema(fields, stamped=source.stamping is not None)

    def _frame(self, side, source, partition, rows, now):
        offsets = self._offsets[side]
        complete = []
        for row in rows:
            offset = row.get("_position", offsets.get(partition, 0))
            offsets[partition] = offset + 1
            at = {"topic": partition[0], "partition": partition[1], "offset": offset}
            complete.append({"_op": "c", "_at": now, **row, "_position": at})
        batch = pa.RecordBatch.from_pylist(complete, schema=source.rows_schema)
        keys = [repr([row.get(name) for name in source.key]).encode() for row in complete]
        buckets = [
            EVERY_BUCKET if source.everywhere(row) else zlib.crc32(key) % self._buckets
            for row, key in zip(complete, keys, strict=True)
        ]
        bucket = pa.array(buckets, pa.int32())
        batch = batch.append_column(BUCKET, bucket)
        return batch.append_column(NOW, pa.array([now] * len(rows), pa.timestamp("us", "UTC")))
