"""Rows of a batch in the order of the log, and when that order decides what a store has."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import PipelineError
from headwater.pipelines.flow import AT
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import OP, TRUNCATE, Offsets


def in_log_order(rows: pa.Table) -> pa.Table:
    """A shuffle leaves rows in any order; `_position` has that of the log: by topic, partition,
    offset, as in `reading.as_table`. It is not stored, nor is `_at`.
    """
    if POSITION in rows.column_names and len(rows) > 1:
        position = rows[POSITION].combine_chunks()
        partition = pc.struct_field(position, "partition").to_numpy(zero_copy_only=False)
        offset = pc.struct_field(position, "offset").to_numpy(zero_copy_only=False)
        topic = pc.struct_field(position, "topic")
        if pc.count_distinct(topic).as_py() > 1:
            order = np.lexsort((offset, partition, pc.rank(topic, tiebreaker="dense").to_numpy()))
        else:
            order = np.lexsort((offset, partition))
        if not np.array_equal(order, np.arange(len(order))):
            rows = rows.take(pa.array(order))
    return without_positions(rows)


def without_positions(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([name for name in (AT, POSITION) if name in rows.column_names])


def check_truncates(rows: pa.Table, offsets: Offsets) -> None:
    """Raises PipelineError if there is a TRUNCATE, and its order among the rows is undefined:
    partitions have no order among each other, nor have topics. A batch could lose new rows.
    `offsets` are those of the topics whose rows are written; a table that is only used for lookups
    does not count.
    """
    if OP not in rows.column_names or sum(map(len, offsets.values())) <= 1:
        return
    if pc.any(pc.equal(rows[OP], TRUNCATE)).as_py():
        raise PipelineError(
            "a table was truncated or created again, and what is read has several partitions",
            detail=f"the order of the rows is undefined, of {', '.join(sorted(offsets))}",
            hint=f"a topic with one partition has the order; or .where(\"{OP} != '{TRUNCATE}'\")"
            " leaves the old rows in the store",
        )
