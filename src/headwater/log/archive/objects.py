"""The interface of an object store, and its implementation by a directory.

Names are paths with "/". An object is there as a whole or not at all, and lasts once `put` has
returned. Whatever goes wrong, except a bug, is ArchiveUnavailable: trying again may help.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from headwater import extras
from headwater.errors import ArchiveUnavailable, ConfigError
from headwater.log.disk.files import Files
from headwater.log.disk.workers import Workers

T = TypeVar("T")

THREADS = 4


class Objects(Protocol):
    """An object store, or a part of one."""

    url: str

    async def put(self, name: str, parts: AsyncIterator[bytes]) -> None:
        """Stores an object, and replaces one of that name; durable when it returns."""
        ...

    async def get(self, name: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to, not including, `end`."""
        ...

    async def names(self, prefix: str) -> list[str]:
        """The names of all objects under the folder `prefix`."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Deletes objects; those that do not exist are no error."""
        ...

    def close(self) -> None: ...


def open_objects(url: str, *, endpoint: str | None, region: str | None) -> Objects:
    """The object store at "file:///…" or "s3://bucket/prefix". Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return DirectoryObjects(unquote(parts.path))
    if parts.scheme == "s3" and parts.netloc:
        extras.require("an archive at s3://", "archive")
        from headwater.log.archive.s3 import S3Objects

        return S3Objects(parts.netloc, parts.path.strip("/"), endpoint=endpoint, region=region)
    raise ConfigError(
        "the archive's address is not understood",
        detail=url,
        hint='archive = "file:///mnt/archive" or "s3://bucket/prefix"',
    )


class DirectoryObjects:
    """A directory: another disk, or one of another machine. It has threads of its own, because
    such a file system may hang, and nothing else must wait for it.
    """

    def __init__(self, path: str, files: Files | None = None) -> None:
        self.url = f"file://{path}"
        self._root = path.rstrip("/") or "/"
        self._files = files or Files()
        self._workers = Workers("archive", THREADS)

    async def put(self, name: str, parts: AsyncIterator[bytes]) -> None:
        path = f"{self._root}/{name}"
        temporary = path + ".tmp"
        fd = await self._run(self._begin, temporary)
        try:
            position = 0
            async for part in parts:
                await self._run(self._files.pwrite, fd, part, position)
                position += len(part)
            await self._run(self._files.fdatasync, fd)
        finally:
            await self._run(self._files.close, fd)
        await self._run(self._files.rename, temporary, path)
        await self._run(self._files.sync_directory, os.path.dirname(path))

    async def get(self, name: str, start: int, end: int) -> bytes:
        return await self._run(self._read, f"{self._root}/{name}", start, end)

    async def names(self, prefix: str) -> list[str]:
        return await self._run(self._walk, prefix)

    async def delete(self, names: Sequence[str]) -> None:
        await self._run(self._delete, names)

    def close(self) -> None:
        self._workers.close()

    def _begin(self, path: str) -> int:
        """(thread) Opens a file, making its directories so that they last."""
        missing = []
        directory = os.path.dirname(path)
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        if missing:
            self._files.makedirs(missing[0])
            for created in missing:
                self._files.sync_directory(os.path.dirname(created))
        fd = self._files.open(path, create=True)
        self._files.truncate(fd, 0)
        return fd

    def _read(self, path: str, start: int, end: int) -> bytes:
        """(thread)"""
        fd = self._files.open(path)
        try:
            return self._files.pread(fd, end - start, start)
        finally:
            self._files.close(fd)

    def _walk(self, prefix: str) -> list[str]:
        """(thread)"""
        top = f"{self._root}/{prefix}"
        if not os.path.isdir(top):
            os.stat(self._root)  # a disk that is not mounted is not an empty archive
            return []
        found = []
        for name in self._files.listdir(top):
            inner = f"{prefix}/{name}"
            found += self._walk(inner) if os.path.isdir(f"{top}/{name}") else [inner]
        return found

    def _delete(self, names: Sequence[str]) -> None:
        """(thread) Also the folders that are empty then."""
        os.stat(self._root)
        directories = {os.path.dirname(f"{self._root}/{name}") for name in names}
        for name in names:
            self._files.unlink(f"{self._root}/{name}")
        for directory in directories:
            empty = directory
            with contextlib.suppress(FileNotFoundError):
                while empty != self._root and not self._files.listdir(empty):
                    self._files.rmtree(empty)
                    empty = os.path.dirname(empty)
                self._files.sync_directory(empty)

    async def _run(self, job: Callable[..., T], *args: Any) -> T:
        def run() -> T:
            try:
                return job(*args)
            except OSError as error:
                raise ArchiveUnavailable(
                    "the archive's directory fails", detail=f"{self._root}: {error}"
                ) from error

        return await self._workers.run(run)
