"""A file system that fails and loses data on demand, for tests of what stores data in one.

    files = FaultyFiles()
    store = LogStore(path, clock, files=files)
    files.fail_syncs()                    # the next sync raises EIO, and its pages are lost
    files.fail_writeback()                # what is dirty is lost; the next syncs report it, once
    files.room_bytes = 100                # the disk takes 100 more bytes, then it is full
    files.die(after=7)                    # the process dies at the 8th change from now
    files.power_cut(random.Random(1))     # what was not synced may be lost

The files lie in a real directory, so that they can be inspected. Beside them, in memory, is a
model of what the disk is sure to have (disk_model.py): the contents of each file as of its last
sync and the names in each directory as of its last `sync_directory`. It is meant for logs of some
megabytes.

Errors of writeback are reported as Linux (4.16 and newer) does: a failed page counts as clean, so
that no later sync writes it; the error is reported once to each open file description that was
open before, by its next sync, and to one that is opened later only while no other has seen it. The
same holds for `sync_together` and the errors of the whole file system.

What lay in the directory before counts as synced. Safe to use from several threads.
"""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from headwater.log.disk.files import Files
from headwater.testing.disk_model import (
    Directory,
    DiskFile,
    DiskModel,
    Truncate,
    Write,
    WritebackErrors,
    apply,
    persist_some,
)


@dataclass(eq=False, slots=True)
class _Description:
    """An open file description, and the errors that were reported to it."""

    path: str
    file: DiskFile
    since: int


class _Fault:
    """The calls between the `after`-th and the (`after` + `count`)-th from now fail."""

    def __init__(self) -> None:
        self._after = self._count = 0

    def arm(self, after: int, count: int) -> None:
        self._after, self._count = after, count

    def strikes(self) -> bool:
        if self._count == 0:
            return False
        if self._after > 0:
            self._after -= 1
            return False
        self._count -= 1
        return True


