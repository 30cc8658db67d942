"""State files of operators: immutable Arrow files and JSON manifests, one directory per bucket.

    <directory>/<operator>/                    `directory` is in the checkpoint of the query
        begun                                  {"buckets": 8, "key_groups": 4096}
        <bucket>/
            <batch>.json                       the manifest: what the state after that batch is
            <batch>-<attempt>.arrow            tables that it changed, and side outputs, one
                                               Arrow stream after the other

Tables are memory-mapped, and never changed in place. A batch writes one file of its own and then
its manifest, each whole and synced, and retains those of the batch before: it can run again, in any
process, any number of times, and finds what it found the first time. It removes older files, which
no batch can need any more: that it runs means that the one before it is committed. A batch that
changes nothing writes nothing.

Two processes may run the same batch at once (the driver of one was killed, and a worker of it still
lives): each writes a file of its own, and the last manifest counts, whose tables are all of the
same attempt. None removes files that the other reads. An attempt that starts after a later batch
has run fails with StateLost: the state that it needs is removed.
"""

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa

from headwater.errors import PipelineError, StateLost
from headwater.log.disk.files import Files
from headwater.pipelines.operators.state.key_groups import KEY_GROUPS
from headwater.pipelines.operators.state.state_store import (
    Location,
    StateDirectory,
    state_directory,
)

_MANIFEST: Final = re.compile(r"(\d+)\.json")
_FILE: Final = re.compile(r"(\d+)-[0-9a-f]+\.arrow")
_TEMPORARY: Final = re.compile(r"(\d+)[-.].*\.tmp")
_ALIGNED_BYTES: Final = 64  # as Arrow likes its buffers
_UNREADABLE: Final = "the state of an operator cannot be read"
_MISSING: Final = "the state of an operator is missing"
_DEAD_BYTES: Final = 1 << 20  # of tables that are no longer in use, in files with some that are
NO_MANIFEST: Final = -1  # of a bucket that has not written any
_MOST_CACHES: Final = 64
_caches: Final[dict[tuple[str, int], dict[str, Any]]] = {}  # used last at the end


class TableLocation(NamedTuple):
    """Where a stored table is: a range of bytes in a file."""

    file: str
    start: int
    bytes: int
    rows: int


