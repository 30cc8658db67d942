"""The log of a detached supervisor: one JSON object per event and log line, bounded by bytes.

    <data_dir>/up.log      the newest lines
    <data_dir>/up.log.1    those before them

When a line would make up.log larger than MAX_BYTES, it replaces up.log.1 and a new one begins.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from headwater.supervisor.log_mux import Merged

FILE_NAME: Final = "up.log"
MAX_BYTES: Final = 8 << 20
_MODE: Final = 0o600
_LAST_BYTES: Final = 64 << 10


def files_of(data_dir: Path) -> list[Path]:
    """Those that are there, the older one first."""
    path = data_dir / FILE_NAME
    return [found for found in (_older(path), path) if found.exists()]


def last_error(data_dir: Path) -> str | None:
    """Why the last detached supervisor has ended, if an error has ended it."""
    try:
        with (data_dir / FILE_NAME).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            event = json.loads(file.read().rstrip(b"\n").rpartition(b"\n")[2])
        parts = (event["error"], event["detail"]) if event["event"] == "error" else ()
    except (OSError, ValueError, TypeError, KeyError):
        return None  # no log, or its last line is no event
    return ": ".join(part for part in parts if part) or None


class LogFile(Merged):
    """Takes whole lines. Standard output and error of this process lead into it, too: that is where
    a traceback of the supervisor itself goes.
    """

    def __init__(self, data_dir: Path, *, max_bytes: int = MAX_BYTES) -> None:
        """Raises OSError."""
        self.path = data_dir / FILE_NAME
        self._max_bytes = max_bytes
        self._open()
        super().__init__(1, is_terminal=False, on_gone=lambda: None)

    def put(self, data: bytes) -> None:
        """A disk that takes no file is no reason to stop: the lines are lost then."""
        try:
            size_bytes = os.fstat(1).st_size
            if size_bytes and size_bytes + len(data) > self._max_bytes:
                with suppress(FileNotFoundError):  # it was removed, or the last `_open` failed
                    self.path.replace(_older(self.path))
                self._open()
            super().put(data)
        except OSError:
            pass

    def _open(self) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")
