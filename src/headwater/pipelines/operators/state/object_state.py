"""State files in an S3-compatible object store, with a cache of immutable files on the local disk.

A PUT is atomic and durable when it returns, and lists show it at once (as S3, R2, MinIO and Ceph
promise), so there are no temporary names and nothing to sync. Two attempts of a batch do not
collide: files of tables have a random name each; of a manifest or a record the last PUT counts,
whose tables were all stored before it.

Manifests and records are read from the store each time. Files of tables never change and are
cached: in tasks below the executor's local directory, shared by its Python workers and removed by
Spark; in the driver in a temporary directory.
"""

import atexit
import contextlib
import errno
import functools
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError
from obstore.store import MemoryStore, S3Store

from headwater.errors import ConfigError
from headwater.log.archive.s3 import open_bucket, short_error
from headwater.pipelines.operators.state.state_store import StateDirectory
from headwater.pipelines.state_url import StateUrl

_Result = TypeVar("_Result")

CACHE_BYTES: Final = 2 << 30
_EVICT_AFTER_FILES: Final = 256  # that were added: looking through the cache takes a while
_MOST_FILES: Final = 16_384  # cached
_SIZES: Final = 10_000  # that are cached
_LOCAL_DIRS: Final = "SPARK_LOCAL_DIRS"  # Spark sets it for Python workers
_CACHE: Final = "headwater-state"


class ObjectUnavailable(OSError):
    """The object store refuses, or does not answer: trying again may help."""

    def __init__(self, detail: str) -> None:
        super().__init__(errno.EIO, detail)

    def __str__(self) -> str:
        return str(self.strerror)


class ObjectStore:
    """A bucket, and the cache of its immutable objects. Safe to use from several threads.

    Every method raises FileNotFoundError if an object is missing, else ObjectUnavailable.
    """

    def __init__(self, store: S3Store | MemoryStore, cache: "FileCache") -> None:
        self._store = store
        self.cache = cache
        self.sizes: dict[str, int] = {}  # of immutable objects, by key

    def put(self, key: str, content: bytes | memoryview) -> None:
        # Arrow's bytes are signed, which the client does not take for bytes.
        self._request(obstore.put, key, memoryview(content).cast("B"))

    def get(self, key: str) -> bytes:
        return self._request(lambda store, name: bytes(obstore.get(store, name).bytes()), key)

    def head(self, key: str) -> int:
        """Its size."""
        return int(self._request(obstore.head, key)["size"])

    def entries(self, prefix: str) -> tuple[dict[str, int], list[str]]:
        """Sizes of the objects directly below the prefix, by key, and the prefixes below it."""
        found: Any = self._request(obstore.list_with_delimiter, prefix)
        objects = {entry["path"]: int(entry["size"]) for entry in found["objects"]}
        return objects, list(found["common_prefixes"])

    def keys(self, prefix: str) -> list[str]:
        """Keys of all objects below the prefix."""
        found = self._request(lambda store, name: obstore.list(store, name).collect(), prefix)
        return [entry["path"] for entry in found]

    def delete(self, keys: list[str]) -> None:
        """Objects that do not exist are no error."""
        with contextlib.suppress(FileNotFoundError):
            self._request(obstore.delete, keys)

    def _request(self, call: Callable[..., _Result], *args: Any) -> _Result:
        try:
            return call(self._store, *args)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):  # which may be a mistake in the settings
                raise ObjectUnavailable(short_error(error)) from None
            raise FileNotFoundError(errno.ENOENT, "no such object", args[0]) from None
        except (BaseError, OSError) as error:
            raise ObjectUnavailable(short_error(error)) from None


