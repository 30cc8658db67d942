"""Where a follower stands in a file, and how the file is recognised again.

A file's name says nothing after a rotation, and its inode may belong to another file after a
restart. So a position has, beside device and inode, fingerprints of the first bytes of the file and
of the last ones in front of the offset. A file *holds* a position if it is at least as long and
both match; then everything in front of the offset has been read, whatever the file is called.
"""

import hashlib
import os
from dataclasses import dataclass
from typing import Final, Self

import orjson

_HEAD_BYTES: Final = 1024
_TAIL_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class FilePosition:
    """An offset in one file. Nothing is compared at offset 0: then only the inode counts."""

    device: int
    inode: int
    offset: int
    head: str = ""  # fingerprint of the first bytes
    tail: str = ""  # fingerprint of the last ones in front of the offset

    @classmethod
    def at(cls, file: int, offset: int) -> Self:
        """In a file that is open. What stands in front of `offset` is taken as read."""
        status = os.fstat(file)
        return cls(status.st_dev, status.st_ino, offset, *_fingerprints(file, offset))

    def is_held_by(self, file: int) -> bool:
        return os.fstat(file).st_size >= self.offset and (self.head, self.tail) == _fingerprints(
            file, self.offset
        )

    def is_in(self, status: os.stat_result) -> bool:
        """By the inode. Devices get other numbers when a machine starts."""
        return self.inode == status.st_ino


def _fingerprints(file: int, offset: int) -> tuple[str, str]:
    if not offset:
        return "", ""
    head = os.pread(file, min(_HEAD_BYTES, offset), 0)
    start = max(0, offset - _TAIL_BYTES)
    return _digest(head), _digest(os.pread(file, offset - start, start))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def encode(position: FilePosition, path: str, written_ms: int) -> bytes:
    """As it is stored; path and time are for people."""
    return orjson.dumps(
        {
            "path": os.fsencode(path).decode(errors="replace"),
            "device": position.device,
            "inode": position.inode,
            "offset": position.offset,
            "head": position.head,
            "tail": position.tail,
            "written_ms": written_ms,
        }
    )


def decode(stored: bytes) -> FilePosition:
    """Raises ValueError if it is none."""
    fields = orjson.loads(stored)
    try:
        position = FilePosition(
            *(fields[name] for name in ("device", "inode", "offset", "head", "tail"))
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"no position of a file: {error}") from error
    if not all(isinstance(n, int) and n >= 0 for n in (position.inode, position.offset)):
        raise ValueError("no position of a file")
    return position
