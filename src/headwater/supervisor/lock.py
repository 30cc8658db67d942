"""The lock that allows one supervisor per data directory.

    <data_dir>/up.lock     locked while a supervisor, or what it left behind, runs; has its pid

The lock goes with the open file, which the guard inherits: it is free when the last process of a
supervisor that was killed has ended, not before.
"""

import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headwater.errors import DataDirectoryInUse, HeadwaterError, NotReady
from headwater.log.disk.data_directory import UP_LOCK
from headwater.private_files import is_locked, open_lock

_LOOK_S: Final = 0.05
_QUIET_S: Final = 1.0


class Lock:
    """Held from `take` on, until this process has ended and nothing that it started is left."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def take(
        cls, data_dir: Path, *, wait_s: float, on_wait: Callable[[str], None] = lambda _: None
    ) -> "Lock":
        """Waits for what a supervisor has left behind that was killed, and reports it. Raises
        DataDirectoryInUse if one is at work.
        """
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = open_lock(data_dir / UP_LOCK)
        except OSError as error:
            raise HeadwaterError(
                "the data directory cannot be used",
                detail=f"{data_dir}: {(error.strerror or str(error)).lower()}",
                hint="broker.data_dir names another one; `headwater doctor` looks at it",
            ) from error
        until_s = time.monotonic() + wait_s
        tell_s = time.monotonic() + _QUIET_S
        while not _try(fd):
            pid = _pid_in(fd)
            if pid is not None and _is_alive(pid):
                os.close(fd)
                raise DataDirectoryInUse(
                    "`headwater up` runs already",
                    detail=f"process {pid} supervises {data_dir}",
                    hint="`headwater status` shows what it does; `headwater down` stops it",
                )
            if time.monotonic() > until_s:
                os.close(fd)
                raise NotReady(
                    "an earlier `headwater up` was killed, and its processes have not ended yet",
                    detail=f"they use {data_dir}",
                    hint="try again in a moment",
                )
            if time.monotonic() > tell_s:
                on_wait("an earlier `up` was killed; waiting until its processes have ended")
                tell_s = until_s
            time.sleep(_LOOK_S)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return cls(fd)

    def release(self) -> None:
        os.close(self.fd)


def is_held(data_dir: Path) -> bool:
    """Whether a supervisor (or what a killed one left behind) is at work there."""
    return is_locked(data_dir / UP_LOCK)


def send(data_dir: Path, number: int) -> int | None:
    """Sends a signal to the supervisor that is at work there. Its pid; None if there is none.

    The process has to have the lock's file open: one that was given the pid of a supervisor that
    was killed is left alone. Raises PermissionError if it is another user's.
    """
    path = data_dir / UP_LOCK
    try:
        fd = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        pid = _pid_in(fd) if is_held(data_dir) else None
    finally:
        os.close(fd)
    if pid is None:
        return None
    try:
        process = os.pidfd_open(pid)
    except OSError:  # it was killed; its guard has the lock
        return None
    try:
        if not _has_open(pid, path):
            return None
        signal.pidfd_send_signal(process, number)
    except (FileNotFoundError, ProcessLookupError):
        return None
    finally:
        os.close(process)
    return pid


def _has_open(pid: int, path: Path) -> bool:
    """Raises PermissionError, FileNotFoundError if it has ended."""
    wanted = path.stat()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.path.samestat(entry.stat(), wanted):
                return True
        except OSError:  # closed since
            continue
    return False


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid_in(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Dead, but its parent has not asked yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"
