"""Rows that wait for the watermark, in the state of an operator that takes rows in time order."""

from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.patterns.match_settings import PARTITION, TOPIC
from headwater.pipelines.operators.patterns.matching.key_searches import INPUT
from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, TIME, Input, State
from headwater.pipelines.operators.state.column_evolution import with_columns_of
from headwater.pipelines.operators.state.key_groups import Share

_PENDING: Final = "pending"


def fresh_rows(given: Input, is_admitted: npt.NDArray[np.bool_], schema: pa.Schema) -> pa.Table:
    """Admitted rows; INPUT is their number among all of the input."""
    rows = given.rows.filter(pa.array(is_admitted))
    origin = rows[ORIGIN].combine_chunks()
    topics = pa.array([topic for topic, _ in given.origins], pa.string())
    partitions = pa.array([partition for _, partition in given.origins], pa.int32())
    added = {TOPIC: topics.take(origin), PARTITION: partitions.take(origin), OFFSET: rows[OFFSET]}
    columns = [added[name] if name in added else rows[name] for name in schema.names]
    table = pa.Table.from_arrays(columns, schema=schema)
    return table.append_column(INPUT, pa.array(np.flatnonzero(is_admitted), pa.int64()))


def ready_rows(state: State, fresh: pa.Table, before_us: int, key: Collection[str]) -> pa.Table:
    """Rows of the state and of the batch whose time is before that; the others are stored."""
    schema = fresh.drop_columns([INPUT]).schema
    stored = state.table(_PENDING)
    rows = fresh
    if stored is not None:
        stored = with_columns_of(schema, stored, key)
        numbers = pa.nulls(len(stored), pa.int64())
        rows = pa.concat_tables([stored.append_column(INPUT, numbers), fresh])
    is_ready = pa.array(rows[TIME].to_numpy() < before_us)
    ready = rows.filter(is_ready)
    if len(fresh) or len(ready):
        pending = rows.filter(pc.invert(is_ready)).drop_columns([INPUT]).combine_chunks()
        state.put(_PENDING, pending if len(pending) else None)
    return ready


def rescale_pending(
    before: Collection[State], after: State, share: Share, key: tuple[str, ...]
) -> None:
    """The rows of the share (contract.Rescalable)."""
    tables = [table for state in before if (table := state.table(_PENDING)) is not None]
    if tables:
        rows = pa.concat_tables(tables, promote_options="default")
        rows = rows.filter(pa.array(share.of_rows(rows, key)))
        after.put(_PENDING, rows if len(rows) else None)
