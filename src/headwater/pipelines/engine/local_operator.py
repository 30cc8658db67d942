"""An operator's step in the driver: what packing, shuffle and task do in Spark, for few rows."""

from collections.abc import Sequence

import pyarrow as pa

from headwater.pipelines.engine.local_plan import OperatorPlan, OperatorSide
from headwater.pipelines.engine.local_state import BucketState
from headwater.pipelines.operators.runtime.contract import Input, Operator
from headwater.pipelines.operators.runtime.log_order import sorted_by_position
from headwater.pipelines.operators.runtime.watermark_rows import Watermark


def run_operator(
    plan: OperatorPlan,
    states: Sequence[BucketState],
    given: Sequence[pa.Table],
    watermarks: Sequence[Watermark | None],
    now_us: int,
) -> pa.Table:
    """The operator's result, and its buckets' states after it. `given` are the rows of its sides,
    `watermarks` those of the operators before them. Without any rows, only time has passed.
    """
    inputs = [
        side.packing.inputs(_in_order(side, rows), schema, now_us, watermark)
        for side, rows, schema, watermark in zip(
            plan.sides, given, plan.built.schemas, watermarks, strict=True
        )
    ]
    assert plan.built.operator is not None
    return step_buckets(plan.built.operator, states, inputs)


def step_buckets(
    operator: Operator, states: Sequence[BucketState], inputs: Sequence[Sequence[Input]]
) -> pa.Table:
    """`inputs` of each side have one for each bucket. Buckets without rows get the progress of the
    partitions, too.
    """
    results = [
        operator.step(state, tuple(of_side[bucket] for of_side in inputs))
        for bucket, state in enumerate(states)
    ]
    filled = [result.cast(operator.output) for result in results if len(result)]
    return pa.concat_tables(filled) if filled else operator.output.empty_table()


def _in_order(side: OperatorSide, rows: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = rows.combine_chunks().to_batches()
    return list(sorted_by_position(iter(batches))) if side.is_sorted else batches
