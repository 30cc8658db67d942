"""Packets of one bucket back into the inputs of an operator's step (the reverse of packing.py)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.runtime.contract import (
    OFFSET,
    ORIGIN,
    SEEN,
    Input,
    PartitionProgress,
)
from headwater.pipelines.operators.runtime.packing import from_bytes

ORDER: Final = ("bucket", "side", "task", "number")  # of packets, when they are unpacked


@dataclass(frozen=True, slots=True)
class Packet:
    """One row of PACKETS: Arrow rows of one bucket, or a task's control packet."""

    bucket: int
    side: int
    task: int
    number: int
    packet: pa.Scalar
    control: bytes | None


def packets_in(batch: pa.RecordBatch) -> Iterator[Packet]:
    numbers = [batch.column(name).to_pylist() for name in ORDER]
    for bucket, side, task, number, packet, control in zip(
        *numbers, batch.column("packet"), batch.column("control"), strict=True
    ):
        yield Packet(bucket, side, task, number, packet, control.as_py())


def unpacked(packets: Iterator[Packet], schemas: Sequence[pa.Schema]) -> tuple[Input, ...]:
    """The inputs of one bucket."""
    sides: list[list[_Task]] = [[] for _ in schemas]
    for (side, _), of_task in groupby(packets, key=lambda packet: (packet.side, packet.task)):
        sides[side].append(_Task(list(of_task)))
    now_us = max(task.control["now"] for tasks in sides for task in tasks)
    return tuple(
        _input(tasks, schema, now_us) for tasks, schema in zip(sides, schemas, strict=True)
    )


class _Task:
    """The packets of one task of the first stage, for one bucket and input."""

    def __init__(self, packets: list[Packet]) -> None:
        *rows, last = packets
        assert last.control is not None
        self.control: dict[str, Any] = orjson.loads(last.control)
        self.tables = [from_bytes(packet.packet) for packet in rows]


def _input(tasks: list[_Task], schema: pa.Schema, now_us: int) -> Input:
    codes: dict[tuple[str, int], int] = {}
    progress: dict[tuple[str, int], PartitionProgress] = {}
    tables = []
    is_split = False
    before_us = _seen_before(tasks)
    for number, task in enumerate(tasks):
        names = [(topic, partition) for topic, partition in task.control["origins"]]
        is_split |= any(name in codes for name in names)
        mapped = [codes.setdefault(name, len(codes)) for name in names]
        tables += [
            _recoded(table, mapped, before_us.get(number)).cast(schema) for table in task.tables
        ]
        for topic, partition, seen_us, offset, punctuations in task.control["progress"]:
            new = PartitionProgress(topic, partition, seen_us, offset, tuple(punctuations))
            before = progress.get((topic, partition))
            progress[topic, partition] = new if before is None else _further(before, new)
    rows = pa.concat_tables(tables) if tables else schema.empty_table()
    if is_split and len(rows):
        rows = rows.sort_by([(ORIGIN, "ascending"), (OFFSET, "ascending")])
    return Input(rows, tuple(codes), tuple(progress.values()), now_us)


def _seen_before(tasks: list[_Task]) -> dict[int, list[int | None]]:
    """The latest event time of each partition before the offset range that a task read.

    A bounded run reads offset ranges of one partition in several tasks. By the task's number, in
    the order of its own origins; tasks without an earlier range are left out.
    """
    ranges: dict[tuple[str, int], list[tuple[int, int, int, int | None]]] = {}
    for number, task in enumerate(tasks):
        for origin, (topic, partition, seen_us, offset, _) in enumerate(task.control["progress"]):
            ranges.setdefault((topic, partition), []).append((offset, number, origin, seen_us))
    found: dict[int, list[int | None]] = {}
    for of_partition in ranges.values():
        before_us: int | None = None
        for _, number, origin, seen_us in sorted(of_partition, key=itemgetter(0)):
            if before_us is not None:
                empty: list[int | None] = [None] * len(tasks[number].control["progress"])
                found.setdefault(number, empty)[origin] = before_us
            if seen_us is not None:
                before_us = seen_us if before_us is None else max(before_us, seen_us)
    return found


def _recoded(
    table: pa.Table, codes: list[int], before_us: list[int | None] | None = None
) -> pa.Table:
    if before_us is not None:
        earlier = pa.array(before_us, pa.int64()).take(table[ORIGIN].combine_chunks())
        seen = pc.max_element_wise(table[SEEN].combine_chunks(), earlier)  # nulls are skipped
        table = table.set_column(table.schema.get_field_index(SEEN), SEEN, seen)
    if codes == list(range(len(codes))):
        return table
    origin = pa.array(codes, pa.int32()).take(table[ORIGIN].combine_chunks())
    return table.set_column(table.schema.get_field_index(ORIGIN), ORIGIN, origin)


def _further(one: PartitionProgress, other: PartitionProgress) -> PartitionProgress:
    seen = [progress.seen_us for progress in (one, other) if progress.seen_us is not None]
    return PartitionProgress(
        one.topic,
        one.partition,
        max(seen, default=None),
        max(one.offset, other.offset),
        (*one.punctuations, *other.punctuations),
    )
