"""Which rows belong together: rows with equal values in some columns get the same number."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregate import Groups


def number(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> tuple[Groups, int]:
    """The group of each row, and how many there are. Groups are numbered from 0 in the order in
    which they are met; null is a value like any other. Without columns all rows are one group.

    Values are hashed and not sorted: of strings that is many times as fast.
    """
    if not rows or not columns:
        return np.zeros(rows, np.intp), min(rows, 1)
    group, groups = _codes(columns[0])
    for column in columns[1:]:
        code, codes = _codes(column)
        group, groups = _codes(pa.array(group * codes + code))
    return group, groups


def first_rows(group: Groups, groups: int) -> npt.NDArray[np.intp]:
    """The first row of each group."""
    found = np.empty(groups, np.intp)
    found[group[::-1]] = np.arange(len(group) - 1, -1, -1)
    return found


def check_keys(kind: str, schema: pa.Schema, by: Sequence[str]) -> None:
    """Raises PipelineError for columns that rows cannot be told apart by."""
    for name in by:
        if pa.types.is_nested(schema.field(name).type):
            raise PipelineError(
                f"{kind}: rows cannot be grouped by {name}",
                detail=f"its type is {schema.field(name).type}",
                hint=f'a field of it can: .withColumn("…", F.col("{name}.…"))',
            )


def _codes(column: pa.Array | pa.ChunkedArray) -> tuple[Groups, int]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.intp), len(encoded.dictionary)
