"""The versions of a target as full-text indexes in a directory: tantivy, in this process.

    DIR/orders                     the live one: a link to orders__v1
    DIR/orders__v1, orders__v2     links to the versions' directories
    DIR/.headwater/orders/
        owner.json                 the registry: the owner, and the epoch of each version
        lock                       held while the registry or a link changes
        1-1.0/, 1-4.0/, 2-3.0/     version, epoch, number: tantivy's files

**One step.** A commit of tantivy is one replaced file. The position is a document of the index, so
that it changes by the same commit as the rows.

**Zombies.** A writer checks its epoch again after a commit. A new writer increments the epoch first
and then continues from the last commit: in the same directory if no process has it open (tantivy's
own lock); otherwise in a copy (hard links, as files never change), so that later commits of the old
writer are invisible. A writer that finds its epoch unchanged after a commit has committed before
that copy.

**Generations.** The fields of an index are fixed. For new or wider columns a new index is filled
from the old one beside it, and one link is replaced.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import tantivy

from headwater.errors import ConfigError, Fenced, StoreRefused, StoreUnreachable
from headwater.sinks.contract import (
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
    is_applied,
    name_of,
)
from headwater.sinks.rows.documents import Documents, check_types, documents_of
from headwater.sinks.rows.schema_evolution import evolved, fitted, plain
from headwater.sinks.settings import SinkSettings
from headwater.sinks.tantivy.fields import (
    ID,
    LONGEST_ID_BYTES,
    Analysis,
    index_documents,
    register,
    schema_of,
)
from headwater.sinks.tantivy.snapshot import Hit, Snapshot, put_state, search
from headwater.sinks.version_directories import directory_name

__all__ = ["Hit", "TantivyStore", "search"]

OPTIONS: Final = ()
TARGET_OPTIONS: Final = ("text", "language")

_LOCK_TIMEOUT_S: Final = 30
_HEAP_BYTES: Final = 100_000_000
_LOCK_FILES: Final = (".tantivy-writer.lock", ".tantivy-meta.lock")


class TantivyStore(Store):
    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        if settings.url is None:
            raise ConfigError(f"sink {settings.name} has no url", hint='url = "/a/directory"')
        if "/" in target.name:
            raise ConfigError(f"{target.name} cannot be the name of a directory")
        directory_name(target.name)  # raises too
        self.target = target
        self.analysis = Analysis.from_options(target.options)
        self._root = Path(settings.url.reveal().removeprefix("file://"))
        self._own = self._root / ".headwater" / target.name

    def check(self) -> None:
        with _sink_errors():
            above = self._root
            while not above.exists() and above != above.parent:
                above = above.parent
            if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
                raise StoreRefused(f"{above} is no directory that can be written to")
            registry = self._registry()
            self._check_owner(registry)
            if not registry:
                self._check_free(self.target.name)

    def versions(self) -> list[Version]:
        with _sink_errors():
            registry = self._registry()
            if registry.get("owner") != self.target.owner:
                return []
            live = self._live()
            found = []
            for number in sorted(map(int, registry["epochs"])):
                with suppress(FileNotFoundError):  # dropped meanwhile
                    read = Snapshot.of(self.path(number))
                    found.append(Version(number, number == live, read.position, read.fields))
            return found

    def writer(self, version: int, fields: pa.Schema) -> "TantivyWriter":
        check_types(fields)
        with _sink_errors(), self.locked(makes=True):
            registry = self._registry() or {"owner": self.target.owner, "epoch": 0, "epochs": {}}
            self._check_owner(registry)
            registry["epoch"] += 1  # of all versions, so that no number comes twice
            epoch, epochs = registry["epoch"], registry["epochs"]
            if str(version) not in epochs:
                self._check_free(self.path(version).name)
                if version == 1 and not epochs:
                    self._check_free(self.target.name)
                self._make(version, epoch, plain(fields))
            epochs[str(version)] = epoch
            _replace(self._own / "owner.json", registry)
            if self._live() is None and version == 1:
                _link(self.path(version).name, self._root / self.target.name)
            writer = TantivyWriter(self, version, epoch)
            writer.open(fields)
            return writer

    def promote(self, version: int) -> None:
        with _sink_errors(), self.locked():
            self._check_version(version)
            _link(self.path(version).name, self._root / self.target.name)

    def drop(self, version: int) -> None:
        with _sink_errors(), self.locked():
            registry = self._check_version(version)
            if self._live() == version:
                raise StoreRefused(
                    f"version {version} of {self.target.name} is live",
                    hint="promote another one first",
                )
            del registry["epochs"][str(version)]
            _replace(self._own / "owner.json", registry)
            self.path(version).unlink(missing_ok=True)
            for generation in self._own.glob(f"{version}-*"):
                shutil.rmtree(generation, ignore_errors=True)

    @contextmanager
    def read(self, version: int) -> Iterator[Contents]:
        with _sink_errors():
            self._check_version(version)
            found = Snapshot.of(self.path(version))
        yield Contents(found.position, found.all_rows())

    def path(self, version: int) -> Path:
        return self._root / name_of(self.target, version, is_live=False)

    def epoch(self, version: int) -> int | None:
        epoch: int | None = self._registry().get("epochs", {}).get(str(version))
        return epoch

    def generation(self, version: int, epoch: int) -> Path:
        """The path of a directory that does not exist yet."""
        for number in count():
            directory = self._own / f"{version}-{epoch}.{number}"
            if not directory.exists():
                return directory
        raise AssertionError

    def remove_leftovers(self, version: int) -> None:
        """Removes directories of a process that was killed before it linked them."""
        current = self.path(version).resolve()
        for generation in self._own.glob(f"{version}-*"):
            if generation.resolve() != current:
                shutil.rmtree(generation, ignore_errors=True)

    def point_to(self, version: int, directory: Path) -> None:
        """From now on readers find the version there."""
        before = self.path(version).resolve()
        _link(str(directory.relative_to(self._root)), self.path(version))
        if before != directory.resolve() and before.parent == self._own.resolve():
            shutil.rmtree(before, ignore_errors=True)

    @contextmanager
    def locked(self, *, makes: bool = False) -> Iterator[None]:
        if makes:
            self._own.mkdir(parents=True, exist_ok=True)
        path = self._own / "lock"
        deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
        if not self._own.is_dir():
            raise StoreRefused(f"{self.target.name} has no versions")
        with path.open("a+") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        lock.seek(0)
                        raise StoreUnreachable(
                            f"{path} is held by process {lock.read() or '?'}",
                            detail="it was stopped while it wrote, or still writes",
                            hint="end that process",
                        ) from None
                    time.sleep(0.002)
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def _registry(self) -> dict[str, Any]:
        try:
            registry: dict[str, Any] = json.loads((self._own / "owner.json").read_bytes())
            return registry
        except FileNotFoundError:
            return {}

    def _live(self) -> int | None:
        try:
            return int(os.readlink(self._root / self.target.name).rpartition("__v")[2])
        except (FileNotFoundError, ValueError):
            return None

    def _make(self, version: int, epoch: int, fields: pa.Schema) -> None:
        for left in self._own.glob(f"{version}-*"):  # of a `_make` that was killed
            shutil.rmtree(left)
        directory = self.generation(version, epoch)
        index = _new_index(directory, fields, self.analysis)
        writer = _index_writer(index)
        put_state(writer, None, fields, self.analysis)
        writer.commit()
        writer.wait_merging_threads()
        self.point_to(version, directory)

    def _check_owner(self, registry: dict[str, Any]) -> None:
        if registry and registry["owner"] != self.target.owner:
            raise StoreRefused(
                f"{self.target.name} belongs to {registry['owner']}",
                detail=f"{self.target.owner} would write into it too",
                hint="give one of the two another name",
            )

    def _check_version(self, version: int) -> dict[str, Any]:
        registry = self._registry()
        self._check_owner(registry)
        if str(version) not in registry.get("epochs", {}):
            raise StoreRefused(f"{self.target.name} has no version {version}")
        return registry

    def _check_free(self, name: str) -> None:
        path = self._root / name
        is_own = path.is_symlink() and self._own.resolve() in path.resolve().parents
        if os.path.lexists(path) and not is_own:
            raise StoreRefused(
                f"{path} exists already, and no pipeline wrote it",
                hint="move it away, or write to another name",
            )


class TantivyWriter(Writer):
    def __init__(self, store: TantivyStore, version: int, epoch: int) -> None:
        self._store, self._version, self._epoch = store, version, epoch
        self._key = store.target.key
        self._writer: tantivy.IndexWriter | None = None

    def open(self, fields: pa.Schema) -> None:
        """Under the lock."""
        found = Snapshot.of(self._store.path(self._version))
        self.position, self._fields = found.position, found.fields
        wanted = evolved(found.fields, fields).fields
        self._store.remove_leftovers(self._version)
        try:
            self._writer = _index_writer(found.index)
        except ValueError as error:
            if "LockBusy" not in str(error):
                raise StoreUnreachable("the index cannot be written", detail=str(error)) from None
            self._writer = _index_writer(self._copied())
        if wanted != found.fields or self._store.analysis != found.analysis:
            directory = self._regenerated(wanted)
            self._store.point_to(self._version, directory)

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        with _sink_errors():
            self._check_epoch()
            if is_applied(self.position, batch):
                return
            columns = [name for name in batch.rows.column_names if name != OP]
            fields = evolved(self._fields, batch.rows.select(columns).schema).fields
            id_bytes = (0, LONGEST_ID_BYTES)
            documents = documents_of(batch.rows, self._key, fields, refuse, id_bytes)
            if fields != self._fields:
                directory = self._regenerated(fields)
                with self._store.locked():
                    self._check_epoch()
                    self._store.point_to(self._version, directory)
            self._commit(documents, batch.position())
            self._check_epoch()
            self.position = batch.position()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(ValueError):  # files of a fenced writer may be removed
                writer.wait_merging_threads()

    def _check_epoch(self) -> None:
        epoch = self._store.epoch(self._version)
        if epoch != self._epoch:
            raise Fenced(
                f"another process writes version {self._version} of {self._store.target.name} now",
                detail=f"its epoch is {epoch or 'missing'}, this process had {self._epoch}",
            )

    def _commit(self, documents: Documents, position: Position) -> None:
        writer = self._writer
        if writer is None:
            raise StoreUnreachable("this writer has failed before")
        try:
            if documents.clears:
                writer.delete_documents_by_query(tantivy.Query.all_query())
            for ids in (documents.deletes, documents.ids):
                for id_ in ids.to_pylist():
                    writer.delete_documents_by_term(ID, id_)
            _add(writer, documents, self._store.analysis)
            put_state(writer, position, self._fields, self._store.analysis)
            writer.commit()
        except ValueError as error:
            self._writer = None  # drops what it buffered of the batch
            self._check_epoch()  # its directory may have been removed
            raise StoreUnreachable("the index cannot be written", detail=str(error)) from None

    def _regenerated(self, fields: pa.Schema) -> Path:
        """Copies rows and position into a new index with these fields; returns its directory."""
        analysis = self._store.analysis
        before = Snapshot.of(self._store.path(self._version))
        directory = self._store.generation(self._version, self._epoch)
        writer = _index_writer(_new_index(directory, fields, analysis))
        for page in before.all_rows():
            rows = fitted(pa.Table.from_batches([page]), fields)
            _add(writer, documents_of(rows, self._key, fields, None), analysis)
        put_state(writer, before.position, fields, analysis)
        writer.commit()
        self.close()
        self._writer, self._fields = writer, fields
        return directory

    def _copied(self) -> tantivy.Index:
        """Copies the index to a directory of its own: the old writer may still run, and merge files
        in the background. If some disappear meanwhile, it is copied again.
        """
        source = self._store.path(self._version).resolve()
        while True:
            directory = self._store.generation(self._version, self._epoch)
            directory.mkdir()
            with suppress(FileNotFoundError, StoreRefused):
                shutil.copy(source / "meta.json", directory)
                names = [file.name for file in source.iterdir() if file.name[0] != "."]
                for name in names:
                    if name != "meta.json":
                        os.link(source / name, directory / name)
                _replace(directory / ".managed.json", names)
                found = Snapshot.of(directory)
                self._store.point_to(self._version, directory)
                return found.index
            shutil.rmtree(directory)


def _new_index(directory: Path, fields: pa.Schema, analysis: Analysis) -> tantivy.Index:
    directory.mkdir()
    index = tantivy.Index(schema_of(fields, analysis), str(directory))
    register(index, analysis)
    return index


def _index_writer(index: tantivy.Index) -> tantivy.IndexWriter:
    return index.writer(_HEAP_BYTES, 1)


def _add(writer: tantivy.IndexWriter, documents: Documents, analysis: Analysis) -> None:
    for document in index_documents(documents, analysis):
        writer.add_json(document)


def _link(to: str, path: Path) -> None:
    """Replaces the link at once for every reader."""
    new = path.with_name(f".{path.name}.{os.getpid()}.link")
    new.unlink(missing_ok=True)
    new.symlink_to(to)
    new.replace(path)
    _sync(path.parent)


def _replace(path: Path, contents: Any) -> None:
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        json.dump(contents, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _sink_errors() -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise StoreRefused("the directory of the index cannot be used", detail=str(error)) from None
    except OSError as error:
        raise StoreUnreachable(
            "the directory of the index cannot be used now", detail=str(error)
        ) from None
