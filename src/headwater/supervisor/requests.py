"""Requests to a running supervisor: which of its children to restart, to pause and to resume.

    <data_dir>/up-restart-PID-N.json     {"child": NAME, "action": …}, the Nth of process PID

A request is a file, and then SIGUSR1 to the process that holds the lock.
"""

import itertools
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


RESTART: Final = "restart"
PAUSE: Final = "pause"  # it ends, and is not started again until it is resumed or restarted
RESUME: Final = "resume"
_numbers = itertools.count(1)


def ask(data_dir: Path, child: str, action: str) -> bool:
    """False if no supervisor is at work there. Raises OSError."""
    path = data_dir / f"{_PREFIX}{os.getpid()}-{next(_numbers)}{_SUFFIX}"
    private_files.replace(path, json.dumps({"child": child, "action": action}).encode())
    if lock.send(data_dir, SIGNAL) is None:
        path.unlink(missing_ok=True)
        return False
    return True


def taken(data_dir: Path) -> list[tuple[str, str]]:
    """Children, and what is to be done with them; each request is given once."""
    asked = []
    for path in sorted(data_dir.glob(f"{_PREFIX}*{_SUFFIX}")):
        try:
            request = json.loads(path.read_bytes())
            asked.append((str(request["child"]), str(request["action"])))
            path.unlink()
        except (OSError, ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
    return asked
