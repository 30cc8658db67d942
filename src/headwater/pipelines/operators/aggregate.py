"""What an aggregate is: columns that accumulate rows, can be merged, and give a result.

Accumulators are Arrow columns with one entry for each group, so that a million groups are kept,
merged and read by a few calls. Groups are dense numbers from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Groups = npt.NDArray[np.intp]  # the group of each row


class Aggregate(Protocol):
    """Pickled to the workers."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the rows, that it reads."""
        ...

    def bound(self, schema: pa.Schema) -> "Bound":
        """For rows of this schema. Raises PipelineError if it cannot be computed of them."""
        ...


class Bound(Protocol):
    @property
    def accumulators(self) -> tuple[pa.DataType, ...]: ...

    @property
    def result_type(self) -> pa.DataType: ...

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        """Rows are in log order."""
        ...

    def merge(self, kept: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        """Accumulators of the same group become one; earlier ones stand before later ones."""
        ...

    def result(
        self,
        kept: Sequence[pa.Array],
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
        return self

    accumulators = (pa.int64(),)
    result_type = pa.int64()

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        if self.column is not None:
            group = group[rows[self.column].is_valid().to_numpy()]
        return [pa.array(np.bincount(group, minlength=groups))]

    def merge(self, kept: Sequence[pa.Array], group: Groups, groups: int) -> list[pa.Array]:
        sums = np.zeros(groups, np.int64)
        np.add.at(sums, group, kept[0].to_numpy())
        return [pa.array(sums)]

    def result(self, kept: Sequence[pa.Array], start_us: Any, end_us: Any) -> pa.Array:
        return kept[0]
