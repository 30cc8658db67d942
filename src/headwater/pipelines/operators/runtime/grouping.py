"""Grouping of rows: rows with equal values in some columns get the same group number."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates.contract import Groups
from headwater.pipelines.operators.aggregates.extremes import normalized
from headwater.pipelines.operators.runtime.grouping_kernels import number_codes

# Of integers as numpy has them, or of anything as Arrow has it.
Column: TypeAlias = pa.Array | pa.ChunkedArray | npt.NDArray[np.int64]

_ROOM: Final = 8  # a direct table instead of hashing, if codes are below this many times the rows


def keys_of(rows: pa.Table, by: Sequence[str]) -> list[pa.Array]:
    """The key columns. Values that are equal in SQL get the same bits, and are one key."""
    return [normalized(rows[name].combine_chunks()) for name in by]


def number(columns: Sequence[Column], rows: int) -> tuple[Groups, int]:
    """The group of each row, and how many there are. Groups are numbered from 0 in the order in
    which they first appear; null is a value like any other. Without columns all rows are one group.

    Values are hashed and not sorted: of strings that is many times as fast.
    """
    if not rows or not columns:
        return np.zeros(rows, np.intp), min(rows, 1)
    group, groups = _codes(columns[0], rows)
    if isinstance(columns[0], np.ndarray):
        group, groups = _in_order(group, groups)
    for column in columns[1:]:
        code, codes = _codes(column, rows)
        group, groups = _in_order(group * codes + code, groups * codes)
    return group, groups


def first_rows(group: Groups, groups: int) -> npt.NDArray[np.intp]:
    """The first row of each group."""
    found = np.empty(groups, np.intp)
    found[group[::-1]] = np.arange(len(group) - 1, -1, -1)
    return found


def may_be_among(
    columns: Sequence[pa.ChunkedArray], others: Sequence[pa.ChunkedArray], rows: int
) -> npt.NDArray[np.bool_]:
    """Which rows' keys may be among the others: all that are, and few more (each column is tested
    alone). Where the others are few this is many times as fast as numbering all.
    """
    among = np.ones(rows, np.bool_)
    for column, other in zip(columns, others, strict=True):
        among &= pc.is_in(column, other.combine_chunks()).to_numpy()
    return among


def check_keys(kind: str, schema: pa.Schema, by: Sequence[str]) -> None:
    """Raises PipelineError for columns of types that cannot be keys."""
    for name in by:
        if pa.types.is_nested(schema.field(name).type):
            raise PipelineError(
                f"{kind}: rows cannot be grouped by {name}",
                detail=f"its type is {schema.field(name).type}",
                hint=f'a field of it can: .withColumn("…", F.col("{name}.…"))',
            )


def _codes(column: Column, rows: int) -> tuple[Groups, int]:
    """Numbers below a limit: the same for the same value."""
    if isinstance(column, np.ndarray):
        least = column.min()
        limit = int(column.max()) - int(least) + 1
        if limit <= _ROOM * rows:
            return column - least, limit
        column = pa.array(column)
    elif isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.intp), len(encoded.dictionary)


def _in_order(codes: Groups, limit: int) -> tuple[Groups, int]:
    if limit <= _ROOM * len(codes):
        numbered, count = number_codes(codes, limit)
        return numbered, int(count)
    encoded = pa.array(codes).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.intp), len(encoded.dictionary)
