"""Rows of a partition back into one task, in the order of the log."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.position import POSITION, POSITION_FIELDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# The name in Spark plans: outside of pipelines it is a part of fingerprints, and must not change.
SORTED_BY_POSITION: Final = "_sorted_by_place"
_TASKS: Final = 8  # if Spark has no number of shuffle partitions


def in_log_order(rows: "DataFrame", *, is_stream: bool) -> "DataFrame":
    """Each partition's rows in one task, ordered by offset.

    Event time is derived from the rows of a partition in their order. An operator's result comes by
    buckets, and rows of one partition come from several tasks behind a join or repartition of
    Spark's, or a union of a topic with itself. So they are shuffled into one task again.
    """
    from pyspark.sql import functions as F  # noqa: N812

    position = F.col(POSITION)
    tasks = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or _TASKS)
    task = F.pmod(F.xxhash64(position["topic"], position["partition"]), F.lit(tasks)).cast("int")
    together = rows.repartitionById(tasks, task)
    if not is_stream:
        return together.sortWithinPartitions(*(position[name] for name in POSITION_FIELDS))
    return together.mapInArrow(sorted_by_position, rows.schema)  # Spark does not sort streams


def sorted_by_position(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task's rows, as one batch."""
    filled = [batch for batch in batches if batch.num_rows]
    if filled:
        rows = pa.Table.from_batches(filled).combine_chunks()
        position = pa.table(rows[POSITION].combine_chunks().flatten(), names=POSITION_FIELDS)
        order = pc.sort_indices(
            position, sort_keys=[(name, "ascending") for name in POSITION_FIELDS]
        )
        yield from rows.take(order).to_batches()


sorted_by_position.__name__ = SORTED_BY_POSITION
