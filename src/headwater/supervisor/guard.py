"""Ends all children when their supervisor dies, also by SIGKILL.

Every process below a supervisor has its data directory in the environment, and so have the
processes that those start: Spark's JVM, its Python workers (in a process group of their own),
whatever a pipeline's function runs. That is how they are found.

Children are asked to end by the kernel when the supervisor dies (parent_death.py). This file, run
as a process of its own, sees the end of a pipe in that moment, gives them time, and kills what is
left. Meanwhile it holds the supervisor's lock, which it inherited: a new supervisor waits for it.

    python guard.py DATA_DIR GRACE_S     stdin: the pipe

Run without the package around it, so it imports nothing but the standard library.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

MARK: Final = "HEADWATER_UP"  # the data directory
MARK_CHILD: Final = "HEADWATER_UP_CHILD"  # the name of the child
_LOOK_S: Final = 0.05


def marked(data_dir: str, child: str | None = None) -> list[int]:
    """The processes below the supervisor of that directory, or below one child of it. Empty where
    there is no /proc.
    """
    wanted = {f"{MARK}={data_dir}".encode()}
    if child is not None:
        wanted.add(f"{MARK_CHILD}={child}".encode())
    found = []
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    for entry in entries:
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                environment = file.read().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if wanted.issubset(environment):
            found.append(int(entry))
    return found


def end(data_dir: str, child: str | None = None, *, grace_s: float) -> list[int]:
    """Waits until they have ended by themselves, then kills those that have not: returns those."""
    until_s = time.monotonic() + grace_s
    while left := marked(data_dir, child):
        if time.monotonic() >= until_s:
            break
        time.sleep(_LOOK_S)
    killed = left
    while left:  # one that was killed may have started another just before
        send(left, signal.SIGKILL)
        time.sleep(_LOOK_S)
        left = marked(data_dir, child)
    return killed


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main(data_dir: str, grace_s: float) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the supervisor
    while os.read(0, 1024):
        pass
    send(marked(data_dir), signal.SIGTERM)
    end(data_dir, grace_s=grace_s)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
