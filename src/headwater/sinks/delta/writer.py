"""Writes batches into a Delta table, one commit each; compaction and VACUUM of its files.

Files of a large batch can come from tasks (staging.py), if its rows replace none of the table.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import orjson
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from headwater.errors import ConfigError, Fenced, NotStaged, RowRefused, StateLost
from headwater.settings import parse_duration_ms
from headwater.sinks.contract import DELETE, OP, Batch, Refuse, StagingWriter, Target, is_applied
from headwater.sinks.delta.staging import DeltaStaging, add_actions
from headwater.sinks.delta.transaction_log import (
    PAUSE_S,
    TRIES,
    State,
    add_columns,
    busy,
    commit_of,
    delta_errors,
    state_of,
)
from headwater.sinks.rows.last_by_key import LastByKey, reduce
from headwater.sinks.rows.schema_evolution import evolved, fitted
from headwater.sinks.version_directories import sync_directory

MAINTENANCE_OPTIONS: Final = ("compact_every", "retention")
# Target sizes of compaction. A file with a changed row is written again: smaller if rows change.
FILE_BYTES, KEYED_FILE_BYTES = 128 << 20, 32 << 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Small files are compacted after every so many commits; files that are no longer part of the
    table are removed when they are older than the retention.
    """

    every: int
    retention_hours: int
    file_bytes: int

    @classmethod
    def of(cls, options: Mapping[str, str], file_bytes: int) -> "Maintenance":
        try:
            every = int(options.get("compact_every", "100"))
            hours = parse_duration_ms(options.get("retention", "6h")) // 3_600_000
        except ValueError as error:
            raise ConfigError(f"Delta: expected {error}") from error
        if every < 1 or hours < 1:
            raise ConfigError(
                "Delta: compact_every is at least 1, and retention at least 1h",
                detail="a reader needs the files of the table as it was when it began",
            )
        return cls(every, hours, file_bytes)

    def properties(self) -> dict[str, str]:
        """For other maintenance jobs, too; the log is retained for a day at least."""
        return {
            "delta.deletedFileRetentionDuration": f"interval {self.retention_hours} hours",
            "delta.targetFileSize": str(self.file_bytes),
            "delta.logRetentionDuration": f"interval {max(24, self.retention_hours)} hours",
        }


