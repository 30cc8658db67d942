"""The contract of an aggregate: accumulators of rows that can be merged and give a result.

Accumulators are Arrow columns with one entry for each group, so that a million groups are stored,
merged and read by a few calls. Groups are dense numbers from 0.

The aggregates themselves (`api.py` has their list) promise more: the accumulators of a group
do not depend on how its rows were cut into batches, nor on the order of rows or merges. Nulls are
left out, as in SQL; a group without any value has the result null, or 0 where things are counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import PipelineError

Groups = npt.NDArray[np.intp]  # the group of each row


class Aggregate(Protocol):
    """An aggregate as the user gave it. Pickled to the workers."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the rows, that it reads."""
        ...

    def bound(self, schema: pa.Schema) -> "Bound":
        """For rows of this schema. Raises PipelineError if it cannot be computed of them."""
        ...


class Bound(Protocol):
    """An aggregate for rows of one schema."""

    @property
    def accumulators(self) -> tuple[pa.DataType, ...]: ...

    @property
    def result_type(self) -> pa.DataType: ...

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        """Rows are in log order."""
        ...

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        """Accumulators of the same group become one; earlier ones stand before later ones."""
        ...

    def result(
        self,
        accumulators: Sequence[pa.Array],
        start_us: npt.NDArray[np.int64],
        end_us: npt.NDArray[np.int64],
    ) -> pa.Array:
        """Of each group; the bounds are those of its window."""
        ...


@dataclass(frozen=True)
class Count:
    """Of rows, or of those where the column is not null."""

    column: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column,)

    def bound(self, schema: pa.Schema) -> "Count":
        if self.column is not None:
            column_type("count", schema, self.column)
        return self

    accumulators = (pa.int64(),)
    result_type = pa.int64()

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        if self.column is not None and rows[self.column].null_count:
            group = group[rows[self.column].is_valid().to_numpy()]
        return [pa.array(np.bincount(group, minlength=groups))]

    def merge(self, accumulators: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        sums = np.zeros(groups, np.int64)
        np.add.at(sums, group, accumulators[0].to_numpy())
        return [pa.array(sums)]

    def result(self, accumulators: Sequence[pa.Array], start_us: Any, end_us: Any) -> pa.Array:
        return accumulators[0]


def column_type(aggregate: str, schema: pa.Schema, column: str) -> pa.DataType:
    at = schema.get_field_index(column)
    if at < 0:
        raise PipelineError(
            f"{aggregate}: there is no column {column}",
            detail="columns are " + ", ".join(schema.names),
        )
    return schema.field(at).type


def refused(aggregate: str, column: str, kind: pa.DataType, hint: str) -> PipelineError:
    return PipelineError(f"{aggregate} of {column}, which is {kind}", hint=hint)


def present(column: pa.Array | pa.ChunkedArray, group: Groups) -> tuple[pa.Array, Groups]:
    """The values that are not null, and their groups."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not column.null_count:
        return column, group
    return column.drop_null(), group[column.is_valid().to_numpy(zero_copy_only=False)]


def by_arrow(function: str, values: pa.Array, group: Groups, groups: int) -> pa.Array:
    """Arrow's own function over each group, for types without a kernel."""
    table = pa.table({"group": group, "value": values})
    found = table.group_by("group", use_threads=False).aggregate([("value", function)])
    index = np.full(groups, -1)
    index[found["group"].to_numpy()] = np.arange(len(found))
    of_groups = found[f"value_{function}"].combine_chunks().cast(values.type)
    return of_groups.take(pa.array(index, mask=index < 0))
