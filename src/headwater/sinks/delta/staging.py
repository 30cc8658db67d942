"""Files that tasks write for a batch of a Delta table, and the driver adds with one commit.

    task      a Parquet file below the table's directory, which no commit names ──▶ its add action
    driver    one commit: the add actions of the accepted attempts, txn and position

A file that no commit names is not part of the table. Those of other attempts are removed by the
next VACUUM that lists all files, when they are older than the retention.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from headwater.errors import NotStaged
from headwater.sinks.contract import Staging
from headwater.sinks.delta.transaction_log import delta_errors
from headwater.sinks.rows.last_by_key import reduce
from headwater.sinks.rows.schema_evolution import fitted

_COMPRESSION: Final = "snappy"  # as delta-rs does
_GROUP_ROWS: Final = 1 << 17
_LONGEST_BOUND: Final = 64  # characters: every reader of the table loads the bounds of all files


@dataclass(frozen=True, slots=True)
class DeltaStaging(Staging):
    url: str
    storage: Mapping[str, str] = field(repr=False)  # options, with credentials
    key: tuple[str, ...]
    fields: pa.Schema  # of the version, with the columns that are new in the batch
    is_local: bool

    def stage(self, rows: Iterator[pa.Table], attempt: str) -> bytes:
        """Rows are added, whatever the table has: for a table that has none of their keys."""
        name = f"part-{attempt}-{uuid4()}.{_COMPRESSION}.parquet"
        with delta_errors():
            files = pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.url, dict(self.storage)))
            stats = _Stats()
            upserts = filter(len, map(self._upserts, rows))
            first = next(upserts, None)
            if first is None:
                return b""
            with (
                files.open_output_stream(name) as file,
                pq.ParquetWriter(file, self.fields, compression=_COMPRESSION) as writer,
            ):
                for some in chain([first], upserts):
                    writer.write_table(some, _GROUP_ROWS)
                    stats.add(some)
            size_bytes = files.get_file_info(name).size
        now_ms = int(time.time() * 1000)
        add = AddAction(name, size_bytes, {}, now_ms, True, stats.to_text())
        return orjson.dumps(asdict(add))

    def _upserts(self, rows: pa.Table) -> pa.Table:
        reduced = reduce(rows, self.key)
        if reduced.clears:
            raise NotStaged("a truncate concerns the rows of all tasks")
        return fitted(reduced.upserts, self.fields)


def add_actions(tokens: Sequence[bytes]) -> list[AddAction | RemoveAction]:
    return [AddAction(**orjson.loads(token)) for token in tokens if token]


class _Stats:
    """As readers need them to count rows and to leave files out: bounds of columns of whole
    numbers, texts and dates.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._nulls: dict[str, int] = {}
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def add(self, rows: pa.Table) -> None:
        self._rows += len(rows)
        for name in rows.column_names:
            column = rows[name]
            if not _has_bounds(column.type):
                continue
            self._nulls[name] = self._nulls.get(name, 0) + column.null_count
            found = pc.min_max(column)
            if found["min"].is_valid:
                both = found["min"].as_py(), found["max"].as_py()
                lowest, highest = self._bounds.get(name, both)
                self._bounds[name] = min(lowest, both[0]), max(highest, both[1])

    def to_text(self) -> str:
        short = {name: both for name, both in self._bounds.items() if not _is_long(both)}
        lowest = {name: bounds[0] for name, bounds in short.items()}
        highest = {name: bounds[1] for name, bounds in short.items()}
        stats = {"numRecords": self._rows, "minValues": lowest, "maxValues": highest}
        return orjson.dumps({**stats, "nullCount": self._nulls}).decode()


def _is_long(bounds: tuple[Any, Any]) -> bool:
    return any(isinstance(bound, str) and len(bound) > _LONGEST_BOUND for bound in bounds)


def _has_bounds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind))
