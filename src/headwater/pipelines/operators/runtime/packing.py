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
time of partitions that it has no rows of.
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
    Stamper,
    Stamping,
)
from headwater.pipelines.position import POSITION

BUCKET: Final = "__bucket"
EVERY_BUCKET: Final = -1  # instead of a bucket's number
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
        number, now_us = 0, None
        for batch in batches:
            if not batch.num_rows:
                continue
            if now_us is None:
                now_us = batch.column(NOW)[0].cast(pa.timestamp("us", "UTC")).value
            rows = self._with_origins(batch, origins, stamper)
            for bucket, part in _by_bucket(rows, batch.column(BUCKET), self.buckets):
                yield self._packet(bucket, task, number, _to_bytes(part), None)
            number += 1
        if now_us is not None:
            control = orjson.dumps(
                {"now": now_us, "origins": origins.names, "progress": origins.progress(stamper)}
            )
            for bucket in range(self.buckets):
                yield self._packet(bucket, task, number, None, control)

    def _with_origins(
        self, batch: pa.RecordBatch, origins: "_Origins", stamper: Stamper | None
    ) -> pa.RecordBatch:
        origin, offset = origins.of(batch.column(POSITION))
        added: dict[str, pa.Array] = {ORIGIN: origin, OFFSET: offset}
        if stamper is not None:
            added |= stamper.stamp(batch, origin)
            origins.observe(added[SEEN])
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

    def observe(self, seen: pa.Array) -> None:
        for code, rows in self._now:
            of_partition = seen if isinstance(rows, slice) else seen.filter(pa.array(rows))
            latest = pc.max(of_partition).as_py()
            if latest is not None:
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
    rows: pa.RecordBatch, bucket: pa.Array, buckets: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each bucket, in order: a stable partition by bucket."""
    numbers = bucket.to_numpy(zero_copy_only=False).astype(np.int16)
    if buckets == 1:
        yield 0, rows
        return
    if numbers.min() == EVERY_BUCKET:
        copies = np.where(numbers == EVERY_BUCKET, buckets, 1)
        rows = rows.take(pa.array(np.repeat(np.arange(len(numbers)), copies)))
        numbers = np.repeat(numbers, copies)
        everywhere = numbers == EVERY_BUCKET
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
