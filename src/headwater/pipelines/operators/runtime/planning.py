"""Planning of an operator in the driver: its inputs, packing, shuffle and tasks as one DataFrame.

    rows ──▶ mapInArrow: packets by bucket (packing.py)
         ──▶ shuffle: all packets of a bucket into one task
         ──▶ mapInArrow: state of the bucket, step, state after it (task.py), result rows
         ──▶ without watermark rows, which only the next operator gets (watermark_rows.py)

To Spark both stages are stateless, so that operators can follow each other in any output mode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.flow import has_events, reads_twice
from headwater.pipelines.operators.runtime.contract import (
    Operator,
    ResultsWithPositions,
    Stamping,
)
from headwater.pipelines.operators.runtime.log_order import in_log_order
from headwater.pipelines.operators.runtime.naming import Built, current, is_operator, name_operator
from headwater.pipelines.operators.runtime.packing import (
    EVERYWHERE,
    NOW,
    PACKETS,
    Packing,
    packed_schema,
)
from headwater.pipelines.operators.runtime.task import STATE_CONF, OperatorTask
from headwater.pipelines.operators.runtime.unpacking import ORDER
from headwater.pipelines.operators.runtime.watermark_rows import floors_of
from headwater.pipelines.operators.state.fingerprints import fingerprint
from headwater.pipelines.operators.state.manifests import reports_of
from headwater.pipelines.operators.time.lateness import SIDE, Lateness
from headwater.pipelines.plans import moves_rows, plan_of, with_watermark_rows
from headwater.pipelines.position import FLOOR, IS_RESULT, POSITION, result_topic
from headwater.pipelines.state_url import StateUrl
from headwater.sinks.contract import OP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_BUCKETS_CONF: Final = "spark.headwater.state.buckets"
_BUCKETS: Final = 8
BOUNDED_BUCKETS_CONF: Final = "spark.headwater.bounded.buckets"
_BOUNDED_BUCKETS: Final = 64  # of a bounded run, which holds all rows of one bucket in memory


@dataclass(frozen=True)
class Side:
    """One input of an operator."""

    frame: "DataFrame"
    key: tuple[str, ...]  # rows of the same key meet; all sides' are of the same types
    columns: tuple[str, ...]  # that the operator gets
    stamping: Stamping | None = None
    everywhere: str | None = None  # rows for every bucket, as a condition of Spark's: "_op = 't'"
    passes: bool = False  # its rows are rows of the result, with their `_op`


@dataclass(frozen=True)
class OperatorRun:
    """A planned operator of a bounded run, which lineage traces results by (pipelines/lineage)."""

    operator: Operator
    sides: tuple[Side, ...]
    packets: "DataFrame"  # those of a bucket are in one task, and in order
    schemas: tuple[pa.Schema, ...]
    result: "DataFrame"


def run_operator(
    kind: str, operator: Operator, sides: Sequence[Side], *, name: str | None = None
) -> "DataFrame":
    """The operator's result over these inputs: a stream if they are streams, else a bounded frame.
    `name` identifies its state, also when its inputs change later.
    """
    from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    is_stream = _is_stream(kind, sides)
    _check_late_rows(kind, operator)
    plans = [plan_of(side.frame) for side in sides]
    name = name_operator(kind, fingerprint(operator, plans, is_operator), name)
    if isinstance(operator, ResultsWithPositions):
        operator = operator.with_topic(result_topic(name))
    conf = sides[0].frame.sparkSession.conf
    setting = (_BUCKETS_CONF, _BUCKETS) if is_stream else (BOUNDED_BUCKETS_CONF, _BOUNDED_BUCKETS)
    buckets = int(conf.get(setting[0], str(setting[1])) or 0)
    packets, schemas, packings = None, [], []
    for number, (side, plan) in enumerate(zip(sides, plans, strict=True)):
        _check(kind, side)
        stamping = side.stamping
        read = {*side.columns, *side.key, POSITION, *(stamping.columns() if stamping else ())}
        added = [_time_of_run().alias(NOW)]
        if side.everywhere is not None:
            added.append(F.expr(side.everywhere).alias(EVERYWHERE))
        watermarked = with_watermark_rows(side.frame) if stamping is not None else None
        chosen = (watermarked or side.frame).select(
            *[_column(side, name) for name in side.frame.columns if name in read], *added
        )
        if stamping is not None and (moves_rows(plan) or reads_twice(side.frame)):
            chosen = in_log_order(chosen, is_stream=is_stream)
        packing = Packing(
            number, buckets, stamping, side.columns, side.key, watermarked is not None
        )
        packings.append(packing)
        of_side = chosen.mapInArrow(packing, from_arrow_schema(PACKETS))
        packets = of_side if packets is None else packets.union(of_side)
        fields = to_arrow_schema(side.frame.select(*side.columns).schema, timezone="UTC")
        schemas.append(packed_schema(list(fields), stamped=stamping is not None))
    assert packets is not None
    parts = min(buckets, int(conf.get("spark.sql.shuffle.partitions") or buckets))
    directory = conf.get(STATE_CONF, None)
    if directory is not None and "://" in directory:
        _check_state(kind, directory)
    task = OperatorTask(
        name,
        operator,
        buckets,
        tuple(schemas),
        directory,
        is_stream,
        reports_of(sides[0].frame.sparkSession.sparkContext) if is_stream else None,
    )
    packets = packets.repartitionById(parts, F.col("bucket") % parts)
    if not is_stream:  # Spark does not sort streams
        packets = packets.sortWithinPartitions(*ORDER)
    result = packets.mapInArrow(task, _result_schema(operator))
    if floors_of(operator):
        result = result.where(IS_RESULT)
    now = current()
    if now is not None:
        keys = tuple(side.key for side in sides)
        passes = tuple(plan for side, plan in zip(sides, plans, strict=True) if side.passes)
        run = OperatorRun(operator, tuple(sides), packets, tuple(schemas), result)
        now.built[name] = Built(
            name,
            buckets,
            keys,
            passes,
            None if is_stream else run,
            operator,
            tuple(packings),
            tuple(schemas),
        )
    return result


def _time_of_run() -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    now = current()
    if now is None or now.now_us is None:
        return F.current_timestamp()
    return F.timestamp_micros(F.lit(now.now_us))


def _result_schema(operator: Operator) -> "StructType":
    """With the bounds of times that its output watermark is for: others of columns that it passes
    on are those of an operator before.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    floors_us = floors_of(operator)
    columns = []
    for column in from_arrow_schema(operator.output):
        metadata = {key: value for key, value in column.metadata.items() if key != FLOOR}
        if column.name in floors_us:
            metadata[FLOOR] = floors_us[column.name]
        is_nullable = column.nullable or bool(floors_us)  # watermark rows have nulls
        columns.append(StructField(column.name, column.dataType, is_nullable, metadata))
    return StructType(columns)