class FileState:
    """State of one bucket of one operator, before and after one batch.

    `is_begun`: the operator was begun (`begin`) before its query, so missing state is lost state.
    Otherwise the first batch begins it.

    `required`: the batch whose manifest has the state before this one (manifests.py). Without it,
    the newest manifest in the directory counts.
    """

    def __init__(
        self,
        operator: Location,
        bucket: int,
        batch: int,
        *,
        buckets: int,
        is_begun: bool = False,
        required: int | None = None,
        files: Files | None = None,
    ) -> None:
        self.path = str(operator), bucket
        self.batch = batch
        self._required = required
        of_operator = state_directory(operator, files)
        self._directory = of_operator / str(bucket)
        self._put: dict[str, pa.Table | None] = {}
        self._sides: list[tuple[str, pa.Table]] = []
        if not is_begun and not has_file(of_operator, "begun"):
            begin(of_operator, buckets)
        _check_buckets(of_operator, buckets)
        self._before, manifest = self._load()
        self._tables = {
            name: TableLocation(*location) for name, location in manifest.get("tables", {}).items()
        }
        self._stored = _compared(manifest.get("document", {}), manifest.get("counters", {}))
        self.document: dict[str, Any] = manifest.get("document", {})
        self.counters: dict[str, int] = manifest.get("counters", {})

    @property
    def cache(self) -> dict[str, Any]:
        """One for each bucket, as long as this process lives."""
        found = _caches.pop(self.path, {})
        _caches[self.path] = found
        while len(_caches) > _MOST_CACHES:
            del _caches[next(iter(_caches))]
        return found

    def table(self, name: str) -> pa.Table | None:
        if name in self._put:
            return self._put[name]
        location = self._tables.get(name)
        return None if location is None else read_table(self._directory, location)

    def put(self, name: str, table: pa.Table | None) -> None:
        self._put[name] = table

    def side(self, name: str, rows: pa.Table) -> None:
        if len(rows):
            self._sides.append((name, rows))

    @property
    def names(self) -> set[str]:
        """Of the tables before this batch."""
        return set(self._tables)

    @property
    def sides(self) -> dict[str, pa.Table]:
        """The side outputs of this batch."""
        return united_sides(self._sides)

    def commit(self) -> int:
        """When it returns, the state after this batch is durable. Returns the batch whose manifest
        has it: this one, or an earlier one if nothing changed.
        """
        try:
            if self._is_changed():
                self._commit()
                return self.batch
            return NO_MANIFEST if self._before is None else self._before
        except FileNotFoundError as error:
            raise StateLost(_MISSING, detail=str(error)) from error
        except OSError as error:
            raise unwritable(self._directory, error) from error

    def _is_changed(self) -> bool:
        """A manifest of this same batch, by an earlier attempt that may have read other records
        (its offsets were lost from Spark's checkpoint by a power cut), must be replaced.
        """
        has_new = bool(self._put or self._sides)
        is_same = _compared(self.document, self.counters) == self._stored
        return has_new or not is_same or self.batch in batches_of(self._directory)

    def _commit(self) -> None:
        tables = {
            name: location for name, location in self._tables.items() if name not in self._put
        }
        put = {name: table for name, table in self._put.items() if table is not None and len(table)}
        put |= {
            name: read_table(self._directory, tables[name]) for name in self._mostly_dead(tables)
        }
        name = f"{self.batch}-{secrets.token_hex(4)}.arrow"
        content, locations = pack_tables(name, [*put.values(), *(rows for _, rows in self._sides)])
        if content:
            self._directory.write(name, content)
        tables |= dict(zip(put, locations, strict=False))
        sides: dict[str, list[TableLocation]] = {}
        for (side, _), location in zip(self._sides, locations[len(put) :], strict=True):
            sides.setdefault(side, []).append(location)
        manifest = {
            "tables": tables,
            "sides": sides,
            "document": self.document,
            "counters": self.counters,
        }
        self._directory.write(f"{self.batch}.json", orjson.dumps(manifest, default=tuple))
        self._directory.sync()
        self._remove_old({location.file for location in tables.values()})

    def _mostly_dead(self, tables: Mapping[str, TableLocation]) -> list[str]:
        """Tables in files of which more than half is dead: they are written again (compaction),
        which costs no more than it cost to write the dead part.
        """
        used: dict[str, int] = {}
        for location in tables.values():
            used[location.file] = used.get(location.file, 0) + location.bytes
        dead = {file: self._directory.size_bytes(file) - size for file, size in used.items()}
        if sum(dead.values()) <= _DEAD_BYTES:
            return []
        return [
            name for name, location in tables.items() if dead[location.file] > used[location.file]
        ]

    def _load(self) -> tuple[int | None, dict[str, Any]]:
        batches = batches_of(self._directory)
        if batches and max(batches) > self.batch:
            raise StateLost(
                "the state of an operator is of a later batch",
                detail=f"{self._directory}: batch {max(batches)}, and this is {self.batch}",
            )
        before = max((number for number in batches if number < self.batch), default=NO_MANIFEST)
        if self._required is not None and before > self._required:
            raise StateLost(
                "the state of an operator is newer than the one that its driver recorded",
                detail=f"{self._directory}: batch {before}; the driver recorded {self._required}",
            )
        if self._required is not None:
            before = self._required  # whether or not it is visible here
        if before == NO_MANIFEST:
            return None, {}
        return before, read_manifest(self._directory, before)

    def _remove_old(self, needed: set[str]) -> None:
        """All files but those that this batch and the one before it need, of any attempt."""
        before = -1 if self._before is None else self._before
        if self._before is not None:
            tables = read_manifest(self._directory, self._before)["tables"].values()
            needed |= {TableLocation(*location).file for location in tables}
        old = []
        for name in self._directory.names():
            if found := _MANIFEST.fullmatch(name):
                is_old = int(found[1]) < before
            elif found := _FILE.fullmatch(name):
                is_old = name not in needed and int(found[1]) < before
            else:  # of a process that was killed
                found = _TEMPORARY.fullmatch(name)
                is_old = found is not None and int(found[1]) < before
            if is_old:
                old.append(name)
        self._directory.remove(old)


class MemoryState:
    """State of a bounded run over everything: there is no batch before or after."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.counters: dict[str, int] = {}
        self.cache: dict[str, Any] = {}
        self.tables: dict[str, pa.Table] = {}
        self._sides: list[tuple[str, pa.Table]] = []

    def table(self, name: str) -> pa.Table | None:
        return self.tables.get(name)

    def put(self, name: str, table: pa.Table | None) -> None:
        if table is None:
            self.tables.pop(name, None)
        else:
            self.tables[name] = table

    def side(self, name: str, rows: pa.Table) -> None:
        if len(rows):
            self._sides.append((name, rows))

    @property
    def sides(self) -> dict[str, pa.Table]:
        return united_sides(self._sides)


def begin(operator: Location, buckets: int, *, files: Files | None = None) -> None:
    """Creates the directories of an operator's state: from now on a missing one is lost state."""
    directory = state_directory(operator, files)
    try:
        for bucket in range(buckets):
            (directory / str(bucket)).create()
        begun = orjson.dumps({"buckets": buckets, "key_groups": KEY_GROUPS})
        directory.write("begun", begun)
        directory.sync(parents=2)
    except OSError as error:
        raise unwritable(directory, error) from error


