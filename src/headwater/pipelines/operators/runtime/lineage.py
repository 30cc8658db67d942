"""Lineage of operators: which input rows given result rows were derived from.

An operator answers for one bucket of a bounded run, where everything is one batch that begins with
an empty state. That is the run that `verify` compares stores with, so the answer is about the same
rows. A row that only advances the watermark (so that another one is late) is no origin of a result.
"""

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, Input, Operator
from headwater.pipelines.operators.runtime.grouping import keys_of, number
from headwater.pipelines.operators.runtime.packing import ORIGINS, STAMPS
from headwater.pipelines.operators.state.row_hashes import hashes_of
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness, admit
from headwater.pipelines.position import POSITION, positions

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

BEGINNING: Final = -(2**62)  # before all times and windows


@runtime_checkable
class Traceable(Operator, Protocol):
    """An operator whose results can be traced to its inputs."""

    @property
    def roles(self) -> tuple[str, ...]:
        """A label of each input's rows, shown to users: "event", "table row"."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether all rows that `lineage` gives have made the result; else some of them."""
        ...

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """For each input, which of its rows `rows` were derived from: some of what a step over
        these inputs and an empty state gives (or of what it gives in other buckets, which are
        ignored). Removing any of them from the log changes one of `rows`, unless another row is
        equal.
        """
        ...


def tag_of(side: int) -> pa.Field:
    """A column with a row's number in its input, which operators carry along into the result."""
    return pa.field(f"__row_{side}", pa.int64())


def tagged(given: Input, side: int) -> Input:
    numbers = pa.array(np.arange(len(given.rows)), pa.int64())
    rows = given.rows.append_column(tag_of(side), numbers)
    return Input(rows, given.origins, given.progress, given.now_us)


def tagged_rows(inputs: Sequence[Input], result: pa.Table, which: Flags) -> tuple[Flags, ...]:
    """The rows of the inputs whose tags these rows of the result have."""
    chosen = result.filter(pa.array(which))
    return tuple(
        flags_at(len(given.rows), chosen[tag_of(side).name].drop_null().to_numpy())
        for side, given in enumerate(inputs)
    )


def flags_at(rows: int, numbers: npt.NDArray[np.intp] | Ints) -> Flags:
    flags = np.zeros(rows, np.bool_)
    flags[numbers] = True
    return flags


def rows_with_position(given: Input, which: Flags) -> pa.Table:
    """These rows with the columns of the frame that they were read from, and POSITION."""
    rows = given.rows.filter(pa.array(which))
    origin, offset = (rows[name].combine_chunks() for name in (ORIGIN, OFFSET))
    ours = [name for name, _ in (*ORIGINS, *STAMPS)]
    rows = rows.select([name for name in rows.column_names if name not in (*ours, POSITION)])
    return rows.append_column(POSITION, positions(given.origins, origin, offset))


def is_among(
    columns: Sequence[pa.ChunkedArray | pa.Array], others: Sequence[pa.ChunkedArray | pa.Array]
) -> Flags:
    """Which rows are equal to one of the others, in all columns (by 128 bits of them)."""
    if not len(columns[0]) or not len(others[0]):
        return np.zeros(len(columns[0]), np.bool_)
    found, wanted = (
        np.ascontiguousarray(hashes_of(part)).view([("", np.uint64)] * 2).reshape(-1)
        for part in (columns, others)
    )
    among: Flags = np.isin(found, np.unique(wanted))
    return among


def admitted(time: EventTime, lateness: Lateness, given: Input, due_us: Ints) -> Flags:
    """Rows that were not rejected (`due_us` as for `lateness.admit`)."""
    clock = time.watermarks(None)
    own_us, closed_us = clock.of_rows(given), clock.now_us
    return admit(MemoryState(), given, lateness, own_us=own_us, due_us=due_us, closed_us=closed_us)


def same_keys(rows: pa.Table, others: pa.Table, by: Sequence[str]) -> tuple[Ints, Ints]:
    """The number of each row's key, equal where keys are equal to SQL."""
    both = [
        pa.chunked_array([one, other.cast(one.type)])
        for one, other in zip(keys_of(rows, by), keys_of(others, by), strict=True)
    ]
    group, _ = number(both, len(rows) + len(others))
    group = group.astype(np.int64)
    return group[: len(rows)], group[len(rows) :]


def points_within(key: Ints, low: Ints, high: Ints, point_key: Ints, point: Ints) -> Ints:
    """For each row, how many distinct points of its key are from `low` to `high`, both included."""
    values = np.unique(point)
    width = len(values) + 1
    points = np.unique(point_key * width + np.searchsorted(values, point))
    first = np.searchsorted(points, key * width + np.searchsorted(values, low))
    end = np.searchsorted(points, key * width + np.searchsorted(values, high, "right"))
    count: Ints = np.maximum(end - first, 0)
    return count
