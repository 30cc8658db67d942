"""What operators remember, in Arrow files that are mapped into memory and never changed in place.

    <directory>/<operator>/                    `directory` is in the checkpoint of the query
        begun                                  {"buckets": 8}
        <bucket>/
            <batch>.json                       the manifest: which files are the state after it
            <batch>-<table>.arrow              a table as that batch left it
            <batch>-<side>.side.arrow          rows for another place than the result

A batch writes its own files and manifest, each whole and synced, and leaves those of the batch
before: it can run again, in any process, any number of times, and finds what it found the first
time. It removes what is older, which no batch can ask for any more: that it runs means that the
one before it is committed.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa

from headwater.errors import StateLost

_MANIFEST: Final = re.compile(r"(\d+)\.json")
_FILE: Final = re.compile(r"(\d+)-.*\.arrow")
_TEMPORARY: Final = re.compile(r"(\d+)[-.].*\.tmp")


class FileState:
    """Of one bucket of one operator, before and after one batch."""

    def __init__(self, operator: Path, bucket: int, batch: int, *, buckets: int) -> None:
        self._batch = batch
        self._directory = operator / str(bucket)
        self._put: dict[str, pa.Table | None] = {}
        self._sides: dict[str, pa.Table] = {}
        manifest = self._load(operator, buckets)
        self._files: dict[str, str] = manifest.get("files", {})
        self.document: dict[str, Any] = manifest.get("document", {})
        self.counters: dict[str, int] = manifest.get("counters", {})

    def table(self, name: str) -> pa.Table | None:
        if name in self._put:
            return self._put[name]
        file = self._files.get(name)
        if file is None:
            return None
        try:
            with pa.memory_map(str(self._directory / file)) as source:
                return pa.ipc.open_file(source).read_all()
        except (OSError, pa.ArrowInvalid) as error:
            raise StateLost(
                "the state of an operator cannot be read",
                detail=f"{self._directory / file}: {error}",
            ) from error

    def put(self, name: str, table: pa.Table | None) -> None:
        self._put[name] = table

    def side(self, name: str, rows: pa.Table) -> None:
        self._sides[name] = rows

    def commit(self) -> None:
        """When it returns, the state after this batch is on disk."""
        self._directory.mkdir(parents=True, exist_ok=True)
        files = dict(self._files)
        for name, table in self._put.items():
            files.pop(name, None)
            if table is not None and len(table):
                files[name] = f"{self._batch}-{name}.arrow"
                _write_table(self._directory / files[name], table)
        sides = {}
        for name, rows in self._sides.items():
            if len(rows):
                sides[name] = f"{self._batch}-{name}.side.arrow"
                _write_table(self._directory / sides[name], rows)
        manifest = {
            "files": files,
            "sides": sides,
            "document": self.document,
            "counters": self.counters,
            "bytes": sum((self._directory / each).stat().st_size for each in files.values()),
        }
        _write(self._directory / f"{self._batch}.json", orjson.dumps(manifest))
        _sync(self._directory)
        self._remove_old({*files.values(), *self._files.values(), *sides.values()})

    def _load(self, operator: Path, buckets: int) -> dict[str, Any]:
        _begin(operator, buckets)
        before = [each for each in _batches(self._directory) if each < self._batch]
        if not before:
            return {}
        return read_manifest(self._directory, max(before))

    def _remove_old(self, kept: set[str]) -> None:
        """All but what this batch and the one before it need."""
        names = os.listdir(self._directory)
        earlier = sorted(each for each in _batches(self._directory) if each < self._batch)
        for name in names:
            if found := _MANIFEST.fullmatch(name):
                is_old = int(found[1]) in earlier[:-1]
            elif found := _FILE.fullmatch(name):
                is_old = name not in kept and int(found[1]) < self._batch
            else:  # of a process that was killed
                found = _TEMPORARY.fullmatch(name)
                is_old = found is not None and int(found[1]) < self._batch
            if is_old:
                (self._directory / name).unlink(missing_ok=True)


class MemoryState:
    """For one bounded run over everything: there is no batch before or after."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.counters: dict[str, int] = {}
        self.sides: dict[str, pa.Table] = {}
        self.tables: dict[str, pa.Table] = {}

    def table(self, name: str) -> pa.Table | None:
        return self.tables.get(name)

    def put(self, name: str, table: pa.Table | None) -> None:
        if table is None:
            self.tables.pop(name, None)
        else:
            self.tables[name] = table

    def side(self, name: str, rows: pa.Table) -> None:
        self.sides[name] = rows


def read_manifest(directory: Path, batch: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = orjson.loads((directory / f"{batch}.json").read_bytes())
    except (OSError, ValueError) as error:
        raise StateLost(
            "the state of an operator cannot be read",
            detail=f"{directory}, batch {batch}: {error}",
        ) from error
    return found


def _begin(operator: Path, buckets: int) -> None:
    """Rows of a key must find the bucket that knows it."""
    path = operator / "begun"
    try:
        before = orjson.loads(path.read_bytes())["buckets"]
    except FileNotFoundError:
        operator.mkdir(parents=True, exist_ok=True)
        _write(path, orjson.dumps({"buckets": buckets}))
        return
    except (OSError, ValueError, LookupError) as error:
        raise StateLost("the state of an operator cannot be read", detail=str(error)) from error
    if before != buckets:
        raise StateLost(
            f"the state of an operator has {before} buckets, and {buckets} are asked for",
            detail=str(operator),
            hint="set spark.headwater.state.buckets back, or rebuild the pipeline",
        )


def _batches(directory: Path) -> list[int]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]


def _write_table(path: Path, table: pa.Table) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    with open(temporary, "rb") as written:
        os.fsync(written.fileno())
    temporary.replace(path)


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
