"""The named aggregates of one `.agg(...)`, and their accumulators as columns of a table.

Each has some accumulators; those of all are the columns `a0`, `a1`, … of a table with one row for
each group, beside the columns that identify the group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates.contract import Aggregate, Bound, Groups
from headwater.pipelines.operators.time.durations import Duration


@dataclass(frozen=True)
class Previous:
    """The result of another aggregate in the same key's window before, or `ago`; null if there was
    none. Only where windows have a fixed length.
    """

    name: str
    ago: Duration | None = None


@dataclass(frozen=True)
class NamedAggregates:
    """Pickled to the workers."""

    aggregates: tuple[tuple[str, Aggregate], ...]
    schema: pa.Schema  # of the rows

    @cached_property
    def bound(self) -> tuple[tuple[str, Bound], ...]:
        return tuple((name, aggregate.bound(self.schema)) for name, aggregate in self.aggregates)

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the rows, that they read."""
        return tuple(
            dict.fromkeys(name for _, aggregate in self.aggregates for name in aggregate.columns)
        )

    @property
    def results_schema(self) -> pa.Schema:
        return pa.schema([(name, aggregate.result_type) for name, aggregate in self.bound])

    @property
    def accumulators_schema(self) -> pa.Schema:
        types = [kind for _, aggregate in self.bound for kind in aggregate.accumulators]
        return pa.schema([(f"a{at}", kind) for at, kind in enumerate(types)])

    def layout(self, others: Sequence[str] = ()) -> str:
        """All that accumulators depend on, and the types of other stored columns."""
        names = dict.fromkeys((*others, *self.columns))
        kinds = [f"{name} {self.schema.field(name).type}" for name in names]
        return f"{self.aggregates} of {', '.join(kinds)}"

    def accumulate(self, rows: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        """Columns of accumulators_schema, of each group. Rows are in log order."""
        return [
            column
            for _, aggregate in self.bound
            for column in aggregate.accumulate(rows, group, groups)
        ]

    def merge(self, stored: pa.Table, group: Groups, groups: int) -> list[pa.Array]:
        """The same, of accumulators: columns of accumulators_schema among those of `stored`."""
        return [
            column
            for (_, aggregate), columns in zip(self.bound, self._parts(stored), strict=True)
            for column in aggregate.merge(columns, group, groups)
        ]

    def results(
        self,
        stored: pa.Table,
        start_us: npt.NDArray[np.int64],
        end_us: npt.NDArray[np.int64],
    ) -> list[pa.Array]:
        """Columns of results_schema."""
        return [
            aggregate.result(columns, start_us, end_us)
            for (_, aggregate), columns in zip(self.bound, self._parts(stored), strict=True)
        ]

    def _parts(self, stored: pa.Table) -> list[list[pa.Array]]:
        parts, at = [], 0
        for _, aggregate in self.bound:
            width = len(aggregate.accumulators)
            parts.append([_whole(stored[f"a{at + number}"]) for number in range(width)])
            at += width
        return parts


def check_names(kind: str, named: Mapping[str, object], taken: Sequence[str]) -> None:
    """Raises PipelineError if there are none, or if a result has a column of that name already."""
    if not named:
        raise PipelineError(f"{kind}: no aggregates", hint=".agg(rows=hw.agg.count())")
    for name, aggregate in named.items():
        if name in taken or name.startswith("_"):
            raise PipelineError(
                f"{kind}: no aggregate can have the name {name}",
                detail=f"columns of the result are {', '.join(taken)}",
            )
        if not isinstance(aggregate, Previous) and not hasattr(
            type(aggregate), "bound"
        ):  # a Column has all
            raise PipelineError(
                f"{kind}: {name}={aggregate!r} is no aggregate",
                hint="aggregates are in hw.agg: hw.agg.count()",
            )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
