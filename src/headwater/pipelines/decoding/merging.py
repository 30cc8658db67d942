"""Merging of parts of a batch that were decoded apart, into the order of the records."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.decoding.contract import Columns, Rows


@dataclass(slots=True)
class Part:
    """Some records of a batch, decoded. As contract.Columns."""

    arrays: list[pa.Array]
    rows: Rows
    causes: list[tuple[int, str]]
    ops: pa.Array
    at_ms: npt.NDArray[np.int64] | None = None  # of all parts, or of none


def merged(parts: list[Part], fields: list[pa.Field]) -> Columns:
    causes = [cause for part in parts for cause in part.causes]
    filled = [part for part in parts if len(part.rows)]
    if len(filled) == 1:
        part = filled[0]
        return Columns(part.arrays, part.rows, causes, part.ops, part.at_ms)
    if not filled:
        nothing = [pa.array([], field.type) for field in fields]
        return Columns(nothing, np.zeros(0, np.int64), causes, pa.array([], pa.string()))
    rows = np.concatenate([part.rows for part in filled])
    order = np.argsort(rows)
    taken = pa.array(order)
    at_ms = None
    if filled[0].at_ms is not None:
        at_ms = np.concatenate([part.at_ms for part in filled if part.at_ms is not None])[order]
    return Columns(
        [
            pa.concat_arrays([part.arrays[n] for part in filled]).take(taken)
            for n in range(len(fields))
        ],
        rows[order],
        causes,
        pa.concat_arrays([part.ops for part in filled]).take(taken),
        at_ms,
    )
