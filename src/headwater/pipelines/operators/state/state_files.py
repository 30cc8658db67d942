"""State files of operators: immutable Arrow files and JSON manifests, one directory per bucket.

    <directory>/<operator>/                    `directory` is in the checkpoint of the query
        begun                                  {"buckets": 8}
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

import contextlib
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa

from headwater.errors import PipelineError, StateLost
from headwater.log.disk.files import Files

_MANIFEST: Final = re.compile(r"(\d+)\.json")
_FILE: Final = re.compile(r"(\d+)-[0-9a-f]+\.arrow")
_TEMPORARY: Final = re.compile(r"(\d+)[-.].*\.tmp")
_ALIGNED_BYTES: Final = 64  # as Arrow likes its buffers
_UNREADABLE: Final = "the state of an operator cannot be read"
_MISSING: Final = "the state of an operator is missing"
_DEAD_BYTES: Final = 1 << 20  # of tables that are no longer in use, in files with some that are
NO_MANIFEST: Final = -1  # of a bucket that has not written any


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
        operator: Path,
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
        self._directory = operator / str(bucket)
        self._files = files or Files()
        self._put: dict[str, pa.Table | None] = {}
        self._sides: list[tuple[str, pa.Table]] = []
        if not is_begun and not (operator / "begun").exists():
            begin(operator, buckets, files=self._files)
        _check_buckets(operator, buckets)
        self._before, manifest = self._load()
        self._tables = {
            name: TableLocation(*location) for name, location in manifest.get("tables", {}).items()
        }
        self._stored = _compared(manifest.get("document", {}), manifest.get("counters", {}))
        self.document: dict[str, Any] = manifest.get("document", {})
        self.counters: dict[str, int] = manifest.get("counters", {})

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
    def sides(self) -> dict[str, pa.Table]:
        """The side outputs of this batch."""
        return _united(self._sides)

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
            raise PipelineError(
                "the state of an operator cannot be written",
                detail=f"{self._directory}: {error}",
                hint="is the disk full? The batch runs again",
            ) from error

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
        content, locations = _packed(name, [*put.values(), *(rows for _, rows in self._sides)])
        if content:
            self._write(name, content)
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
        self._write(f"{self.batch}.json", orjson.dumps(manifest, default=tuple))
        self._files.sync_directory(str(self._directory))
        self._remove_old({location.file for location in tables.values()})

    def _mostly_dead(self, tables: Mapping[str, TableLocation]) -> list[str]:
        """Tables in files of which more than half is dead: they are written again (compaction),
        which costs no more than it cost to write the dead part.
        """
        used: dict[str, int] = {}
        for location in tables.values():
            used[location.file] = used.get(location.file, 0) + location.bytes
        dead = {
            file: self._files.size_bytes(str(self._directory / file)) - size
            for file, size in used.items()
        }
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

    def _write(self, name: str, content: bytes | memoryview) -> None:
        """Whole or not at all; its name is durable when the directory is synced."""
        path = str(self._directory / name)
        temporary = f"{path}.{secrets.token_hex(4)}.tmp"
        try:
            fd = self._files.open(temporary, create=True)
            try:
                self._files.pwrite(fd, content, 0)
                self._files.fdatasync(fd)
            finally:
                self._files.close(fd)
            self._files.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.unlink(temporary)
            raise

    def _remove_old(self, needed: set[str]) -> None:
        """All files but those that this batch and the one before it need, of any attempt."""
        before = -1 if self._before is None else self._before
        if self._before is not None:
            tables = read_manifest(self._directory, self._before)["tables"].values()
            needed |= {TableLocation(*location).file for location in tables}
        for name in self._files.listdir(str(self._directory)):
            if found := _MANIFEST.fullmatch(name):
                is_old = int(found[1]) < before
            elif found := _FILE.fullmatch(name):
                is_old = name not in needed and int(found[1]) < before
            else:  # of a process that was killed
                found = _TEMPORARY.fullmatch(name)
                is_old = found is not None and int(found[1]) < before
            if is_old:
                self._files.unlink(str(self._directory / name))


class MemoryState:
    """State of a bounded run over everything: there is no batch before or after."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.counters: dict[str, int] = {}
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
        return _united(self._sides)


def begin(operator: Path, buckets: int, *, files: Files | None = None) -> None:
    """Creates the directories of an operator's state: from now on a missing one is lost state."""
    files = files or Files()
    for bucket in range(buckets):
        files.makedirs(str(operator / str(bucket)))
    temporary = str(operator / f"begun.{secrets.token_hex(4)}.tmp")
    note = orjson.dumps({"buckets": buckets})
    files.write_atomically(str(operator / "begun"), note, temporary=temporary)
    for parent in (operator.parent, operator.parent.parent):
        files.sync_directory(str(parent))


def check_begun(operator: Path, buckets: int) -> None:
    """Raises StateLost if the state of an operator that has begun is missing, or has another
    number of buckets.
    """
    _check_buckets(operator, buckets)
    for bucket in range(buckets):
        if not (operator / str(bucket)).is_dir():
            raise StateLost(_MISSING, detail=str(operator / str(bucket)))


def _check_buckets(operator: Path, buckets: int) -> None:
    """Rows of a key must find the bucket that has its state."""
    try:
        before = int(orjson.loads((operator / "begun").read_bytes())["buckets"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(_MISSING, str(error), error) from error
    if before != buckets:
        raise StateLost(
            f"the state of an operator has {before} buckets, and {buckets} are asked for",
            detail=str(operator),
        )


def read_manifest(directory: Path, batch: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = orjson.loads((directory / f"{batch}.json").read_bytes())
    except (OSError, ValueError) as error:
        raise _unreadable(_UNREADABLE, f"{directory}, batch {batch}: {error}", error) from error
    return found


def newest_manifest(directory: Path, batch: int) -> dict[str, Any]:
    """The manifest of the state after that batch: its own, or an earlier one."""
    before = [number for number in batches_of(directory) if number <= batch]
    return read_manifest(directory, max(before)) if before else {}


def read_table(directory: Path, location: TableLocation) -> pa.Table:
    """Memory-mapped; the table stays usable when the file is removed."""
    try:
        with pa.memory_map(str(directory / location.file)) as source:
            source.seek(location.start)
            table = pa.ipc.open_stream(source.read_buffer(location.bytes)).read_all()
        table.validate()
        if len(table) != location.rows:
            raise pa.ArrowInvalid(f"{len(table)} rows, not {location.rows}")
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(_UNREADABLE, f"{directory / location.file}: {error}", error) from error
    return table


def _unreadable(what: str, detail: str, error: Exception) -> PipelineError:
    """State is lost if files are missing or damaged (Arrow reports damage by OSError, too, without
    an errno). Too many open files, no memory, a disk that does not answer are temporary.
    """
    is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    is_of_system = isinstance(error, OSError) and error.errno is not None
    if is_missing or not (is_of_system or isinstance(error, MemoryError)):
        return StateLost(what, detail=detail)
    return PipelineError(_UNREADABLE, detail=detail, hint="the batch runs again")


def _packed(name: str, tables: Iterable[pa.Table]) -> tuple[memoryview, list[TableLocation]]:
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


def _united(sides: list[tuple[str, pa.Table]]) -> dict[str, pa.Table]:
    return {
        name: pa.concat_tables(
            [rows for other, rows in sides if other == name], promote_options="default"
        )
        for name in dict.fromkeys(name for name, _ in sides)
    }


def batches_of(directory: Path) -> list[int]:
    """Batches that have a manifest in a bucket's directory."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise _unreadable(_MISSING, str(error), error) from error
    return [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]
