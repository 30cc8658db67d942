"""The seam of state files: directories of a file system, or prefixes of an object store.

Files never change: a name is written once, except manifests and records, whose last version counts.
Everything that operators store goes through `StateDirectory`, in the driver and in tasks. A `Path`
stands for a directory of the file system wherever one is expected.
"""

import contextlib
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from headwater import extras
from headwater.log.disk.files import Files
from headwater.pipelines.state_url import SCHEME, StateUrl


class StateDirectory(ABC):
    """A directory of state files. Methods raise OSError: FileNotFoundError if a file is missing,
    any other one with an errno if trying again may help.
    """

    cleanup_every: int = 1  # batches, of a write in the driver: how often it removes old files
    write_hint: str = "is the disk full?"

    @abstractmethod
    def __truediv__(self, name: str) -> "StateDirectory": ...

    @abstractmethod
    def __str__(self) -> str:
        """As in messages, and as tasks report it to the driver."""

    @property
    @abstractmethod
    def address(self) -> str:
        """What `state_directory` opens in another process."""

    @abstractmethod
    def create(self) -> None: ...

    @abstractmethod
    def exists(self) -> bool:
        """An object store has no directories, so there every one exists."""

    @abstractmethod
    def write(self, name: str, content: bytes | memoryview) -> None:
        """Whole or not at all; replaces a file of that name. It is durable when `sync` returns."""

    @abstractmethod
    def sync(self, *, parents: int = 0) -> None:
        """Makes all names in it durable, and those in so many directories above it."""

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    @abstractmethod
    def map(self, file: str) -> pa.NativeFile:
        """An immutable file, memory-mapped. Buffers that were read from it stay usable when it is
        closed or removed. `file` may be a path below the directory.
        """

    @abstractmethod
    def has(self, name: str) -> bool: ...

    @abstractmethod
    def size_bytes(self, file: str) -> int:
        """Of an immutable file."""

    @abstractmethod
    def names(self) -> list[str]:
        """Of the files in it; of directories, too, if they are of a file system."""

    @abstractmethod
    def directories(self) -> list[str]:
        """Names of the directories in it; none if it does not exist."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Files that do not exist are no error."""

    @abstractmethod
    def remove_all(self) -> None:
        """With everything below it."""


class LocalDirectory(StateDirectory):
    """A directory of a file system, which all machines of a cluster have to share."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._files = files or Files()

    def __truediv__(self, name: str) -> "LocalDirectory":
        return LocalDirectory(self._path / name, self._files)

    def __str__(self) -> str:
        return str(self._path)

    @property
    def address(self) -> str:
        return str(self._path.absolute())

    def create(self) -> None:
        self._files.makedirs(str(self._path))

    def exists(self) -> bool:
        return self._path.is_dir()

    def write(self, name: str, content: bytes | memoryview) -> None:
        path = str(self._path / name)
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

    def sync(self, *, parents: int = 0) -> None:
        path = self._path
        self._files.sync_directory(str(path))
        for _ in range(parents):
            path = path.parent
            self._files.sync_directory(str(path))

    def read(self, name: str) -> bytes:
        return self._files.read(str(self._path / name))

    def map(self, file: str) -> pa.NativeFile:
        return pa.memory_map(str(self._path / file))

    def has(self, name: str) -> bool:
        return (self._path / name).exists()

    def size_bytes(self, file: str) -> int:
        return self._files.size_bytes(str(self._path / file))

    def names(self) -> list[str]:
        return self._files.listdir(str(self._path))

    def directories(self) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self._path) if entry.is_dir()]
        except FileNotFoundError:
            return []

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._files.unlink(str(self._path / name))

    def remove_all(self) -> None:
        self._files.rmtree(str(self._path))


Location = Path | StateDirectory


def state_directory(location: Location | str, files: Files | None = None) -> StateDirectory:
    """`files`: of a directory of the file system; tests inject faults by it. Raises ConfigError if
    an address cannot be used, MissingExtra.
    """
    if isinstance(location, StateDirectory):
        return location
    if isinstance(location, str) and location.startswith(SCHEME):
        extras.require("state at s3://", "archive")
        from headwater.pipelines.operators.state.object_state import open_objects

        return open_objects(StateUrl.parse(location))
    return LocalDirectory(Path(location), files)