class FaultyFiles(Files):
    """See the module. Without a fault asked for, it is `Files`.

    `room_bytes`: by how much files may still grow before ENOSPC; shrinking and removing them gives
    room back. None: without bound.
    `before_sync`: called with a file's path before it is synced; it may block, or raise OSError.
    `drops_pages`: what a failed writeback did not write leaves the page cache, too: readers get
    what the disk has.
    `operations`: changes and syncs so far, the unit in which `die` counts.
    """

    def __init__(self, seed: int = 0) -> None:
        self.room_bytes: int | None = None
        self.before_sync: Callable[[str], None] | None = None
        self.drops_pages = False
        self.operations = 0
        self._dies_at: int | None = None
        self._random = Random(seed)  # noqa: S311 (faults, not secrets)
        self._lock = threading.RLock()
        self._disk = DiskModel()
        self._by_fd: dict[int, _Description] = {}
        self._dirty: dict[DiskFile, str] = {}  # with the path by which it was written to
        self._errors = WritebackErrors()  # of the whole file system
        self._root_fds: dict[int, int] = {}  # which of them were reported to each
        self._writes, self._syncs, self._reads = _Fault(), _Fault(), _Fault()
        self._write_error, self._partial_bytes = errno.EIO, 0

    # ── asking for faults ─────────────────────────────────────────────────────────────────────

    def fail_writes(
        self, count: int = 1, *, after: int = 0, error: int = errno.EIO, partial_bytes: int = 0
    ) -> None:
        """`count` writes fail, behind `after` that do not; `partial_bytes` of each get through."""
        with self._lock:
            self._writes.arm(after, count)
            self._write_error, self._partial_bytes = error, partial_bytes

    def fail_syncs(self, count: int = 1, *, after: int = 0) -> None:
        """`count` syncs of files fail with EIO, behind `after` that do not.

        As on Linux, what they should have written then counts as clean: part of it is on the
        disk, part is not, and a later sync succeeds without writing it.
        """
        with self._lock:
            self._syncs.arm(after, count)

    def fail_writeback(self) -> None:
        """The system writes back all that is dirty, by itself, and fails: a part is on the disk,
        the rest never will be. No call raises now; the next syncs do (see the module).
        """
        with self._lock:
            for file in list(self._dirty):
                self._lose(file)

    def _lose(self, file: DiskFile) -> None:
        path = self._dirty.pop(file, None)
        persist_some(file, self._random, 0.5)
        file.errors.add()
        self._errors.add()
        if self.drops_pages and path is not None and os.path.exists(path):
            with open(path, "r+b") as live:
                size_bytes = os.fstat(live.fileno()).st_size
                live.write(file.synced.ljust(size_bytes, b"\0")[:size_bytes])

    def fail_reads(self, count: int = 1, *, after: int = 0) -> None:
        """`count` reads fail with EIO, behind `after` that do not."""
        with self._lock:
            self._reads.arm(after, count)

    def repair(self) -> None:
        """Ends every fault that was asked for; the disk has room again, too."""
        with self._lock:
            for fault in (self._writes, self._syncs, self._reads):
                fault.arm(0, 0)
            self.room_bytes, self._dies_at = None, None

    mend = repair  # the name that it had at first

    def die(self, *, after: int = 0) -> None:
        """Behind `after` more changes nothing reaches the files: every call raises EIO.

        That is a process killed in the middle of its work. `revive` or `power_cut` ends it.
        """
        with self._lock:
            self._dies_at = self.operations + after

    @property
    def is_dead(self) -> bool:
        """Whether the last change that `die` allowed has been made."""
        with self._lock:
            return self._dies_at is not None and self.operations >= self._dies_at

    def revive(self) -> None:
        """The next process: what the dead one had written is in the page cache still."""
        with self._lock:
            self._dies_at = None

    def power_cut(self, random: Random) -> None:
        """Loses what was not synced, as far as `random` decides.

        Every file goes back to its synced contents, plus any part of what was written since, torn
        at sectors; names made, moved or removed since their directory was synced are there or
        not. The process that used the files must have stopped. What is left counts as synced.
        """
        with self._lock:
            self._disk.power_cut(random)
            self._by_fd.clear()
            self._dirty.clear()
            self._root_fds.clear()
            self._dies_at = None

    def _step(self) -> None:
        """Counts a change; raises if the process is dead by now."""
        if self._dies_at is not None and self.operations >= self._dies_at:
            raise OSError(errno.EIO, "the process is dead")
        self.operations += 1

    def _give_back(self, size_bytes: int) -> None:
        if self.room_bytes is not None:
            self.room_bytes += size_bytes

    # ── Files ─────────────────────────────────────────────────────────────────────────────────

    def open(self, path: str, *, create: bool = False) -> int:
        with self._lock:
            directory, name, node = self._disk.entry(path)
            if node is None and create:
                self._step()
            fd = super().open(path, create=create)
            if node is None:
                node = DiskFile(bytearray())
                directory.live[name] = node
                directory.changes.append(((name, node),))
            assert isinstance(node, DiskFile), path
            self._by_fd[fd] = _Description(path, node, node.errors.sample())
            return fd

    def open_directory(self, path: str) -> int:
        with self._lock:
            fd = super().open_directory(path)
            self._root_fds[fd] = self._errors.sample()
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._by_fd.pop(fd, None)
            self._root_fds.pop(fd, None)
            super().close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        with self._lock:
            self._step()
            data = bytes(data)
            allowed, error = self._allowed(fd, len(data), position)
            if allowed:
                growth = max(position + allowed - os.fstat(fd).st_size, 0)
                super().pwrite(fd, data[:allowed], position)
                self._give_back(-growth)
                self._changed(fd, Write(position, data[:allowed]))
            if error:
                raise OSError(error, os.strerror(error))

    def _changed(self, fd: int, change: Write | Truncate) -> None:
        opened = self._by_fd[fd]
        opened.file.changes.append(change)
        self._dirty[opened.file] = opened.path

    def pwritev(self, fd: int, parts: Sequence[memoryview], position: int) -> None:
        self.pwrite(fd, b"".join(parts), position)

    def _allowed(self, fd: int, size_bytes: int, position: int) -> tuple[int, int]:
        """(bytes that get through, the error that follows)"""
        if self._writes.strikes():
            return min(self._partial_bytes, size_bytes), self._write_error
        if self.room_bytes is not None:
            room_bytes = os.fstat(fd).st_size + self.room_bytes - position
            if room_bytes < size_bytes:
                return max(room_bytes, 0), errno.ENOSPC
        return size_bytes, 0

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            opened = self._by_fd[fd]
        self._write_back(opened.path, opened.file)
        with self._lock:
            failed = opened.file.errors.check(opened.since)
            opened.since = opened.file.errors.count
        if failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _write_back(self, path: str, file: DiskFile) -> None:
        if self.before_sync is not None:
            self.before_sync(path)
        with self._lock:
            self._step()
            if self._syncs.strikes():
                self._lose(file)
                return
            for change in file.changes:
                apply(file.synced, change)
            file.changes.clear()
            self._dirty.pop(file, None)

    def can_sync_together(self) -> bool:
        return True

    def sync_together(self, root_fd: int, paths: Sequence[str]) -> None:
        for path in paths:
            with self._lock:
                _, _, node = self._disk.entry(path)
            assert isinstance(node, DiskFile), path
            self._write_back(path, node)
        with self._lock:
            others = list(self._dirty.items())
        for file, path in others:  # a sync of the file system takes all that is dirty
            self._write_back(path, file)
        with self._lock:
            failed = self._errors.check(self._root_fds[root_fd])
            self._root_fds[root_fd] = self._errors.count
        if failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def truncate(self, fd: int, size_bytes: int) -> None:
        with self._lock:
            self._step()
            before_bytes = os.fstat(fd).st_size
            super().truncate(fd, size_bytes)
            if size_bytes != before_bytes:
                self._give_back(before_bytes - size_bytes)
                self._changed(fd, Truncate(size_bytes))

    def makedirs(self, path: str) -> None:
        with self._lock:
            if os.path.isdir(path):
                return
            parent, name = os.path.split(os.path.abspath(path))
            self.makedirs(parent)
            self._step()
            directory, made = self._disk.directory(parent), Directory()
            os.mkdir(path)
            directory.live[name] = made
            directory.changes.append(((name, made),))

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._step()
            if os.path.isdir(source):
                self._disk.load_tree(source)
            old, old_name, node = self._disk.entry(source)
            new, new_name, replaced = self._disk.entry(target)
            if isinstance(replaced, DiskFile) and os.stat(target).st_nlink == 1:
                self._give_back(os.stat(target).st_size)
            super().rename(source, target)
            assert node is not None, source
            del old.live[old_name]
            new.live[new_name] = node
            if old is new:
                old.changes.append(((old_name, None), (new_name, node)))
            else:
                old.changes.append(((old_name, None),))
                new.changes.append(((new_name, node),))

    def link(self, source: str, target: str) -> None:
        with self._lock:
            self._step()
            _, _, node = self._disk.entry(source)
            directory, name, _ = self._disk.entry(target)
            super().link(source, target)
            assert node is not None, source
            directory.live[name] = node
            directory.changes.append(((name, node),))

    def unlink(self, path: str) -> None:
        with self._lock:
            directory, name, node = self._disk.entry(path)
            if node is None:
                return
            self._step()
            status = os.stat(path)
            super().unlink(path)
            if status.st_nlink == 1:
                self._give_back(status.st_size)
            del directory.live[name]
            directory.changes.append(((name, None),))

    def rmtree(self, path: str) -> None:
        with self._lock:
            if not os.path.isdir(path):
                return
            for name in os.listdir(path):
                child = os.path.join(path, name)
                if os.path.isdir(child):
                    self.rmtree(child)
                else:
                    self.unlink(child)
            directory, name, _ = self._disk.entry(path)
            self._step()
            os.rmdir(path)
            del directory.live[name]
            directory.changes.append(((name, None),))

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._step()
            directory = self._disk.directory(path)
            directory.synced = dict(directory.live)
            directory.changes.clear()

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        self._check_read()
        return super().pread(fd, size_bytes, position)

    def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
        self._check_read()
        return super().pread_cached(fd, buffer, position)

    def pread_into(self, fd: int, buffer: memoryview, position: int) -> int:
        self._check_read()
        return super().pread_into(fd, buffer, position)

    def read(self, path: str) -> bytes:
        self._check_read()
        return super().read(path)

    def _check_read(self) -> None:
        with self._lock:
            if self._reads.strikes():
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    def allocate(self, path: str, size_bytes: int) -> None:
        """Takes room; the contents of the file have no meaning and are not a part of the model."""
        with self._lock:
            self._step()
            if self.room_bytes is not None and self.room_bytes < size_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with open(path, "wb") as file:
                file.truncate(size_bytes)
            self._give_back(-size_bytes)

    def free_bytes(self, path: str) -> int:
        return super().free_bytes(path) if self.room_bytes is None else self.room_bytes
