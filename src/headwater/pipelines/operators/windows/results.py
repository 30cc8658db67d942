"""The columns of window results, the same for all kinds of windows.

`by` columns, `window_start`, `window_end`, the aggregates, and

`_mark`   early        the window is open: more rows may come
          final        it has closed
          correction   it had closed, and rows came that were late
`_op`     c            a new result
          u            it replaces the early one that was emitted before
          d            it was emitted before, and is retracted
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.sinks.contract import OP

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
MARK: Final = "_mark"
EARLY, FINAL, CORRECTION = "early", "final", "correction"
NEW, CHANGED, RETRACTED = "c", "u", "d"
# By number, for arrays of them.
MARKS: Final = pa.array([EARLY, FINAL, CORRECTION])
EARLY_MARK, FINAL_MARK, CORRECTION_MARK = range(3)
OPS: Final = pa.array([NEW, CHANGED, RETRACTED])
NEW_OP, CHANGED_OP, RETRACTED_OP = range(3)
RESERVED: Final = (WINDOW_START, WINDOW_END, MARK, OP)

_TIMESTAMP: Final = pa.timestamp("us", "UTC")


def results_schema(rows: pa.Schema, by: Sequence[str], results: Sequence[pa.Field]) -> pa.Schema:
    bounds = [pa.field(name, _TIMESTAMP) for name in (WINDOW_START, WINDOW_END)]
    status = [pa.field(name, pa.string()) for name in (MARK, OP)]
    return pa.schema([*(rows.field(name) for name in by), *bounds, *results, *status])


def results_table(
    schema: pa.Schema,
    keys: Sequence[pa.Array],
    start_us: npt.NDArray[np.int64],
    end_us: npt.NDArray[np.int64],
    results: Sequence[pa.Array],
    mark: pa.Array,
    op: pa.Array,
) -> pa.Table:
    """One row for each window of each key."""
    bounds = [pa.array(bound_us).cast(_TIMESTAMP) for bound_us in (start_us, end_us)]
    return pa.Table.from_arrays([*keys, *bounds, *results, mark, op], schema=schema)
