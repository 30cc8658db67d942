"""The first stage: a Spark task that packs its rows by bucket for the shuffle.

A row that crosses from Spark into Python and back costs a microsecond. So rows go through the
shuffle as packets: one Arrow stream of many rows for each bucket, which Spark moves as one value.

    bucket   side   task   number   packet             control
    5        0      2      0        rows as Arrow      -
    5        0      2      1        rows as Arrow      -
    5        0      2      2        -                  for every bucket (below)

Rows that concern every key (a truncate) go to every bucket; so does the last packet of a task:
`{"now": …, "origins": [[topic, partition], …],
"progress": [[topic, partition, seen, offset, punctuations], …]}`. By it a bucket gets the event
time of partitions that it has no rows of, and the watermark of the operator before
(watermark_rows.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.runtime.contract import (
    FAULT,
    OFFSET,
    ORIGIN,
    SEEN,
    TIME,
    Input,
    PartitionProgress,
    Stamper,
    Stamping,
)
from headwater.pipelines.operators.runtime.watermark_rows import (
    Watermark,
    WatermarkRows,
    watermark_progress,
)
from headwater.pipelines.operators.state.key_groups import buckets_of
from headwater.pipelines.position import POSITION

EVERYWHERE: Final = "__everywhere"  # bool: the row is for every bucket; not every input has it
_EVERY_BUCKET: Final = -1  # instead of a bucket's number
NOW: Final = "__now"
PACKETS: Final = pa.schema(
    [
        ("bucket", pa.int32()),
        ("side", pa.int32()),
        ("task", pa.int32()),
        ("number", pa.int32()),
        ("packet", pa.binary()),
        ("control", pa.binary()),
    ]
)
STAMPS: Final = ((TIME, pa.int64()), (SEEN, pa.int64()), (FAULT, pa.int8()))
ORIGINS: Final = ((ORIGIN, pa.int32()), (OFFSET, pa.int64()))


@dataclass(frozen=True)
class Packing:
    """Packs one input. Called by Spark in each task with the task's rows."""

    side: int
    buckets: int
    stamping: Stamping | None
    columns: tuple[str, ...]  # that the operator gets
    key: tuple[str, ...] = ()  # rows of the same key meet in one bucket
    has_watermark_rows: bool = False  # of the operator before (watermark_rows.py)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        from headwater.pipelines.source.reading import settle

        context = TaskContext.get()
        assert context is not None
        yield from self.pack(batches, context.partitionId())
        settle()

    def pack(self, batches: Iterator[pa.RecordBatch], task: int) -> Iterator[pa.RecordBatch]:
        origins = _Origins()
        stamper = self.stamping.start() if self.stamping is not None else None
        watermark = WatermarkRows()
        number, now_us = 0, None
        for batch in batches:
            if not batch.num_rows:
                continue
            if now_us is None:
                now_us = batch.column(NOW)[0].cast(pa.timestamp("us", "UTC")).value
            if self.has_watermark_rows:
                batch = watermark.taken_out(batch)  # noqa: PLW2901
                if not batch.num_rows:
                    continue
            rows = self._with_origins(batch, origins, stamper)
            for bucket, part in _by_bucket(rows, self._buckets_of(batch), self.buckets):
                yield self._packet(bucket, task, number, _to_bytes(part), None)
            number += 1
        if now_us is not None:
            progress = origins.progress(stamper) + watermark_progress(watermark.found, stamper)
            control = orjson.dumps({"now": now_us, "origins": origins.names, "progress": progress})
            for bucket in range(self.buckets):
                yield self._packet(bucket, task, number, None, control)

    def inputs(
        self,
        batches: Sequence[pa.RecordBatch],
        schema: pa.Schema,
        now_us: int,
        watermark: Watermark | None = None,
    ) -> list[Input]:
        """The inputs of all buckets, where the rows are those of the whole batch: `pack` and
        `unpacked` without the shuffle in between. `watermark`: of the operator before, if it has
        run in this batch.
        """
        origins = _Origins()
        stamper = self.stamping.start() if self.stamping is not None else None
        parts: list[list[pa.RecordBatch]] = [[] for _ in range(self.buckets)]
        for batch in batches:
            if batch.num_rows:
                rows = self._with_origins(batch, origins, stamper)
                for bucket, part in _by_bucket(rows, self._buckets_of(batch), self.buckets):
                    parts[bucket].append(part)
        progress = tuple(
            PartitionProgress(topic, partition, seen_us, offset, tuple(punctuations))
            for topic, partition, seen_us, offset, punctuations in (
                *origins.progress(stamper),
                *watermark_progress(watermark, stamper),
            )
        )
        return [
            Input(
                pa.Table.from_batches(of_bucket).cast(schema)
                if of_bucket
                else schema.empty_table(),
                tuple(origins.names),
                progress,
                now_us,
            )
            for of_bucket in parts
        ]

    def _buckets_of(self, batch: pa.RecordBatch) -> npt.NDArray[np.int16]:
        key = [batch.column(name) for name in self.key]
        numbers = buckets_of(key, batch.num_rows, self.buckets).astype(np.int16)
        if EVERYWHERE in batch.schema.names:
            everywhere = batch.column(EVERYWHERE).fill_null(False)
            numbers[everywhere.to_numpy(zero_copy_only=False)] = _EVERY_BUCKET
        return numbers

    def _with_origins(
        self, batch: pa.RecordBatch, origins: "_Origins", stamper: Stamper | None
    ) -> pa.RecordBatch:
        origin, offset = origins.of(batch.column(POSITION))
        added: dict[str, pa.Array] = {ORIGIN: origin, OFFSET: offset}
        if stamper is not None:
            added |= stamper.stamp(batch, origin)
            origins.observe(added[SEEN], stamper.lead_us)
        return pa.RecordBatch.from_arrays(
            [*(batch.column(name) for name in self.columns), *added.values()],
            names=[*self.columns, *added],
        )

    def _packet(
        self, bucket: int, task: int, number: int, packet: bytes | None, control: bytes | None
    ) -> pa.RecordBatch:
        row = [bucket, self.side, task, number, packet, control]
        return pa.RecordBatch.from_arrays(
            [pa.array([value], kind) for value, kind in zip(row, PACKETS.types, strict=True)],
            schema=PACKETS,
        )