def check_begun(operator: Location) -> None:
    """Raises StateLost if the state of an operator that has begun is missing."""
    directory = state_directory(operator)
    for bucket in range(begun_buckets(directory)):
        if not (directory / str(bucket)).exists():
            raise StateLost(_MISSING, detail=str(directory / str(bucket)))


def begun_buckets(operator: Location) -> int:
    """How many buckets an operator's state was begun with, or last rescaled to. Raises StateLost if
    it is missing, or if its keys were assigned to buckets in another way.
    """
    try:
        begun = orjson.loads(state_directory(operator).read("begun"))
        buckets, groups = int(begun["buckets"]), begun.get("key_groups")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise unreadable(_MISSING, str(error), error) from error
    if groups != KEY_GROUPS:
        raise StateLost(
            "the state of an operator is not by key groups, as an earlier version wrote it",
            detail=str(operator),
        )
    return buckets


def _check_buckets(operator: StateDirectory, buckets: int) -> None:
    """Rows of a key must find the bucket that has its state."""
    before = begun_buckets(operator)
    if before != buckets:
        raise StateLost(
            f"the state of an operator has {before} buckets, and {buckets} are asked for",
            detail=str(operator),
        )


def read_manifest(directory: Location, batch: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = orjson.loads(state_directory(directory).read(f"{batch}.json"))
    except (OSError, ValueError) as error:
        raise unreadable(_UNREADABLE, f"{directory}, batch {batch}: {error}", error) from error
    return found


def newest_manifest(directory: Location, batch: int) -> dict[str, Any]:
    """The manifest of the state after that batch: its own, or an earlier one."""
    before = [number for number in batches_of(directory) if number <= batch]
    return read_manifest(directory, max(before)) if before else {}


def read_table(directory: Location, location: TableLocation) -> pa.Table:
    """Memory-mapped; the table stays usable when the file is removed."""
    try:
        with state_directory(directory).map(location.file) as source:
            source.seek(location.start)
            table = pa.ipc.open_stream(source.read_buffer(location.bytes)).read_all()
        table.validate()
        if len(table) != location.rows:
            raise pa.ArrowInvalid(f"{len(table)} rows, not {location.rows}")
    except (OSError, pa.ArrowException) as error:
        raise unreadable(_UNREADABLE, f"{directory}/{location.file}: {error}", error) from error
    return table


def unreadable(what: str, detail: str, error: Exception) -> PipelineError:
    """State is lost if files are missing or damaged (Arrow reports damage by OSError, too, without
    an errno). Too many open files, no memory, a disk that does not answer are temporary.
    """
    is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    is_of_system = isinstance(error, OSError) and error.errno is not None
    if is_missing or not (is_of_system or isinstance(error, MemoryError)):
        return StateLost(what, detail=detail)
    return PipelineError(_UNREADABLE, detail=detail, hint="the batch runs again")


def unwritable(directory: StateDirectory, error: OSError) -> PipelineError:
    return PipelineError(
        "the state of an operator cannot be written",
        detail=f"{directory}: {error}",
        hint=f"{directory.write_hint} The batch runs again",
    )


def has_file(directory: Location, name: str) -> bool:
    try:
        return state_directory(directory).has(name)
    except OSError as error:
        raise unreadable(_UNREADABLE, str(error), error) from error


def pack_tables(name: str, tables: Iterable[pa.Table]) -> tuple[memoryview, list[TableLocation]]:
    sink = pa.BufferOutputStream()
    locations = []
    for table in tables:
        start = sink.tell()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        locations.append(TableLocation(name, start, sink.tell() - start, len(table)))
        sink.write(bytes(-sink.tell() % _ALIGNED_BYTES))
    return memoryview(sink.getvalue()), locations


def _compared(document: dict[str, Any], counters: dict[str, int]) -> bytes:
    return orjson.dumps([document, counters], option=orjson.OPT_SORT_KEYS)


def united_sides(sides: list[tuple[str, pa.Table]]) -> dict[str, pa.Table]:
    return {
        name: pa.concat_tables(
            [rows for other, rows in sides if other == name], promote_options="default"
        )
        for name in dict.fromkeys(name for name, _ in sides)
    }


def batches_of(directory: Location) -> list[int]:
    """Batches that have a manifest in a bucket's directory."""
    try:
        names = state_directory(directory).names()
    except OSError as error:
        raise unreadable(_MISSING, str(error), error) from error
    return [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]
