"""A batch reduced to the last row of each key.

Between two positions a store only has to show the newest state, so of ten changes of a row one is
written. The order is that of the rows, never that of clocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import RowRefused, StoreRefused
from headwater.sinks.contract import DELETE, OP, TRUNCATE
from headwater.sinks.rows.row_validation import shown, validated


@dataclass(frozen=True, slots=True)
class LastByKey:
    """The effect of a batch, in this order: remove everything if `clears`, remove `deletes`, write
    `upserts`. A key is in at most one of the two.
    """

    clears: bool
    deletes: pa.Table  # the key's columns
    upserts: pa.Table  # all columns but OP


def reduce(
    rows: pa.Table, key: Sequence[str], refused: list[RowRefused] | None = None
) -> LastByKey:
    """Raises what `with_keys` does. Without a key all rows are upserts."""
    clears = False
    if OP in rows.column_names:
        ops = rows[OP]
        truncated = np.flatnonzero(_mask(pc.equal(ops, TRUNCATE)))
        if len(truncated):
            clears = True
            rows = rows.slice(int(truncated[-1]) + 1)
    rows = with_keys(rows, key, refused)
    if key:
        rows = _last_rows(rows, key)
    if OP not in rows.column_names:
        return LastByKey(clears, rows.select(list(key)).slice(0, 0), rows)
    is_deleted = pc.fill_null(pc.equal(rows[OP], DELETE), fill_value=False)
    return LastByKey(
        clears,
        rows.filter(is_deleted).select(list(key)),
        rows.filter(pc.invert(is_deleted)).drop_columns([OP]),
    )


def with_keys(rows: pa.Table, key: Sequence[str], refused: list[RowRefused] | None) -> pa.Table:
    """The rows with keys that are distinct in every store. Raises RowRefused for a key that has a
    null or a NaN, which stores do not compare alike, and for rows that are not `validated`. With
    `refused` they are left out and added to it. -0.0 and 0.0 are one key: the latter.
    """
    for column in key:
        if pa.types.is_nested(rows[column].type):
            raise StoreRefused(f"column {column} is {rows[column].type}: no part of a key")
    rows = validated(rows, key, refused)
    for column in key:
        is_float = pa.types.is_floating(rows[column].type)
        if rows[column].null_count or is_float:
            is_null = pc.is_null(rows[column], nan_is_null=True)
            errors = [
                RowRefused(
                    f"a row has no {column}, which is part of the key",
                    row=row,
                    column=column,
                    hint="filter such rows out, or choose another key",
                )
                for row in shown(rows.filter(is_null))
            ]
            if errors and refused is None:
                raise errors[0]
            if refused is not None:
                refused += errors
            rows = rows.filter(pc.invert(is_null))
        if is_float:
            at = rows.column_names.index(column)
            zero = pa.scalar(0.0, rows[column].type)
            rows = rows.set_column(at, column, pc.add(rows[column], zero))
    return rows


def _last_rows(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """In the order of the last appearances."""
    names = [f"key{at}" for at in range(len(key))]
    numbered = pa.table(
        [*(rows[column] for column in key), pa.array(np.arange(len(rows)))], [*names, "row"]
    )
    last = numbered.group_by(names, use_threads=False).aggregate([("row", "max")])
    if len(last) == len(rows):
        return rows
    return rows.take(pa.array(np.sort(last["row_max"].to_numpy())))


def _mask(matches: pa.ChunkedArray) -> np.ndarray:
    return pc.fill_null(matches, fill_value=False).to_numpy()  # type: ignore[no-any-return]
