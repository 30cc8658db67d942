"""Requests to a running supervisor: which of its children to restart.

    <data_dir>/up-restart-PID.json     {"child": NAME}, written by process PID

A request is a file, and then SIGUSR1 to the process that holds the lock.
"""

import json
import os
import signal
from pathlib import Path
from typing import Final

from headwater import private_files
from headwater.supervisor import lock

SIGNAL: Final = signal.SIGUSR1
_PREFIX: Final = "up-restart-"
_SUFFIX: Final = ".json"


def ask_restart(data_dir: Path, child: str) -> bool:
    """False if no supervisor is at work there. Raises OSError."""
    path = data_dir / f"{_PREFIX}{os.getpid()}{_SUFFIX}"
    private_files.replace(path, json.dumps({"child": child}).encode())
    if lock.send(data_dir, SIGNAL) is None:
        path.unlink(missing_ok=True)
        return False
    return True


def taken(data_dir: Path) -> list[str]:
    """The children that are to be restarted; each request is given once."""
    children = []
    for path in sorted(data_dir.glob(f"{_PREFIX}*{_SUFFIX}")):
        try:
            children.append(str(json.loads(path.read_bytes())["child"]))
            path.unlink()
        except (OSError, ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
    return children
