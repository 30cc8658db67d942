"""How far a table that is read in step with events has come, and its changes as versions."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.joins.tables.keyed_table import DELETED, VALID
from headwater.pipelines.operators.runtime.contract import (
    OFFSET,
    ORIGIN,
    SEEN,
    Input,
    PartitionProgress,
)
from headwater.pipelines.operators.time.watermarks import NEVER_US
from headwater.pipelines.source.progress import READ_TO_END, READ_TO_HERE
from headwater.sinks.contract import DELETE, OP, TRUNCATE

END_US: Final = 2**62  # after all times


class Versioned(Protocol):
    """Takes versions of rows."""

    def add(self, versions: pa.Table) -> None: ...

    def truncate(self, origin: int, offset: int, valid_us: int) -> None: ...


def add_versions(
    table: Versioned,
    changes: Input,
    table_progress: "TableProgress",
    key: Sequence[str],
    columns: Sequence[pa.Field],
    valid_us: npt.NDArray[np.int64],
) -> pa.Table:
    """Adds the changes to the table, each valid from its time in `valid_us` on, and advances the
    progress. Returns the versions that were added; rows without a key are none.
    """
    rows = changes.rows
    origins = table_progress.codes(changes.origins)
    table_progress.advance(changes)
    op = rows[OP].combine_chunks().fill_null("").to_numpy(zero_copy_only=False)
    origin = origins[rows[ORIGIN].to_numpy()] if len(rows) else np.empty(0, np.int64)
    for row in np.flatnonzero(op == TRUNCATE).tolist():
        table.truncate(int(origin[row]), rows[OFFSET][row].as_py(), int(valid_us[row]))
    is_version = ~np.isin(op, (TRUNCATE, READ_TO_END, READ_TO_HERE))
    for name in key:
        is_version &= rows[name].is_valid().to_numpy()
    versions = rows.select([column.name for column in columns])
    added: dict[str, Any] = {
        VALID: valid_us,
        DELETED: op == DELETE,
        ORIGIN: origin.astype(np.int32),
        OFFSET: rows[OFFSET],
    }
    for name, column in added.items():
        versions = versions.append_column(
            name, column if isinstance(column, pa.ChunkedArray) else pa.array(column)
        )
    versions = versions.filter(pa.array(is_version, pa.bool_()))
    table.add(versions)
    return versions


class TableProgress:
    """How far the table's partitions have been read. In the state: [topic, partition, the latest
    time, whether that was the end of the log]; the index in the list is the partition's code.
    """

    def __init__(self, partitions: list[list[Any]]) -> None:
        self._partitions = partitions
        self._codes = {
            (partition[0], partition[1]): code for code, partition in enumerate(partitions)
        }

    def codes(self, origins: Iterable[tuple[str, int]]) -> npt.NDArray[np.int64]:
        return np.array([self._code(*origin) for origin in origins], np.int64)

    def of_rows(self, changes: Input) -> npt.NDArray[np.int64]:
        """The latest time of the row's partition up to and with it."""
        if not len(changes.rows):
            return np.empty(0, np.int64)
        before = np.array(
            [self._partitions[code][2] for code in self.codes(changes.origins)], np.int64
        )
        seen = changes.rows[SEEN].fill_null(NEVER_US).to_numpy()
        found: npt.NDArray[np.int64] = np.maximum(seen, before[changes.rows[ORIGIN].to_numpy()])
        return found

    def advance(self, changes: Input) -> None:
        for progress in changes.progress:
            self._saw(progress)
        if not len(changes.rows):
            return
        op = changes.rows[OP]
        for value, is_end in ((READ_TO_HERE, False), (READ_TO_END, True)):
            origins = changes.rows[ORIGIN].filter(pc.equal(op, value))
            for origin in pc.unique(origins).to_pylist():
                self._partitions[self._code(*changes.origins[origin])][3] = is_end

    def before_us(self) -> int:
        """All changes before this time have been read."""
        return min(
            (END_US if is_end else seen for _, _, seen, is_end in self._partitions),
            default=NEVER_US,
        )

    def _saw(self, progress: PartitionProgress) -> None:
        partition = self._partitions[self._code(progress.topic, progress.partition)]
        if progress.seen_us is not None:
            partition[2] = max(partition[2], progress.seen_us)

    def _code(self, topic: str, partition: int) -> int:
        origin = topic, partition
        if origin not in self._codes:
            self._codes[origin] = len(self._partitions)
            self._partitions.append([topic, partition, NEVER_US, False])
        return self._codes[origin]