class ObjectDirectory(StateDirectory):
    """A prefix of a bucket."""

    cleanup_every = 16  # two requests more, and only space depends on it
    write_hint = "does the object store answer?"

    def __init__(self, store: ObjectStore, url: StateUrl) -> None:
        self._store = store
        self._url = url

    def __truediv__(self, name: str) -> "ObjectDirectory":
        return ObjectDirectory(self._store, self._url / name)

    def __str__(self) -> str:
        return str(self._url)

    @property
    def address(self) -> str:
        return self._url.address

    def create(self) -> None:
        pass

    def exists(self) -> bool:
        return True

    def write(self, name: str, content: bytes | memoryview) -> None:
        key = self._key(name)
        self._store.put(key, content)
        if _is_immutable(name):
            self._store.cache.add(key, content)
            self._remember({key: len(content)})

    def sync(self, *, parents: int = 0) -> None:
        pass

    def read(self, name: str) -> bytes:
        return self._store.get(self._key(name))

    def map(self, file: str) -> pa.NativeFile:
        key = self._key(file)
        cached = self._store.cache.map(key)
        if cached is not None:
            return cached
        content = self._store.get(key)
        self._store.cache.add(key, content)
        return self._store.cache.map(key) or pa.BufferReader(content)

    def has(self, name: str) -> bool:
        try:
            self._store.head(self._key(name))
        except FileNotFoundError:
            return False
        return True

    def size_bytes(self, file: str) -> int:
        key = self._key(file)
        size_bytes = self._store.sizes.get(key)
        if size_bytes is None:
            size_bytes = self._store.head(key)
            self._remember({key: size_bytes})
        return size_bytes

    def names(self) -> list[str]:
        objects, _ = self._store.entries(self._url.prefix)
        self._remember({key: size for key, size in objects.items() if _is_immutable(key)})
        return [key.rpartition("/")[2] for key in objects]

    def directories(self) -> list[str]:
        _, prefixes = self._store.entries(self._url.prefix)
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes]

    def remove(self, names: Iterable[str]) -> None:
        keys = [self._key(name) for name in names]
        self._remove(keys)

    def remove_all(self) -> None:
        self._remove(self._store.keys(self._url.prefix))

    def _remove(self, keys: list[str]) -> None:
        if not keys:
            return
        for key in keys:
            self._store.cache.drop(key)
            self._store.sizes.pop(key, None)
        self._store.delete(keys)

    def _remember(self, sizes: dict[str, int]) -> None:
        if len(self._store.sizes) > _SIZES:  # with many that others have removed
            self._store.sizes = {}
        self._store.sizes |= sizes

    def _key(self, name: str) -> str:
        return (self._url / name).prefix


class FileCache:
    """Immutable objects as files of a local directory, which several processes may share.

    About as many bytes as allowed, those unused longest are evicted first. A cache that cannot be
    written (a full disk) is no error: objects are then read from the store.
    """

    def __init__(self, directory: Path, bucket: str, limit_bytes: int = CACHE_BYTES) -> None:
        self.directory = directory
        self._bucket = bucket
        self._limit_bytes = limit_bytes
        self._added_files, self._added_bytes = 0, 0  # since the last eviction

    def map(self, key: str) -> pa.NativeFile | None:
        path = self._path(key)
        try:
            found = pa.memory_map(str(path))
            os.utime(path)  # used just now
        except OSError:
            return None
        return found

    def add(self, key: str, content: bytes | memoryview) -> None:
        path = self._path(key)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                temporary.write_bytes(content)
                temporary.rename(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            self._added_files += 1
            self._added_bytes += len(content)
            if (
                self._added_files >= _EVICT_AFTER_FILES
                or self._added_bytes >= self._limit_bytes // 8
            ):
                self._added_files, self._added_bytes = 0, 0
                self._evict()
        except OSError:
            pass

    def drop(self, key: str) -> None:
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def _evict(self) -> None:
        """Tables that are mapped stay usable."""
        files = []
        for entry in os.scandir(self.directory):
            with contextlib.suppress(FileNotFoundError):  # evicted by another process
                status = entry.stat()
                files.append((status.st_mtime_ns, status.st_size, entry.path))
        files.sort(reverse=True)
        total_bytes = 0
        for number, (_, size_bytes, path) in enumerate(files):
            total_bytes += size_bytes
            if total_bytes > self._limit_bytes or number >= _MOST_FILES:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def _path(self, key: str) -> Path:
        digest = hashlib.sha256(f"{self._bucket}/{key}".encode()).hexdigest()
        return self.directory / f"{digest[:40]}.arrow"


def open_objects(url: StateUrl) -> ObjectDirectory:
    """Makes no request. Raises ConfigError."""
    return ObjectDirectory(_store_of(url.bucket, url.endpoint, url.region), url)


@functools.cache
def _store_of(bucket: str, endpoint: str | None, region: str | None) -> ObjectStore:
    """One for all operators of a process."""
    try:
        store = open_bucket(bucket, None, endpoint=endpoint, region=region)
    except (BaseError, ValueError) as error:
        raise ConfigError(
            "the object store of operator state cannot be used", detail=short_error(error)
        ) from error
    cache = FileCache(cache_directory(), f"{endpoint}/{bucket}")
    return ObjectStore(store, cache)


@functools.cache
def cache_directory() -> Path:
    """Of this process: below the executor's directory in tasks, which Spark removes."""
    local = Path(os.environ.get(_LOCAL_DIRS, "").split(",")[0])
    if local.name.startswith("blockmgr-"):  # that of the executor whose Python worker this is
        return local / _CACHE
    created = Path(tempfile.mkdtemp(prefix=f"{_CACHE}-"))
    atexit.register(shutil.rmtree, created, ignore_errors=True)
    return created


def _is_immutable(name: str) -> bool:
    return name.endswith(".arrow")
