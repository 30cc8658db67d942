"""Runs a command that is asked to end when the process that started it dies.

    python parent_death.py PARENT_PID COMMAND …

A process of its own for a moment, and then the command itself: setting this between fork and exec
in the parent is not safe while that has threads. Run without the package around it.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before that was set
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
