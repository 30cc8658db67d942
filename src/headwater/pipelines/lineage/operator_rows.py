"""Lineage through an operator: the input rows that rows of its result come from.

The operator runs once more over all of its inputs (operators/runtime/lineage.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)

from headwater.pipelines.operators.runtime.lineage import Traceable, rows_with_position
from headwater.pipelines.operators.runtime.planning import OperatorRun
from headwater.pipelines.operators.runtime.unpacking import packets_in, unpacked
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import OP

MOST_ROWS: Final = 100_000  # of one input, that are followed further
_ANSWER: Final = "side int, rows binary"


def wanted_rows(run: OperatorRun, condition: str) -> pa.Table:
    """Rows of the result that meet the condition; at most one more than MOST_ROWS."""
    rows = run.result.where(condition).limit(MOST_ROWS + 1).toArrow()
    return rows.cast(run.operator.output)


def rows_of_sides(run: OperatorRun, operator: Traceable, wanted: pa.Table) -> list[pa.Table | None]:
    """Of each input the rows that these come from, with the columns of its frame and POSITION; None
    if they are more than MOST_ROWS.
    """
    stage = LineageStage(operator, run.schemas, _to_bytes(wanted))
    found: list[list[pa.Table]] = [[] for _ in run.sides]
    for side, rows in run.packets.mapInArrow(stage, _ANSWER).collect():
        found[side].append(pa.ipc.open_stream(bytes(rows)).read_all())
    empty = pa.table({POSITION: pa.array([], pa.struct([]))})
    tables = [pa.concat_tables(parts) if parts else empty for parts in found]
    return [None if len(table) > MOST_ROWS else table for table in tables]


@dataclass(frozen=True)
class LineageStage:
    """Called by Spark in each task with the packets of its buckets, in their order."""

    operator: Traceable
    schemas: tuple[pa.Schema, ...]
    wanted: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = pa.ipc.open_stream(self.wanted).read_all()
        packets = (row for batch in batches for row in packets_in(batch))
        for _, of_bucket in groupby(packets, key=lambda packet: packet.bucket):
            inputs = unpacked(of_bucket, self.schemas)
            for side, which in enumerate(self.operator.lineage(inputs, wanted)):
                if which.any():
                    rows = rows_with_position(inputs[side], which).slice(0, MOST_ROWS + 1)
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([side], pa.int32()), pa.array([_to_bytes(rows)], pa.binary())],
                        names=["side", "rows"],
                    )


def condition_of(frame: DataFrame, rows: pa.Table, *, by_content: bool) -> Column:
    """True for these rows of the frame. By their positions in the log; where several rows can have
    the same position, as after a join, by a hash of their columns, too.
    """
    offsets: dict[tuple[str, int], set[int]] = {}
    for position in rows[POSITION].to_pylist():
        offsets.setdefault((position["topic"], position["partition"]), set()).add(
            position["offset"]
        )
    at_positions = [
        f"({POSITION}.topic = '{topic}' AND {POSITION}.partition = {partition}"
        f" AND {POSITION}.offset IN ({_listed(of_partition)}))"
        for (topic, partition), of_partition in offsets.items()
    ]
    condition = F.expr(" OR ".join(at_positions) or "false")
    if not by_content or not len(rows):
        return condition
    names = [name for name in rows.column_names if name != OP and _is_hashed(frame, name)]
    hashed = f"xxhash64({', '.join(f'`{name}`' for name in names)})"
    given = rows.select(names).cast(_arrow(frame, names))
    found = frame.sparkSession.createDataFrame(given, frame.select(*names).schema)
    hashes = {row[0] for row in found.selectExpr(hashed).collect()}
    return condition & F.expr(f"{hashed} IN ({_listed(hashes)})")


def _is_hashed(frame: DataFrame, name: str) -> bool:
    """Spark has no hash of maps and variants. (`_op` may differ: operators get it changed.)"""
    kind = frame.schema[name].dataType.simpleString()
    return "map<" not in kind and "variant" not in kind


def _arrow(frame: DataFrame, names: list[str]) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema: pa.Schema = to_arrow_schema(frame.select(*names).schema, timezone="UTC")
    return schema


def _listed(numbers: set[int]) -> str:
    return ", ".join(f"{number}L" for number in sorted(numbers))


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