class _Origins:
    """The partitions of a task's rows, numbered in order of first appearance."""

    def __init__(self) -> None:
        self.names: list[tuple[str, int]] = []
        self._codes: dict[tuple[str, int], int] = {}
        self._last: list[int] = []  # offset
        self._seen: list[int | None] = []
        self._now: list[tuple[int, npt.NDArray[Any] | slice]] = []  # code, rows of the last batch

    def of(self, position: pa.StructArray) -> tuple[pa.Array, pa.Array]:
        topic = pc.struct_field(position, "topic").dictionary_encode()
        partition = pc.struct_field(position, "partition")
        offset = pc.struct_field(position, "offset")
        offsets = offset.to_numpy(zero_copy_only=False)
        numbers = partition.to_numpy(zero_copy_only=False)
        names = topic.dictionary.to_pylist()
        if len(names) == 1 and numbers.min() == numbers.max():
            code = self._code(names[0], int(numbers[0]))
            self._now = [(code, slice(None))]
            origin = np.full(len(numbers), code, np.int32)
        else:
            both = topic.indices.to_numpy(zero_copy_only=False).astype(np.int64) << 32 | numbers
            found, inverse = np.unique(both, return_inverse=True)
            codes = [self._code(names[packed >> 32], int(packed & 0xFFFFFFFF)) for packed in found]
            origin = np.array(codes, np.int32)[inverse]
            self._now = [(code, origin == code) for code in codes]
        for code, rows in self._now:
            self._last[code] = max(self._last[code], int(offsets[rows].max()))
        return pa.array(origin), offset

    def observe(self, seen: pa.Array, lead_us: int | None) -> None:
        for code, rows in self._now:
            of_partition = seen if isinstance(rows, slice) else seen.filter(pa.array(rows))
            latest = pc.max(of_partition).as_py()
            if latest is not None:
                if lead_us is not None:
                    latest = max(latest, self._last[code] + lead_us)
                before = self._seen[code]
                self._seen[code] = latest if before is None else max(before, latest)

    def progress(self, stamper: Stamper | None) -> list[Any]:
        return [
            (
                *name,
                self._seen[code],
                self._last[code],
                stamper.punctuations(code) if stamper else (),
            )
            for code, name in enumerate(self.names)
        ]

    def _code(self, topic: str, partition: int) -> int:
        name = topic, partition
        if name not in self._codes:
            self._codes[name] = len(self.names)
            self.names.append(name)
            self._last.append(-1)
            self._seen.append(None)
        return self._codes[name]


def _by_bucket(
    rows: pa.RecordBatch, numbers: npt.NDArray[np.int16], buckets: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each bucket, in order: a stable partition by bucket."""
    if buckets == 1:
        yield 0, rows
        return
    if numbers.min() == _EVERY_BUCKET:
        copies = np.where(numbers == _EVERY_BUCKET, buckets, 1)
        rows = rows.take(pa.array(np.repeat(np.arange(len(numbers)), copies)))
        numbers = np.repeat(numbers, copies)
        everywhere = numbers == _EVERY_BUCKET
        numbers[everywhere] = np.tile(np.arange(buckets), int(everywhere.sum()) // buckets)
    # A stable sort of 16 bits is a radix sort.
    ordered = rows.take(pa.array(np.argsort(numbers, kind="stable")))
    ends = np.cumsum(np.bincount(numbers, minlength=buckets))
    start = 0
    for number, end in enumerate(ends.tolist()):
        if end > start:
            yield number, ordered.slice(start, end - start)
        start = end


def _to_bytes(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def from_bytes(packet: pa.Scalar) -> pa.Table:
    return pa.ipc.open_stream(packet.as_buffer()).read_all()


def packed_schema(columns: Sequence[pa.Field], *, stamped: bool) -> pa.Schema:
    """Of the rows that an operator gets."""
    added = [*ORIGINS, *(STAMPS if stamped else ())]
    return pa.schema([*columns, *(pa.field(name, kind) for name, kind in added)])
