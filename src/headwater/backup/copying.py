"""Copies files: as many bytes as asked for, with a checksum; and makes them durable."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_PIECE_BYTES: Final = 1 << 20

OnCopied = Callable[[int], None]  # bytes that were copied since the last call


class Copied(NamedTuple):
    """A file of a backup."""

    path: str  # below the backup
    size_bytes: int
    crc: int


def copy(
    source: Path, target: Path, size_bytes: int | None, on_copied: OnCopied
) -> tuple[int, int]:
    """(size, CRC-32) of what is in `target` now: the first `size_bytes` of `source`, or all of it.
    Not synced yet. Raises OSError, also if there is less.
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    crc, left = 0, size_bytes
    copied = 0
    with source.open("rb") as reader, target.open("xb") as writer:
        os.fchmod(writer.fileno(), 0o600)
        while left is None or left > 0:
            piece = reader.read(_PIECE_BYTES if left is None else min(left, _PIECE_BYTES))
            if not piece:
                break
            writer.write(piece)
            crc = zlib.crc32(piece, crc)
            copied += len(piece)
            left = None if left is None else left - len(piece)
            on_copied(len(piece))
        if left:
            raise OSError(f"{source} has {copied} bytes, not {size_bytes}")
    return copied, crc


def sync_all(root: Path) -> None:
    """Makes everything below it durable. Raises OSError."""
    os.sync()  # thousands of small files one by one would each wait for the disk
    for directory, _, names in os.walk(root):
        for name in names:
            sync(Path(directory, name))  # has nothing to wait for, but reports what went wrong
        sync(Path(directory))


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
