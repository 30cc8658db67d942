"""An operator without Spark: both stages as they are, over batches that the test cuts as it likes.

    driver = Driver(operator, [Source(schema, ("name",), ("name",), stamping)], tmp_path)
    driver.batch({("topic", 0): [{"name": "a", "at": …}, …]})   # one input
    driver.batch(left_rows, right_rows)                         # two
    driver.again()                                              # the last batch once more
    driver.rescale(5)                                           # into another number of buckets
    driver.batch(rows, watermarks=[("operator/first", 5_000_000)])  # with that of one before

Every call runs the buckets from the state on disk, so each is a restart, too. Every second batch
runs as in the driver of a pipeline (pipelines/engine), the others as in Spark's tasks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import ClassVar

import orjson
import pyarrow as pa

from headwater.log.disk.files import Files
from headwater.pipelines.engine.local_operator import step_buckets
from headwater.pipelines.engine.local_state import BucketState, LocalState
from headwater.pipelines.operators.runtime.contract import Operator, Stamping
from headwater.pipelines.operators.runtime.lineage import rows_with_position
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.runtime.packing import (
    EVERYWHERE,
    NOW,
    Packing,
    packed_schema,
)
from headwater.pipelines.operators.runtime.unpacking import packets_in, unpacked
from headwater.pipelines.operators.runtime.watermark_rows import Watermark, output_watermark
from headwater.pipelines.operators.state.state_files import (
    FileState,
    MemoryState,
    batches_of,
    begin,
)
from headwater.pipelines.operators.state.state_store import StateDirectory, state_directory
from headwater.pipelines.position import POSITION, POSITION_TYPE, WATERMARK_PARTITION

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
    # Of the first batch, the second, …: state is rescaled in between. Empty: as `buckets` says.
    buckets_of_batches: ClassVar[Sequence[int]] = ()

    def __init__(
        self,
        operator: Operator,
        sources: Sequence[Source],
        directory: Path | StateDirectory | None,
        buckets: int = 3,
        *,
        as_tasks: bool = False,
    ) -> None:
        """Without a directory it is a bounded run: one batch, no state on disk. `as_tasks`: no
        batch runs as in the driver. The directory is that of all
        operators of a write.
        """
        self._as_tasks = as_tasks
        self._operator = operator
        self._sources = sources
        self._name = "operator"
        if isinstance(directory, Path):  # records are beside the operator's directory
            directory.mkdir(parents=True, exist_ok=True)
            directory = state_directory(directory, Unsynced())
        self._directory = directory and directory / self._name
        self._parent = directory
        self._buckets = buckets
        self._offsets = [{} for _ in sources]  # place to the next one
        self._numbers = count()
        self._last = None
        self.states = {}  # of the last batch, by bucket

    def batch(
        self,
        *rows: Rows,
        now: datetime = START,
        watermarks: Sequence[Watermark | None] | None = None,
    ) -> list[dict]:
        """Each input's rows, by topic and partition; offsets are given to those without one
        ("_position": 5), `_at` is `now`, `_op` is "c" if they say nothing else. `watermarks`: of
        the operators before each input, as watermark rows or, in the driver, as they are."""
        if self.buckets_of_batches and self._directory is not None:
            done = 0 if self._last is None else 1 + self._last[0]
            self.rescale(self.buckets_of_batches[done % len(self.buckets_of_batches)])
        packets = []
        self._watermarks = watermarks or [None] * len(self._sources)
        frames: list[list[pa.RecordBatch]] = [[] for _ in self._sources]
        for side, (source, given) in enumerate(zip(self._sources, rows, strict=True)):
            packing = self._packing(side)
            for task, (partition, of_partition) in enumerate(given.items()):
                frame = self._frame(side, source, partition, of_partition, now)
                frames[side].append(frame)
                packets += [
                    packet
                    for one in packing.pack(iter([frame]), task)
                    for packet in packets_in(one)
                ]
            if self._watermarks[side] is not None:
                frame = self._watermark_frame(side, source, now)
                packets += [
                    packet
                    for one in packing.pack(iter([frame]), len(given))
                    for packet in packets_in(one)
                ]
        self._last = next(self._numbers), packets
        self._frames = frames, int(now.timestamp() * 1e6)
        return self.again()

    def rescale(self, buckets: int) -> None:
        """As a pipeline does it that starts with another number of buckets."""
        before, self._buckets = self._buckets, buckets
        if self._last is None or not self._directory.has("begun"):
            return
        number, name, directory = self._last[0], self._name, self._parent
        manifests = [
            max(batches_of(self._directory / str(bucket)), default=-1) for bucket in range(before)
        ]
        directory.write(f"{number}.json", orjson.dumps({name: manifests}))
        built = Built(name, buckets, (), operator=self._operator)
        local = LocalState((built,), directory)
        local.load(number)
        local.hand_over(number)
        self.states = dict(enumerate(local.of[name]))

    def again(self) -> list[dict]:
        number, packets = self._last
        if self._directory is not None and number % 2 and packets and not self._as_tasks:
            return self._in_the_driver(number)
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
                state = FileState(self._directory, bucket, number, buckets=self._buckets)
            result = self._operator.step(state, unpacked(iter(of_bucket), schemas))
            found += result.cast(self._operator.output).to_pylist()
            if self._directory is not None:
                state.commit()
            self.states[bucket] = state
        return found

    def _in_the_driver(self, number: int) -> list[dict]:
        """The same batch as the engine runs it, from the state that tasks have left, and back."""
        if not self._directory.has("begun"):
            begin(self._directory, self._buckets)
        name, directory = self._name, self._parent
        built = Built(name, self._buckets, ())
        manifests = [
            max((n for n in batches_of(self._directory / str(bucket)) if n < number), default=-1)
            for bucket in range(self._buckets)
        ]
        directory.write(f"{number - 1}.json", orjson.dumps({name: manifests}))
        local = LocalState((built,), directory)
        local.load(number - 1)
        frames, now_us = self._frames
        inputs = [
            self._packing(side).inputs(
                of_side, self._packed(self._sources[side]), now_us, self._watermarks[side]
            )
            for side, of_side in enumerate(frames)
        ]
        found = step_buckets(self._operator, local.of[name], inputs)
        local.commit(number)
        self.states = dict(enumerate(local.of[name]))
        restarted = LocalState((built,), directory)
        restarted.load(number)
        restarted.hand_over(number)
        return found.to_pylist()

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

    def _packing(self, side: int) -> Packing:
        source = self._sources[side]
        has_watermark = self._watermarks[side] is not None
        return Packing(
            side, self._buckets, source.stamping, source.columns, source.key, has_watermark
        )

    def output_watermark(self, name: str) -> Watermark | None:
        """After the last batch; all buckets have run."""
        return output_watermark(self._operator, name, self.states.values())

    def _watermark_frame(self, side, source, now):
        """A row of each of two buckets of the operator before: the least counts."""
        topic, reached_us = self._watermarks[side]
        rows = [{"_op": None, "_at": None, "_position": reached_us + more} for more in (7, 0)]
        return self._frame(side, source, (topic, WATERMARK_PARTITION), rows, now)

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
        everywhere = pa.array([source.everywhere(row) for row in complete], pa.bool_())
        batch = batch.append_column(EVERYWHERE, everywhere)
        return batch.append_column(NOW, pa.array([now] * len(rows), pa.timestamp("us", "UTC")))


def table_names(state: FileState | BucketState) -> set[str]:
    """Those that there are after its batch."""
    if isinstance(state, BucketState):
        return {*state.locations, *state.changed}
    return {*state._tables, *state._put}
