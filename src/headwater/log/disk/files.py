"""The disk, behind a seam: every byte of the log is written, synced and read through `Files`.

`headwater.testing.FaultyFiles` is the other implementation; it fails and loses data on demand.

`OpenFiles` bounds the number of descriptors: a log of ten thousand partitions has thirty thousand
files, of which few are in use at a time.
"""

import contextlib
import errno
import itertools
import os
import re
import shutil
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

IOV_MAX = 1024  # Linux; more buffers than this in one call are refused


class Files:
    """The operating system's own files. Every method may raise OSError."""

    def open(self, path: str, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        return os.open(path, flags | os.O_CREAT if create else flags, 0o600)

    def open_directory(self, path: str) -> int:
        """For `sync_together`."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size_bytes(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_at_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        return os.pread(fd, size_bytes, position)

    def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
        """Reads what the page cache holds; -1 where it would have to wait for the disk."""
        try:
            return os.preadv(fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return -1
            raise

    def pread_into(self, fd: int, buffer: memoryview, position: int) -> int:
        return os.preadv(fd, [buffer], position)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """Writes all of `data`; a disk that takes only a part of it raises on the rest."""
        view = memoryview(data)
        while len(view) > 0:
            written = os.pwrite(fd, view, position)
            view = view[written:]
            position += written

    def pwritev(self, fd: int, parts: Sequence[memoryview], position: int) -> None:
        """Writes all of `parts`, one behind the other."""
        for start in range(0, len(parts), IOV_MAX):
            some = parts[start : start + IOV_MAX]
            size_bytes = sum(map(len, some))
            written = os.pwritev(fd, some, position)
            if written < size_bytes:
                self.pwrite(fd, b"".join(some)[written:], position + written)
            position += size_bytes

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def can_sync_together(self) -> bool:
        """Whether `sync_together` is one call. Linux reports errors by it since 5.8 only."""
        if sys.platform != "linux":
            return False
        major, minor = os.uname().release.split(".")[:2]
        return (int(major), int(re.sub(r"\D.*", "", minor))) >= (5, 8)

    def sync_together(self, root_fd: int, paths: Sequence[str]) -> None:
        """Makes all of the files last, and whatever else lies on the file system of `root_fd`.

        On OSError, any of them may not have. `root_fd` has been open since before they were
        written, and one thread at a time uses it: Linux reports an error once to each open
        description, so that of two threads with the same one only the first would learn of it.
        """
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(root_fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def truncate(self, fd: int, size_bytes: int) -> None:
        if os.fstat(fd).st_size != size_bytes:  # a journalling file system records even no change
            os.ftruncate(fd, size_bytes)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def makedirs(self, path: str) -> None:
        """For the owner alone, as the files: the names in it are those of topics."""
        os.makedirs(path, 0o700, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """Gives a file a second name."""
        os.link(source, target)

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def rmtree(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def sync_directory(self, path: str) -> None:
        """Makes creations, renames and removals in `path` last."""
        fd = self.open_directory(path)
        try:
            os.fsync(fd)
        finally:
            self.close(fd)

    def write_atomically(self, path: str, data: bytes, *, temporary: str | None = None) -> None:
        """Replaces `path` so that a crash leaves the old contents or the new, whole."""
        temporary = temporary or path + ".tmp"
        self.unlink(temporary)  # of one that failed: it may still have an error to report
        fd = self.open(temporary, create=True)
        try:
            self.truncate(fd, 0)
            self.pwrite(fd, data, 0)
            self.fdatasync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def allocate(self, path: str, size_bytes: int) -> None:
        """A file that has its blocks, whatever is in them."""
        fd = self.open(path, create=True)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        finally:
            self.close(fd)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize


class OpenFiles:
    """Descriptors by path, least recently used closed first. Safe to use from several threads.

    A descriptor in use (inside `use`) is never closed, so under a burst the bound is exceeded by
    at most the number of uses at that moment.
    """

    def __init__(self, files: Files, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[str, list[int]] = OrderedDict()  # path -> [fd, uses]

    def __len__(self) -> int:
        return len(self._open)

    @contextlib.contextmanager
    def use(self, path: str, *, create: bool = False) -> Iterator[int]:
        with self._lock:
            entry = self._open.get(path)
            if entry is None:
                entry = self._open[path] = [self._files.open(path, create=create), 1]
                self._close_idle()
            else:
                self._open.move_to_end(path)
                entry[1] += 1
        try:
            yield entry[0]
        finally:
            with self._lock:
                entry[1] -= 1
                # `forget` may have dropped the path meanwhile: the last user closes.
                is_last = entry[1] == 0 and self._open.get(path) is not entry
            if is_last:
                self._files.close(entry[0])

    def forget(self, path: str) -> None:
        """Closes the descriptor, because the file was renamed, replaced or removed.

        Outside the lock: the last descriptor of a removed file gives its blocks back, which takes
        a while, and the event loop uses files too.
        """
        with self._lock:
            entry = self._open.pop(path, None)
            is_idle = entry is not None and entry[1] == 0
        if entry is not None and is_idle:
            self._files.close(entry[0])

    def forget_in(self, directories: Collection[str]) -> None:
        """The same for all that lies in these directories: they have other names now."""
        wanted = set(directories)
        with self._lock:
            paths = [path for path in self._open if os.path.dirname(path) in wanted]
        for path in paths:
            self.forget(path)

    def close(self) -> None:
        with self._lock:
            for fd, uses in self._open.values():
                if uses == 0:
                    self._files.close(fd)
            self._open.clear()

    def _close_idle(self) -> None:
        excess = len(self._open) - self._limit
        if excess <= 0:
            return
        idle = (path for path, entry in self._open.items() if entry[1] == 0)
        for path in list(itertools.islice(idle, excess)):
            self._files.close(self._open.pop(path)[0])
