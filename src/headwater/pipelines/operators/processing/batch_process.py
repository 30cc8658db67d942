"""A Python function that gets the rows of a key in batches: hw.process with `batches` and `every`.

A batch is the rows of a key in one interval of event time, once the watermark has passed its end.
So the batches are a matter of the rows alone, not of how the log was cut: what the operator
promises for single rows (keyed_process.py) holds for them. `context.time` is the end of the
interval.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headwater.pipelines.operators.processing.keyed_process import (
    Call,
    Int64s,
    KeyedProcess,
    Results,
    Row,
)

ARROW: Final = "arrow"
PANDAS: Final = "pandas"
KINDS: Final = (ARROW, PANDAS)


@dataclass(frozen=True)
class BatchProcess(KeyedProcess):
    """The operator (contract.py)."""

    batches: str = ARROW
    every_us: int = 1

    @property
    def _settings(self) -> str:
        return f"{super()._settings} every {self.every_us} us"

    def _call_times(self, times_us: Int64s) -> Int64s:
        """The end of the interval."""
        return (times_us // self.every_us + 1) * self.every_us

    def _arguments(self, times_us: Int64s, rows: pa.Table) -> Callable[[int, int], list[Call]]:
        def calls(start: int, end: int) -> list[Call]:
            times = times_us[start:end]
            is_first = np.append(True, times[1:] != times[:-1])[: len(times)]
            starts = np.flatnonzero(is_first).tolist()
            return [
                (int(times[first]), self._batch(rows.slice(start + first, last - first)))
                for first, last in zip(starts, [*starts[1:], len(times)], strict=True)
            ]

        return calls

    def _batch(self, rows: pa.Table) -> Any:
        return rows.to_pandas() if self.batches == PANDAS else rows.combine_chunks()

    def checked(self, returned: Any) -> Results:
        """A table or a frame; or rows, as for single ones."""
        if isinstance(returned, pa.RecordBatch):
            returned = pa.Table.from_batches([returned])
        elif not isinstance(returned, pa.Table) and hasattr(returned, "iloc"):
            returned = pa.Table.from_pandas(returned, preserve_index=False)
        if not isinstance(returned, pa.Table):
            return super().checked(returned)
        if not set(returned.column_names) <= set(self.results.names):
            raise self.misfit(returned.schema)
        return returned

    def _united(self, results: list[Results]) -> pa.Table:
        return pa.concat_tables([self.results.empty_table(), *map(self._fitted, results)])

    def _fitted(self, rows: list[Row] | pa.Table) -> pa.Table:
        """With all columns of the output; those that are missing are null."""
        if not isinstance(rows, pa.Table):
            return pa.Table.from_pylist(rows, schema=self.results)
        columns = [
            rows[field.name].cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(len(rows), field.type)
            for field in self.results
        ]
        return pa.Table.from_arrays(columns, schema=self.results)