def _column(side: Side, name: str) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col(name)
    if name != OP or side.stamping is None or not has_events(side.frame):
        return column
    return F.when(column == "u", "c").otherwise(column).alias(OP)


def _is_stream(kind: str, sides: Sequence[Side]) -> bool:
    streams = [side.frame.isStreaming for side in sides]
    if any(streams) and not all(streams):
        raise PipelineError(
            f"{kind}: one input is a stream, the other is not",
            hint="flow.changes and flow.table are streams; read the other input so, too",
        )
    return all(streams)


def _check_late_rows(kind: str, operator: Operator) -> None:
    has_side_output = any(
        isinstance(setting, Lateness) and setting.mode == SIDE
        for setting in getattr(operator, "__dict__", {}).values()
    )
    if has_side_output and current() is None:
        raise PipelineError(
            f'{kind}: late="{SIDE}" outside of a pipeline',
            detail="late rows go to the topic <pipeline>.late",
            hint='late="drop" counts them; or make it part of a pipeline',
        )


def _check_state(kind: str, address: str) -> None:
    try:
        StateUrl.parse(address)
    except ValueError as error:
        raise PipelineError(
            f"{kind}: {STATE_CONF} must be a directory or the address of an object store",
            detail=f"an address is {error}; HDFS is not supported",
            hint="or use a directory that all executors share, such as a mounted volume",
        ) from error


def _check(kind: str, side: Side) -> None:
    columns = side.frame.columns
    if POSITION not in columns:
        raise PipelineError(
            f"{kind}: its input has no column {POSITION}",
            detail="columns are " + ", ".join(columns),
            hint=f'it is the position of a row in the log: select "{POSITION}", too',
        )
    if side.stamping is not None:
        side.stamping.check(kind, side.frame.schema)
    for name in (*side.key, *side.columns):
        if name not in columns:
            raise PipelineError(
                f"{kind}: there is no column {name}", detail="columns are " + ", ".join(columns)
            )
