"""Files that only their owner can open: locks and status files.

A lock is private for its own sake: a user who can open a file, for reading only, can lock it.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_MODE = 0o600


def open_lock(path: str | os.PathLike[str]) -> int:
    """A file descriptor for flock. A file that an earlier version left open to others is closed
    to them.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
    with suppress(PermissionError):  # another user's file, shared with this one
        os.fchmod(fd, _MODE)
    return fd


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock on a file. Does not create it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def replace(path: Path, content: bytes) -> None:
    """Readers find the old content or the new one, whole. Not synced. Raises OSError."""
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)  # with the mode that it was left with
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as file:
        file.write(content)
    temporary.replace(path)
