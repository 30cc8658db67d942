"""The columns of window results, the same for all kinds of windows.

`by` columns, `window_start`, `window_end`, the aggregates, and

`_mark`   early        the window is open: more rows may come
          final        it has closed
          correction   it had closed, and rows came that were late
`_op`     c            a new result
          u            it replaces the early one that was emitted before
          d            it was emitted before, and is retracted
`_position`  in a partition of the operator's own, ordered by `window_end` (pipelines/position.py)

The metadata of columns says what operators that follow can rely on: whether results are final, and
how early a `window_start` or `window_end` of later results can be.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.position import (
    CHANGING,
    POSITION,
    POSITION_TYPE,
    RESULTS,
    metadata_of,
    result_positions,
    with_metadata,
)
from headwater.pipelines.position import FINAL as FINAL_RESULTS
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
RESERVED: Final = (WINDOW_START, WINDOW_END, POSITION, MARK, OP)
# In the metadata of bounds. LEAD: those of later windows are at least at the end of this one plus
# so many microseconds. UNORDERED: they may be anywhere.
LEAD: Final = "headwater.lead_us"
UNORDERED: Final = "headwater.unordered"
# In the metadata of a time: results come in its order, whatever their offsets.
IN_TIME: Final = "headwater.in_time"

_TIMESTAMP: Final = pa.timestamp("us", "UTC")


def results_schema(
    rows: pa.Schema,
    by: Sequence[str],
    results: Sequence[pa.Field],
    leads_us: tuple[int | None, int],
    *,
    is_changing: bool,
) -> pa.Schema:
    """`leads_us`: LEAD of both bounds, or None."""
    bounds = [
        with_metadata(
            pa.field(name, _TIMESTAMP), {UNORDERED: 1} if lead_us is None else {LEAD: lead_us}
        )
        for name, lead_us in zip((WINDOW_START, WINDOW_END), leads_us, strict=True)
    ]
    kind = CHANGING if is_changing else FINAL_RESULTS
    position = with_metadata(pa.field(POSITION, POSITION_TYPE), {RESULTS: kind})
    status = [pa.field(name, pa.string()) for name in (MARK, OP)]
    return pa.schema([*(rows.field(name) for name in by), *bounds, *results, position, *status])


def window_floors(schema: pa.Schema) -> dict[str, int]:
    """The bounds that an output watermark is for (position.FLOOR): it is the end of windows that
    have closed, so LEAD holds for it, too. Results that are replaced later promise nothing.
    """
    if metadata_of(schema.field(POSITION)).get(RESULTS) != FINAL_RESULTS:
        return {}
    found = {name: metadata_of(schema.field(name)).get(LEAD) for name in (WINDOW_START, WINDOW_END)}
    return {name: lead_us for name, lead_us in found.items() if lead_us is not None}


def results_table(
    schema: pa.Schema,
    keys: Sequence[pa.Array],
    start_us: npt.NDArray[np.int64],
    end_us: npt.NDArray[np.int64],
    results: Sequence[pa.Array],
    mark: pa.Array,
    op: pa.Array,
    topic: str,
) -> pa.Table:
    """One row for each window of each key."""
    bounds = [pa.array(bound_us).cast(_TIMESTAMP) for bound_us in (start_us, end_us)]
    position = result_positions(topic, pa.array(end_us))
    return pa.Table.from_arrays([*keys, *bounds, *results, position, mark, op], schema=schema)
