"""Rows that are only ever added, as Parquet files in a directory; partitioned as Hive does.

    orders__v1/
      day=2026-01-31/part-000000000042-0000.parquet     batch 42
      day=2026-01-31/.3-000000000043-0000.tmp           epoch 3 writes batch 43: hidden from readers
      _headwater/01790000000000000017.json              the 17th commit (commits.py)

A commit is a file with the next number in `_headwater/`, created by link(2), which fails if it
exists: of two writers one loses, reads the commits, and finds that it is fenced. The commit lists
the batch's files, which are renamed afterwards; a new writer completes the renames of one that was
killed. So a reader that lists the directory never sees rows that are not committed. Right after a
crash it may see only a part of the last batch, until the pipeline runs again; `Store.read` always
sees all of it.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import ConfigError, Fenced, RowRefused, StoreRefused
from headwater.sinks.contract import (
    OP,
    Batch,
    Contents,
    Log,
    Refuse,
    Store,
    Target,
    Version,
    Writer,
    is_applied,
)
from headwater.sinks.parquet.batch_files import (
    check_types,
    opened,
    partitioned,
    rows_of,
    show,
    sweep,
)
from headwater.sinks.parquet.commits import Commit, Commits, check_is_free, check_owner
from headwater.sinks.rows.row_validation import validated
from headwater.sinks.rows.schema_evolution import evolved, fitted, plain
from headwater.sinks.settings import SinkSettings
from headwater.sinks.version_directories import (
    VersionDirectories,
    directory_of,
    refused,
    sync_directory,
)

OPTIONS: Final = ("compression",)
TARGET_OPTIONS: Final = ("partition_by", "mode", "compression")

_COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")


class ParquetStore(Store):
    """One directory of files. Readers open `<url>/<name>`."""

    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        url = settings.url.reveal() if settings.url is not None else ""
        if "://" in url and not url.startswith("file://"):
            raise ConfigError(
                f"sink {settings.name}: Parquet files need a directory",
                hint='kind = "delta" has tables in an object store',
            )
        options = {**settings.options, **target.options}
        mode = options.get("mode", "rows")
        if mode not in ("rows", "changes"):
            raise ConfigError(f"{target.owner}: mode is rows or changes, not {mode}")
        self._compression = options.get("compression", "zstd")
        if self._compression not in _COMPRESSIONS:
            raise ConfigError(
                f"{target.owner}: there is no compression {self._compression}",
                hint=f"there are {', '.join(_COMPRESSIONS)}",
            )
        self._keeps_changes = mode == "changes"
        self._partition_by = tuple(
            name.strip() for name in options.get("partition_by", "").split(",") if name.strip()
        )
        self._target = target
        self._directories = VersionDirectories(directory_of(settings), target)

    def check(self) -> None:
        if self._target.key and not self._keeps_changes:
            raise ConfigError(
                f"{self._target.owner}: rows with a key change, and Parquet files do not",
                hint='kind = "delta" has such tables; mode = "changes" stores every change as a'
                f" row with {OP}",
            )
        self._directories.check()
        self.versions()

    def versions(self) -> list[Version]:
        found = []
        numbers = [number for number in self._directories.numbers() if self._commits(number).last()]
        live = self._directories.live() if numbers else 1
        for number in numbers:
            state = self._commits(number).read()
            if state.owner == self._target.owner:
                found.append(Version(number, number == live, state.position, state.fields))
        return found

    def writer(self, version: int, fields: pa.Schema) -> Writer:
        if self._keeps_changes and OP not in fields.names:
            fields = fields.append(pa.field(OP, pa.string()))
        fields = plain(fields)
        check_types(fields)
        self._check_partitions(fields)
        self.check()
        commits = self._commits(version)
        try:
            check_is_free(commits)
            os.makedirs(commits.path, exist_ok=True)
            writer = _ParquetWriter(
                commits, self._target.owner, fields, self._partition_by, self._compression
            )
        except OSError as error:
            raise refused(error, commits.path) from error
        if version == 1 and not self._directories.has_link():
            self._directories.make_live(version)
        return writer

    def promote(self, version: int) -> None:
        self._read_ours(version)
        if version != self._directories.live():
            self._directories.make_live(version)

    def drop(self, version: int) -> None:
        self._read_ours(version)
        self._directories.drop(version)

    @contextlib.contextmanager
    def read(self, version: int) -> Iterator[Contents]:
        state = self._read_ours(version)
        last_batch = -1 if state.position is None else state.position.batch
        files = opened(self._directories.path(version), last_batch, state.files)
        try:
            yield Contents(state.position, rows_of(files, state.fields))
        finally:
            for file in files.values():
                if not isinstance(file, str):
                    file.close()

    def _commits(self, version: int) -> Commits:
        return Commits(self._directories.path(version))

    def _read_ours(self, version: int) -> Commit:
        commits = self._commits(version)
        if not commits.last():
            raise StoreRefused(f"there is no version {version} of {self._target.name}")
        state = commits.read()
        check_owner(state, self._target.owner, commits.root)
        return state

    def _check_partitions(self, fields: pa.Schema) -> None:
        for name in self._partition_by:
            if name not in fields.names:
                raise ConfigError(
                    f"{self._target.owner}: there is no column {name}",
                    hint=f"there are {', '.join(fields.names)}",
                )
            kind = fields.field(name).type
            if not (
                pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)
            ):
                raise ConfigError(
                    f"{self._target.owner}: files cannot be partitioned by {name}, which is {kind}",
                    hint="whole numbers, texts and dates can be part of a directory's name",
                )


class _ParquetWriter(Writer):
    def __init__(
        self,
        commits: Commits,
        owner: str,
        fields: pa.Schema,
        partition_by: tuple[str, ...],
        compression: str,
    ) -> None:
        self._commits = commits
        self._partition_by = partition_by
        self._compression = compression
        self._state = Commit(owner, 0, None, fields, {})
        self._number = 0
        self._begin(owner, fields)
        self.position = self._state.position

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        try:
            self._check_epoch()
            if is_applied(self.position, batch):
                return
            given = batch.rows.schema
            if OP in given.names and OP not in self._state.fields.names:
                given = given.remove(given.get_field_index(OP))
            fields = evolved(self._state.fields, given, can_widen=False).fields
            unreadable: list[RowRefused] | None = None if refuse is None else []
            files = self._write(batch.id, fitted(validated(batch.rows, None, unreadable), fields))
            if refuse is not None and unreadable:
                refuse(unreadable)
            state = Commit(self._state.owner, self._state.epoch, batch.position(), fields, files)
            if not self._commits.add(self._number + 1, state):
                raise self._fenced()
            self._number, self._state, self.position = self._number + 1, state, state.position
            show(self._commits.root, files)
        except OSError as error:
            raise refused(error, self._commits.root) from error

    def close(self) -> None:
        return

    def _begin(self, owner: str, fields: pa.Schema) -> None:
        """Takes over: committed files get their final names, others are removed."""
        while True:
            self._number = self._commits.last()
            if self._number:
                self._state = self._commits.read()
                check_owner(self._state, owner, self._commits.root)
                show(self._commits.root, self._state.files)
            else:
                self._number = self._commits.begin()
            state = Commit(
                self._state.owner,
                self._state.epoch + 1,
                self._state.position,
                evolved(self._state.fields, fields, can_widen=False).fields,
                {},
            )
            if self._commits.add(self._number + 1, state):
                break
        self._number, self._state = self._number + 1, state
        sweep(self._commits.root, state.epoch)

    def _check_epoch(self) -> None:
        if self._commits.last() != self._number:
            raise self._fenced()

    def _fenced(self) -> Fenced:
        return Fenced(f"another process writes {self._commits.root} now")

    def _write(self, batch: int, rows: pa.Table) -> dict[str, str]:
        files = {}
        root = self._commits.root
        for part, (directory, of_it) in enumerate(partitioned(rows, self._partition_by)):
            os.makedirs(os.path.join(root, directory), exist_ok=True)
            temporary = os.path.join(directory, f".{self._state.epoch}-{batch:012}-{part:04}.tmp")
            with open(os.path.join(root, temporary), "wb") as file:
                pq.write_table(of_it, file, compression=self._compression)
                file.flush()
                os.fsync(file.fileno())
            files[temporary] = os.path.join(directory, f"part-{batch:012}-{part:04}.parquet")
        for directory in {os.path.dirname(path) for path in files}:
            sync_directory(os.path.join(root, directory))
        return files