class DeltaWriter(StagingWriter):
    def __init__(
        self,
        table: DeltaTable,
        state: State,
        target: Target,
        path: str | None,
        maintenance: Maintenance,
        storage: Mapping[str, str],
    ) -> None:
        self._table = table
        self._storage = storage
        self._target = target
        self._path = path  # None: not on a local file system
        # Held open, so that its inode number is not reused: `_look` compares them.
        self._directory = None if path is None else os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._maintenance = maintenance
        self._epoch, self.position, self._fields = state.epoch, state.position, state.fields
        self._seen = -1  # the table's version that was read last
        # The turn in which small files were last compacted.
        self._compacted_at = table.version() // maintenance.every
        self._is_first_maintenance = True
        self._is_empty = True

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        reduced: LastByKey | None = None

        def commit() -> None:
            nonlocal reduced
            if reduced is None:
                self._widen(batch.rows.schema)
                self._look()
                reduced = self._reduced(batch.rows, refuse)
            self._commit(batch, reduced)

        self._try_commits(batch, commit)

    def staging(self, batch: Batch) -> DeltaStaging:
        self._look()
        self._check_can_add()
        given = _without_op(batch.rows.schema)
        return DeltaStaging(
            self._table.table_uri,
            self._storage,
            self._target.key,
            evolved(self._fields, given, can_widen=False).fields,
            is_local=self._path is not None,
        )

    def commit(self, batch: Batch, tokens: Sequence[bytes]) -> None:
        def commit() -> None:
            self._widen(batch.rows.schema)
            self._look()
            self._check_can_add()
            self._table.create_write_transaction(
                add_actions(tokens),
                "append",
                self._table.schema(),
                commit_properties=self._properties(batch),
            )

        self._is_first_maintenance = True  # other attempts may have left files
        self._try_commits(batch, commit)

    def _check_can_add(self) -> None:
        """Files of tasks add rows. Rows that replace others are a MERGE."""
        if self._target.key and self._has_rows():
            raise NotStaged("rows of the batch may replace others of the table")
        if self._table.metadata().partition_columns:
            raise NotStaged("the table has partitions")

    def _try_commits(self, batch: Batch, commit: Callable[[], None]) -> None:
        for attempt in range(TRIES):
            self._look()
            if is_applied(self.position, batch):
                return
            try:
                with delta_errors():
                    commit()
            except CommitFailedError:  # by our commit or another one: the next look decides
                time.sleep(PAUSE_S * 2**attempt)
                continue
            self.position = batch.position()
            self._seen = self._table.version()
            self._sync()
            self._look_after()
            return
        raise busy(self._target)

    def close(self) -> None:
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    def _look(self) -> None:
        """Reads the commits of others; Fenced if one of them has taken over, or the version was
        dropped: another one may have its number, whose log does not continue ours.
        """
        if self._path is not None and not self._is_there(self._path):
            raise Fenced(f"this version of {self._target.name} was dropped")
        with delta_errors():
            self._table.update_incremental()
        version = self._table.version()
        if version == self._seen:
            return
        state = state_of(self._table, self._target)
        if state.epoch != self._epoch:
            raise Fenced(
                f"another process writes {self._target.name} now",
                detail=f"its epoch is {state.epoch}, ours {self._epoch}",
            )
        self.position, self._seen = state.position, version

    def _is_there(self, path: str) -> bool:
        try:
            return self._directory is not None and os.path.samestat(
                os.stat(path), os.fstat(self._directory)
            )
        except FileNotFoundError:
            return False

    def _widen(self, given: pa.Schema) -> None:
        """Columns are added by a commit of their own: one without values is in no batch."""
        fields = evolved(self._fields, _without_op(given), can_widen=False).fields
        if fields != self._fields:
            add_columns(self._table, fields)
            self._fields = fields

    def _reduced(self, rows: pa.Table, refuse: Refuse | None) -> LastByKey:
        key = self._target.key
        refused: list[RowRefused] = []
        reduced = reduce(rows, key, None if refuse is None else refused)
        if refuse is not None and refused:
            refuse(refused)
        keys = pa.schema([self._fields.field(name) for name in key])
        return LastByKey(
            reduced.clears, fitted(reduced.deletes, keys), fitted(reduced.upserts, self._fields)
        )

    def _commit(self, batch: Batch, reduced: LastByKey) -> None:
        properties = self._properties(batch)
        has_changes = len(reduced.upserts) or len(reduced.deletes)
        if reduced.clears:
            self._write("overwrite", reduced.upserts, properties)
        elif not self._target.key or not has_changes or not self._has_rows():
            self._write("append", reduced.upserts, properties)
        else:
            before = self._table.version()
            self._merge(reduced.upserts, reduced.deletes, properties)
            if self._table.version() == before:  # no row was deleted: no commit
                self._write("append", reduced.upserts.slice(0, 0), properties)

    def _properties(self, batch: Batch) -> CommitProperties:
        return commit_of(State(self._epoch, batch.position(), self._fields), self._target)

    def _has_rows(self) -> bool:
        """Checked until there are some: a version that is being built is appended to at first."""
        self._is_empty = self._is_empty and not self._table.count()
        return not self._is_empty

    def _write(self, mode: Any, rows: pa.Table, properties: CommitProperties) -> None:
        write_deltalake(self._table, rows, mode=mode, commit_properties=properties)

    def _merge(self, upserts: pa.Table, deletes: pa.Table, properties: CommitProperties) -> None:
        is_upsert = pa.array(["u"] * len(upserts), pa.string())
        is_delete = pa.array([DELETE] * len(deletes), pa.string())
        changes = pa.concat_tables(
            [upserts.append_column(OP, is_upsert), deletes.append_column(OP, is_delete)],
            promote_options="default",
        )
        columns = {_quoted(name): f"s.{_quoted(name)}" for name in self._fields.names}
        same_key = " AND ".join(f"t.{_quoted(k)} = s.{_quoted(k)}" for k in self._target.key)
        (
            self._table.merge(
                changes,
                same_key,
                source_alias="s",
                target_alias="t",
                streamed_exec=False,  # so that files without any of the keys are not read
                commit_properties=properties,
            )
            .when_matched_delete(f"s.{OP} = '{DELETE}'")
            .when_matched_update(columns)
            .when_not_matched_insert(columns, predicate=f"s.{OP} <> '{DELETE}'")
            .execute()
        )

    def _sync(self) -> None:
        """delta-rs does not fsync, and Spark never repeats the batch once we return. Raises
        StateLost if it fails: the commit is visible, and may be lost in a power cut. A failed fsync
        is not repeated, as the kernel may have dropped the pages that it could not write; so this
        version counts as lost, and another one is derived beside it.
        """
        if self._path is None:
            return
        log = os.path.join(self._path, "_delta_log", f"{self._seen:020}.json")
        try:
            with open(log, "rb") as commit:
                for line in commit:
                    if line.startswith(b'{"add"'):
                        added = unquote(orjson.loads(line)["add"]["path"])  # as in an address
                        _sync_file(os.path.join(self._path, added))
                os.fsync(commit.fileno())
            sync_directory(os.path.dirname(log))
            sync_directory(self._path)
        except OSError as error:
            raise StateLost(
                f"what was written to {self._target.name} may not be on the disk",
                detail=str(error),
                hint="check the disk; the table is derived again from the log",
            ) from error

    def _look_after(self) -> None:
        """The batch is committed: an error here is logged, and the next time retries."""
        turn = self._seen // self._maintenance.every
        if turn == self._compacted_at:
            return
        self._compacted_at = turn
        try:
            self._table.optimize.compact(max_concurrent_tasks=1)
            self._table.vacuum(
                self._maintenance.retention_hours,
                dry_run=False,
                enforce_retention_duration=False,
                full=self._is_first_maintenance,  # also what a killed writer left; lists all files
            )
            self._is_first_maintenance = False
        except Exception as error:
            logger.warning("%s: small files are not compacted: %s", self._target.name, error)


def _without_op(fields: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in fields if field.name != OP])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
