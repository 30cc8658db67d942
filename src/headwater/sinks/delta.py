"""Delta tables, through delta-rs: no Java, no jar.

A batch is one commit of the table. Beside the rows it has
    txn          `headwater/<owner>`: the batch; of two commits with it at the same time, one fails
    commitInfo   "headwater": epoch, position and fields (`_State`)
and a writer begins with a commit of the table's property `headwater.state`, which holds the same:
whatever an earlier writer still has under way fails on it, because the table's metadata changed.

Where the table lies on disks, versions are directories with a link to the live one
(`directories.py`). An object store has no links: there the first version is the live one for ever.

Rows that change or go are a MERGE: files with such rows are written anew (copy on write). What is
no longer part of the table is kept for `retention`, for those who still read it.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.fs
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from headwater.errors import (
    ConfigError,
    Fenced,
    HeadwaterError,
    RowRefused,
    StoreRefused,
    StoreUnreachable,
)
from headwater.settings import parse_duration_ms
from headwater.sinks.contract import (
    DELETE,
    OP,
    Batch,
    Contents,
    Log,
    Position,
    Refuse,
    Store,
    Target,
    Version,
    Writer,
    fields_from_text,
    fields_to_text,
    is_applied,
    offsets_from,
)
from headwater.sinks.directories import (
    VersionDirectories,
    directory_name,
    directory_of,
    sync_directory,
)
from headwater.sinks.evolving import evolved, fitted, plain
from headwater.sinks.reducing import Reduced, reduce
from headwater.sinks.settings import SinkSettings

_OBJECT_STORE: Final = {  # option to delta-rs's name of it
    "region": "AWS_REGION",
    "endpoint": "AWS_ENDPOINT_URL",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "allow_http": "AWS_ALLOW_HTTP",
}
_UPKEEP: Final = ("compact_every", "retention")
OPTIONS: Final = (*_OBJECT_STORE, *_UPKEEP)
TARGET_OPTIONS: Final = ("partition_by", *_UPKEEP)

_OWNER, _STATE = "headwater.owner", "headwater.state"  # properties of the table
_COMMIT: Final = "headwater"  # key in commitInfo
_NONE: Final = -1  # the batch in front of the first
_TRIES: Final = 8  # against others who change the table at the same time
_PAUSE_S: Final = 0.05
# What small files are put together to. One with a changed row is written anew, so less if rows
# change.
_FILE_BYTES, _KEYED_FILE_BYTES = 128 << 20, 32 << 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _State:
    """What a version says of itself."""

    epoch: int
    position: Position | None
    fields: pa.Schema

    def to_text(self) -> str:
        position = self.position and orjson.loads(self.position.to_json())
        fields = fields_to_text(self.fields)
        return orjson.dumps({"epoch": self.epoch, "position": position, "fields": fields}).decode()

    @classmethod
    def from_text(cls, stored: str) -> "_State":
        read = orjson.loads(stored)
        position = read["position"]
        if position is not None:
            position = Position(
                position["query"], position["batch"], offsets_from(position["offsets"])
            )
        return cls(read["epoch"], position, fields_from_text(read["fields"]))


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
        file_bytes = _KEYED_FILE_BYTES if target.key else _FILE_BYTES
        self._upkeep = _Upkeep.of(options, file_bytes)

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
            if _owner_of(table) == self._target.owner:
                state = _state_of(table, self._target)
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
        _stored(plain(fields))  # raises for a type that Delta has not
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
        return _DeltaWriter(table, state, self._target, path_here, self._upkeep)

    def promote(self, version: int) -> None:
        self._open_ours(version)
        if version == self._live():
            return
        if not self._is_local:
            raise StoreRefused(
                "an object store has no links, so another version cannot take the name",
                detail=f"{self._path(version)} can be read as it is",
                hint="point readers there, or keep the table in a directory",
            )
        self._directories.make_live(version)

    def drop(self, version: int) -> None:
        if not self._is_local:
            raise StoreRefused(
                "versions in an object store are not removed by us",
                hint=f"remove everything below {self._path(version)}/ there",
            )
        self._open_ours(version)
        self._directories.drop(version)

    @contextlib.contextmanager
    def read(self, version: int) -> Iterator[Contents]:
        table = self._open_ours(version)
        state = _state_of(table, self._target)
        with _errors():
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
        with _errors():
            if self._is_local:
                numbers = self._directories.numbers()
                return [each for each in numbers if DeltaTable.is_deltatable(self._path(each))]
            found: list[int] = []  # versions are given one after the other, and none is dropped
            while DeltaTable.is_deltatable(self._path(len(found) + 1), self._storage or None):
                found.append(len(found) + 1)
        return found

    def _open(self, version: int) -> DeltaTable:
        with _errors():
            return DeltaTable(self._path(version), storage_options=self._storage or None)

    def _open_ours(self, version: int) -> DeltaTable:
        if version not in self._numbers():
            raise StoreRefused(f"there is no version {version} of {self._target.name}")
        table = self._open(version)
        if (owner := _owner_of(table)) != self._target.owner:
            raise StoreRefused(
                f"the Delta table {self._path(version)} is not of {self._target.owner}",
                detail=f"it belongs to {owner or 'somebody else'}",
                hint="choose another name for the table",
            )
        return table

    def _create(self, path: str, fields: pa.Schema) -> None:
        """Empty. If another process is faster, its table is as good."""
        state = _State(0, None, plain(fields))
        with _errors():
            DeltaTable.create(
                path,
                DeltaSchema.from_arrow(_stored(state.fields)),
                mode="ignore",
                partition_by=self._partition_by or None,
                storage_options=self._storage or None,
                configuration={
                    _OWNER: self._target.owner,
                    _STATE: state.to_text(),
                    **self._upkeep.properties(),
                },
                raise_if_key_not_exists=False,
                commit_properties=_commit_of(state, self._target),
            )

    def _begin(self, version: int, fields: pa.Schema) -> tuple[DeltaTable, _State]:
        """Takes the table over: the epoch is the next."""
        for attempt in range(_TRIES):
            table = self._open_ours(version)
            state = _state_of(table, self._target)
            columns = evolved(state.fields, fields, can_widen=False).fields
            new = _State(state.epoch + 1, state.position, columns)
            try:
                with _errors():
                    if _add_columns(table, columns):
                        table = self._open_ours(version)
                        if _state_of(table, self._target) != state:
                            continue
                    table.alter.set_table_properties(
                        {_STATE: new.to_text(), **self._upkeep.properties()},
                        raise_if_not_exists=False,
                        commit_properties=_commit_of(new, self._target),
                    )
            except CommitFailedError:
                time.sleep(_PAUSE_S * 2**attempt)
                continue
            return table, new
        raise _busy(self._target)


@dataclass(frozen=True, slots=True)
class _Upkeep:
    """Small files are put together after every so many commits; what is not part of the table any
    more goes when it is older than the retention.
    """

    every: int
    retention_hours: int
    file_bytes: int

    @classmethod
    def of(cls, options: Any, file_bytes: int) -> "_Upkeep":
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
        """Also for others who look after the table; the log is kept for a day at least."""
        return {
            "delta.deletedFileRetentionDuration": f"interval {self.retention_hours} hours",
            "delta.targetFileSize": str(self.file_bytes),
            "delta.logRetentionDuration": f"interval {max(24, self.retention_hours)} hours",
        }


class _DeltaWriter(Writer):
    def __init__(
        self,
        table: DeltaTable,
        state: _State,
        target: Target,
        path: str | None,
        upkeep: _Upkeep,
    ) -> None:
        self._table = table
        self._target = target
        self._path = path  # None: not on our disks
        self._upkeep = upkeep
        self._epoch, self.position, self._fields = state.epoch, state.position, state.fields
        self._seen = -1  # the version of the table that we know the state of
        self._kept_at = table.version() // upkeep.every  # when small files were last put together
        self._is_first_upkeep = True
        self._is_empty = True

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        reduced: Reduced | None = None
        for attempt in range(_TRIES):
            self._look()
            if is_applied(self.position, batch):
                return
            try:
                with _errors():
                    if reduced is None:
                        self._widen(batch.rows.schema)
                        self._look()
                        reduced = self._reduced(batch.rows, refuse)
                    self._commit(batch, reduced)
            except CommitFailedError:  # ours or somebody else's: the next look tells
                time.sleep(_PAUSE_S * 2**attempt)
                continue
            self.position = batch.position()
            self._seen = self._table.version()
            self._sync()
            self._look_after()
            return
        raise _busy(self._target)

    def close(self) -> None:
        return

    def _look(self) -> None:
        """What others did since; Fenced if one of them has taken over."""
        with _errors():
            self._table.update_incremental()
        version = self._table.version()
        if version == self._seen:
            return
        state = _state_of(self._table, self._target)
        if state.epoch != self._epoch:
            raise Fenced(
                f"another process writes {self._target.name} now",
                detail=f"its epoch is {state.epoch}, ours {self._epoch}",
            )
        self.position, self._seen = state.position, version

    def _widen(self, given: pa.Schema) -> None:
        """A column of its own commit: one without values is no part of any batch."""
        if OP in given.names:
            given = given.remove(given.get_field_index(OP))
        fields = evolved(self._fields, given, can_widen=False).fields
        if fields != self._fields:
            _add_columns(self._table, fields)
            self._fields = fields

    def _reduced(self, rows: pa.Table, refuse: Refuse | None) -> Reduced:
        key = self._target.key
        if not key:
            return Reduced(False, pa.table({}), fitted(rows, self._fields))
        refused: list[RowRefused] = []
        reduced = reduce(rows, key, None if refuse is None else refused)
        if refuse is not None and refused:
            refuse(refused)
        keys = pa.schema([self._fields.field(name) for name in key])
        return Reduced(
            reduced.clears, fitted(reduced.deletes, keys), fitted(reduced.upserts, self._fields)
        )

    def _commit(self, batch: Batch, reduced: Reduced) -> None:
        state = _State(self._epoch, batch.position(), self._fields)
        properties = _commit_of(state, self._target)
        has_changes = len(reduced.upserts) or len(reduced.deletes)
        if reduced.clears:
            self._write("overwrite", reduced.upserts, properties)
        elif not self._target.key or not has_changes or not self._has_rows():
            self._write("append", reduced.upserts, properties)
        else:
            before = self._table.version()
            self._merge(reduced.upserts, reduced.deletes, properties)
            if self._table.version() == before:  # nothing was there to be deleted: no commit
                self._write("append", reduced.upserts.slice(0, 0), properties)

    def _has_rows(self) -> bool:
        """Asked until there are some: a version that is built up is appended to at first."""
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
        """delta-rs leaves it to the system when bytes reach the disk; Spark forgets the batch
        when we return.
        """
        if self._path is None:
            return
        log = os.path.join(self._path, "_delta_log", f"{self._seen:020}.json")
        with contextlib.suppress(OSError), open(log, "rb") as commit:
            for line in commit:
                if line.startswith(b'{"add"'):
                    _sync_file(os.path.join(self._path, orjson.loads(line)["add"]["path"]))
            os.fsync(commit.fileno())
            sync_directory(os.path.dirname(log))
            sync_directory(self._path)

    def _look_after(self) -> None:
        """The batch is in the table: whatever fails here is for the next time."""
        turn = self._seen // self._upkeep.every
        if turn == self._kept_at:
            return
        self._kept_at = turn
        try:
            self._table.optimize.compact(max_concurrent_tasks=1)
            self._table.vacuum(
                self._upkeep.retention_hours,
                dry_run=False,
                enforce_retention_duration=False,
                full=self._is_first_upkeep,  # also what a killed writer left; lists all files
            )
            self._is_first_upkeep = False
        except Exception as error:
            logger.warning("%s: small files stay as they are: %s", self._target.name, error)


def _check_is_free(path: str) -> None:
    """Somebody who was killed while they made the table may have left an empty log."""
    if os.path.lexists(path) and (
        not os.path.isdir(path) or set(os.listdir(path)) - {"_delta_log"}
    ):
        raise StoreRefused(
            f"{path} is there, and no Delta table",
            hint="choose another name for the table, or move the directory away",
        )


def _owner_of(table: DeltaTable) -> str | None:
    with _errors():
        return table.metadata().configuration.get(_OWNER)


def _state_of(table: DeltaTable, target: Target) -> _State:
    """What the table says of itself at the version that is loaded: in the last commit of ours.
    Commits of others (OPTIMIZE, VACUUM) are passed over. Old ones are removed from Delta's log
    after its retention; then it is the table's property, if the batch is the same.
    """
    with _errors():
        properties = table.metadata().configuration
        applied = table.transaction_version(_app(target))
        log = _log_of(table)
    try:
        state = None
        for version in range(table.version(), -1, -1):
            commit = log(version)
            if commit is None:
                break
            if _COMMIT in commit:
                state = _State.from_text(commit[_COMMIT])
                break
        state = state or _State.from_text(properties[_STATE])
    except (ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise StoreRefused(
            f"the position of the Delta table {target.name} cannot be read",
            detail=f"{type(error).__name__}: {error}",
            hint="a rebuild begins a new version",
        ) from error
    if applied != (_NONE if state.position is None else state.position.batch):
        raise StoreRefused(
            f"the Delta table {target.name} no longer says which offsets batch {applied} ended at",
            detail="its log was shortened by others since",
            hint="a rebuild begins a new version; delta.logRetentionDuration keeps the log longer",
        )
    return state


def _log_of(table: DeltaTable) -> Any:
    """From a version to its commitInfo. (DeltaTable.history always begins at the newest commit,
    which may be newer than the table that was loaded.)
    """
    files = pyarrow.fs.PyFileSystem(DeltaStorageHandler.from_table(table._table))  # noqa: SLF001

    def commit_info(version: int) -> dict[str, Any] | None:
        with _errors():
            try:
                with files.open_input_stream(f"_delta_log/{version:020}.json") as file:
                    lines = file.read().splitlines()
            except FileNotFoundError:
                return None
        for line in lines:
            if line.startswith(b'{"commitInfo"'):
                return json.loads(line)["commitInfo"]  # type: ignore[no-any-return]
        return {}

    return commit_info


def _commit_of(state: _State, target: Target) -> CommitProperties:
    """With the txn a commit is not put behind another one of ours that it does not know."""
    batch = _NONE if state.position is None else state.position.batch
    return CommitProperties(
        custom_metadata={_COMMIT: state.to_text()},
        app_transactions=[Transaction(_app(target), batch)],
    )


def _app(target: Target) -> str:
    return f"headwater/{target.owner}"


def _add_columns(table: DeltaTable, fields: pa.Schema) -> bool:
    known = {field.name for field in table.schema().fields}
    new = [
        field for field in DeltaSchema.from_arrow(_stored(fields)).fields if field.name not in known
    ]
    if new:
        table.alter.add_columns(new)
    return bool(new)


def _stored(fields: pa.Schema) -> pa.Schema:
    """Raises StoreRefused for a column of a type that Delta has not."""
    for field in fields:
        if not _is_stored(field.type):
            raise StoreRefused(
                f"Delta has no type for column {field.name}, which is {field.type}",
                hint="cast it in the pipeline, for example to a text",
            )
    return fields


def _is_stored(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return all(_is_stored(kind.field(at).type) for at in range(kind.num_fields))
    return (
        pa.types.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32())
        or pa.types.is_decimal128(kind)
        or pa.types.is_timestamp(kind)
    )


def _as_fields(batches: pa.RecordBatchReader, fields: pa.Schema) -> Iterator[pa.RecordBatch]:
    with _errors():
        for batch in batches:
            columns = [batch.column(field.name).cast(field.type) for field in fields]
            yield pa.RecordBatch.from_arrays(columns, schema=fields)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """delta-rs's errors as ours. A failed commit is the caller's to judge."""
    try:
        yield
    except (HeadwaterError, CommitFailedError):
        raise
    except (TableNotFoundError, PermissionError) as error:
        raise StoreRefused("the Delta table cannot be opened", detail=_first_line(error)) from error
    except OSError as error:
        raise StoreUnreachable(
            "the Delta table does not answer", detail=_first_line(error)
        ) from error
    except DeltaError as error:
        raise StoreRefused("Delta refuses it", detail=_first_line(error)) from error
    except pa.ArrowException:
        raise
    except Exception as error:  # some of delta-rs's have no class of their own
        raise StoreRefused("Delta refuses it", detail=_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _busy(target: Target) -> StoreUnreachable:
    return StoreUnreachable(
        f"the Delta table {target.name} is changed by others all the time",
        detail=f"{_TRIES} commits were in the way of ours, one after the other",
    )
