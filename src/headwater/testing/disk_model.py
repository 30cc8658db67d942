"""The model of a disk behind `FaultyFiles`: what it surely has, beside the real files.

Each file has its contents as of its last sync and the changes since; each directory has the names
as of its last sync and the changes since. A power cut is decided from these alone.
"""

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512  # what a disk writes whole or not at all

# How much of what was not synced survives a power cut: nothing, some of it, nearly all, all.
_SURVIVAL = (0.0, 0.5, 0.9, 1.0)


class Write(NamedTuple):
    position: int
    data: bytes


class Truncate(NamedTuple):
    size_bytes: int


@dataclass(eq=False, slots=True)
class WritebackErrors:
    """Writeback errors of one file or of the file system, as Linux counts them (lib/errseq.c)."""

    count: int = 0
    is_seen: bool = True

    def add(self) -> None:
        self.count += 1
        self.is_seen = False

    def sample(self) -> int:
        """What a new description starts from: an error that no sync has reported is ahead of it."""
        return self.count if self.is_seen else self.count - 1

    def check(self, since: int) -> bool:
        """Whether there was one since; it counts as seen from now on."""
        if since == self.count:
            return False
        self.is_seen = True
        return True


@dataclass(eq=False, slots=True)
class DiskFile:
    """`synced` is on the disk; `changes` came after it, in order."""

    synced: bytearray
    changes: list[Write | Truncate] = field(default_factory=list)
    errors: WritebackErrors = field(default_factory=WritebackErrors)


@dataclass(eq=False, slots=True)
class Directory:
    """Names that are on the disk, names as the process sees them, and how they came about.

    A change (name, node) binds a name, (name, None) frees it. A rename is both, in one step.
    """

    synced: "dict[str, Node]" = field(default_factory=dict)
    live: "dict[str, Node]" = field(default_factory=dict)
    changes: "list[tuple[tuple[str, Node | None], ...]]" = field(default_factory=list)


Node = DiskFile | Directory


class DiskModel:
    """The tree of files and directories that a test uses, as the disk has it. Not thread-safe."""

    def __init__(self) -> None:
        self._root = Directory()

    def directory(self, path: str) -> Directory:
        directory, at = self._root, "/"
        for name in os.path.abspath(path).split("/")[1:]:
            if not name:
                continue
            at = os.path.join(at, name)
            node = directory.live.get(name)
            if node is None:
                node = directory.live[name] = directory.synced[name] = Directory()
            assert isinstance(node, Directory), at
            directory = node
        return directory

    def entry(self, path: str) -> tuple[Directory, str, Node | None]:
        """(its directory, its name, what is there); loads what the model does not have yet."""
        parent, name = os.path.split(os.path.abspath(path))
        directory = self.directory(parent)
        node = directory.live.get(name)
        if node is None and os.path.lexists(path):
            node = self._loaded(path)
            directory.live[name] = directory.synced[name] = node
        return directory, name, node

    def _loaded(self, path: str) -> Node:
        if not os.path.isdir(path):
            return DiskFile(bytearray(Path(path).read_bytes()))
        directory = Directory()
        for name in os.listdir(path):
            node = self._loaded(os.path.join(path, name))
            directory.live[name] = directory.synced[name] = node
        return directory

    def load_tree(self, path: str) -> None:
        """Loads all that is in a directory, before the directory is moved or removed."""
        for name in os.listdir(path):
            child = os.path.join(path, name)
            self.entry(child)
            if os.path.isdir(child):
                self.load_tree(child)

    def power_cut(self, random: Random) -> None:
        """Leaves in the real directories what the disk has; see `FaultyFiles.power_cut`."""
        survival = random.choice(_SURVIVAL)
        self._restore("/", self._root, random, survival)
        self._root = Directory()

    def _restore(self, path: str, directory: Directory, random: Random, survival: float) -> None:
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

    def _restore_name(self, path: str, node: Node | None, random: Random, survival: float) -> None:
        if isinstance(node, Directory):
            os.makedirs(path, exist_ok=True)
            self._restore(path, node, random, survival)
        elif os.path.isdir(path):
            shutil.rmtree(path)
        elif node is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        else:
            persist_some(node, random, survival)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(node.synced)


def apply(contents: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        size_bytes = change.size_bytes
        del contents[size_bytes:]
    else:
        size_bytes = change.position
    if len(contents) < size_bytes:  # a hole reads as zeros
        contents.extend(bytes(size_bytes - len(contents)))
    if isinstance(change, Write):
        contents[change.position : change.position + len(change.data)] = change.data


def persist_some(file: DiskFile, random: Random, survival: float) -> None:
    """Any part of the changes reaches the disk; the rest never will."""
    live_bytes = _size_after(len(file.synced), file.changes)
    for change in file.changes:
        if isinstance(change, Truncate):
            if random.random() < survival:
                apply(file.synced, change)
            continue
        for sector in _sectors(change):
            if random.random() < survival:
                apply(file.synced, sector)
    # A file system may record the new length before it has written the data there.
    if len(file.synced) < live_bytes and random.random() < survival / 2:
        file.synced.extend(bytes(live_bytes - len(file.synced)))
    file.changes.clear()


def _size_after(size_bytes: int, changes: Sequence[Write | Truncate]) -> int:
    for change in changes:
        if isinstance(change, Truncate):
            size_bytes = change.size_bytes
        else:
            size_bytes = max(size_bytes, change.position + len(change.data))
    return size_bytes


def _sectors(write: Write) -> list[Write]:
    position, data = write
    parts = []
    while data:
        size_bytes = SECTOR_BYTES - position % SECTOR_BYTES
        parts.append(Write(position, data[:size_bytes]))
        position, data = position + size_bytes, data[size_bytes:]
    return parts
