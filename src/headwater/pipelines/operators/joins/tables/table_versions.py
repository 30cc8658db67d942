"""Lineage of as-of joins: which change of the table an event's result comes from.

That is the version of the row that it found, or the delete or truncate by which there is none.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.joins.tables.keyed_table import DELETED, VALID, KeyedTable, Times
from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, Input
from headwater.pipelines.operators.runtime.lineage import tag_of
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.sinks.contract import DELETE, OP, TRUNCATE

_TAG = tag_of(1)

Numbers = npt.NDArray[np.int64]


class TableVersions(KeyedTable):
    """All versions of the table's rows, with their numbers in the input, and deletes among them."""

    def __init__(self, key: tuple[str, ...], columns: Sequence[pa.Field]) -> None:
        """`columns` with the tag."""
        super().__init__(MemoryState(), key, columns)

    def add(self, versions: pa.Table) -> None:
        at = versions.schema.get_field_index(DELETED)
        super().add(versions.set_column(at, DELETED, pa.array(np.zeros(len(versions), np.bool_))))

    def used(self, changes: Input, keys: list[pa.ChunkedArray], at_us: Times) -> Numbers:
        """Rows of `changes` that the answers for these keys at these times come from."""
        (tags,) = self.find(keys, at_us).columns([_TAG.name])
        missing = pa.array(tags.is_null().to_numpy())
        without = [column.filter(missing) for column in keys]
        truncates = self._truncates(changes, without, at_us[missing.to_numpy(zero_copy_only=False)])
        return np.concatenate([tags.drop_null().to_numpy(), truncates])

    def _truncates(self, changes: Input, keys: list[pa.ChunkedArray], at_us: Times) -> Numbers:
        """The last truncate that removed a row which would have been found."""
        truncations, self._truncations = self._truncations, []
        found = self.find(keys, at_us)
        self._truncations = truncations
        columns = found.columns([_TAG.name, ORIGIN, OFFSET, VALID])
        is_found = columns[0].is_valid().to_numpy()
        tag, *position = (column.filter(pa.array(is_found)).to_numpy() for column in columns)
        op = changes.rows[OP].combine_chunks().fill_null("").to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(op == TRUNCATE)  # in the order of `done`
        last = np.full(len(tag), -1, np.int64)
        for row, truncation in zip(rows, truncations, strict=True):
            last[truncation.removes(*position) & (truncation.valid_us <= at_us[is_found])] = row
        return np.unique(last[(last >= 0) & (op[tag] != DELETE)])
