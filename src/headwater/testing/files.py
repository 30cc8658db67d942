"""A file system that fails and forgets on demand, for tests of whatever keeps its data in one.

    files = FaultyFiles()
    store = LogStore(path, clock, files=files)
    files.fail_syncs()                    # the next sync raises EIO, and its pages are lost
    files.fail_writeback()                # what is dirty is lost; the next syncs say so, once each
    files.room_bytes = 100                # the disk takes 100 more bytes, then it is full
    files.die(after=7)                    # the process is gone at the 8th change from now
    files.power_cut(random.Random(1))     # what was not synced may be gone

The files lie in a real directory, so that they can be looked at. Beside them, in memory, stands
what the disk is sure to have: the contents of each file as of its last sync and the names in each
directory as of its last `sync_directory`. It is meant for logs of some megabytes.

Errors of writeback are reported as Linux (4.16 and newer) does: a failed page counts as clean, so
that no later sync writes it; the error is reported once to each open file description that was
open before, by its next sync, and to one that is opened later only while no other has seen it. The
same holds for `sync_together` and the errors of the whole file system.

What lay in the directory before counts as synced. Safe to use from several threads.
"""

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from headwater.log.files import Files

SECTOR_BYTES = 512  # what a disk writes whole or not at all

# How much of what was not synced survives a power cut: nothing, some of it, nearly all, all.
_SURVIVAL = (0.0, 0.5, 0.9, 1.0)


class _Write(NamedTuple):
    position: int
    data: bytes


class _Truncate(NamedTuple):
    size_bytes: int


@dataclass(eq=False, slots=True)
class _Errors:
    """Writeback errors of one file or of the file system, as Linux counts them (lib/errseq.c)."""

    count: int = 0
    is_seen: bool = True

    def add(self) -> None:
        self.count += 1
        self.is_seen = False

    def sample(self) -> int:
        """What a new description starts from: an error that nobody has seen is ahead of it."""
        return self.count if self.is_seen else self.count - 1

    def check(self, since: int) -> bool:
        """Whether there was one since; it counts as seen from now on."""
        if since == self.count:
            return False
        self.is_seen = True
        return True


@dataclass(eq=False, slots=True)
class _File:
    """`synced` is on the disk; `changes` came after it, in order."""

    synced: bytearray
    changes: list[_Write | _Truncate] = field(default_factory=list)
    errors: _Errors = field(default_factory=_Errors)


@dataclass(eq=False, slots=True)
class _Description:
    """An open file, and up to where it has heard of errors."""

    path: str
    file: _File
    since: int


@dataclass(eq=False, slots=True)
class _Directory:
    """Names that are on the disk, names as the process sees them, and how they came about.

    A change (name, node) binds a name, (name, None) frees it. A rename is both, in one step.
    """

    synced: "dict[str, _Node]" = field(default_factory=dict)
    live: "dict[str, _Node]" = field(default_factory=dict)
    changes: "list[tuple[tuple[str, _Node | None], ...]]" = field(default_factory=list)


