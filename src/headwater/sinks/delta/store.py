"""The versions of a Delta table, through delta-rs: no Java, no jar.

A batch is one commit of the table, with rows and position (transaction_log.py, writer.py). A
writer begins with a commit of the table's properties: commits in flight of an earlier writer fail,
because the table's metadata has changed.

On a file system, versions are directories with a link to the live one
(`version_directories.py`). An object store has no links: there the first version stays the live
one.

Updates and deletes are a MERGE: files with such rows are written again (copy on write). Files that
are no longer part of the table are retained for `retention`, for readers of older versions.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError

from headwater.errors import ConfigError, StoreRefused
from headwater.sinks.contract import Contents, Log, Store, Target, Version, Writer
from headwater.sinks.delta.transaction_log import (
    OWNER,
    PAUSE_S,
    STATE,
    TRIES,
    State,
    add_columns,
    busy,
    commit_of,
    delta_errors,
    owner_of,
    state_of,
    stored,
)
from headwater.sinks.delta.writer import (
    FILE_BYTES,
    KEYED_FILE_BYTES,
    MAINTENANCE_OPTIONS,
    DeltaWriter,
    Maintenance,
)
from headwater.sinks.rows.schema_evolution import evolved, plain
from headwater.sinks.settings import SinkSettings
from headwater.sinks.version_directories import VersionDirectories, directory_name, directory_of

_OBJECT_STORE: Final = {  # option to delta-rs's name of it
    "region": "AWS_REGION",
    "endpoint": "AWS_ENDPOINT_URL",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "allow_http": "AWS_ALLOW_HTTP",
}
OPTIONS: Final = (*_OBJECT_STORE, *MAINTENANCE_OPTIONS)
TARGET_OPTIONS: Final = ("partition_by", *MAINTENANCE_OPTIONS)


class DeltaStore(Store):
    """One table. Readers open `<url>/<name>`."""

    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        self._target = target
        url = settings.url.reveal() if settings.url is not None else ""
        self._is_local = "://" not in url or url.startswith("file://")
        self._url = directory_of(settings) if self._is_local else url.rstrip("/")
        self._directories = VersionDirectories(self._url, target)
        options = {**settings.options, **target.options}
        self._storage = {
            _OBJECT_STORE[name]: options[name] for name in _OBJECT_STORE if name in options
        }
        self._partition_by = [
            name.strip() for name in options.get("partition_by", "").split(",") if name.strip()
        ]
        file_bytes = KEYED_FILE_BYTES if target.key else FILE_BYTES
        self._maintenance = Maintenance.of(options, file_bytes)

    def check(self) -> None:
        if self._is_local:
            self._directories.check()
        for number in self._numbers():
            self._open_ours(number)

    def versions(self) -> list[Version]:
        found = []
        numbers = self._numbers()
        live = self._live() if numbers else 1
        for number in numbers:
            table = self._open(number)
            if owner_of(table) == self._target.owner:
                state = state_of(table, self._target)
                found.append(Version(number, number == live, state.position, state.fields))
        return found

    def writer(self, version: int, fields: pa.Schema) -> Writer:
        for name in (*self._target.key, *self._partition_by):
            if name not in fields.names:
                raise ConfigError(
                    f"{self._target.owner}: there is no column {name}",
                    hint=f"there are {', '.join(fields.names)}",
                )
        path = self._path(version)
        stored(plain(fields))  # raises for a type that Delta lacks
        if self._is_local:
            self._directories.check()
            self._directories.make_parent()
        if version not in self._numbers():
            if self._is_local:
                _check_is_free(path)
            self._create(path, fields)
        table, state = self._begin(version, fields)
        if self._is_local and version == 1 and not self._directories.has_link():
            self._directories.make_live(version)
        path_here = path if self._is_local else None
        return DeltaWriter(table, state, self._target, path_here, self._maintenance, self._storage)

    def promote(self, version: int) -> None:
        self._open_ours(version)
        if version == self._live():
            return
        if not self._is_local:
            raise StoreRefused(
                "an object store has no links, so another version cannot take the name",
                detail=f"{self._path(version)} can be read as it is",
                hint="point readers there, or put the table into a directory",
            )
        self._directories.make_live(version)

    def drop(self, version: int) -> None:
        if not self._is_local:
            raise StoreRefused(
                "versions in an object store are not removed by Headwater",
                hint=f"remove everything below {self._path(version)}/ there",
            )
        self._open_ours(version)
        self._directories.drop(version)

    @contextlib.contextmanager
    def read(self, version: int) -> Iterator[Contents]:
        table = self._open_ours(version)
        state = state_of(table, self._target)
        with delta_errors():
            batches = pa.RecordBatchReader.from_stream(table.scan())
        yield Contents(state.position, _as_fields(batches, state.fields))

    def _path(self, version: int) -> str:
        if self._is_local:
            return self._directories.path(version)
        name = directory_name(self._target.name)
        return f"{self._url}/{name}" if version == 1 else f"{self._url}/{name}__v{version}"

    def _live(self) -> int:
        return self._directories.live() if self._is_local else 1

    def _numbers(self) -> list[int]:
        with delta_errors():
            if self._is_local:
                numbers = self._directories.numbers()
                return [
                    number for number in numbers if DeltaTable.is_deltatable(self._path(number))
                ]
            found: list[int] = []  # numbers are consecutive, and none is dropped
            while DeltaTable.is_deltatable(self._path(len(found) + 1), self._storage or None):
                found.append(len(found) + 1)
        return found

    def _open(self, version: int) -> DeltaTable:
        with delta_errors():
            return DeltaTable(self._path(version), storage_options=self._storage or None)

    def _open_ours(self, version: int) -> DeltaTable:
        if version not in self._numbers():
            raise StoreRefused(f"there is no version {version} of {self._target.name}")
        table = self._open(version)
        if (owner := owner_of(table)) != self._target.owner:
            raise StoreRefused(
                f"the Delta table {self._path(version)} is not of {self._target.owner}",
                detail=f"it belongs to {owner or 'another program'}",
                hint="choose another name for the table",
            )
        return table

    def _create(self, path: str, fields: pa.Schema) -> None:
        """Creates an empty table. If another process is faster, its table serves as well."""
        state = State(0, None, plain(fields))
        with delta_errors():
            DeltaTable.create(
                path,
                DeltaSchema.from_arrow(stored(state.fields)),
                mode="ignore",
                partition_by=self._partition_by or None,
                storage_options=self._storage or None,
                configuration={
                    OWNER: self._target.owner,
                    STATE: state.to_text(),
                    **self._maintenance.properties(),
                },
                raise_if_key_not_exists=False,
                commit_properties=commit_of(state, self._target),
            )

    def _begin(self, version: int, fields: pa.Schema) -> tuple[DeltaTable, State]:
        """Takes the table over, with the next epoch."""
        for attempt in range(TRIES):
            table = self._open_ours(version)
            state = state_of(table, self._target)
            columns = evolved(state.fields, fields, can_widen=False).fields
            new = State(state.epoch + 1, state.position, columns)
            try:
                with delta_errors():
                    if add_columns(table, columns):
                        table = self._open_ours(version)
                        if state_of(table, self._target) != state:
                            continue
                    table.alter.set_table_properties(
                        {STATE: new.to_text(), **self._maintenance.properties()},
                        raise_if_not_exists=False,
                        commit_properties=commit_of(new, self._target),
                    )
            except CommitFailedError:
                time.sleep(PAUSE_S * 2**attempt)
                continue
            return table, new
        raise busy(self._target)


def _check_is_free(path: str) -> None:
    """A process that was killed while it created the table may have left an empty log."""
    if os.path.lexists(path) and (
        not os.path.isdir(path) or set(os.listdir(path)) - {"_delta_log"}
    ):
        raise StoreRefused(
            f"{path} exists, and is no Delta table",
            hint="choose another name for the table, or move the directory away",
        )


def _as_fields(batches: pa.RecordBatchReader, fields: pa.Schema) -> Iterator[pa.RecordBatch]:
    with delta_errors():
        for batch in batches:
            columns = [batch.column(field.name).cast(field.type) for field in fields]
            yield pa.RecordBatch.from_arrays(columns, schema=fields)
