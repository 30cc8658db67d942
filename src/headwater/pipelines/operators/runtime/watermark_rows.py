"""Watermark rows: an operator's output watermark on its way to the operator that follows.

The watermark has to reach the next operator also when no result does, and between the two is a plan
of the user's. So each bucket emits one row after its step, of nulls and a position
(pipelines/position.py), and Spark takes it along. The result that users see leaves these rows out;
the input of the next operator has them (plans.with_watermark_rows). Packing takes them out again:
there they are progress of WATERMARK_PARTITION (contract.PartitionProgress). The driver's loop
passes the number from operator to operator, without rows.

The output watermark is a promise: no later result is before it. So it makes no row late, and the
final results do not depend on how the log was cut into batches.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.runtime.contract import (
    Operator,
    PartitionProgress,
    Stamper,
    State,
    Watermarked,
)
from headwater.pipelines.operators.time.watermarks import NEVER_US
from headwater.pipelines.position import (
    POSITION,
    POSITION_TYPE,
    WATERMARK_PARTITION,
    result_topic,
)

Watermark = tuple[str, int]  # the topic of the operator's results, and its output watermark


def floors_of(operator: Operator) -> Mapping[str, int]:
    """The times of its result that its output watermark is a bound of."""
    return operator.floors_us if isinstance(operator, Watermarked) else {}


def watermark_rows(operator: Operator, name: str, state: State) -> list[pa.RecordBatch]:
    """The row of one bucket after its step, if the operator has an output watermark."""
    if not isinstance(operator, Watermarked) or not operator.floors_us:
        return []
    reached_us = operator.output_watermark_us(state.document)
    position = {
        "topic": result_topic(name),
        "partition": WATERMARK_PARTITION,
        "offset": reached_us,
    }
    columns = [
        pa.array([position], POSITION_TYPE) if field.name == POSITION else pa.nulls(1, field.type)
        for field in operator.output
    ]
    return [pa.RecordBatch.from_arrays(columns, schema=operator.output)]


def output_watermark(operator: Operator, name: str, states: Iterable[State]) -> Watermark | None:
    """The least of all buckets, as `WatermarkRows` finds it."""
    if not isinstance(operator, Watermarked) or not operator.floors_us:
        return None
    reached_us = min(operator.output_watermark_us(state.document) for state in states)
    return result_topic(name), reached_us


class WatermarkRows:
    """Takes the watermark rows out of the rows of one task. `in_log_order` has brought those of all
    buckets into the same task.
    """

    def __init__(self) -> None:
        self.found: Watermark | None = None

    def taken_out(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        partition = pc.struct_field(rows.column(POSITION), "partition")
        is_watermark = pc.equal(partition, WATERMARK_PARTITION).fill_null(False)
        if not pc.any(is_watermark).as_py():
            return rows
        position = rows.column(POSITION).filter(is_watermark)
        reached_us = pc.min(pc.struct_field(position, "offset")).as_py()
        if self.found is not None:
            reached_us = min(reached_us, self.found[1])
        self.found = position[0]["topic"].as_py(), reached_us
        return rows.filter(pc.invert(is_watermark))


def watermark_progress(found: Watermark | None, stamper: Stamper | None) -> list[Any]:
    """As the progress of a partition, in a control packet."""
    if found is None or stamper is None or found[1] == NEVER_US:
        return []
    topic, reached_us = found
    floor_us = stamper.floor_us
    seen_us = None if floor_us is None else reached_us + floor_us
    return [(topic, WATERMARK_PARTITION, seen_us, reached_us, ())]


def watermark_before(progress: Iterable[PartitionProgress]) -> int | None:
    """The output watermark of the operator before this one, if there is one."""
    found = [reached.offset for reached in progress if reached.partition == WATERMARK_PARTITION]
    return max(found, default=None)