_Node = _File | _Directory


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
    `drops_pages`: what a failed writeback did not write is gone from the page cache, too: readers
    get what the disk has.
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
        self._root = _Directory()
        self._by_fd: dict[int, _Description] = {}
        self._dirty: dict[_File, str] = {}  # with the path by which it was written to
        self._errors = _Errors()  # of the whole file system
        self._root_fds: dict[int, int] = {}  # up to where each has heard of them
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

    def _lose(self, file: _File) -> None:
        path = self._dirty.pop(file, None)
        _persist_some(file, self._random, 0.5)
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

    def mend(self) -> None:
        """Takes back every fault asked for; also the disk has room again."""
        with self._lock:
            for fault in (self._writes, self._syncs, self._reads):
                fault.arm(0, 0)
            self.room_bytes, self._dies_at = None, None

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
        """Forgets what was not synced, as far as `random` decides.

        Every file goes back to its synced contents, plus any part of what was written since, torn
        at sectors; names made, moved or removed since their directory was synced are there or
        not. Whoever used the files must have stopped. What is left counts as synced.
        """
        with self._lock:
            survival = random.choice(_SURVIVAL)
            self._restore("/", self._root, random, survival)
            self._root = _Directory()
            self._by_fd.clear()
            self._dirty.clear()
            self._root_fds.clear()
            self._dies_at = None

    # ── the disk as it will be found ──────────────────────────────────────────────────────────

    def _restore(self, path: str, directory: _Directory, random: Random, survival: float) -> None:
        names = dict(directory.synced)
        touched = set(directory.synced) | set(directory.live)
        for change in directory.changes:
            touched.update(name for name, _ in change)
            if random.random() < survival:
                for name, node in change:
                    names.pop(name, None)
                    if node is not None:
                        names[name] = node
        for name in touched:
            self._restore_name(os.path.join(path, name), names.get(name), random, survival)

    def _restore_name(self, path: str, node: _Node | None, random: Random, survival: float) -> None:
        if isinstance(node, _Directory):
            os.makedirs(path, exist_ok=True)
            self._restore(path, node, random, survival)
        elif os.path.isdir(path):
            shutil.rmtree(path)
        elif node is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        else:
            _persist_some(node, random, survival)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(node.synced)

    # ── the model beside the real files ───────────────────────────────────────────────────────

    def _directory(self, path: str) -> _Directory:
        directory, at = self._root, "/"
        for name in os.path.abspath(path).split("/")[1:]:
            if not name:
                continue
            at = os.path.join(at, name)
            node = directory.live.get(name)
            if node is None:
                node = directory.live[name] = directory.synced[name] = _Directory()
            assert isinstance(node, _Directory), at
            directory = node
        return directory

    def _known(self, path: str) -> tuple[_Directory, str, _Node | None]:
        """(its directory, its name, what is there), taking in what lay there before."""
        parent, name = os.path.split(os.path.abspath(path))
        directory = self._directory(parent)
        node = directory.live.get(name)
        if node is None and os.path.lexists(path):
            node = self._taken_in(path)
            directory.live[name] = directory.synced[name] = node
        return directory, name, node

    def _taken_in(self, path: str) -> _Node:
        if not os.path.isdir(path):
            return _File(bytearray(super().read(path)))
        directory = _Directory()
        for name in os.listdir(path):
            node = self._taken_in(os.path.join(path, name))
            directory.live[name] = directory.synced[name] = node
        return directory

    def _take_in_whole(self, path: str) -> None:
        """Knows all that is in a directory, before the directory is moved or removed."""
        for name in os.listdir(path):
            child = os.path.join(path, name)
            self._known(child)
            if os.path.isdir(child):
                self._take_in_whole(child)

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
            directory, name, node = self._known(path)
            if node is None and create:
                self._step()
            fd = super().open(path, create=create)
            if node is None:
                node = _File(bytearray())
                directory.live[name] = node
                directory.changes.append(((name, node),))
            assert isinstance(node, _File), path
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
                self._changed(fd, _Write(position, data[:allowed]))
            if error:
                raise OSError(error, os.strerror(error))

    def _changed(self, fd: int, change: _Write | _Truncate) -> None:
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

    def _write_back(self, path: str, file: _File) -> None:
        if self.before_sync is not None:
            self.before_sync(path)
        with self._lock:
            self._step()
            if self._syncs.strikes():
                self._lose(file)
                return
            for change in file.changes:
                _apply(file.synced, change)
            file.changes.clear()
            self._dirty.pop(file, None)

    def can_sync_together(self) -> bool:
        return True

    def sync_together(self, root_fd: int, paths: Sequence[str]) -> None:
        for path in paths:
            with self._lock:
                _, _, node = self._known(path)
            assert isinstance(node, _File), path
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
                self._changed(fd, _Truncate(size_bytes))

    def makedirs(self, path: str) -> None:
        with self._lock:
            if os.path.isdir(path):
                return
            parent, name = os.path.split(os.path.abspath(path))
            self.makedirs(parent)
            self._step()
            directory, made = self._directory(parent), _Directory()
            os.mkdir(path)
            directory.live[name] = made
            directory.changes.append(((name, made),))

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._step()
            if os.path.isdir(source):
                self._take_in_whole(source)
            old, old_name, node = self._known(source)
            new, new_name, replaced = self._known(target)
            if isinstance(replaced, _File) and os.stat(target).st_nlink == 1:
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
            _, _, node = self._known(source)
            directory, name, _ = self._known(target)
            super().link(source, target)
            assert node is not None, source
            directory.live[name] = node
            directory.changes.append(((name, node),))

    def unlink(self, path: str) -> None:
        with self._lock:
            directory, name, node = self._known(path)
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
            directory, name, _ = self._known(path)
            self._step()
            os.rmdir(path)
            del directory.live[name]
            directory.changes.append(((name, None),))

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._step()
            directory = self._directory(path)
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
        """Takes room; what is in the file is nobody's, so it is not a part of the model."""
        with self._lock:
            self._step()
            if self.room_bytes is not None and self.room_bytes < size_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with open(path, "wb") as file:
                file.truncate(size_bytes)
            self._give_back(-size_bytes)

    def free_bytes(self, path: str) -> int:
        return super().free_bytes(path) if self.room_bytes is None else self.room_bytes


def _apply(contents: bytearray, change: _Write | _Truncate) -> None:
    if isinstance(change, _Truncate):
        size_bytes = change.size_bytes
        del contents[size_bytes:]
    else:
        size_bytes = change.position
    if len(contents) < size_bytes:  # a hole reads as zeros
        contents.extend(bytes(size_bytes - len(contents)))
    if isinstance(change, _Write):
        contents[change.position : change.position + len(change.data)] = change.data


def _persist_some(file: _File, random: Random, survival: float) -> None:
    """Any part of the changes reaches the disk; the rest never will."""
    live_bytes = _size_after(len(file.synced), file.changes)
    for change in file.changes:
        if isinstance(change, _Truncate):
            if random.random() < survival:
                _apply(file.synced, change)
            continue
        for sector in _sectors(change):
            if random.random() < survival:
                _apply(file.synced, sector)
    # A file system may note the new length before it has written what stands there.
    if len(file.synced) < live_bytes and random.random() < survival / 2:
        file.synced.extend(bytes(live_bytes - len(file.synced)))
    file.changes.clear()


def _size_after(size_bytes: int, changes: Sequence[_Write | _Truncate]) -> int:
    for change in changes:
        if isinstance(change, _Truncate):
            size_bytes = change.size_bytes
        else:
            size_bytes = max(size_bytes, change.position + len(change.data))
    return size_bytes


def _sectors(write: _Write) -> list[_Write]:
    position, data = write
    parts = []
    while data:
        size_bytes = SECTOR_BYTES - position % SECTOR_BYTES
        parts.append(_Write(position, data[:size_bytes]))
        position, data = position + size_bytes, data[size_bytes:]
    return parts
